//! Errors of samplers.

use crate::{device, error_of, floats, zeros};
use marquetry::nn::{Sampler, Sampling};
use marquetry::{DType, Device, Error, Tensor};

#[test]
fn vocabularies_and_sequences() {
    let make = |vocabulary, sequences| Sampler::new(vocabulary, sequences, &device());
    assert_error!(make(0, 1), Error::InvalidArgument { .. }, "Sampler::new", "0 tokens");
    assert_error!(make(8, 0), Error::InvalidArgument { .. }, "Sampler::new", "0 sequences");
    assert_error!(make(1 << 20, 1), Error::InvalidArgument { .. }, "1048576 tokens", "1 to 524288");
    assert_error!(make(8, 70_000), Error::InvalidArgument { .. }, "70000 sequences", "1 to 65535");
    let sampler = make(8, 2).unwrap();
    assert_eq!((sampler.vocabulary(), sampler.sequences()), (8, 2));
}

#[test]
fn settings_out_of_range() {
    let mut sampler = Sampler::new(8, 2, &device()).unwrap();
    let plain = Sampling::default();
    for (sampling, name) in [
        (plain.clone().temperature(-1.0), "`temperature`"),
        (plain.clone().temperature(f32::NAN), "`temperature`"),
        (plain.clone().temperature(f32::INFINITY), "`temperature`"),
        (plain.clone().top_k(0), "`top_k`"),
        (plain.clone().top_p(1.5), "`top_p`"),
        (plain.clone().top_p(f32::NAN), "`top_p`"),
        (plain.clone().min_p(-0.1), "`min_p`"),
        (plain.clone().repetition(0.0), "`repetition`"),
        (plain.clone().repetition(f32::INFINITY), "`repetition`"),
        (plain.clone().presence(f32::NAN), "`presence`"),
        (plain.clone().frequency(f32::INFINITY), "`frequency`"),
    ] {
        assert_error!(sampling.check(), Error::InvalidArgument { .. }, "Sampling", name, "must be");
        assert_error!(sampler.start(0, &sampling), Error::InvalidArgument { .. }, "Sampling", name, "must be");
    }
    assert_error!(sampler.start(2, &plain), Error::InvalidArgument { .. }, "start", "2 sequences", "sequence 2");
}

#[test]
fn prompts_and_logits() {
    let mut sampler = Sampler::new(8, 2, &device()).unwrap();
    let logits = floats((2, 8));
    assert_error!(sampler.observe(0, &[1]), Error::InvalidArgument { .. }, "observe", "0 has not begun", "`start`");
    assert_error!(sampler.sample(&logits), Error::InvalidArgument { .. }, "sample", "0 has not begun", "`start`");
    sampler.start(0, &Sampling::greedy()).unwrap();
    assert_error!(sampler.sample(&logits), Error::InvalidArgument { .. }, "sample", "sequence 1 has not begun");
    sampler.start(1, &Sampling::greedy()).unwrap();
    assert_error!(sampler.observe(2, &[1]), Error::InvalidArgument { .. }, "observe", "no sequence 2");
    assert_error!(sampler.observe(0, &[7, 8]), Error::InvalidArgument { .. }, "observe", "token 8", "8 tokens");
    for shape in [vec![2, 9], vec![3, 8], vec![8], vec![2, 8, 1]] {
        let message = "2 sequences over 8 tokens need (2, 8)";
        assert_error!(sampler.sample(&floats(shape)), Error::InvalidArgument { .. }, "sample", message);
    }
    let integers = zeros((2, 8), DType::I32);
    assert_error!(sampler.sample(&integers), Error::UnsupportedDType { .. }, "sample", "i32", "f32, f16 or bf16");
    let elsewhere: Device = "webgpu".parse().unwrap();
    let elsewhere = Tensor::zeros((2, 8), DType::F32, &elsewhere).unwrap();
    assert_error!(sampler.sample(&elsewhere), Error::DeviceMismatch { .. }, "sample");
    // After all these errors, nothing was drawn.
    assert_eq!(sampler.sample(&logits).unwrap().to_vec::<u32>().unwrap(), [0, 0]);
}

#[test]
fn nothing_of_a_capture() {
    let device = device();
    let mut sampler = Sampler::new(8, 1, &device).unwrap();
    sampler.start(0, &Sampling::greedy()).unwrap();
    let mut found = Vec::new();
    let logits = floats((1, 8));
    device
        .capture(|_| {
            found = vec![error_of(sampler.start(0, &Sampling::greedy())), error_of(sampler.observe(0, &[1]))];
            Ok([("token", sampler.sample(&logits)?)])
        })
        .unwrap();
    assert!(found.iter().all(|error| error.to_string().contains("a capture runs nothing")), "{found:?}");
}
