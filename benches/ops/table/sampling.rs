//! Drawing the next tokens of sequences from their logits, by all rules.

use super::Sizes;
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::numbers;
use anyhow::{Result, ensure};
use marquetry::nn::{Sampler, Sampling};
use marquetry::{DType, Device, Tensor};

/// The most probable tokens that are drawn.
const TOP_K: usize = 40;

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let [small, large] = sizes.vocabularies;
    let cases = [(DType::F32, 1, small), (DType::F16, 1, small), (DType::F32, 8, small), (DType::F16, 1, large)];
    cases.map(|(dtype, sequences, vocabulary)| case(dtype, sequences, vocabulary)).into()
}

fn case(dtype: DType, sequences: usize, vocabulary: usize) -> Case {
    Case {
        name: format!("sample {dtype} {sequences} x {vocabulary}"),
        // Logits, and how often their tokens were drawn.
        cost: Cost::of_memory(sequences * vocabulary * (dtype.size_in_bytes() + 4)),
        rate: Rate::Bytes,
        bound: Bound::None,
        prepare: Box::new(move |device| prepare(dtype, sequences, vocabulary, device)),
    }
}

fn prepare(dtype: DType, sequences: usize, vocabulary: usize, device: &Device) -> Result<Prepared> {
    let logits = Tensor::randn(0f32, 3.0, (sequences, vocabulary), device)?.to_dtype(dtype)?;
    logits.realize()?;
    let sampling = Sampling::default().temperature(0.8).top_k(TOP_K).top_p(0.95).min_p(0.01);
    let sampling = sampling.repetition(1.1).presence(0.1).frequency(0.1);
    let mut sampler = Sampler::new(vocabulary, sequences, device)?;
    for sequence in 0..sequences {
        sampler.start(sequence, &sampling.clone().seed(sequence as u64))?;
    }
    let operand = logits.clone();
    let check = move |tokens: &Tensor| -> Result<()> {
        let logits = numbers(&operand)?;
        for (token, row) in tokens.to_vec::<u32>()?.into_iter().zip(logits.chunks(vocabulary)) {
            let better = row.iter().filter(|&&logit| logit > row[token as usize]).count();
            ensure!(better < TOP_K, "token {token} was drawn, and {better} are more probable");
        }
        Ok(())
    };
    Ok(Prepared::alone(move |_| sampler.sample(&logits), check))
}
