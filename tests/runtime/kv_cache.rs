//! Caches of keys and values: captured steps over them, what passes launch, and memory.

use super::count_launches;
use marquetry::nn::{KvCache, KvCacheConfig, Rope};
use marquetry::{AttentionConfig, DType, Device, Error, Result, Step, Tensor};

on_each_device! {
    a_step_serves_all_tokens
    a_step_of_halves_serves_all_tokens
    a_step_refuses_other_tokens
    work_before_a_pass_sees_the_cache_as_it_was
    a_pass_is_few_launches
    a_window_keeps_memory_flat
    the_window_of_a_cache_holds_for_its_layers
    forks_that_fail_to_grow_are_as_before
}

const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const FEATURES: usize = 16;

fn causal() -> AttentionConfig {
    AttentionConfig::default().causal(true)
}

/// The queries, keys and values of some tokens, in one tensor as a model packs them.
fn packed(tokens: usize, seed: usize, device: &Device) -> Result<Tensor> {
    let (heads, mut state) = (HEADS + 2 * KV_HEADS, seed as u32 + 1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let numbers: Vec<f32> = (0..tokens * heads * FEATURES).map(|_| next()).collect();
    Tensor::from_vec(numbers, (tokens, heads, FEATURES), device)
}

/// A model without weights: the queries of the second layer are the first layer's attention.
fn model(cache: &KvCache, packed: &Tensor, rope: &Rope) -> Result<Tensor> {
    let part = |first, heads| packed.narrow(1, first, heads);
    let (mut q, k, v) = (part(0, HEADS)?, part(HEADS, KV_HEADS)?, part(HEADS + KV_HEADS, KV_HEADS)?);
    for layer in 0..LAYERS {
        q = cache.attend(layer, [&q, &k, &v], Some(rope), &causal())?;
    }
    Ok(q)
}

fn config() -> KvCacheConfig {
    KvCacheConfig::new(LAYERS, KV_HEADS, FEATURES).length(256).sequences(2)
}

fn captured(cache: &KvCache, tokens: usize, rope: &Rope, device: &Device) -> Result<Step> {
    captured_of(DType::F32, cache, tokens, rope, device)
}

fn captured_of(dtype: DType, cache: &KvCache, tokens: usize, rope: &Rope, device: &Device) -> Result<Step> {
    device.capture(|args| {
        let packed = args.input("packed", (tokens, HEADS + 2 * KV_HEADS, FEATURES), dtype)?;
        Ok([("y", model(cache, &packed, rope)?)])
    })
}

fn a_step_serves_all_tokens(device: &Device) -> Result<()> {
    steps_are_calls(DType::F32, device)
}

/// On GPUs, one kernel appends a token of these to the cache and attends to it.
fn a_step_of_halves_serves_all_tokens(device: &Device) -> Result<()> {
    steps_are_calls(DType::F16, device)
}

/// Steps give what calls give, in another cache, over more tokens than a page has.
fn steps_are_calls(dtype: DType, device: &Device) -> Result<()> {
    let rope = Rope::new(FEATURES, 100.0, 256, device)?;
    let cache = || KvCache::new(&config().dtype(dtype), device);
    let [mut cache, mut other] = [cache()?, cache()?];
    let packed = |tokens, seed| packed(tokens, seed, device)?.to_dtype(dtype);
    let numbers = |x: &Tensor| x.to_dtype(DType::F32)?.flatten_all()?.to_vec::<f32>();
    let prompt = packed(60, 0)?;
    let [sequence, same] = [&mut cache, &mut other].map(KvCache::add);
    for (cache, sequence) in [(&mut cache, sequence), (&mut other, same)] {
        cache.extend(&[(sequence, 60)])?;
        model(cache, &prompt, &rope)?;
    }
    cache.extend(&[(sequence, 1)])?;
    let (step, launches) = count_launches(device, || captured_of(dtype, &cache, 1, &rope, device))?;
    assert_eq!(launches, 0, "a capture writes nothing");
    for token in 0..70 {
        if token > 0 {
            cache.extend(&[(sequence, 1)])?;
        }
        other.extend(&[(same, 1)])?;
        let packed = packed(1, token + 1)?;
        let y = numbers(step.run([("packed", (&packed).into())])?.get("y")?)?;
        assert_eq!(y, numbers(&model(&other, &packed, &rope)?)?, "token {token}");
    }
    assert_eq!(cache.length(sequence)?, 130);
    // The step may go on after a rewind, and for another sequence.
    let fork = cache.fork(sequence)?;
    cache.rewind(fork, 100)?;
    other.rewind(same, 100)?;
    cache.extend(&[(fork, 1)])?;
    other.extend(&[(same, 1)])?;
    let packed = packed(1, 200)?;
    let y = numbers(step.run([("packed", (&packed).into())])?.get("y")?)?;
    assert_eq!(y, numbers(&model(&other, &packed, &rope)?)?);
    Ok(())
}

fn a_step_refuses_other_tokens(device: &Device) -> Result<()> {
    let rope = Rope::new(FEATURES, 100.0, 256, device)?;
    let mut cache = KvCache::new(&config(), device)?;
    let sequences = [cache.add(), cache.add()];
    cache.extend(&[(sequences[0], 1), (sequences[1], 1)])?;
    let step = captured(&cache, 2, &rope, device)?;
    let packed = packed(2, 0, device)?;
    let run = || step.run([("packed", (&packed).into())]).map(drop);
    let refused = |result: Result<()>, part: &str| match result {
        Err(Error::InvalidArgument { op: "run", message }) => assert!(message.contains(part), "{message}"),
        other => panic!("{other:?}"),
    };
    run()?;
    refused(run(), "call `extend` before each run");
    cache.extend(&[(sequences[0], 2)])?;
    refused(run(), "2 x 1 (sequences x tokens), not 1 x 2");
    cache.extend(&[(sequences[1], 1), (sequences[0], 1)])?;
    run()?;
    let mut inside = Ok(());
    let extended = device.capture(|_| {
        inside = cache.extend(&[(sequences[0], 1)]);
        Ok([("x", Tensor::ones(1, DType::F32, device)?)])
    });
    extended?;
    assert!(matches!(inside, Err(Error::InvalidArgument { op: "extend", .. })), "{inside:?}");
    Ok(())
}

/// A result that nobody has read yet does not see what a later pass writes.
fn work_before_a_pass_sees_the_cache_as_it_was(device: &Device) -> Result<()> {
    let rope = Rope::new(FEATURES, 100.0, 256, device)?;
    let mut cache = KvCache::new(&config(), device)?;
    let sequence = cache.add();
    let mut pass = |tokens: usize, seed: usize| -> Result<Tensor> {
        cache.extend(&[(sequence, tokens)])?;
        let y = model(&cache, &packed(tokens, seed, device)?, &rope)?;
        // The next pass writes other rows to the same places.
        cache.rewind(sequence, 0)?;
        Ok(y)
    };
    let first = pass(5, 1)?;
    let wanted = first.flatten_all()?.to_vec::<f32>()?;
    let [again, _, third] = [pass(5, 1)?, pass(9, 2)?, pass(5, 3)?];
    assert_eq!(again.flatten_all()?.to_vec::<f32>()?, wanted);
    assert_ne!(third.flatten_all()?.to_vec::<f32>()?, wanted);
    Ok(())
}

fn a_pass_is_few_launches(device: &Device) -> Result<()> {
    let rope = Rope::new(FEATURES, 100.0, 256, device)?;
    let mut cache = KvCache::new(&config(), device)?;
    let [first, second] = [cache.add(), cache.add()];
    let prompt = packed(4, 1, device)?;
    let (_, launches) = count_launches(device, || cache.extend(&[(first, 2), (second, 2)]))?;
    assert_eq!(launches, 1, "the lengths, and pages behind them");
    let (_, launches) = count_launches(device, || model(&cache, &prompt, &rope))?;
    assert_eq!(launches, 2 * LAYERS as u64, "a write and an attention for each layer");
    let (_, launches) = count_launches(device, || cache.extend(&[(first, 1), (second, 1)]))?;
    assert_eq!(launches, 1, "the lengths");
    let mut cache = KvCache::new(&config().dtype(DType::F16), device)?;
    let (sequence, token) = (cache.add(), packed(1, 2, device)?.to_dtype(DType::F16)?);
    token.realize()?;
    cache.extend(&[(sequence, 1)])?;
    let (_, launches) = count_launches(device, || model(&cache, &token, &rope))?;
    // `RUN=hopper-cache` sets this.
    let is_gpu = std::env::var("MARQUETRY_TUNING").is_ok_and(|tuning| tuning == "nvidia-hopper");
    match device.info().features.memory_model && is_gpu {
        true => assert_eq!(launches, LAYERS as u64, "one kernel for each layer"),
        false => assert!([LAYERS, 2 * LAYERS].contains(&(launches as usize)), "{launches}"),
    }
    Ok(())
}

fn a_window_keeps_memory_flat(device: &Device) -> Result<()> {
    const TOKENS: usize = 2000;
    let rope = Rope::new(FEATURES, 100.0, TOKENS, device)?;
    // Three pages: the window begins within the first one, and the newest token is in the last one.
    let config = KvCacheConfig::new(LAYERS, KV_HEADS, FEATURES).length(TOKENS).tokens(192).window(100);
    let mut cache = KvCache::new(&config, device)?;
    let sequence = cache.add();
    cache.extend(&[(sequence, 1)])?;
    let step = captured(&cache, 1, &rope, device)?;
    let token = packed(1, 0, device)?;
    let mut reserved = 0;
    for place in 0..TOKENS {
        if place > 0 {
            cache.extend(&[(sequence, 1)])?;
        }
        step.run([("packed", (&token).into())])?;
        if place == 200 {
            reserved = device.memory_stats().reserved;
        }
    }
    device.synchronize()?;
    assert_eq!((cache.length(sequence)?, device.memory_stats().reserved), (TOKENS, reserved));
    let full = cache.extend(&[(sequence, 1)]);
    assert!(matches!(full, Err(Error::InvalidArgument { op: "extend", .. })), "{full:?}");
    Ok(())
}

/// Pages before the window are not read, even if a layer has no window: they may be of others, or of nobody.
fn the_window_of_a_cache_holds_for_its_layers(device: &Device) -> Result<()> {
    let config = config().length(600).window(64);
    let rope = Rope::new(FEATURES, 100.0, 600, device)?;
    let mut cache = KvCache::new(&config, device)?;
    let [long, short] = [cache.add(), cache.add()];
    for chunk in 0..5 {
        cache.extend(&[(long, 100)])?;
        model(&cache, &packed(100, chunk, device)?, &rope)?;
    }
    // The long sequence gets another place in the table, which never had its first pages.
    cache.extend(&[(short, 1), (long, 1)])?;
    let packed = packed(2, 9, device)?;
    let part = |first, heads| packed.narrow(1, first, heads);
    let (q, k, v) = (part(0, HEADS)?, part(HEADS, KV_HEADS)?, part(HEADS + KV_HEADS, KV_HEADS)?);
    let [all, within] = [causal(), causal().sliding_window(64)].map(|config| -> Result<Vec<f32>> {
        cache.attend(0, [&q, &k, &v], Some(&rope), &config)?.flatten_all()?.to_vec()
    });
    assert_eq!(all?, within?);
    Ok(())
}

fn forks_that_fail_to_grow_are_as_before(device: &Device) -> Result<()> {
    // A page takes 4 MiB in each layer.
    let config = KvCacheConfig::new(LAYERS, 32, 256).length(128).sequences(2);
    let mut cache = KvCache::new(&config, device)?;
    let first = cache.add();
    let operand = |tokens: usize, number: f32| Tensor::full(number, (tokens, 32, 256), device);
    cache.extend(&[(first, 10)])?;
    let zeros = operand(10, 0.0)?;
    cache.attend(1, [&zeros, &zeros, &zeros], None, &causal())?;
    let fork = cache.fork(first)?;
    let free = cache.free_tokens();
    device.trim()?;
    device.set_memory_limit(Some(device.memory_stats().in_use));
    let failed = cache.extend(&[(fork, 1)]);
    device.set_memory_limit(None);
    assert!(matches!(failed, Err(Error::OutOfMemory { .. })), "{failed:?}");
    assert_eq!((cache.length(fork)?, cache.free_tokens()), (10, free));
    let x = operand(1, 1.0)?;
    let unannounced = cache.attend(0, [&x, &x, &x], None, &causal());
    assert!(matches!(unannounced, Err(Error::InvalidArgument { op: "attend", .. })), "{unannounced:?}");
    // With queries of zeros, all eleven keys weigh the same.
    for sequence in [fork, first] {
        cache.extend(&[(sequence, 1)])?;
        let (zeros, ones) = (operand(1, 0.0)?, operand(1, 1.0)?);
        let y = cache.attend(1, [&zeros, &zeros, &ones], None, &causal())?;
        assert!((y.max_all()?.to_scalar::<f32>()? - 1.0 / 11.0).abs() < 1e-6);
    }
    Ok(())
}
