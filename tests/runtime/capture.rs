//! Captured steps: they run as the closure would, on inputs of their own, and cost the host little.

use super::count_launches;
use marquetry::{BackendKind, BlockFormat, DType, Device, Error, QuantizedTensor, Result, Step, Tensor};

on_each_device! {
    a_step_runs_on_the_inputs_of_each_run
    numbers_may_come_from_the_host_or_the_device
    all_dtypes_can_be_inputs
    more_scalars_than_a_block_of_them
    outputs_of_queued_runs_are_kept_apart
    runs_keep_their_place_among_other_work
    a_token_goes_from_run_to_run_on_the_device
    states_go_from_run_to_run
    states_may_change_places
    what_comes_from_outside_stays_as_it_was
    pending_tensors_from_outside_are_computed_once
    what_a_step_uses_is_not_lent_to_others
    random_numbers_advance
    a_cache_is_filled_run_by_run
    a_step_may_be_dropped_while_it_runs
    long_steps_are_cut
    a_run_is_few_submissions_and_allocates_nothing
    independent_kernels_share_no_barrier
    every_command_of_a_run_is_profiled
    runs_are_explained
    threads_share_a_step
    warming_up_compiles_what_the_work_needs
    what_cannot_be_captured_is_an_error
    mistakes_in_arguments_are_errors
    what_is_made_in_a_capture_stays_there
    a_capture_that_fails_leaves_nothing_behind
}

fn tensor(device: &Device, numbers: &[f32]) -> Result<Tensor> {
    Tensor::from_slice(numbers, numbers.len(), device)
}

/// The elements of an output after a run with the input `x`.
fn run(step: &Step, x: &Tensor, output: &str) -> Result<Vec<f32>> {
    step.run([("x", x.into())])?.get(output)?.to_vec()
}

fn a_step_runs_on_the_inputs_of_each_run(device: &Device) -> Result<()> {
    let weight = Tensor::from_slice(&[0f32, 1.0, 2.0, 3.0, 4.0, 5.0], (2, 3), device)?;
    let model = |x: &Tensor| -> Result<Tensor> {
        let y = x.matmul(&weight)?.add(1.0)?.relu()?;
        y.sub(&y.max_keepdim(-1)?)?.exp()?.sum(-1)
    };
    let (step, launches) = count_launches(device, || {
        device.capture(|args| {
            let x = args.input("x", (4, 2), DType::F32)?;
            Ok([("y", model(&x)?), ("twice", (&x * 2.0)?), ("same", x)])
        })
    })?;
    assert_eq!(launches, 0, "nothing runs yet");
    for seed in 0..3 {
        let numbers: Vec<f32> = (0..8).map(|i| ((i * 7 + seed * 5) % 11) as f32 - 4.0).collect();
        let x = Tensor::from_slice(&numbers, (4, 2), device)?;
        // A view, and an expression.
        for x in [x.clone(), x.t()?.contiguous()?.t()?, (&x + 0.0)?] {
            let outputs = step.run([("x", (&x).into())])?;
            assert_eq!(outputs.get("y")?.to_vec::<f32>()?, model(&x)?.to_vec::<f32>()?);
            let doubled: Vec<f32> = numbers.iter().map(|number| 2.0 * number).collect();
            assert_eq!(outputs.get("twice")?.to_vec::<f32>()?, doubled);
            assert_eq!(
                (outputs.get("same")?.dims(), outputs.get("same")?.to_vec::<f32>()?),
                (&[4, 2][..], numbers.clone())
            );
            assert_eq!(outputs.into_tensors().len(), 3);
        }
    }
    Ok(())
}

fn numbers_may_come_from_the_host_or_the_device(device: &Device) -> Result<()> {
    let step = device.capture(|args| {
        let x = args.input("x", 3, DType::F32)?;
        let scale = args.input("scale", (), DType::F32)?;
        let place = args.input("place", (), DType::U32)?;
        let picked = x.index_select(&place.reshape(1)?, 0)?;
        Ok([("y", x.mul(&scale)?.add(&picked)?)])
    })?;
    let x = tensor(device, &[1.0, 2.0, 4.0])?;
    let scale = tensor(device, &[0.5, -3.0])?;
    for place in 0..3u32 {
        let picked = [1.0, 2.0, 4.0][place as usize];
        let y = step.run([("place", place.into()), ("scale", 10.into()), ("x", (&x).into())])?;
        assert_eq!(y.get("y")?.to_vec::<f32>()?, [10.0, 20.0, 40.0].map(|y| y + picked));
        let [scale, place] =
            [scale.narrow(0, 1, 1)?.squeeze(0)?, Tensor::new([9, 9, place], device)?.narrow(0, 2, 1)?.squeeze(0)?];
        let y = step.run([("x", (&x).into()), ("scale", (&scale).into()), ("place", (&place).into())])?;
        assert_eq!(y.get("y")?.to_vec::<f32>()?, [-3.0, -6.0, -12.0].map(|y| y + picked));
    }
    Ok(())
}

