//! Errors. Every error that a user can cause says what is wrong and how to correct it, and nothing panics.
//!
//! Errors that no call causes by itself are left out: lost devices, failures inside a driver, refused kernels, and
//! complaints of validation layers.
//!
//! Each family of operations has a file here with its errors (`assert_error!`) and with its methods for `panics.rs`.

/// Asserts that a call fails with this kind of error, and that the message contains all these parts.
macro_rules! assert_error {
    ($call:expr, $kind:pat, $($part:expr),+ $(,)?) => {{
        let error = error_of($call);
        let message = error.to_string();
        assert!(matches!(error, $kind), "{} gave {error:?}", stringify!($call));
        $(assert!(message.contains(&$part.to_string()), "`{message}` does not tell `{}`", $part);)+
    }};
}

/// Passes methods and their names to a `Visit`: `visit! { visit: neg: t.neg(); abs: t.abs(); }`.
macro_rules! visit {
    ($visit:ident: $($name:ident: $call:expr;)*) => {
        $($visit(stringify!($name), &|| $call);)*
    };
}

mod attention;
mod conv;
mod environment;
mod grid_sample;
mod index;
mod kv_cache;
mod linear;
mod pad;
mod panics;
mod quantized;
mod reduce;
mod resize;
mod sampler;

use half::f16;
use marquetry::{DType, Device, Error, Indices, Result, Shape, Tensor};
use std::fmt::Debug;

fn open(name: &str) -> Device {
    name.parse().unwrap_or_else(|error| panic!("{error}\nrun `make setup`"))
}

fn device() -> Device {
    open("vulkan")
}

fn zeros(shape: impl Into<Shape>, dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &device()).unwrap()
}

fn floats(shape: impl Into<Shape>) -> Tensor {
    zeros(shape, DType::F32)
}

fn error_of<T: Debug>(result: Result<T>) -> Error {
    match result {
        Ok(value) => panic!("expected an error, got {value:?}"),
        Err(error) => error,
    }
}

#[test]
fn shapes_that_do_not_fit() {
    let (x, y) = (floats((2, 3)), floats((4, 3)));
    assert_error!(x.add(&y), Error::ShapeMismatch { .. }, "add", "[2, 3]", "[4, 3]", "aligned from the right");
    assert_error!(x.lt(&y), Error::ShapeMismatch { .. }, "lt", "[2, 3]", "[4, 3]");
    assert_error!(&x * &y, Error::ShapeMismatch { .. }, "mul", "[2, 3]", "[4, 3]");
    assert_error!(x.prelu(&floats(2)), Error::ShapeMismatch { .. }, "prelu", "[2, 3]", "[2]", "index of axis 1");
    assert_error!(x.lerp(&x, &y), Error::ShapeMismatch { .. }, "lerp", "[2, 3]", "[4, 3]");
    let condition = zeros((2, 3), DType::U8);
    assert_error!(y.masked_fill(&condition, 0.5), Error::ShapeMismatch { .. }, "masked_fill", "[2, 3]", "[4, 3]");
    assert_error!(condition.where_cond(&x, &y), Error::ShapeMismatch { .. }, "where_cond", "[2, 3]", "[4, 3]");
    assert_error!(x.matmul(&y), Error::ShapeMismatch { .. }, "matmul", "[2, 3]", "[4, 3]", "last but one");
    let (a, b) = (floats((2, 5, 3)), floats((4, 3, 6)));
    assert_error!(a.matmul(&b), Error::ShapeMismatch { .. }, "matmul", "[2, 5, 3]", "[4, 3, 6]", "before the last two");
    let assigned = floats((4, 3)).slice_assign(1..3, &floats((3, 3)));
    assert_error!(assigned, Error::ShapeMismatch { .. }, "slice_assign", "[3, 3]", "[2, 3]", "each equal or 1");
    assert_error!(x.broadcast_to((2, 4)), Error::ShapeMismatch { .. }, "broadcast_to", "[2, 3]", "[2, 4]");
    assert_error!(x.broadcast_to(3), Error::ShapeMismatch { .. }, "broadcast_to", "[2, 3]", "[3]", "no more axes");
    assert_error!(Tensor::cat(&[&x, &y], 1), Error::ShapeMismatch { .. }, "cat", "[2, 3]", "[4, 3]", "all axes but");
    assert_error!(Tensor::cat(&[x.clone(), floats(3)], 0), Error::ShapeMismatch { .. }, "cat", "[2, 3]", "[3]");
    assert_error!(Tensor::stack(&[&x, &y], 0), Error::ShapeMismatch { .. }, "stack", "[2, 3]", "[4, 3]", "equal");
    let (weight, bias) = (floats(2), floats(2));
    assert_error!(
        x.layer_norm(&weight, &bias, 0.1),
        Error::ShapeMismatch { .. },
        "layer_norm",
        "[2, 3]",
        "[2]",
        "last axes"
    );
    let weight = floats(3);
    assert_error!(x.layer_norm(&weight, &bias, 0.1), Error::ShapeMismatch { .. }, "layer_norm", "[3]", "[2]");
    let scalar = floats(());
    assert_error!(
        x.layer_norm(&scalar, &scalar, 0.1),
        Error::ShapeMismatch { .. },
        "layer_norm",
        "[2, 3]",
        "at least one"
    );
}

