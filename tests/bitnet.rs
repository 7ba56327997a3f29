//! Layers of BitNet b1.58 on every device, beside those of the Python package `transformers`.
//!
//! `scripts/bitnet_reference.py` wrote `tests/data/bitnet.safetensors`. It says what the file holds.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use marquetry::io::SafeTensors;
use marquetry::nn::{BitLinear, BitLinearClass, Weights};
use marquetry::{BlockFormat, DType, Device, Error, QuantizedTensor, Result, Tensor};
use std::path::Path;

const DEVICES: [&str; 3] = ["vulkan", "webgpu", "level-zero"];

const CLASSES: [(&str, BitLinearClass); 2] =
    [("bitlinear", BitLinearClass::BitLinear), ("autobitlinear", BitLinearClass::AutoBitLinear)];

/// The distance of neighbouring `f32` near 1.
const ULP: f64 = f32::EPSILON as f64;

fn open(name: &str) -> Device {
    name.parse().unwrap_or_else(|error| panic!("{error}\nrun `make setup`"))
}

fn reference() -> SafeTensors {
    SafeTensors::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bitnet.safetensors")).unwrap()
}

/// The rows of a matrix.
fn rows(x: &Tensor) -> Vec<Vec<f64>> {
    let rows = x.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
    rows.into_iter().map(|row| row.into_iter().map(f64::from).collect()).collect()
}

/// A layer of the reference, and what its results are compared with.
struct Layer {
    layer: BitLinear,
    class: BitLinearClass,
    /// The number of columns of the weight.
    columns: usize,
    weight_scale: f64,
    /// As it is in the outputs: times the scale in class `AutoBitLinear`.
    bias: Vec<f64>,
}

impl Layer {
    fn load(name: &str, class: BitLinearClass, device: &Device) -> Layer {
        let weights = Weights::new(reference(), device).at(name);
        let columns = weights.tensor("weight").unwrap().dims()[1];
        let weight_scale = rows(&weights.tensor("weight_scale").unwrap().unsqueeze(0).unwrap())[0][0];
        let factor = if class == BitLinearClass::AutoBitLinear { weight_scale } else { 1.0 };
        let bias = weights.optional("bias").unwrap();
        let bias = bias.map(|bias| rows(&bias.unsqueeze(0).unwrap()).remove(0)).unwrap_or_default();
        let bias = bias.into_iter().map(|bias| bias * factor).collect();
        Layer { layer: BitLinear::load(&weights, class).unwrap(), class, columns, weight_scale, bias }
    }

    /// The most that the terms of an output add up to, if all have the same sign. A number of the weight is at most 1,
    /// and a rounded activation half a step larger than before.
    fn magnitude(&self, x: &[f64]) -> f64 {
        let largest = x.iter().fold(1e-5, |largest: f64, x| largest.max(x.abs()));
        let sum: f64 = x.iter().map(|x| x.abs()).sum();
        (sum + x.len() as f64 * largest / 254.0) * self.weight_scale
    }

    /// How far the output `y` may be from the reference in `f64`. The two scales and the division are within 2.5 ulp,
    /// 0.5 ulp and 2.5 ulp, and the bias and the products are rounded once each. In class `AutoBitLinear` the reference
    /// computes the activations in `f32`, with two roundings. The result is rounded to a dtype.
    fn bound(&self, y: f64, bias: f64, magnitude: f64, dtype: DType) -> f64 {
        let computed = 8.0 * ULP * (y.abs() + 2.0 * bias.abs());
        let reference = if self.class == BitLinearClass::AutoBitLinear { ULP * magnitude } else { 0.0 };
        let stored = match dtype {
            // The smallest `f16` is 2^-24.
            DType::F16 => 2f64.powi(-11) * y.abs() + 2f64.powi(-25),
            DType::BF16 => 2f64.powi(-8) * y.abs(),
            _ => 0.0,
        };
        // What is added may change the digit that is rounded.
        (computed + reference) * 1.01 + stored
    }

    /// How far the output `y` may be from the model's in `bf16`. There activations, the bias, the sum and its product
    /// with the scale are rounded to `bf16`, here the result.
    fn bound_of_model(y: f64, bias: f64, magnitude: f64) -> f64 {
        2f64.powi(-8) * (magnitude + 4.0 * y.abs() + 2.0 * bias.abs())
    }