fn all_dtypes_can_be_inputs(device: &Device) -> Result<()> {
    for dtype in DType::ALL {
        let capture = device.capture(|args| {
            let (x, number) = (args.input("x", 5, dtype)?, args.input("number", (), dtype)?);
            let first = args.input("first", (), dtype)?;
            Ok([("x", x), ("number", number), ("first", first)])
        });
        let step = capture?;
        let x = Tensor::new([1u8, 0, 1, 1, 0], device)?.to_dtype(dtype)?;
        let first = x.narrow(0, 2, 1)?.squeeze(0)?;
        let outputs = step.run([("x", (&x).into()), ("number", 1.into()), ("first", (&first).into())])?;
        let read = |name: &str| outputs.get(name)?.to_dtype(DType::F32)?.to_vec::<f32>();
        assert_eq!(
            (read("x")?, read("number")?, read("first")?),
            (vec![1.0, 0.0, 1.0, 1.0, 0.0], vec![1.0], vec![1.0]),
            "{dtype}"
        );
    }
    // Numbers with all their bits.
    let step = device.capture(|args| {
        let [a, b, c] =
            [("a", DType::I64), ("b", DType::F16), ("c", DType::I8)].map(|(name, dtype)| args.input(name, (), dtype));
        Ok([("a", a?), ("b", b?), ("c", c?)])
    })?;
    let outputs = step.run([("a", (-5_000_000_000i64).into()), ("b", (-1.5).into()), ("c", (-7).into())])?;
    assert_eq!(outputs.get("a")?.to_vec::<i64>()?, [-5_000_000_000]);
    assert_eq!(outputs.get("b")?.to_dtype(DType::F32)?.to_vec::<f32>()?, [-1.5]);
    assert_eq!(outputs.get("c")?.to_vec::<i8>()?, [-7]);
    Ok(())
}

fn more_scalars_than_a_block_of_them(device: &Device) -> Result<()> {
    const COUNT: u32 = 150;
    let names: Vec<String> = (0..COUNT).map(|i| format!("x{i}")).collect();
    let step = device.capture(|args| {
        let inputs = names.iter().map(|name| args.input(name, (), DType::U32)).collect::<Result<Vec<_>>>()?;
        Ok([("all", Tensor::stack(&inputs, 0)?)])
    })?;
    let seven = Tensor::new(7u32, device)?;
    let value = |i: u32| if i % 50 == 49 { (&seven).into() } else { (1000 + i).into() };
    let outputs = step.run((0..COUNT).map(|i| (names[i as usize].as_str(), value(i))))?;
    let expected: Vec<u32> = (0..COUNT).map(|i| if i % 50 == 49 { 7 } else { 1000 + i }).collect();
    assert_eq!(outputs.get("all")?.to_vec::<u32>()?, expected);
    Ok(())
}

fn outputs_of_queued_runs_are_kept_apart(device: &Device) -> Result<()> {
    let table = Tensor::arange(0f32, 64.0, device)?;
    table.realize()?;
    let step = device.capture(|args| {
        let position = args.input("position", (), DType::U32)?;
        Ok([("y", (table.index_select(&position.reshape(1)?, 0)? * 2.0)?)])
    })?;
    let before = device.stats().waits;
    let outputs = (0..32).map(|position| step.run([("position", position.into())])).collect::<Result<Vec<_>>>()?;
    assert_eq!(device.stats().waits, before, "all are queued");
    for (position, outputs) in outputs.iter().enumerate() {
        assert_eq!(outputs.get("y")?.to_vec::<f32>()?, [2.0 * position as f32]);
    }
    Ok(())
}

fn runs_keep_their_place_among_other_work(device: &Device) -> Result<()> {
    let step = device.capture(|args| {
        let x = args.input("x", 1000, DType::F32)?;
        Ok([("y", (x.sqr()? + 1.0)?)])
    })?;
    let mut x = Tensor::full(1f32, 1000, device)?;
    for i in 0..10 {
        // Written in place, read by the run, and written with what the run returns.
        x = x.slice_assign(.., &Tensor::full(i as f32 / 8.0, 1000, device)?)?;
        let y = step.run([("x", (&x).into())])?.into_tensors().remove(0);
        x = x.slice_assign(.., &Tensor::zeros(1000, DType::F32, device)?)?;
        let sum = if i == 0 { (&y + 1.0)? } else { y };
        let again = step.run([("x", (&x).into())])?.into_tensors().remove(0);
        assert_eq!(again.to_vec::<f32>()?, [1.0; 1000]);
        assert_eq!(sum.to_vec::<f32>()?, [(i as f32 / 8.0).powi(2) + if i == 0 { 2.0 } else { 1.0 }; 1000]);
    }
    Ok(())
}

fn a_token_goes_from_run_to_run_on_the_device(device: &Device) -> Result<()> {
    // The next token is what the table has for this one, without a readback.
    let table = Tensor::from_slice(&[3u32, 5, 1, 2, 0, 4], 6, device)?;
    let step = device.capture(|args| {
        let token = args.input("token", (), DType::U32)?;
        Ok([("token", table.index_select(&token.reshape(1)?, 0)?.squeeze(0)?)])
    })?;
    let mut token = Tensor::new(0u32, device)?;
    let (mut tokens, waits) = (Vec::new(), device.stats().waits);
    for _ in 0..6 {
        token = step.run([("token", (&token).into())])?.into_tensors().remove(0);
        tokens.push(token.clone());
    }
    assert_eq!(device.stats().waits, waits);
    let tokens = tokens.iter().map(Tensor::to_scalar::<u32>).collect::<Result<Vec<_>>>()?;
    assert_eq!(tokens, [3, 2, 1, 5, 4, 0]);
    Ok(())
}