#[test]
fn ranks_that_do_not_fit() {
    let (scalar, vector, matrix) = (floats(()), floats(3), floats((2, 3)));
    assert_error!(vector.t(), Error::RankMismatch { .. }, "t:", "2 or more", "[3]");
    assert_error!(matrix.permute([1]), Error::InvalidArgument { .. }, "permute", "[2, 3]");
    assert_error!(scalar.matmul(&vector), Error::RankMismatch { .. }, "matmul", "1 or more", "[]");
    assert_error!(vector.matmul(&scalar), Error::RankMismatch { .. }, "matmul", "1 or more", "[]");
    let hint = "any for `to_vec`";
    assert_error!(matrix.to_vec1::<f32>(), Error::RankMismatch { .. }, "to_vec1", "of 1", hint, "[2, 3]");
    assert_error!(vector.to_vec2::<f32>(), Error::RankMismatch { .. }, "to_vec2", "of 2", hint, "[3]");
    assert_error!(matrix.to_vec3::<f32>(), Error::RankMismatch { .. }, "to_vec3", "of 3", hint, "[2, 3]");
    let indexes = zeros((2, 2), DType::U32);
    assert_error!(matrix.index_select(&indexes, 0), Error::RankMismatch { .. }, "index_select", "indexes", "[2, 2]");
    assert_error!(vector.embedding(&indexes), Error::RankMismatch { .. }, "embedding", "table", "[3]");
}

#[test]
fn counts_that_do_not_fit() {
    let data = [0f32; 5];
    assert_error!(
        Tensor::from_slice(&data, (2, 3), &device()),
        Error::ElementCount { .. },
        "[2, 3]",
        "6 elements",
        "5"
    );
    assert_error!(
        Tensor::from_raw_buffer(&[0; 5], DType::F16, 3, &device()),
        Error::InvalidArgument { .. },
        "from_raw_buffer",
        "[3] of f16",
        "6 bytes",
        "5"
    );
    assert_error!(
        Tensor::from_raw_buffer(&[0, 1, 2], DType::Bool, 3, &device()),
        Error::InvalidArgument { .. },
        "2 is no truth value",
        "u8"
    );
    assert_error!(Tensor::from_vec(data.to_vec(), (), &device()), Error::ElementCount { .. }, "[]", "1 elements", "5");
    assert_error!(Tensor::from_slice(&data, (usize::MAX, 2), &device()), Error::ElementCount { .. }, "too many");
    assert_error!(floats((2, 3)).reshape((4, 2)), Error::ElementCount { .. }, "reshape", "[4, 2]", "8 elements", "6");
    assert_error!(floats((2, 3)).reshape((usize::MAX, 6)), Error::ElementCount { .. }, "reshape", "too many");
    let hint = "to_scalar: takes a tensor of one element";
    assert_error!(floats((2, 1)).to_scalar::<f32>(), Error::InvalidArgument { .. }, hint, "[2, 1] has 2", "to_vec");
    assert_error!(floats(0).to_scalar::<f32>(), Error::InvalidArgument { .. }, hint, "[0] has 0");
    // No element, but more vectors than the host has memory for.
    let rows = floats((1, 0)).broadcast_to((1 << 40, 0)).unwrap();
    assert_error!(rows.to_vec2::<f32>(), Error::InvalidArgument { .. }, "to_vec2", "no elements", "`to_vec`");
    let matrices = rows.unsqueeze(0).unwrap();
    assert_error!(matrices.to_vec3::<f32>(), Error::InvalidArgument { .. }, "to_vec3", "no elements", "`to_vec`");
}

