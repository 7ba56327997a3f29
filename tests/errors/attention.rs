//! Attention and rotary embeddings.

use super::panics::{Arguments, Visit, tensors};
use super::{device, error_of, floats, open, zeros};
use marquetry::{AttentionConfig, DType, Device, Error, Result, Tensor};

fn attend(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    q.scaled_dot_product_attention(k, v, &AttentionConfig::default())
}

#[test]
fn attention_that_does_not_fit() {
    const OP: &str = "scaled_dot_product_attention";
    let (q, k) = (floats((2, 4, 5, 8)), floats((2, 2, 6, 8)));
    assert_error!(attend(&floats((5, 8)), &k, &k), Error::RankMismatch { .. }, OP, "3 or more", "[5, 8]");
    let narrow = floats((2, 2, 6, 7));
    assert_error!(
        attend(&q, &narrow, &narrow),
        Error::ShapeMismatch { .. },
        OP,
        "[2, 4, 5, 8]",
        "[2, 2, 6, 7]",
        "features"
    );
    let short = floats((2, 2, 5, 8));
    assert_error!(attend(&q, &k, &short), Error::ShapeMismatch { .. }, OP, "[2, 2, 6, 8]", "as many values as keys");
    let three = floats((2, 3, 6, 8));
    assert_error!(attend(&q, &three, &three), Error::ShapeMismatch { .. }, OP, "[2, 3, 6, 8]", "heads", "multiple");
    // Tokens come before heads.
    let (q_tokens, k_tokens) = (floats((2, 5, 4, 8)), floats((2, 6, 2, 8)));
    let hint = "if yours are (batch, tokens, heads, features), call `transpose(1, 2)`";
    let swapped = attend(&q_tokens, &k_tokens, &k_tokens);
    assert_error!(swapped, Error::ShapeMismatch { .. }, OP, "[2, 5, 4, 8]", "[2, 6, 2, 8]", hint);
    let none = floats((2, 0, 6, 8));
    assert_error!(attend(&q, &none, &none), Error::ShapeMismatch { .. }, OP, "multiple");
    let batches = floats((3, 2, 6, 8));
    assert_error!(attend(&q, &batches, &batches), Error::ShapeMismatch { .. }, OP, "[3, 2, 6, 8]", "equal or 1");
    let integers = zeros((2, 4, 5, 8), DType::I32);
    assert_error!(
        attend(&integers, &integers, &integers),
        Error::UnsupportedDType { .. },
        OP,
        "i32",
        "f32, f16, bf16 and f64"
    );
    let halves = zeros((2, 2, 6, 8), DType::F16);
    assert_error!(attend(&q, &halves, &halves), Error::DTypeMismatch { .. }, OP, "f32", "f16");
    let elsewhere = Tensor::zeros((2, 2, 6, 8), DType::F32, &open("webgpu")).unwrap();
    assert_error!(attend(&q, &elsewhere, &elsewhere), Error::DeviceMismatch { .. }, OP, "webgpu:0", "to_device");

    let with = |config| q.scaled_dot_product_attention(&k, &k, &config);
    let masked = |mask| with(AttentionConfig { mask: Some(mask), ..Default::default() });
    let hint = "must broadcast to (batch, heads, queries, keys)";
    assert_error!(masked(floats((5, 7))), Error::ShapeMismatch { .. }, OP, "[5, 7]", "[2, 4, 5, 6]", hint);
    assert_error!(masked(zeros((5, 6), DType::I32)), Error::UnsupportedDType { .. }, OP, "i32", "mask");
    assert_error!(masked(zeros((5, 6), DType::F16)), Error::UnsupportedDType { .. }, OP, "f16", "mask");
    let mask = Tensor::zeros((5, 6), DType::F32, &open("webgpu")).unwrap();
    assert_error!(masked(mask), Error::DeviceMismatch { .. }, OP, "webgpu:0");
    let window = AttentionConfig { sliding_window: Some(0), ..Default::default() };
    assert_error!(with(window), Error::InvalidArgument { .. }, OP, "window of 0");
    for cap in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300] {
        let config = AttentionConfig { softcap: Some(cap), ..Default::default() };
        assert_error!(with(config), Error::InvalidArgument { .. }, OP, "cap", "positive", cap);
    }
    let huge = floats((1, 1, 1, 1)).broadcast_to((1, 1, 1usize << 40, 1)).unwrap();
    assert_error!(attend(&huge, &huge, &huge), Error::SizeOverflow { .. }, OP, "1099511627776");
    assert_error!(attend(&floats((1, 1, 1, 1)), &huge, &huge), Error::SizeOverflow { .. }, OP, "1073741824");
    assert_error!(Tensor::alibi_mask(1 << 20, 1 << 20, 1, &device()), Error::SizeOverflow { .. }, "alibi_mask");
}