    /// Compares results with those of the reference.
    fn check(&self, x: &Tensor, expected: &Tensor, bound: impl Fn(f64, f64, f64) -> f64, what: &str) {
        let y = self.layer.forward(x).unwrap();
        assert_eq!((y.dims(), y.dtype()), (expected.dims(), x.dtype()), "{what}");
        for (token, ((x, found), expected)) in rows(x).iter().zip(rows(&y)).zip(rows(expected)).enumerate() {
            let magnitude = self.magnitude(x);
            for (row, (found, expected)) in found.into_iter().zip(expected).enumerate() {
                let bias = self.bias.get(row).copied().unwrap_or(0.0);
                let bound = bound(expected, bias, magnitude);
                let off = (found - expected).abs();
                assert!(off <= bound, "{what}: output {row} of token {token} is {found}, not {expected} ± {bound:e}");
            }
        }
    }
}

#[test]
fn every_byte_is_unpacked_as_in_the_reference() {
    let file = reference();
    for device in DEVICES.map(open) {
        let bytes = file.load("bytes", &device).unwrap();
        let numbers = rows(&file.load("bytes.numbers", &device).unwrap());
        let unpacked = |bytes: &Tensor| {
            let weight = QuantizedTensor::from_bitnet(bytes).unwrap();
            assert_eq!((weight.format(), weight.dims()), (BlockFormat::TQ2_0, &[4 * bytes.dims()[0], 256][..]));
            rows(&weight.dequantize(DType::F32).unwrap())
        };
        assert_eq!(unpacked(&bytes), numbers, "on {device}");
        let transposed = bytes.t().unwrap().contiguous().unwrap().t().unwrap();
        assert_eq!(unpacked(&transposed), numbers, "transposed, on {device}");
        let second: Vec<_> = numbers.into_iter().skip(1).step_by(2).collect();
        assert_eq!(unpacked(&bytes.narrow(0, 1, 1).unwrap()), second, "the second row, on {device}");
    }
}

/// The quick tier has each layer in another class, and few tokens only in `f32`.
#[test]
fn layers_give_the_results_of_the_reference() {
    let full_tier = std::env::var("MARQUETRY_TEST_TIER").is_ok_and(|tier| tier == "full");
    let file = reference();
    for device in DEVICES.map(open) {
        let inputs = file.load("inputs", &device).unwrap();
        let all = ["plain", "biased"].into_iter().flat_map(|name| CLASSES.map(|(kind, class)| (name, kind, class)));
        for (name, kind, class) in all {
            if !full_tier && (name == "biased") != (class == BitLinearClass::AutoBitLinear) {
                continue;
            }
            let layer = Layer::load(name, class, &device);
            let inputs = inputs.narrow(1, 0, layer.columns).unwrap();
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let x = inputs.to_dtype(dtype).unwrap();
                let entry = format!("{name}.{kind}.{dtype}");
                let expected = file.load(&entry, &device).unwrap();
                // All tokens, and so few that GPUs multiply the packed numbers.
                let counts = if full_tier || dtype == DType::F32 { 3 } else { 1 };
                for (first, count) in [(0, 17), (0, 5), (16, 1)].into_iter().take(counts) {
                    let [x, expected] = [&x, &expected].map(|all| all.narrow(0, first, count).unwrap());
                    let bound = |y: f64, bias: f64, magnitude: f64| layer.bound(y, bias, magnitude, dtype);
                    layer.check(&x, &expected, bound, &format!("{entry}, {count} tokens from {first} on, {device}"));
                }
            }
            if class == BitLinearClass::AutoBitLinear {
                let entry = format!("{name}.{kind}.bf16.model");
                let (x, expected) = (inputs.to_dtype(DType::BF16).unwrap(), file.load(&entry, &device).unwrap());
                layer.check(&x, &expected, Layer::bound_of_model, &format!("{entry}, {device}"));
            }
        }
    }
}