#[test]
fn dtypes_that_differ() {
    let (x, y) = (floats(3), zeros(3, DType::I32));
    assert_error!(x.add(&y), Error::DTypeMismatch { .. }, "add", "f32", "i32", "to_dtype(DType::F32)");
    assert_error!(y.matmul(&x), Error::DTypeMismatch { .. }, "matmul", "i32", "f32", "to_dtype(DType::I32)");
    assert_error!(Tensor::cat(&[&x, &y], 0), Error::DTypeMismatch { .. }, "cat", "f32", "i32");
    assert_error!(Tensor::stack(&[&x, &y], 0), Error::DTypeMismatch { .. }, "stack", "f32", "i32");
    let condition = zeros(3, DType::U8);
    assert_error!(condition.where_cond(&x, &y), Error::DTypeMismatch { .. }, "where_cond", "f32", "i32");
    let weight = zeros(3, DType::F16);
    assert_error!(x.layer_norm(&weight, &weight, 0.1), Error::DTypeMismatch { .. }, "layer_norm", "f32", "f16");
    let assigned = floats(3).slice_assign(.., &y);
    assert_error!(assigned, Error::DTypeMismatch { .. }, "slice_assign", "f32", "i32", "to_dtype(DType::F32)");
    assert_error!(x.to_vec::<f64>(), Error::ElementType { .. }, "`to_vec::<f32>()`", "`to_dtype(DType::F64)`");
    assert_error!(x.to_vec1::<i32>(), Error::ElementType { .. }, "`to_vec1::<f32>()`", "`to_dtype(DType::I32)`");
    let one = y.narrow(0, 0, 1).unwrap();
    assert_error!(one.to_scalar::<u32>(), Error::ElementType { .. }, "`to_scalar::<i32>()`", "`to_dtype(DType::U32)`");
    assert_error!(
        pollster::block_on(x.to_vec_async::<f16>()),
        Error::ElementType { .. },
        "`to_vec_async::<f32>()`",
        "`to_dtype(DType::F16)`"
    );
}