fn states_go_from_run_to_run(device: &Device) -> Result<()> {
    let initial = Tensor::zeros((4, 2), DType::F32, device)?;
    let (step, launches) = count_launches(device, || {
        device.capture(|args| {
            let x = args.input("x", (1, 2), DType::F32)?;
            let cache = args.state("cache", &initial)?;
            let count = args.state("count", &Tensor::new(10i32, device)?)?;
            // In place, and through another tensor.
            let cache = cache.slice_assign(2..3, &x)?;
            let count = count.add(1)?;
            args.update("cache", cache.clone())?;
            args.update("count", count.clone())?;
            Ok([("sum", cache.sum(0)?), ("count", count)])
        })
    })?;
    assert_eq!(launches, 3, "zeros, and two states");
    for i in 0..3 {
        let x = Tensor::new([[i as f32, 1.0]], device)?;
        let (outputs, launches) = count_launches(device, || step.run([("x", (&x).into())]))?;
        assert_eq!(outputs.get("sum")?.to_vec::<f32>()?, [i as f32, 1.0]);
        assert_eq!(outputs.get("count")?.to_vec::<i32>()?, [11 + i]);
        let expected = [0.0, 0.0, 0.0, 0.0, i as f32, 1.0, 0.0, 0.0];
        assert_eq!(step.state("cache")?.to_vec::<f32>()?, expected);
        assert_eq!(launches, 7, "the input, a row, a sum, the count twice, and two outputs");
    }
    assert_eq!(initial.to_vec::<f32>()?, [0.0; 8], "a state begins with a copy");
    let held = step.state("count")?;
    step.set_state("count", &Tensor::new(-5i32, device)?)?;
    let x = Tensor::zeros((1, 2), DType::F32, device)?;
    let outputs = step.run([("x", (&x).into())])?;
    assert_eq!((outputs.get("count")?.to_scalar::<i32>()?, held.to_scalar::<i32>()?), (-4, 13));
    Ok(())
}

fn states_may_change_places(device: &Device) -> Result<()> {
    let step = device.capture(|args| {
        let a = args.state("a", &tensor(device, &[1.0, 2.0])?)?;
        let b = args.state("b", &tensor(device, &[3.0, 4.0])?)?;
        args.update("a", b.clone())?;
        args.update("b", a.clone())?;
        Ok([("a", a.clone()), ("b", b.flip(0)?), ("sum", a.add(&b)?)])
    })?;
    for i in 0..3 {
        let (a, b) = if i % 2 == 0 { ([1.0, 2.0], [3.0, 4.0]) } else { ([3.0, 4.0], [1.0, 2.0]) };
        let outputs = step.run([])?;
        assert_eq!(outputs.get("a")?.to_vec::<f32>()?, a, "the value before the update");
        assert_eq!(outputs.get("b")?.to_vec::<f32>()?, [b[1], b[0]]);
        assert_eq!(outputs.get("sum")?.to_vec::<f32>()?, [4.0, 6.0]);
        assert_eq!(step.state("a")?.to_vec::<f32>()?, b);
    }
    Ok(())
}

fn what_comes_from_outside_stays_as_it_was(device: &Device) -> Result<()> {
    let mut outside = tensor(device, &[1.0, 2.0])?;
    let step = device.capture(|args| {
        let x = args.input("x", 2, DType::F32)?;
        // Inputs and constants are not changed in place, whoever holds them.
        let constant = tensor(device, &[4.0, 5.0])?;
        let more = constant.narrow(0, 0, 1)?.add(&x.narrow(0, 0, 1)?)?;
        let constant = constant.slice_assign(0..1, &more)?;
        let y = x.add(&outside)?.add(&constant)?;
        let x = x.slice_assign(1..2, &tensor(device, &[100.0])?)?;
        Ok([("y", y), ("x", x)])
    })?;
    let x = tensor(device, &[10.0, 20.0])?;
    for _ in 0..2 {
        let outputs = step.run([("x", (&x).into())])?;
        assert_eq!(outputs.get("y")?.to_vec::<f32>()?, [25.0, 27.0]);
        assert_eq!(outputs.get("x")?.to_vec::<f32>()?, [10.0, 100.0]);
        // The step keeps the elements that it was captured with.
        outside = outside.slice_assign(.., &tensor(device, &[-1.0, -1.0])?)?;
    }
    assert_eq!((outside.to_vec::<f32>()?, x.to_vec::<f32>()?), (vec![-1.0; 2], vec![10.0, 20.0]));
    Ok(())
}

fn pending_tensors_from_outside_are_computed_once(device: &Device) -> Result<()> {
    let base = Tensor::arange(0f32, 4.0, device)?;
    base.realize()?;
    let scaled = (&base * 3.0)?;
    let deeper = (&scaled + 1.0)?.sqr()?;
    let product = base.reshape((1, 4))?.matmul(&base.reshape((4, 1))?)?;
    let (step, launches) = count_launches(device, || {
        device.capture(|args| {
            let x = args.input("x", 4, DType::F32)?;
            let y = (x.add(&scaled)?.add(&deeper)? * 2.0)?.add(&product.squeeze(0)?)?;
            Ok([("y", y.clone()), ("sum", y.add(&scaled)?.sum_keepdim(0)?)])
        })
    })?;
    assert!(launches >= 3, "what is from outside runs now, got {launches}");
    let x = tensor(device, &[1.0, 1.0, 1.0, 1.0])?;
    let expected: Vec<f32> =
        (0..4).map(|i| i as f32).map(|i| (1.0 + 3.0 * i + (3.0 * i + 1.0).powi(2)) * 2.0 + 14.0).collect();
    assert_eq!(run(&step, &x, "y")?, expected);
    assert_eq!(run(&step, &x, "sum")?, [expected.iter().sum::<f32>() + 18.0]);
    // They are as they would be without the capture.
    let (_, launches) = count_launches(device, || product.realize().and_then(|()| deeper.realize()))?;
    assert_eq!(launches, 0);
    assert_eq!(scaled.to_vec::<f32>()?, [0.0, 3.0, 6.0, 9.0]);
    assert_eq!(product.to_vec::<f32>()?, [14.0]);
    Ok(())
}