#[test]
fn other_shapes_and_dtypes_of_the_file_change_nothing() {
    let (file, device) = (reference(), open("vulkan"));
    let weights = Weights::new(reference(), &device);
    let layer = BitLinear::load(&weights.at("biased"), BitLinearClass::AutoBitLinear).unwrap();
    let x = file.load("inputs", &device).unwrap().narrow(1, 0, 256).unwrap().narrow(0, 4, 6).unwrap();
    let y = layer.forward(&x).unwrap();
    let batch = layer.forward(&x.reshape((2, 3, 256)).unwrap()).unwrap();
    assert_eq!(batch.dims(), [2, 3, 52]);
    assert_eq!(batch.to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
    assert_eq!(layer.forward(&x.narrow(0, 0, 0).unwrap()).unwrap().dims(), [0, 52]);
    assert_eq!(layer.forward(&x.narrow(0, 0, 1).unwrap().squeeze(0).unwrap()).unwrap().dims(), [52]);
    // The scale and the bias stay as they are in the file.
    let halves = weights.dtype(DType::F16).at("biased");
    let again = BitLinear::load(&halves, BitLinearClass::AutoBitLinear).unwrap();
    assert_eq!(again.forward(&x).unwrap().to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
}

#[track_caller]
fn assert_refused<T>(result: Result<T>, is_kind: impl Fn(&Error) -> bool, parts: &[&str]) {
    let Err(error) = result else { panic!("expected an error that tells {parts:?}") };
    let message = error.to_string();
    assert!(is_kind(&error), "{error:?}");
    parts.iter().for_each(|part| assert!(message.contains(part), "`{message}` does not tell `{part}`"));
}

#[test]
fn weights_that_do_not_fit() {
    let device = open("vulkan");
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &device).unwrap();
    let weight = QuantizedTensor::from_bitnet(&zeros(&[2, 256], DType::U8)).unwrap();
    let scale = zeros(&[1], DType::BF16);
    let new = |weight: &QuantizedTensor, scale: &Tensor, bias: Option<Tensor>| {
        BitLinear::new(weight.clone(), scale, bias, BitLinearClass::BitLinear)
    };
    assert!(new(&weight, &zeros(&[], DType::F16), Some(zeros(&[8], DType::F16))).is_ok());
    let two = new(&weight, &zeros(&[2], DType::F32), None);
    assert_refused(two, |error| matches!(error, Error::InvalidArgument { .. }), &["weight scale", "[2]", "one number"]);
    let bytes = new(&weight, &zeros(&[1], DType::U8), None);
    assert_refused(bytes, |error| matches!(error, Error::UnsupportedDType { .. }), &["u8", "f32"]);
    let short = new(&weight, &scale, Some(zeros(&[1], DType::F32)));
    assert_refused(short, |error| matches!(error, Error::ShapeMismatch { .. }), &["[8, 256]", "[1]", "bias"]);
    let vector = QuantizedTensor::from_bytes(&[0; 66], BlockFormat::TQ2_0, 256, &device).unwrap();
    assert_refused(new(&vector, &scale, None), |error| matches!(error, Error::RankMismatch { .. }), &["[256]", "2"]);
    let there = Tensor::zeros(8, DType::F32, &open("webgpu")).unwrap();
    let apart = new(&weight, &scale, Some(there));
    assert_refused(apart, |error| matches!(error, Error::DeviceMismatch { .. }), &["vulkan:0", "webgpu:0"]);
    let missing = BitLinear::load(&Weights::new(reference(), &device).at("inputs"), BitLinearClass::BitLinear);
    assert_refused(missing, |error| matches!(error, Error::Format { .. }), &["inputs.weight"]);
}

#[test]
fn activations_that_do_not_fit() {
    let device = open("vulkan");
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &device).unwrap();
    let weight = QuantizedTensor::from_bitnet(&zeros(&[2, 256], DType::U8)).unwrap();
    let layer = BitLinear::new(weight, &zeros(&[1], DType::F32), None, BitLinearClass::BitLinear).unwrap();
    let integers = layer.forward(&zeros(&[2, 256], DType::I32));
    assert_refused(integers, |error| matches!(error, Error::UnsupportedDType { .. }), &["forward", "i32", "bf16"]);
    let scalar = layer.forward(&zeros(&[], DType::F32));
    assert_refused(scalar, |error| matches!(error, Error::RankMismatch { .. }), &["forward", "1 or more"]);
    let short = layer.forward(&zeros(&[2, 128], DType::F32));
    assert_refused(short, |error| matches!(error, Error::ShapeMismatch { .. }), &["forward", "[2, 128]", "[8, 256]"]);
    let empty = QuantizedTensor::from_bitnet(&zeros(&[2, 0], DType::U8)).unwrap();
    let empty = BitLinear::new(empty, &zeros(&[1], DType::F32), None, BitLinearClass::BitLinear).unwrap();
    let nothing = empty.forward(&zeros(&[2, 0], DType::F32));
    assert_refused(nothing, |error| matches!(error, Error::InvalidArgument { .. }), &["forward", "[2, 0]"]);
    let there = Tensor::zeros((2, 256), DType::F32, &open("webgpu")).unwrap();
    let apart = layer.forward(&there);
    assert_refused(apart, |error| matches!(error, Error::DeviceMismatch { .. }), &["vulkan:0", "webgpu:0"]);
}