#[test]
fn dtypes_that_an_operation_does_not_take() {
    type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>);
    let functions: [Unary; 35] = [
        ("floor", Tensor::floor),
        ("ceil", Tensor::ceil),
        ("round", Tensor::round),
        ("trunc", Tensor::trunc),
        ("sqrt", Tensor::sqrt),
        ("rsqrt", Tensor::rsqrt),
        ("recip", Tensor::recip),
        ("exp", Tensor::exp),
        ("log", Tensor::log),
        ("sin", Tensor::sin),
        ("cos", Tensor::cos),
        ("tanh", Tensor::tanh),
        ("erf", Tensor::erf),
        ("sigmoid", Tensor::sigmoid),
        ("silu", Tensor::silu),
        ("gelu", Tensor::gelu),
        ("gelu_tanh", Tensor::gelu_tanh),
        ("exp2", Tensor::exp2),
        ("expm1", Tensor::expm1),
        ("log2", Tensor::log2),
        ("log1p", Tensor::log1p),
        ("tan", Tensor::tan),
        ("asin", Tensor::asin),
        ("acos", Tensor::acos),
        ("atan", Tensor::atan),
        ("sinh", Tensor::sinh),
        ("cosh", Tensor::cosh),
        ("asinh", Tensor::asinh),
        ("acosh", Tensor::acosh),
        ("atanh", Tensor::atanh),
        ("mish", Tensor::mish),
        ("softplus", Tensor::softplus),
        ("softsign", Tensor::softsign),
        ("hardsigmoid", Tensor::hardsigmoid),
        ("selu", Tensor::selu),
    ];
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_float()) {
        let x = zeros((2, 3), dtype);
        for (name, function) in functions {
            assert_error!(function(&x), Error::UnsupportedDType { .. }, name, dtype, "f32, f16", "to_dtype");
        }
        assert_error!(x.lerp(&x, &x), Error::UnsupportedDType { .. }, "lerp", dtype, "f32, f16");
        assert_error!(
            x.prelu(&x.flatten_all().unwrap().narrow(0, 0, 1).unwrap()),
            Error::UnsupportedDType { .. },
            "prelu",
            dtype
        );
        assert_error!(x.atan2(&x), Error::UnsupportedDType { .. }, "atan2", dtype, "f32, f16");
        assert_error!(x.powf(2.0), Error::UnsupportedDType { .. }, "powf", dtype, "f32, f16");
        assert_error!(x.leaky_relu(0.5), Error::UnsupportedDType { .. }, "leaky_relu", dtype, "f32, f16");
        assert_error!(x.mean(0), Error::UnsupportedDType { .. }, "mean", dtype, "f32, f16");
        assert_error!(x.mean_keepdim(0), Error::UnsupportedDType { .. }, "mean_keepdim", dtype);
        assert_error!(x.mean_all(), Error::UnsupportedDType { .. }, "mean_all", dtype);
        assert_error!(x.softmax(0), Error::UnsupportedDType { .. }, "softmax", dtype);
        let weight = zeros(3, dtype);
        assert_error!(x.layer_norm(&weight, &weight, 0.1), Error::UnsupportedDType { .. }, "layer_norm", dtype);
    }
    let truths = zeros((2, 2), DType::Bool);
    let numbers = "numbers (all dtypes but bool)";
    assert_error!(truths.matmul(&truths), Error::UnsupportedDType { .. }, "matmul", "bool", numbers);
    assert_error!(truths.add(&truths), Error::UnsupportedDType { .. }, "add", "bool", numbers, "to_dtype");
    assert_error!(truths.neg(), Error::UnsupportedDType { .. }, "neg", "bool", numbers);
    assert_error!(truths.affine(1.0, 1.0), Error::UnsupportedDType { .. }, "affine", "bool", numbers);
    assert_error!(truths.clamp(0.0, 1.0), Error::UnsupportedDType { .. }, "clamp", "bool", numbers);
    assert_error!(&truths * 2.0, Error::UnsupportedDType { .. }, "mul", "bool", numbers);
    assert_error!(truths.shl(&truths), Error::UnsupportedDType { .. }, "shl", "bool", "u8, i8, u32, i32 and i64");
    assert_error!(floats(3).index_select(&zeros(1, DType::Bool), 0), Error::UnsupportedDType { .. }, "bool", "indexes");
    assert_error!(Tensor::arange(false, true, &device()), Error::UnsupportedDType { .. }, "arange", "bool", numbers);
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        let x = zeros(3, dtype);
        assert_error!(
            x.bitwise_not(),
            Error::UnsupportedDType { .. },
            "bitwise_not",
            dtype,
            "u8, i8, u32, i32 and i64"
        );
        assert_error!(
            x.bitwise_and(&x),
            Error::UnsupportedDType { .. },
            "bitwise_and",
            dtype,
            "u8, i8, u32, i32 and i64"
        );
        assert_error!(x.shl(&x), Error::UnsupportedDType { .. }, "shl", dtype, "u8, i8, u32, i32 and i64");
        assert_error!(&x & 1, Error::UnsupportedDType { .. }, "bitwise_and", dtype, "u8, i8, u32, i32 and i64");
        assert_error!(!&x, Error::UnsupportedDType { .. }, "bitwise_not", dtype, "u8, i8, u32, i32 and i64");
        assert_error!(x.masked_fill(&x, 0), Error::UnsupportedDType { .. }, "masked_fill", dtype, "bool, u8");
        assert_error!(x.where_cond(&x, &x), Error::UnsupportedDType { .. }, "where_cond", dtype, "bool, u8");
        assert_error!(floats((2, 3)).index_select(&x, 0), Error::UnsupportedDType { .. }, "index_select", dtype, "u32");
        assert_error!(floats((2, 3)).embedding(&x), Error::UnsupportedDType { .. }, "embedding", dtype, "u32");
    }
    assert_error!(
        Tensor::rand(0u8, 9, 3, &device()),
        Error::UnsupportedDType { .. },
        "rand",
        "u8",
        "f32, f16, bf16 and f64"
    );
    assert_error!(Tensor::randn(0i32, 9, 3, &device()), Error::UnsupportedDType { .. }, "randn", "i32");
    let integers = zeros(3, DType::I32);
    assert_error!(integers.rand_like(0.0, 1.0), Error::UnsupportedDType { .. }, "rand_like", "i32", "f32");
    assert_error!(integers.randn_like(0.0, 1.0), Error::UnsupportedDType { .. }, "randn_like", "i32", "f32");
}