#[test]
fn rotary_embeddings_that_do_not_fit() {
    let (x, table) = (floats((2, 3, 5, 8)), floats((5, 4)));
    for (name, turn) in [("rope", Tensor::rope as fn(&Tensor, &Tensor, &Tensor) -> _), ("rope_i", Tensor::rope_i)] {
        let wide = floats((5, 5));
        assert_error!(turn(&x, &wide, &wide), Error::ShapeMismatch { .. }, name, "[2, 3, 5, 8]", "[5, 5]", "pair");
        let long = floats((6, 4));
        assert_error!(
            turn(&x, &long, &long),
            Error::ShapeMismatch { .. },
            name,
            "[2, 3, 5, 8]",
            "[6, 4]",
            "a row for each token",
            "narrow"
        );
        assert_error!(turn(&x, &table, &long), Error::ShapeMismatch { .. }, name, "[5, 4]", "[6, 4]", "same shape");
        let scalar = floats(());
        assert_error!(turn(&scalar, &table, &table), Error::RankMismatch { .. }, name, "1 or more");
        assert_error!(turn(&x, &scalar, &scalar), Error::RankMismatch { .. }, name, "1 or more");
        let halves = zeros((5, 4), DType::F16);
        assert_error!(turn(&x, &halves, &halves), Error::DTypeMismatch { .. }, name, "f32", "f16");
        assert_error!(turn(&x, &table, &halves), Error::DTypeMismatch { .. }, name);
        let integers = zeros((5, 8), DType::U32);
        assert_error!(turn(&integers, &table, &table), Error::UnsupportedDType { .. }, name, "u32");
        let elsewhere = Tensor::zeros((5, 4), DType::F32, &open("webgpu")).unwrap();
        assert_error!(turn(&x, &table, &elsewhere), Error::DeviceMismatch { .. }, name, "webgpu:0");
    }
    assert_error!(
        floats(3).rotary_tables(7, 10.0),
        Error::InvalidArgument { .. },
        "rotary_tables",
        "7 features",
        "even"
    );
    assert_error!(
        floats(3).rotary_tables(usize::MAX - 1, 10.0),
        Error::InvalidArgument { .. },
        "rotary_tables",
        "65536"
    );
    for theta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_error!(
            floats(3).rotary_tables(8, theta),
            Error::InvalidArgument { .. },
            "rotary_tables",
            "theta",
            theta
        );
    }
}

/// The methods of this family.
pub fn calls(arguments: &Arguments, device: &Device, visit: Visit) {
    let Arguments { size: (i, j, k), number: (x, y), .. } = *arguments;
    let [t, u, v] = tensors(arguments, device);
    // Three axes make matching operands.
    let matrices = |t: &Tensor| t.unsqueeze(0)?.unsqueeze(0);
    let config = || AttentionConfig {
        mask: (i % 3 == 0).then(|| u.clone()),
        causal: j.is_multiple_of(2),
        sliding_window: k.is_multiple_of(2).then_some(i),
        scale: j.is_multiple_of(3).then_some(x),
        softcap: k.is_multiple_of(3).then_some(y),
    };
    visit! { visit:
        scaled_dot_product_attention: t.scaled_dot_product_attention(&u, &v, &config());
        scaled_dot_product_attention_of_matrices:
            matrices(&t)?.scaled_dot_product_attention(&matrices(&u)?, &matrices(&v)?, &config());
        scaled_dot_product_attention_of_itself:
            t.scaled_dot_product_attention(&t, &t, &AttentionConfig { mask: None, ..config() });
        alibi_mask: Tensor::alibi_mask(i, j, k, device);
        rope: t.rope(&u, &v);
        rope_of_itself: t.rope(&t.narrow(-1, 0, 1)?, &t.narrow(-1, 0, 1)?);
        rope_i: t.rope_i(&u, &v);
        rotary_tables_cosines: t.rotary_tables(i, x).map(|(cos, _)| cos);
        rotary_tables_sines: u.rotary_tables(2 * (j % 50), y).map(|(_, sin)| sin);
    }
}
