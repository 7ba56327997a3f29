//! Errors of caches of keys and values.

use crate::{device, error_of, floats, zeros};
use marquetry::nn::{KvCache, KvCacheConfig, Rope};
use marquetry::{AttentionConfig, BlockFormat, DType, Error, Tensor};

fn cache(config: &KvCacheConfig) -> KvCache {
    KvCache::new(config, &device()).unwrap()
}

#[test]
fn configurations_of_caches() {
    let make = |config: KvCacheConfig| KvCache::new(&config, &device());
    let good = KvCacheConfig::new(1, 2, 8);
    assert_error!(make(KvCacheConfig::new(0, 2, 8)), Error::InvalidArgument { .. }, "KvCache::new", "0", "layers");
    assert_error!(make(good.clone().sequences(0)), Error::InvalidArgument { .. }, "KvCache::new", "sequences: 0");
    assert_error!(make(good.clone().window(0)), Error::InvalidArgument { .. }, "KvCache::new", "window: Some(0)");
    assert_error!(make(KvCacheConfig::new(1, 2, 10)), Error::InvalidArgument { .. }, "10 features", "multiple of 4");
    assert_error!(make(KvCacheConfig::new(1, 2, 512)), Error::InvalidArgument { .. }, "512 features", "256 at most");
    let many = make(good.clone().sequences(usize::MAX).tokens(64));
    assert_error!(many, Error::InvalidArgument { .. }, "sequences at a time", "65536 are possible");
    assert_error!(make(good.clone().length(1 << 30)), Error::InvalidArgument { .. }, "1073741824 tokens", "possible");
    assert_error!(make(good.clone().dtype(DType::I32)), Error::UnsupportedDType { .. }, "i32", "f32, f16 or bf16");
    let packed = good.clone().packed(BlockFormat::Q8_0);
    assert_error!(make(packed), Error::InvalidArgument { .. }, "8 features", "packed ones take a multiple of 32");
    let packed = KvCacheConfig::new(1, 2, 64).packed(BlockFormat::Q4_0);
    assert_error!(make(packed), Error::InvalidArgument { .. }, "packed as Q4_0", "take Q8_0");
    assert_error!(make(good.tokens(1 << 40)), Error::SizeOverflow { .. }, "KvCache::new", "8]");
}

#[test]
fn sequences_and_tokens_of_caches() {
    let mut cache = cache(&KvCacheConfig::new(1, 2, 8).length(200).sequences(2).tokens(256));
    let (a, b) = (cache.add(), cache.add());
    assert_error!(cache.extend(&[]), Error::InvalidArgument { .. }, "extend", "a token or more");
    assert_error!(cache.extend(&[(a, 0)]), Error::InvalidArgument { .. }, "extend", "a token or more");
    assert_error!(cache.extend(&[(a, 201)]), Error::InvalidArgument { .. }, "extend", "201 tokens behind 0", "200");
    assert_error!(cache.extend(&[(a, 1), (a, 1)]), Error::InvalidArgument { .. }, "extend", "twice");
    let c = cache.add();
    let three = [(a, 1), (b, 1), (c, 1)];
    assert_error!(cache.extend(&three), Error::InvalidArgument { .. }, "extend", "3 sequences", "for 2");
    cache.extend(&[(a, 100)]).unwrap();
    assert_error!(cache.extend(&[(a, usize::MAX)]), Error::InvalidArgument { .. }, "extend", "behind 100");
    // Two pages of four are left.
    assert_error!(
        cache.extend(&[(b, 129)]),
        Error::InvalidArgument { .. },
        "pages of 64",
        "129 tokens behind 0",
        "remove"
    );
    assert_eq!((cache.length(a).unwrap(), cache.length(b).unwrap(), cache.free_tokens()), (100, 0, 128));
    cache.extend(&[(b, 128)]).unwrap();
    assert_error!(cache.rewind(a, 101), Error::InvalidArgument { .. }, "rewind", "100 tokens, not 101");
    cache.remove(a).unwrap();
    // Another sequence gets its place.
    let _ = cache.add();
    let of_another = self::cache(&KvCacheConfig::new(1, 2, 8)).add();
    assert_error!(cache.length(of_another), Error::InvalidArgument { .. }, "length", "another cache");
    for error in [error_of(cache.length(a)), error_of(cache.fork(a)), error_of(cache.remove(a))] {
        assert!(error.to_string().contains("was removed"), "{error}");
    }
    assert_error!(cache.extend(&[(a, 1)]), Error::InvalidArgument { .. }, "extend", "was removed");
    assert_error!(cache.keys_and_values(0, a), Error::InvalidArgument { .. }, "keys_and_values", "was removed");
    assert_error!(cache.keys_and_values(1, b), Error::InvalidArgument { .. }, "keys_and_values", "no layer 1");
}