#[test]
fn devices_that_differ() {
    let x = floats(3);
    let y = Tensor::zeros(3, DType::F32, &open("webgpu")).unwrap();
    let hint = "move one with `to_device`";
    assert_error!(x.add(&y), Error::DeviceMismatch { .. }, "add", "vulkan:0", "webgpu:0", hint);
    assert_error!(y.matmul(&x), Error::DeviceMismatch { .. }, "matmul", "vulkan:0", "webgpu:0", hint);
    assert_error!(Tensor::cat(&[&x, &y], 0), Error::DeviceMismatch { .. }, "cat", "vulkan:0", "webgpu:0", hint);
    assert_error!(Tensor::stack(&[&x, &y], 0), Error::DeviceMismatch { .. }, "stack", "vulkan:0", "webgpu:0", hint);
    assert_error!(x.layer_norm(&x, &y, 0.1), Error::DeviceMismatch { .. }, "layer_norm", "vulkan:0", "webgpu:0", hint);
    let condition = zeros(3, DType::U8);
    assert_error!(
        condition.where_cond(&x, &y),
        Error::DeviceMismatch { .. },
        "where_cond",
        "vulkan:0",
        "webgpu:0",
        hint
    );
    assert_error!(
        condition.where_cond(&y, &y),
        Error::DeviceMismatch { .. },
        "where_cond",
        "vulkan:0",
        "webgpu:0",
        hint
    );
    let indexes = zeros(3, DType::U32);
    assert_error!(
        y.index_select(&indexes, 0),
        Error::DeviceMismatch { .. },
        "index_select",
        "vulkan:0",
        "webgpu:0",
        hint
    );
    let assigned = floats(3).slice_assign(.., &y);
    assert_error!(assigned, Error::DeviceMismatch { .. }, "slice_assign", "vulkan:0", "webgpu:0", hint);
    let table = y.unsqueeze(0).unwrap();
    assert_error!(table.embedding(&indexes), Error::DeviceMismatch { .. }, "embedding", "vulkan:0", "webgpu:0", hint);
}

#[test]
fn axes_that_are_not_there() {
    let x = floats((2, 3));
    let range = "(-2..2)";
    assert_error!(x.dim(2), Error::AxisOutOfRange { .. }, "dim", "axis 2", "[2, 3]", range);
    assert_error!(x.sum(-3), Error::AxisOutOfRange { .. }, "sum", "axis -3", "[2, 3]", range);
    assert_error!(x.max_keepdim([0, 5]), Error::AxisOutOfRange { .. }, "max_keepdim", "axis 5", range);
    assert_error!(x.softmax(2), Error::AxisOutOfRange { .. }, "softmax", "axis 2", range);
    assert_error!(x.transpose(0, 9), Error::AxisOutOfRange { .. }, "transpose", "axis 9", range);
    assert_error!(x.permute([0, 2]), Error::AxisOutOfRange { .. }, "permute", "axis 2", range);
    assert_error!(x.narrow(2, 0, 1), Error::AxisOutOfRange { .. }, "narrow", "axis 2", range);
    assert_error!(x.slice(-3, .., 1), Error::AxisOutOfRange { .. }, "slice", "axis -3", range);
    assert_error!(x.flatten(0, 2), Error::AxisOutOfRange { .. }, "flatten", "axis 2", range);
    assert_error!(x.squeeze(2), Error::AxisOutOfRange { .. }, "squeeze", "axis 2", range);
    assert_error!(Tensor::cat(&[&x], 2), Error::AxisOutOfRange { .. }, "cat", "axis 2", range);
    assert_error!(
        x.index_select(&zeros(1, DType::U32), 2),
        Error::AxisOutOfRange { .. },
        "index_select",
        "axis 2",
        range
    );
    // A new axis has one more possible position than there are axes.
    assert!(x.unsqueeze(2).is_ok() && x.unsqueeze(-3).is_ok() && Tensor::stack(&[&x], 2).is_ok());
    assert_error!(x.unsqueeze(3), Error::AxisOutOfRange { .. }, "unsqueeze", "axis 3", "[2, 3]");
    assert_error!(Tensor::stack(&[&x], -4), Error::AxisOutOfRange { .. }, "stack", "axis -4", "[2, 3]");
    assert_error!(floats(()).softmax(0), Error::AxisOutOfRange { .. }, "softmax", "axis 0", "[]");
    assert_error!(x.sum(isize::MIN), Error::AxisOutOfRange { .. }, "sum", isize::MIN);
    assert_error!(x.sum(usize::MAX), Error::AxisOutOfRange { .. }, "sum", "[2, 3]");
}

