//! Errors of quantised weights.

use crate::panics::{Arguments, Visit, tensors};
use crate::{device, error_of, floats, open, zeros};
use marquetry::{BlockFormat, DType, Device, Error, QuantizedTensor, Shape, Tensor};

fn weights(format: BlockFormat, shape: impl Into<Shape>, device: &Device) -> QuantizedTensor {
    let shape = shape.into();
    let bytes = vec![0; shape.elem_count().unwrap() / format.block_elements() * format.block_bytes()];
    QuantizedTensor::from_bytes(&bytes, format, shape, device).unwrap()
}

#[test]
fn bytes_that_do_not_fit() {
    let make = |bytes: usize, shape: &[usize]| {
        QuantizedTensor::from_bytes(&vec![0; bytes], BlockFormat::Q4_0, shape, &device())
    };
    assert!(make(36, &[2, 32]).is_ok());
    assert_error!(make(35, &[2, 32]), Error::InvalidArgument { .. }, "from_bytes", "[2, 32]", "Q4_0", "36 bytes", "35");
    assert_error!(make(18, &[16]), Error::InvalidArgument { .. }, "from_bytes", "[16]", "no multiple of 32", "Q4_0");
    assert_error!(make(18, &[]), Error::InvalidArgument { .. }, "from_bytes", "scalar", "last axis");
    let half = 1 << (usize::BITS / 2);
    assert_error!(make(18, &[half, half, 32]), Error::SizeOverflow { .. }, "from_bytes", "32]");
    assert!(make(0, &[0, 32]).is_ok());
}

#[test]
fn operands_that_do_not_fit() {
    let w = weights(BlockFormat::Q8_0, (3, 64), &device());
    let x = floats((2, 64));
    assert_error!(
        floats((2, 32)).matmul_quantized(&w),
        Error::ShapeMismatch { .. },
        "matmul_quantized",
        "[2, 32]",
        "[3, 64]"
    );
    assert_error!(floats(()).matmul_quantized(&w), Error::RankMismatch { .. }, "matmul_quantized", "1 or more");
    let vector = weights(BlockFormat::Q8_0, 64, &device());
    assert_error!(x.matmul_quantized(&vector), Error::RankMismatch { .. }, "matmul_quantized", "[64]", "2");
    let integers = zeros((2, 64), DType::I32);
    assert_error!(integers.matmul_quantized(&w), Error::UnsupportedDType { .. }, "matmul_quantized", "i32", "f16");
    let there = Tensor::zeros((2, 64), DType::F32, &open("webgpu")).unwrap();
    assert_error!(there.matmul_quantized(&w), Error::DeviceMismatch { .. }, "matmul_quantized", "vulkan:0", "webgpu:0");
    let integers = integers.matmul_quantized_f32(&w);
    assert_error!(integers, Error::UnsupportedDType { .. }, "matmul_quantized_f32", "i32", "f16");
    let linear = |bias: &Tensor| x.linear_quantized(&w, Some(bias));
    assert_error!(linear(&floats(2)), Error::ShapeMismatch { .. }, "linear_quantized", "[3, 64]", "[2]", "bias");
    assert_error!(linear(&zeros(3, DType::F16)), Error::DTypeMismatch { .. }, "linear_quantized", "f16", "f32");
    let there = Tensor::zeros(3, DType::F32, &open("webgpu")).unwrap();
    assert_error!(linear(&there), Error::DeviceMismatch { .. }, "linear_quantized", "vulkan:0", "webgpu:0");
}

#[test]
fn numbers_that_are_not_quantised() {
    let x = floats((2, 48));
    assert_error!(x.quantize(BlockFormat::Q4_0), Error::InvalidArgument { .. }, "quantize", "[2, 48]", "32", "Q4_0");
    assert_error!(floats(()).quantize(BlockFormat::Q4_0), Error::InvalidArgument { .. }, "quantize", "Q4_0");
    assert_error!(floats(256).quantize(BlockFormat::Q4_K), Error::Unsupported { .. }, "Q4_K", "Q4_0, Q4_1");
    assert_error!(zeros(32, DType::I32).quantize(BlockFormat::Q8_0), Error::UnsupportedDType { .. }, "quantize", "i32");
}

#[test]
fn packed_bytes_that_do_not_fit() {
    let take = QuantizedTensor::from_bitnet;
    assert!(take(&zeros((0, 256), DType::U8)).is_ok());
    assert_error!(take(&floats((2, 256))), Error::UnsupportedDType { .. }, "from_bitnet", "f32", "u8");
    let signed = zeros((2, 256), DType::I8);
    assert_error!(take(&signed), Error::UnsupportedDType { .. }, "from_bitnet", "i8", "u8");
    let vector = zeros(256, DType::U8);
    assert_error!(take(&vector), Error::RankMismatch { .. }, "from_bitnet", "2 (the packed bytes", "[256]");
    let short = zeros((2, 384), DType::U8);
    assert_error!(
        take(&short),
        Error::InvalidArgument { .. },
        "from_bitnet",
        "[2, 384]",
        "no multiple of 256",
        "TQ2_0",
        "add columns"
    );
    let endless = zeros((usize::MAX, 0), DType::U8);
    assert_error!(take(&endless), Error::SizeOverflow { .. }, "from_bitnet", usize::MAX);
}

#[test]
fn parts_and_lookups_that_do_not_fit() {
    let w = weights(BlockFormat::Q4_K, (3, 256), &device());
    assert_error!(w.narrow(2, 2), Error::InvalidArgument { .. }, "narrow", "2 entries from 2", "[3, 256]");
    assert_error!(w.narrow(usize::MAX, 2), Error::InvalidArgument { .. }, "narrow", "[3, 256]");
    let vector = weights(BlockFormat::Q4_K, 256, &device());
    assert_error!(vector.narrow(0, 1), Error::InvalidArgument { .. }, "narrow", "[256]", "no axis");
    assert_error!(w.dequantize(DType::I8), Error::UnsupportedDType { .. }, "dequantize", "i8", "f32");
    let ids = zeros(2, DType::U32);
    assert_error!(w.embedding(&ids, DType::F64), Error::UnsupportedDType { .. }, "embedding", "f64", "f32");
    assert_error!(w.embedding(&floats(2), DType::F32), Error::UnsupportedDType { .. }, "embedding", "f32", "u32");
    assert_error!(vector.embedding(&ids, DType::F32), Error::RankMismatch { .. }, "embedding", "[256]");
    let empty = weights(BlockFormat::Q4_K, (0, 256), &device());
    assert_error!(empty.embedding(&ids, DType::F32), Error::InvalidArgument { .. }, "embedding", "no rows");
    let there = Tensor::zeros(2, DType::U32, &open("webgpu")).unwrap();
    assert_error!(w.embedding(&there, DType::F32), Error::DeviceMismatch { .. }, "embedding", "vulkan:0", "webgpu:0");
}

pub fn calls(arguments: &Arguments, device: &Device, visit: Visit) {
    let Arguments { size: (i, j, _), .. } = *arguments;
    let [t, u, _] = tensors(arguments, device);
    let w = weights(BlockFormat::Q4_0, (3, 32), device);
    visit! { visit:
        matmul_quantized: t.matmul_quantized(&w);
        matmul_quantized_f32: t.matmul_quantized_f32(&w);
        linear_quantized: t.linear_quantized(&w, Some(&u));
        from_bitnet: QuantizedTensor::from_bitnet(&t)?.dequantize(DType::F32);
        dequantize: w.narrow(i, j)?.dequantize(t.dtype());
        embedding: w.embedding(&t, u.dtype());
    }
}