fn what_a_step_uses_is_not_lent_to_others(device: &Device) -> Result<()> {
    let step = {
        // Computed, as the others will be: uploads may be in other memory.
        let weight = (tensor(device, &[3.0; 300])? + 4.0)?;
        weight.realize()?;
        device.capture(|args| {
            let x = args.input("x", 300, DType::F32)?;
            let upload = tensor(device, &[2.0; 300])?;
            let y = x.mul(&weight)?.sum_keepdim(0)?;
            Ok([("y", y.mul(&upload)?)])
        })?
    };
    // The pool would lend the weight's memory now.
    let others = (0..8).map(|i| Tensor::full(i as f32, 300, device)).collect::<Result<Vec<_>>>()?;
    others.iter().try_for_each(Tensor::realize)?;
    let x = tensor(device, &[1.0; 300])?;
    assert_eq!(run(&step, &x, "y")?, [4200.0; 300]);
    assert_eq!(others[3].to_vec::<f32>()?, [3.0; 300]);
    let (held, output) = (device.memory_stats(), step.run([("x", (&x).into())])?);
    let bytes = output.get("y")?.elem_count() as u64 * 4;
    assert!(held.peak >= held.in_use);
    device.synchronize()?;
    drop(step);
    // The new output is held. It does not keep the weight, the constant, and the input.
    let freed = held.in_use + bytes - device.memory_stats().in_use;
    assert!(freed >= 3 * bytes, "{freed} bytes are given back");
    Ok(())
}

fn random_numbers_advance(device: &Device) -> Result<()> {
    let draw = || -> Result<[Tensor; 4]> {
        let logits = Tensor::zeros((2, 50), DType::F32, device)?;
        Ok([
            Tensor::rand(0f32, 1.0, 7, device)?,
            Tensor::randn(1f32, 2.0, (3, 3), device)?.to_dtype(DType::F32)?,
            logits.sample_top_k(50, 1.0)?.to_dtype(DType::F32)?,
            logits.sample_top_k(5, 1.0)?.to_dtype(DType::F32)?,
        ])
    };
    let step = device.capture(|_| Ok(["a", "b", "c", "d"].into_iter().zip(draw()?)))?;
    let read = |tensors: &[Tensor]| tensors.iter().map(Tensor::to_vec::<f32>).collect::<Result<Vec<_>>>();
    let seed = 0x1234_5678_9abc_def0;
    device.set_seed(seed);
    let expected = (0..3).map(|_| read(&draw()?)).collect::<Result<Vec<_>>>()?;
    assert_ne!(expected[0], expected[1]);
    device.set_seed(seed);
    let runs = (0..3).map(|_| Ok(step.run([])?.into_tensors())).collect::<Result<Vec<_>>>()?;
    let found = runs.iter().map(|tensors| read(tensors)).collect::<Result<Vec<_>>>()?;
    assert_eq!(found, expected, "as without the capture");
    // The sequence goes on after the runs.
    device.set_seed(seed);
    step.run([])?;
    assert_eq!(read(&draw()?)?, expected[1]);
    Ok(())
}

/// A step of a language model in small: it writes its keys and values at a position, and attends to all before.
fn a_cache_is_filled_run_by_run(device: &Device) -> Result<()> {
    const CAPACITY: usize = 32;
    let weight = |seed: usize| {
        let numbers: Vec<f32> = (0..64).map(|i| ((i * 5 + seed * 3) % 13) as f32 / 16.0 - 0.375).collect();
        Tensor::from_slice(&numbers, (8, 8), device)
    };
    let weights = [weight(1)?, weight(2)?, weight(3)?];
    let attend = |x: &Tensor, position: &Tensor, caches: [Tensor; 2]| -> Result<(Tensor, [Tensor; 2])> {
        let [q, k, v] = [0, 1, 2].map(|i| x.matmul(&weights[i]));
        let rows = position.reshape((1, 1))?.broadcast_to((1, 8))?;
        let [keys, values] = caches;
        let (keys, values) = (keys.scatter(&rows, &k?, 0)?, values.scatter(&rows, &v?, 0)?);
        let visible = Tensor::arange(0u32, CAPACITY as u32, device)?.le(position)?;
        let scores = q?.matmul(&keys.t()?)?;
        let hidden = visible.logical_not()?.unsqueeze(0)?;
        let y = scores.masked_fill(&hidden, f32::NEG_INFINITY)?.softmax(-1)?.matmul(&values)?;
        y.realize()?;
        Ok((y, [keys, values]))
    };
    let empty = || Tensor::zeros((CAPACITY, 8), DType::F32, device);
    let initial = [empty()?, empty()?];
    let step = device.capture(|args| {
        let (x, position) = (args.input("x", (1, 8), DType::F32)?, args.input("position", (), DType::U32)?);
        let caches = [args.state("keys", &initial[0])?, args.state("values", &initial[1])?];
        let (y, [keys, values]) = attend(&x, &position, caches)?;
        args.update("keys", keys)?;
        args.update("values", values)?;
        Ok([("y", y)])
    })?;
    let token = |i: usize| {
        let numbers: Vec<f32> = (0..8).map(|j| ((i * 3 + j) % 7) as f32 / 4.0).collect();
        Tensor::from_slice(&numbers, (1, 8), device)
    };
    let waits = device.stats().waits;
    let runs = (0..CAPACITY).map(|i| step.run([("x", (&token(i)?).into()), ("position", i.into())]));
    let runs = runs.collect::<Result<Vec<_>>>()?;
    assert_eq!(device.stats().waits, waits, "all are queued");
    let mut caches = [empty()?, empty()?];
    for (i, run) in runs.iter().enumerate() {
        let (y, now) = attend(&token(i)?, &Tensor::new(i as u32, device)?, caches)?;
        assert_eq!(run.get("y")?.to_vec::<f32>()?, y.to_vec::<f32>()?, "token {i}");
        caches = now;
    }
    assert_eq!(step.state("keys")?.to_vec::<f32>()?, caches[0].to_vec::<f32>()?);
    Ok(())
}