#[test]
fn axes_given_twice() {
    let x = floats((2, 3));
    assert_error!(x.sum([1, 1]), Error::DuplicateAxis { .. }, "sum", "axis 1", "twice");
    assert_error!(x.argmax_keepdim([0, -2]), Error::DuplicateAxis { .. }, "argmax_keepdim", "axis -2", "twice");
    assert_error!(x.permute([0, 0]), Error::DuplicateAxis { .. }, "permute", "axis 0", "twice");
}

#[test]
fn ranges_that_leave_their_axis() {
    let x = floats((2, 3));
    assert_error!(x.narrow(1, 2, 2), Error::RangeOutOfBounds { .. }, "narrow", "2..4", "axis 1", "[2, 3]");
    assert_error!(x.narrow(-1, usize::MAX, 2), Error::RangeOutOfBounds { .. }, "narrow", "axis 1");
    assert_error!(x.slice(0, 1..9, 2), Error::RangeOutOfBounds { .. }, "slice", "1..9", "axis 0");
    assert_error!(x.slice(0, ..=2, 1), Error::RangeOutOfBounds { .. }, "slice", "0..3", "axis 0");
    assert_error!(x.slice(0, 3.., 1), Error::RangeOutOfBounds { .. }, "slice", "3..2", "axis 0");
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = x.slice(1, 2..1, 1);
    assert_error!(backwards, Error::RangeOutOfBounds { .. }, "slice", "2..1", "axis 1");
    assert_error!(x.slice(1, ..=usize::MAX, 1), Error::RangeOutOfBounds { .. }, "slice", "axis 1");
    assert_error!(x.i((.., 2..4)), Error::RangeOutOfBounds { .. }, "i: ", "2..4", "axis 1", "[2, 3]");
    assert_error!(x.i(2), Error::InvalidArgument { .. }, "i: ", "index 2", "axis 0", "[2, 3]", "-2 to 1");
    assert_error!(x.i((.., -4)), Error::InvalidArgument { .. }, "i: ", "index -4", "axis 1", "[2, 3]", "-3 to 2");
    assert_error!(floats((0, 3)).i(0), Error::InvalidArgument { .. }, "index 0", "[0, 3]", "axis is empty");
    assert_error!(x.i((0, 0, ..)), Error::InvalidArgument { .. }, "i: ", "3 indices", "[2, 3]", "2 axes");
    let assign = |indices: Indices| floats((2, 3)).slice_assign(indices, &floats(()));
    assert_error!(assign((0, 3).into()), Error::InvalidArgument { .. }, "slice_assign", "index 3", "axis 1");
    assert_error!(
        assign((.., 1..4).into()),
        Error::RangeOutOfBounds { .. },
        "slice_assign",
        "1..4",
        "axis 1",
        "[2, 3]"
    );
    assert_error!(assign((3..).into()), Error::RangeOutOfBounds { .. }, "slice_assign", "3..2", "axis 0", "[2, 3]");
    let too_many = assign([0..1, 0..1, 0..1].into());
    assert_error!(too_many, Error::InvalidArgument { .. }, "slice_assign", "3 indices", "[2, 3]", "2 axes");
}