#[test]
fn rewinds_before_the_window() {
    let mut cache = cache(&KvCacheConfig::new(1, 2, 8).length(400).window(50));
    let sequence = cache.add();
    for _ in 0..3 {
        cache.extend(&[(sequence, 100)]).unwrap();
    }
    let error = error_of(cache.rewind(sequence, 100));
    assert!(
        error.to_string().contains("first 128 of 300 tokens behind, and token 100 would see those from 51"),
        "{error}"
    );
    cache.rewind(sequence, 180).unwrap();
    cache.rewind(sequence, 0).unwrap();
    cache.extend(&[(sequence, 400)]).unwrap();
}

#[test]
fn attention_over_caches() {
    let mut cache = cache(&KvCacheConfig::new(2, 2, 8).length(100));
    let causal = AttentionConfig::default().causal(true);
    let (q, kv) = (floats((3, 4, 8)), floats((3, 2, 8)));
    let none = cache.attend(0, [&q, &kv, &kv], None, &causal);
    assert_error!(none, Error::InvalidArgument { .. }, "attend", "no tokens were announced", "extend");
    let sequence = cache.add();
    cache.extend(&[(sequence, 3)]).unwrap();
    let attend = |q: &Tensor, k: &Tensor, v: &Tensor| cache.attend(0, [q, k, v], None, &causal);
    let layer = cache.attend(2, [&q, &kv, &kv], None, &causal);
    assert_error!(layer, Error::InvalidArgument { .. }, "attend", "2 layers", "no layer 2");
    let other = floats((4, 4, 8));
    assert_error!(
        attend(&other, &kv, &kv),
        Error::InvalidArgument { .. },
        "3 tokens",
        "(3, heads, features)",
        "[4, 4, 8]"
    );
    assert_error!(attend(&floats((3, 8)), &kv, &kv), Error::InvalidArgument { .. }, "[3, 8]");
    assert_error!(attend(&floats((3, 3, 8)), &kv, &kv), Error::ShapeMismatch { .. }, "[3, 3, 8]", "multiple");
    assert_error!(attend(&floats((3, 0, 8)), &kv, &kv), Error::ShapeMismatch { .. }, "[3, 0, 8]", "multiple");
    assert_error!(attend(&q, &floats((3, 4, 8)), &kv), Error::ShapeMismatch { .. }, "[3, 4, 8]", "[2, 2, 2, 64, 8]");
    assert_error!(attend(&q, &kv, &floats((3, 2, 4))), Error::ShapeMismatch { .. }, "[3, 2, 4]", "as many values");
    let halves = zeros((3, 2, 8), DType::F16);
    assert_error!(attend(&q, &halves, &kv), Error::DTypeMismatch { .. }, "attend", "f32", "f16");
    let masked = causal.clone().mask(floats((1, 3, 3)));
    let masked = cache.attend(0, [&q, &kv, &kv], None, &masked);
    assert_error!(masked, Error::InvalidArgument { .. }, "attend", "no mask");
    let short = Rope::new(8, 100.0, 50, &device()).unwrap();
    let rotated = cache.attend(0, [&q, &kv, &kv], Some(&short), &causal);
    assert_error!(rotated, Error::InvalidArgument { .. }, "50 positions", "up to 100");
    let wide = Rope::new(16, 100.0, 100, &device()).unwrap();
    let rotated = cache.attend(0, [&q, &kv, &kv], Some(&wide), &causal);
    assert_error!(rotated, Error::ShapeMismatch { .. }, "[100, 8]", "features / 2");
    let window = cache.attend(0, [&q, &kv, &kv], None, &causal.clone().sliding_window(0));
    assert_error!(window, Error::InvalidArgument { .. }, "sliding window of 0");
}