fn a_step_may_be_dropped_while_it_runs(device: &Device) -> Result<()> {
    let outputs = {
        let step = device.capture(|args| {
            let mut x = args.input("x", 100_000, DType::F32)?;
            for _ in 0..50 {
                x = x.add(1.0)?;
                x.realize()?;
            }
            Ok([("x", x)])
        })?;
        let mut x = Tensor::zeros(100_000, DType::F32, device)?;
        for _ in 0..5 {
            x = step.run([("x", (&x).into())])?.into_tensors().remove(0);
        }
        x
    };
    assert_eq!(outputs.to_vec::<f32>()?, [250.0; 100_000]);
    Ok(())
}

/// Whether the commands of a step are encoded for each run, in batches.
fn is_encoded_anew(device: &Device) -> bool {
    device.info().backend == BackendKind::WebGpu
}

/// A step whose kernels may take long is cut into several submissions.
fn long_steps_are_cut(device: &Device) -> Result<()> {
    const LENGTH: usize = 1 << 22;
    let x = Tensor::zeros(LENGTH, DType::F32, device)?;
    x.realize()?;
    // Returns the submissions of a run.
    let run = |kernels: usize| -> Result<u64> {
        let step = device.capture(|args| {
            let mut x = args.input("x", LENGTH, DType::F32)?;
            for _ in 0..kernels {
                x = x.add(1.0)?;
                x.realize()?;
            }
            Ok([("x", x)])
        })?;
        device.synchronize()?;
        let before = device.stats();
        let y = step.run([("x", (&x).into())])?.into_tensors().remove(0);
        assert!(device.stats().launches - before.launches >= kernels as u64);
        assert_eq!(y.narrow(0, LENGTH - 3, 3)?.to_vec::<f32>()?, [kernels as f32; 3]);
        Ok(device.stats().submissions - before.submissions)
    };
    // 32 MB each. At 10 bytes per nanosecond, 24 of them take 81 ms.
    let is_fast = ["NVIDIA", "AMD", "Apple"].contains(&&*device.info().vendor);
    let expected = if is_encoded_anew(device) { 1..=2 } else { u64::from(!is_fast)..=u64::from(!is_fast) };
    let more = run(48)? - run(24)?;
    assert!(expected.contains(&more), "{more} submissions more, not {expected:?}");
    Ok(())
}

fn a_run_is_few_submissions_and_allocates_nothing(device: &Device) -> Result<()> {
    let step = device.capture(|args| {
        let mut x = args.input("x", 32, DType::F32)?;
        let scale = args.input("scale", (), DType::F32)?;
        for _ in 0..200 {
            x = x.mul(&scale)?;
            x.realize()?;
        }
        Ok([("x", x)])
    })?;
    let x = tensor(device, &[3.0; 32])?;
    let run = || step.run([("x", (&x).into()), ("scale", (-1).into())])?.get("x")?.to_vec::<f32>();
    run()?;
    let (before, held) = (device.stats(), device.memory_stats());
    for _ in 0..5 {
        assert_eq!(run()?, [3.0; 32]);
    }
    let after = device.stats();
    assert_eq!(after.launches - before.launches, 5 * (200 + 3), "the number, the input and the output");
    let submissions = after.submissions - before.submissions;
    // The last one is the read.
    let most = if is_encoded_anew(device) { 40 } else { 10 };
    assert!((5..=most).contains(&submissions), "{submissions} submissions");
    assert_eq!(after.waits - before.waits, 5);
    assert_eq!(after.compiles, before.compiles);
    let now = device.memory_stats();
    assert_eq!((now.in_use, now.cached), (held.in_use, held.cached));
    Ok(())
}

/// Barriers stand where a kernel needs a result of another one, and nowhere else.
fn independent_kernels_share_no_barrier(device: &Device) -> Result<()> {
    const KERNELS: u64 = 12;
    let x = tensor(device, &[1.0; 32])?;
    x.realize()?;
    let add = |x: &Tensor, i: u64| {
        let y = x.add(i)?;
        y.realize()?;
        Ok(y)
    };
    let side_by_side = |x: &Tensor| (0..KERNELS).map(|i| add(x, i)).collect::<Result<Vec<_>>>();
    let in_a_row = |x: &Tensor| (0..KERNELS).try_fold(x.clone(), |x, i| add(&x, i)).map(|y| vec![y]);
    let barriers = |work: &dyn Fn() -> Result<Vec<Tensor>>| -> Result<(u64, Vec<Tensor>)> {
        device.synchronize()?;
        let before = device.stats().barriers;
        let results = work()?;
        Ok((device.stats().barriers - before, results))
    };
    assert_eq!(barriers(&|| side_by_side(&x))?.0, 0, "side by side");
    assert_eq!(barriers(&|| in_a_row(&x))?.0, KERNELS - 1, "in a row");
    let name = |(i, y): (usize, Tensor)| (i.to_string(), y);
    let captured = |work: &dyn Fn(&Tensor) -> Result<Vec<Tensor>>| {
        device.capture(|args| Ok(work(&args.input("x", 32, DType::F32)?)?.into_iter().enumerate().map(name)))
    };
    let run = |step: &Step| barriers(&|| Ok(step.run([("x", (&x).into())])?.into_tensors()));
    let (step, row) = (captured(&side_by_side)?, captured(&in_a_row)?);
    // The program and the copies of the outputs: each waits for what is before it, and no copy for another.
    let (count, results) = run(&step)?;
    assert_eq!(count, 2, "side by side in a step");
    for (i, result) in results.iter().enumerate() {
        assert_eq!(result.to_vec::<f32>()?, [1.0 + i as f32; 32]);
    }
    assert_eq!(run(&row)?.0, KERNELS - 1 + 2, "in a row in a step");
    Ok(())
}