#[test]
fn arguments_outside_of_their_domain() {
    let x = floats((2, 3));
    assert_error!(x.slice(0, .., 0), Error::InvalidArgument { .. }, "slice", "step of 0");
    assert_error!(x.flatten(1, 0), Error::InvalidArgument { .. }, "flatten", "axis 0", "axis 1");
    let empty = floats((2, 0));
    for call in [Tensor::argmax, Tensor::min, Tensor::max, Tensor::argmax_keepdim] as [fn(&Tensor, i32) -> _; 4] {
        assert_error!(call(&empty, 1), Error::InvalidArgument { .. }, "no element to choose", "[1]", "[2, 0]");
        // If there are no rows, there is nothing to choose.
        assert_eq!(call(&empty, 0).unwrap().elem_count(), 0);
    }
    assert_error!(empty.argmax_all(), Error::InvalidArgument { .. }, "argmax_all", "no element to choose");
    assert_error!(Tensor::cat::<Tensor>(&[], 0), Error::InvalidArgument { .. }, "cat", "no tensors");
    assert_error!(Tensor::stack::<&Tensor>(&[], 0), Error::InvalidArgument { .. }, "stack", "no tensors");
    let indexes = zeros(2, DType::U32);
    assert_error!(empty.index_select(&indexes, 1), Error::InvalidArgument { .. }, "index_select", "[2, 0]", "empty");
    assert_error!(floats((0, 4)).embedding(&indexes), Error::InvalidArgument { .. }, "embedding", "[0, 4]", "empty");
    let bytes = zeros(3, DType::U8);
    let hint = "u8 holds whole numbers from 0 to 255, not";
    assert_error!(bytes.affine(-1.0, 0.0), Error::InvalidArgument { .. }, "affine", "-1", "u8", hint);
    assert_error!(&bytes + 256.0, Error::InvalidArgument { .. }, "add", "256", "u8", hint);
    assert_error!(bytes.full_like(-1), Error::InvalidArgument { .. }, "full_like", "-1", "u8", hint);
    assert_error!(bytes.gt(-1), Error::InvalidArgument { .. }, "gt", "-1", "u8", hint);
    assert_error!(&bytes & 0x100, Error::InvalidArgument { .. }, "bitwise_and", "256", "u8", hint);
    assert_error!(bytes.masked_fill(&bytes, 0.5), Error::InvalidArgument { .. }, "masked_fill", "0.5", "u8", hint);
    assert_error!(bytes.hardtanh(), Error::InvalidArgument { .. }, "hardtanh", "-1", "u8", hint);
    assert_error!(0.5 / &zeros(3, DType::I32), Error::InvalidArgument { .. }, "div", "0.5", "i32");
    assert_error!(
        zeros(3, DType::U32).clamp(0.0, f64::INFINITY),
        Error::InvalidArgument { .. },
        "clamp",
        "inf",
        "u32 holds whole numbers from 0 to 4294967295"
    );
    assert_error!(zeros(3, DType::I32) * f64::NAN, Error::InvalidArgument { .. }, "mul", "NaN", "i32", "`to_dtype`");
    assert_error!(Tensor::arange_step(0, 5, 0, &device()), Error::InvalidArgument { .. }, "arange_step", "steps of 0");
    assert_error!(
        Tensor::arange(0f32, f32::INFINITY, &device()),
        Error::InvalidArgument { .. },
        "arange",
        "to inf",
        "finite numbers"
    );
    let wide = x.rand_like(f64::from(f32::MIN), f64::from(f32::MAX));
    assert_error!(wide, Error::InvalidArgument { .. }, "rand_like", "wider than the largest f32");
    let ragged = vec![vec![1f32], vec![2.0, 3.0]];
    assert_error!(Tensor::new(&ragged, &device()), Error::InvalidArgument { .. }, "new", "[1]", "[2]");
}