fn every_command_of_a_run_is_profiled(device: &Device) -> Result<()> {
    let step = device.capture(|args| {
        let x = args.input("x", (8, 8), DType::F32)?;
        Ok([("y", x.matmul(&x)?.softmax(-1)?)])
    })?;
    let x = Tensor::ones((8, 8), DType::F32, device)?;
    let plain = step.run([("x", (&x).into())])?.get("y")?.to_vec::<f32>()?;
    let (y, profile) = device.profile(|| step.run([("x", (&x).into())])?.get("y")?.to_vec::<f32>())?;
    assert_eq!(y?, plain);
    let names: Vec<&str> = profile.commands.iter().map(|command| command.name.as_str()).collect();
    let kernels = |word: &str| names.iter().filter(|name| name.contains(word)).count();
    assert_eq!((kernels("matmul"), kernels("softmax")), (1, 1), "{names:?}");
    Ok(())
}

fn runs_are_explained(device: &Device) -> Result<()> {
    let (step, at_capture) = device.explain(|| {
        device.capture(|args| {
            let x = args.input("x", (8, 8), DType::F32)?;
            Ok([("y", x.matmul(&x)?.softmax(-1)?)])
        })
    })?;
    assert_eq!(at_capture.kernels, [], "nothing is launched");
    let (step, x) = (step?, Tensor::from_slice(&[1f32; 64], (8, 8), device)?);
    let (_, twice) = device.explain(|| (step.run([("x", (&x).into())]), step.run([("x", (&x).into())])))?;
    let kernels = |word: &str| twice.kernels.iter().filter(|kernel| kernel.name.contains(word)).collect::<Vec<_>>();
    assert_eq!((kernels("matmul").len(), kernels("softmax").len()), (2, 2), "{twice}");
    assert_eq!((kernels("softmax")[0].bytes_read, kernels("softmax")[0].bytes_written), (256, 256));
    Ok(())
}

fn threads_share_a_step(device: &Device) -> Result<()> {
    let step = device.capture(|args| {
        let x = args.input("x", 500, DType::F32)?;
        let offset = args.input("offset", (), DType::F32)?;
        let y = (x.add(&offset)? * 2.0)?;
        y.realize()?;
        Ok([("y", y.add(&x)?)])
    })?;
    std::thread::scope(|scope| {
        let work = |thread: usize| {
            let step = &step;
            move || -> Result<()> {
                let x = tensor(device, &vec![thread as f32; 500])?;
                for i in 0..40 {
                    // Captures of other threads do not mix with this.
                    let own =
                        device.capture(|args| Ok([("y", args.input("x", 1, DType::F32)?.add(thread as f32)?)]))?;
                    let outputs = step.run([("x", (&x).into()), ("offset", i.into())])?;
                    let expected = (thread + i) as f32 * 2.0 + thread as f32;
                    assert_eq!(outputs.get("y")?.to_vec::<f32>()?, vec![expected; 500]);
                    let y = own.run([("x", (&x.narrow(0, 0, 1)?).into())])?;
                    assert_eq!(y.get("y")?.to_vec::<f32>()?, [2.0 * thread as f32]);
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}

fn warming_up_compiles_what_the_work_needs(device: &Device) -> Result<()> {
    let x = Tensor::from_slice(&[1f32; 77], (7, 11), device)?;
    // Kernels that no other test of this program has.
    let model = |x: &Tensor| -> Result<Tensor> {
        let y = x.matmul(&x.t()?)?.erf()?.atan()?.sinh()?;
        let noise = Tensor::gumbel(0f32, 1.0, (7, 7), x.device())?;
        y.log_softmax(0)?.cumsum(1)?.asinh()?.cosh()?.add(&noise)
    };
    let before = device.stats();
    let (mut calls, mut reports) = (0, Vec::new());
    let warmed = device.warm_up(
        || {
            calls += 1;
            Ok([model(&x)?])
        },
        |done, all| reports.push((done, all)),
    );
    warmed?;
    let warm = device.stats();
    let compiled = (warm.compiles - before.compiles) as usize;
    assert!(compiled >= 3, "{compiled} kernels");
    assert_eq!(reports, (1..=compiled).map(|done| (done, compiled)).collect::<Vec<_>>());
    assert_eq!((calls, warm.launches, warm.waits), (1, before.launches, before.waits));
    let memory = device.memory_stats().in_use;
    model(&x)?.realize()?;
    assert_eq!(device.stats().compiles, warm.compiles, "nothing is left to compile");
    device.warm_up(|| Ok([model(&x)?]), |_, _| panic!("nothing is compiled"))?;
    assert_eq!(device.memory_stats().in_use, memory, "nothing is kept");
    // Errors are those of the closure.
    assert!(device.warm_up(|| Ok([x.matmul(&x)?]), |_, _| ()).is_err());
    let reads = device.warm_up(|| x.sum_all()?.to_scalar::<f32>().map(|_| [x.clone()]), |_, _| ());
    assert!(message(reads).contains("to_scalar: "));
    let nested = device.capture(|args| {
        device.warm_up(|| Ok([x.clone()]), |_, _| ())?;
        Ok([("x", args.input("x", 1, DType::F32)?)])
    });
    assert!(message(nested).contains("warm_up: "));
    Ok(())
}

/// The message of an error about a wrong argument.
pub fn message<T>(result: Result<T>) -> String {
    match result {
        Err(error @ Error::InvalidArgument { .. }) => error.to_string(),
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("no error"),
    }
}

fn what_cannot_be_captured_is_an_error(device: &Device) -> Result<()> {
    type Call = fn(&Device, &Tensor) -> Result<()>;
    let calls: [(&str, Call); 11] = [
        ("to_vec", |_, x| x.to_vec::<f32>().map(drop)),
        ("to_scalar", |_, x| x.sum_all()?.to_scalar::<f32>().map(drop)),
        ("to_vec_async", |_, x| pollster::block_on(x.to_vec_async::<f32>()).map(drop)),
        ("read_into_async", |_, x| pollster::block_on(x.read_into_async(&mut vec![0f32; x.elem_count()]))),
        ("nonzero", |_, x| x.nonzero().map(drop)),
        ("masked_select", |_, x| x.masked_select(&x.gt(0.0)?).map(drop)),
        ("synchronize", |device, _| device.synchronize()),
        ("trim", |device, _| device.trim().map(drop)),
        ("profile", |device, _| device.profile(|| ()).map(drop)),
        ("capture", |device, _| device.capture(|_| Ok([("", Tensor::new(0u8, device)?)])).map(drop)),
        ("run", |device, _| device.capture(|args| args.input("a", (), DType::F32).map(|x| [("x", x)])).map(drop)),
    ];
    let other = device.capture(|_| Ok([("y", Tensor::ones(1, DType::F32, device)?)]))?;
    for (call, work) in calls {
        let captured = device.capture(|args| {
            let x = args.input("x", 4, DType::F32)?;
            if call == "run" {
                other.run([])?;
            }
            work(device, &x)?;
            Ok([("x", x)])
        });
        let message = message(captured);
        assert!(message.contains(&format!("{call}: ")) && message.contains("captur"), "{call}: {message}");
    }
    // Nor is another device's work.
    let others = ["vulkan", "webgpu", "level-zero"].map(|name| name.parse::<Device>());
    for other in others {
        let other = other?;
        let captured = device.capture(|args| {
            other.capture(|_| Ok([("x", Tensor::ones(1, DType::F32, &other)?)]))?;
            Ok([("x", args.input("x", 1, DType::F32)?)])
        });
        assert!(message(captured).contains("captures do not nest"));
    }
    // Outside, and in another thread, all of them work.
    device.synchronize()?;
    let step = device.capture(|args| {
        std::thread::scope(|scope| {
            let read = || Tensor::new([1f32], device)?.to_vec::<f32>();
            assert_eq!(scope.spawn(read).join().expect("it does not panic").ok(), Some(vec![1.0]));
        });
        Ok([("x", args.input("x", 1, DType::F32)?)])
    })?;
    assert_eq!(run(&step, &tensor(device, &[2.0])?, "x")?, [2.0]);
    Ok(())
}

fn mistakes_in_arguments_are_errors(device: &Device) -> Result<()> {
    let step = device.capture(|args| {
        let [x, n] = [args.input("x", (2, 3), DType::F32)?, args.input("n", (), DType::U8)?];
        let sum = args.state("sum", &Tensor::zeros((), DType::F32, device)?)?;
        args.update("sum", sum.add(&x.sum_all()?)?)?;
        Ok([("x", x), ("n", n)])
    })?;
    let [x, flat] = [Tensor::zeros((2, 3), DType::F32, device)?, Tensor::zeros(6, DType::F32, device)?];
    let half = x.to_dtype(DType::F16)?;
    let of = |error: Result<marquetry::Outputs>, words: &[&str]| {
        let message = message(error);
        assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
    };
    of(step.run([("x", (&x).into())]), &["`n` is missing", "u8", "[]"]);
    of(step.run([("x", (&x).into()), ("n", 1.into()), ("z", 1.into())]), &["no input `z`", "`x`", "[2, 3]", "`n`"]);
    of(step.run([("x", (&x).into()), ("n", 1.into()), ("n", 1.into())]), &["`n` is given twice"]);
    of(step.run([("x", (&flat).into()), ("n", 1.into())]), &["`x` is f32 of shape [2, 3]", "shape [6]"]);
    of(step.run([("x", (&half).into()), ("n", 1.into())]), &["`x` is f32", "got f16"]);
    of(step.run([("x", 5.into()), ("n", 1.into())]), &["`x` has shape [2, 3]", "a number"]);
    of(step.run([("x", (&x).into()), ("n", 256.into())]), &["0 to 255", "256"]);
    of(step.run([("x", (&x).into()), ("n", 0.5.into())]), &["0.5"]);
    assert!(message(step.state("x")).contains("no state `x`"));
    assert!(message(step.set_state("sum", &x)).contains("shape []"));
    let outputs = step.run([("x", (&x).into()), ("n", 255.into())])?;
    assert_eq!(outputs.get("n")?.to_vec::<u8>()?, [255]);
    let unknown = message(outputs.get("y").cloned());
    assert!(unknown.contains("no output `y`") && unknown.contains("`x`"), "{unknown}");
    assert!(format!("{step:?} {outputs:?}").contains("`sum` (f32 of shape [])"));

    let zero = || Tensor::zeros(2, DType::F32, device);
    let captured = device.capture(|args| Ok([("x", args.input("x", 1, DType::F32)?), ("x", zero()?)]));
    assert!(message(captured).contains("two arguments are named `x`"));
    let captured = device.capture(|args| {
        args.state("x", &zero()?)?;
        Ok([("y", args.input("x", 1, DType::F32)?)])
    });
    assert!(message(captured).contains("two arguments are named `x`"));
    let captured = device.capture(|args| {
        let state = args.state("s", &zero()?)?;
        args.update("s", state.clone())?;
        args.update("s", state.clone())?;
        Ok([("s", state)])
    });
    assert!(message(captured).contains("updated twice"));
    let captured = device.capture(|args| {
        args.state("s", &zero()?)?;
        args.update("s", Tensor::zeros(3, DType::F32, device)?)?;
        Ok([("s", zero()?)])
    });
    assert!(message(captured).contains("shape [3]"));
    let captured = device.capture(|args| {
        let state = args.state("s", &zero()?)?.slice_assign(0..1, &Tensor::ones(1, DType::F32, device)?)?;
        Ok([("s", state)])
    });
    assert!(message(captured).contains("changed in place"));
    Ok(())
}

fn what_is_made_in_a_capture_stays_there(device: &Device) -> Result<()> {
    let mut leaked = Vec::new();
    let step = device.capture(|args| {
        let x = args.input("x", 2, DType::F32)?;
        let [pending, computed, product] = [(&x * 2.0)?, (&x + 1.0)?, x.reshape((2, 1))?.matmul(&x.reshape((1, 2))?)?];
        computed.realize()?;
        leaked.extend([x.clone(), pending, computed, product]);
        Ok([("x", x)])
    })?;
    let mistakes = [message(step.run([("x", (&leaked[0]).into())]))];
    assert!(mistakes.iter().all(|mistake| mistake.contains("made inside a capture")), "{mistakes:?}");
    let first_values: [fn(&Tensor, &Tensor) -> Result<Tensor>; 3] =
        [|_, leaked| Ok(leaked.clone()), |x, _| x * 2.0, |x, _| Tensor::rand(0f32, 1.0, 2, x.device())];
    for first in first_values {
        let captured = device.capture(|args| {
            let x = args.input("x", 2, DType::F32)?;
            args.state("s", &first(&x, &leaked[1])?).map(|s| [("s", s)])
        });
        assert!(message(captured).contains("the first value of `s` is computed inside the capture"));
    }
    type Make = fn(&Tensor) -> Result<QuantizedTensor>;
    let weights: [(Make, f32); 2] = [
        (|x| x.broadcast_to((2, 32))?.quantize(BlockFormat::Q4_0), 1.0),
        // A byte of 1 has 0 in its first row.
        (|x| QuantizedTensor::from_bitnet(&x.to_dtype(DType::U8)?.broadcast_to((2, 256))?), 0.0),
    ];
    for (make, first) in weights {
        let captured = device.capture(|args| {
            let x = args.input("x", 1, DType::F32)?;
            make(&x)?;
            Ok([("x", x)])
        });
        let message = message(captured);
        assert!(message.contains("computed inside the capture; make the weights before it"), "{message}");
        // A tensor from outside is a constant, also if it has to be converted.
        let one = Tensor::ones(1, DType::F32, device)?;
        let captured = device.capture(|args| {
            let (x, weight) = (args.input("x", 1, DType::F32)?, make(&one)?);
            let numbers = weight.dequantize(DType::F32)?.narrow(1, 0, 1)?.narrow(0, 0, 1)?;
            Ok([("y", x.reshape((1, 1))?.add(&numbers)?)])
        })?;
        assert_eq!(run(&captured, &tensor(device, &[2.0])?, "y")?, [2.0 + first]);
    }
    for tensor in &leaked {
        let quantized = tensor.flatten_all()?.narrow(0, 0, 1)?.broadcast_to(32)?.quantize(BlockFormat::Q4_0);
        let added = (tensor + 1.0)?.to_vec::<f32>();
        for used in [tensor.to_vec::<f32>().map(drop), added.map(drop), quantized.map(drop)] {
            let message = message(used);
            assert!(message.contains("made inside a capture") && message.contains("output"), "{message}");
        }
    }
    for output in [(&leaked[1] + 1.0)?, leaked[1].clone()] {
        let captured = device.capture(|_| Ok([("x", output.clone())]));
        assert!(message(captured).contains("made inside a capture"));
    }
    assert_eq!(run(&step, &tensor(device, &[1.0, 2.0])?, "x")?, [1.0, 2.0]);
    Ok(())
}

fn a_capture_that_fails_leaves_nothing_behind(device: &Device) -> Result<()> {
    let weight = tensor(device, &[1.0; 5000])?;
    let before = device.memory_stats().in_use;
    let launches = device.stats().launches;
    let failed = device.capture(|args| {
        let x = args.input("x", 5000, DType::F32)?.add(&weight)?;
        x.realize()?;
        Ok([("y", x.reshape((7, 7))?)])
    });
    assert!(failed.is_err());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        _ = device.capture(|args| -> Result<[(&str, Tensor); 0]> {
            args.input("x", 5000, DType::F32)?.add(&weight)?.realize()?;
            panic!("a mistake of the app")
        });
    }));
    assert!(panicked.is_err());
    assert_eq!((device.memory_stats().in_use, device.stats().launches), (before, launches));
    assert_eq!((&weight * 2.0)?.to_vec::<f32>()?, [2.0; 5000]);
    // The weight is nobody else's again.
    let (_, launches) = count_launches(device, || weight.slice_assign(0..4, &tensor(device, &[9.0; 4])?))?;
    assert_eq!(launches, 1, "in place");
    Ok(())
}