#[test]
fn sizes_beyond_all_limits() {
    let device = device();
    // Four terabytes, more bytes than a `usize` holds, and more elements than a kernel can count.
    for shape in [vec![1 << 40], vec![usize::MAX, usize::MAX], vec![1 << 16, 1 << 16]] {
        let text = Shape::from(shape.clone()).to_string();
        assert_error!(
            Tensor::zeros(shape.clone(), DType::F32, &device),
            Error::SizeOverflow { .. },
            text,
            "limit of 4294"
        );
        assert_error!(Tensor::full(1u8, shape.clone(), &device), Error::SizeOverflow { .. }, text, "limit of 4294");
        assert_error!(Tensor::rand(0f32, 1.0, shape, &device), Error::SizeOverflow { .. }, "rand", text);
    }
    assert_error!(Tensor::arange(0f32, f32::MAX, &device), Error::SizeOverflow { .. }, "arange", "limit of");
    let one = floats(1);
    assert_error!(one.broadcast_to((usize::MAX, 2, 1)), Error::SizeOverflow { .. }, "broadcast_to");
    // A view may be that large, but no operation computes it.
    let huge = one.broadcast_to((1 << 20, 1 << 20)).unwrap();
    assert_eq!(huge.elem_count(), 1 << 40);
    let text = "[1048576, 1048576]";
    assert_error!(huge.to_vec::<f32>(), Error::SizeOverflow { .. }, text);
    assert_error!(huge.contiguous(), Error::SizeOverflow { .. }, "contiguous", text);
    let line = huge.reshape(1usize << 40).expect("its strides allow a view");
    assert_error!(line.exp(), Error::SizeOverflow { .. }, "exp", "[1099511627776]");
    assert_error!(line.contiguous(), Error::SizeOverflow { .. }, "contiguous", "[1099511627776]");
    assert_error!(huge.zeros_like(), Error::SizeOverflow { .. }, "zeros_like", text);
    assert_error!(huge.rand_like(0.0, 1.0), Error::SizeOverflow { .. }, "rand_like", text);
    assert_error!(huge.exp(), Error::SizeOverflow { .. }, "exp", text);
    assert_error!(huge.add(&one), Error::SizeOverflow { .. }, "add", text);
    assert_error!(huge.sum_all(), Error::SizeOverflow { .. }, "sum_all", text);
    assert_error!(huge.softmax(0), Error::SizeOverflow { .. }, "softmax", text);
    assert_error!(huge.matmul(&huge), Error::SizeOverflow { .. }, "matmul", text);
    assert_error!(Tensor::cat(&[&huge, &huge], 0), Error::SizeOverflow { .. }, "cat");
    assert_error!(huge.index_select(&zeros(1 << 20, DType::U32), 0), Error::SizeOverflow { .. }, "index_select", text);
    assert!(huge.to_string().contains("..."), "the ends of a huge view can be printed");
}

/// A buffer is larger than the device allows: other tensors stay valid, and the device still works.
#[test]
fn memory_that_is_not_there() {
    for device in [open("vulkan"), open("webgpu")] {
        let limit = device.info().limits.max_buffer_bytes;
        let kept = Tensor::arange(0u32, 100, &device).unwrap();
        kept.realize().unwrap();
        // Buffer sizes are multiples of 256 bytes.
        let elements = (limit / 256 + 1) * 64;
        assert!(elements < 1 << 32, "the device of this test takes buffers of {limit} bytes: too large to test with");
        let requested = elements * 4;
        let large = Tensor::ones(elements as usize, DType::F32, &device).unwrap();
        assert_error!(
            large.realize(),
            Error::OutOfMemory { .. },
            requested,
            limit,
            "for one buffer",
            "split the tensor"
        );
        let results = [large.exp(), large.sum(0), large.softmax(0)].map(|result| result.and_then(|x| x.realize()));
        for result in results {
            assert_error!(result, Error::OutOfMemory { .. }, "out of memory");
        }
        assert_error!(Tensor::rand(0f32, 1.0, elements as usize, &device), Error::OutOfMemory { .. }, requested);
        assert_eq!(kept.to_vec::<u32>().unwrap(), (0..100).collect::<Vec<_>>());
        let sum = (&kept + 1.0).unwrap().sum(0).unwrap();
        assert_eq!(sum.to_scalar::<u32>().unwrap(), 5050);
    }
}

#[test]
fn devices_that_are_not_there() {
    for text in ["", "cuda", "vulkan:", "vulkan:x", "vulkan:-1", "webgpu:0:1", "VULKAN"] {
        assert_error!(
            text.parse::<Device>(),
            Error::InvalidDevice { .. },
            format!("`{text}`"),
            "`level-zero`",
            "`vulkan:0`"
        );
    }
    for backend in ["vulkan", "webgpu", "level-zero"] {
        let there = Device::list().into_iter().filter(|info| info.backend.name() == backend).count();
        let beyond = format!("{backend}:{there}").parse::<Device>();
        // If the backend's loader is missing, the error says so instead.
        let reason = if there > 0 { format!("no device {there}") } else { "not available".into() };
        assert_error!(beyond, Error::BackendUnavailable { .. }, backend, reason);
        assert_error!(format!("{backend}:{}", usize::MAX).parse::<Device>(), Error::BackendUnavailable { .. }, backend);
    }
}
