//! Drawing the next tokens of sequences.

use super::{FLOATS, is_brief};
use crate::compare::upload;
use crate::full_tier;
use crate::reference::array;
use crate::reference::inputs::Inputs;
use crate::reference::numbers::round;
use crate::reference::sampling::{Rules, Seen};
use crate::suite::{Outcome, Suite};
use marquetry::nn::{Sampler, Sampling};
use marquetry::{DType, Device, Tensor};

const PLAIN: Rules = Rules {
    temperature: 1.0,
    top_k: None,
    top_p: None,
    min_p: 0.0,
    repetition: 1.0,
    presence: 0.0,
    frequency: 0.0,
    seed: 0,
};

/// What can be set, one thing at a time and all together.
const RULES: [(&str, Rules); 11] = [
    ("plain", PLAIN),
    ("greedy", Rules { temperature: 0.0, ..PLAIN }),
    ("cool", Rules { temperature: 0.5, seed: 5, ..PLAIN }),
    ("hot", Rules { temperature: 5.0, seed: 6, ..PLAIN }),
    ("top_k", Rules { top_k: Some(5), seed: 7, ..PLAIN }),
    ("top_1", Rules { top_k: Some(1), ..PLAIN }),
    ("top_p", Rules { top_p: Some(0.75), seed: 0xfedc_ba98_7654_3210, ..PLAIN }),
    ("top_0", Rules { top_p: Some(0.0), ..PLAIN }),
    ("min_p", Rules { min_p: 0.125, seed: 8, ..PLAIN }),
    ("penalties", Rules { repetition: 1.25, presence: 0.5, frequency: 0.25, seed: 9, ..PLAIN }),
    (
        "all",
        Rules {
            temperature: 0.75,
            top_k: Some(40),
            top_p: Some(0.9375),
            min_p: 0.015625,
            repetition: 1.125,
            presence: -0.25,
            frequency: 0.5,
            seed: 10,
        },
    ),
];

fn sampling(rules: &Rules) -> Sampling {
    Sampling::default()
        .temperature(rules.temperature as f32)
        .top_k(rules.top_k)
        .top_p(rules.top_p.map(|p| p as f32))
        .min_p(rules.min_p as f32)
        .repetition(rules.repetition as f32)
        .presence(rules.presence as f32)
        .frequency(rules.frequency as f32)
        .seed(rules.seed)
}

/// What a sequence should know of its tokens.
struct Known {
    rules: Rules,
    seen: Vec<Seen>,
}

impl Known {
    fn check(&mut self, logits: &[f64], draw: u32, token: u32) -> Outcome {
        let possible = self.rules.draws(logits, &self.seen, draw);
        let token = token as usize;
        if !possible.contains(&token) {
            let from = logits.iter().zip(&self.seen).map(|(logit, seen)| (*logit, *seen));
            let of = |token: usize| from.clone().nth(token);
            return Err(format!(
                "{:?}, draw {draw}: token {token}, with {:?}; expected one of {possible:?}, such as {:?}",
                self.rules,
                of(token),
                possible.first().map(|&token| of(token)),
            )
            .into());
        }
        self.seen[token].1 += 1;
        Ok(())
    }
}

/// Random logits of a dtype, with some standard deviation.
fn logits(inputs: &mut Inputs, count: usize, deviation: f64, dtype: DType) -> Vec<f64> {
    (0..count).map(|_| round(inputs.normal() * deviation, dtype)).collect()
}

/// Draws some tokens of sequences that have different settings.
fn draws(vocabulary: usize, deviation: f64, dtype: DType, device: &Device) -> Outcome {
    let mut inputs = Inputs::new(&format!("sampler {vocabulary} {deviation} {dtype}"));
    let mut sampler = Sampler::new(vocabulary, RULES.len(), device)?;
    let mut known = Vec::new();
    for (sequence, (_, rules)) in RULES.into_iter().enumerate() {
        let prompt: Vec<u32> = (0..vocabulary.div_ceil(9)).map(|_| inputs.below(vocabulary) as u32).collect();
        let mut seen = vec![(false, 0); vocabulary];
        prompt.iter().for_each(|&token| seen[token as usize].0 = true);
        sampler.start(sequence, &sampling(&rules))?;
        let (first, rest) = prompt.split_at(prompt.len() / 2);
        sampler.observe(sequence, first)?;
        sampler.observe(sequence, rest)?;
        known.push(Known { rules, seen });
    }
    for draw in 0..4 {
        let values = logits(&mut inputs, RULES.len() * vocabulary, deviation, dtype);
        let rows = upload(&array(&[RULES.len(), vocabulary], values.clone()), dtype, device)?;
        let tokens = sampler.sample(&rows)?.to_vec::<u32>()?;
        for ((known, logits), token) in known.iter_mut().zip(values.chunks(vocabulary)).zip(tokens) {
            known.check(logits, draw, token)?;
        }
    }
    Ok(())
}

/// Rows and tokens that lie apart in memory.
fn strides(dtype: DType, device: &Device) -> Outcome {
    let (rows, vocabulary) = (3, 37);
    let values = logits(&mut Inputs::new("strided logits"), rows * vocabulary, 2.0, dtype);
    let mut sampler = Sampler::new(vocabulary, rows, device)?;
    let turned: Vec<f64> = (0..vocabulary * rows).map(|i| values[i % rows * vocabulary + i / rows]).collect();
    let tensor = upload(&array(&[vocabulary, rows], turned), dtype, device)?;
    let padded = tensor.pad_with_zeros(0, 5, 0)?;
    for view in [tensor.t()?, padded.narrow(0, 5, vocabulary)?.t()?] {
        (0..rows).try_for_each(|row| sampler.start(row, &sampling(&Rules { seed: row as u64, ..PLAIN })))?;
        for (row, token) in sampler.sample(&view)?.to_vec::<u32>()?.into_iter().enumerate() {
            let rules = Rules { seed: row as u64, ..PLAIN };
            let mut known = Known { rules, seen: vec![(false, 0); vocabulary] };
            known.check(&values[row * vocabulary..][..vocabulary], 0, token)?;
        }
    }
    Ok(())
}

/// Fails if frequencies differ from probabilities by more than chance: once in three million times, and the draws are
/// the same in every run. The limit of the statistic is by E. Wilson and M. Hilferty, "The Distribution of Chi-Square",
/// 1931, at five standard deviations.
fn check_chi_squared(rules: &Rules, tokens: &[u32], probabilities: &[f64]) -> Outcome {
    let draws = tokens.len() as f64;
    let possible = probabilities.iter().filter(|&&p| p > 0.0);
    if let Some(rare) = possible.clone().find(|&&p| p * draws < 5.0) {
        return Err(format!("a probability of {rare} needs more draws").into());
    }
    let freedom = possible.count() as f64 - 1.0;
    let mut statistic = 0.0;
    for (token, &p) in probabilities.iter().enumerate() {
        let count = tokens.iter().filter(|&&drawn| drawn as usize == token).count() as f64;
        if p == 0.0 && count > 0.0 {
            return Err(format!("{rules:?}: token {token} was left out, and was drawn").into());
        }
        statistic += if p == 0.0 { 0.0 } else { (count - p * draws).powi(2) / (p * draws) };
    }
    let spread = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - spread + 5.0 * spread.sqrt()).powi(3);
    if statistic > limit {
        return Err(format!("{rules:?}: chi-squared is {statistic}, the limit {limit} for {freedom} degrees").into());
    }
    Ok(())
}

/// Draws from the same logits many times, in many sequences.
fn distributions(device: &Device) -> Outcome {
    let vocabulary = 32;
    let values = logits(&mut Inputs::new("distribution of tokens"), vocabulary, 1.0, DType::F32);
    // Tokens with equal scores are chosen by other random bits than the others.
    let tied: Vec<f64> = values.iter().map(|x| x.round()).collect();
    let (sequences, rounds) = (128, 40);
    let seen = vec![(false, 0); vocabulary];
    let all = [
        PLAIN,
        Rules { min_p: 0.1, top_k: Some(30), top_p: Some(0.9), ..PLAIN },
        Rules { temperature: 1.5, top_p: Some(0.8), ..PLAIN },
        Rules { temperature: 0.75, top_k: Some(20), ..PLAIN },
    ];
    for &rules in if full_tier() { &all[..] } else { &all[..2] } {
        let mut sampler = Sampler::new(vocabulary, sequences, device)?;
        for logits in [&values, &tied] {
            for sequence in 0..sequences {
                sampler.start(sequence, &sampling(&Rules { seed: sequence as u64, ..rules }))?;
            }
            let row = upload(&array(&[1, vocabulary], logits.clone()), DType::F32, device)?;
            let rows = row.broadcast_to((sequences, vocabulary))?;
            let draws = (0..rounds).map(|_| sampler.sample(&rows)).collect::<marquetry::Result<Vec<_>>>()?;
            let tokens = Tensor::cat(&draws, 0)?.to_vec::<u32>()?;
            check_chi_squared(&rules, &tokens, &rules.probabilities(logits, &seen))?;
        }
    }
    Ok(())
}

/// Sums that are exactly the limit: the tokens that reach `top_p` are the last ones. Differences that are tiny, but not
/// 0.
fn limits(device: &Device) -> Outcome {
    let halves: &[f64] = &[0.0, -f64::ln(2.0), -f64::ln(2.0)];
    let tiny: &[f64] = &[1e-37, 3e-37, 2e-37];
    let cases: [(&[f64], Rules, &[u32]); 4] = [
        (halves, Rules { top_p: Some(0.5), ..PLAIN }, &[0]),
        (halves, Rules { min_p: 0.5, ..PLAIN }, &[0, 1, 2]),
        (tiny, Rules { temperature: 0.0, ..PLAIN }, &[1]),
        (tiny, Rules { temperature: 1e-30, ..PLAIN }, &[0, 1, 2]),
    ];
    for (logits, rules, possible) in cases {
        let sequences = 64;
        let mut sampler = Sampler::new(logits.len(), sequences, device)?;
        for sequence in 0..sequences {
            sampler.start(sequence, &sampling(&Rules { seed: sequence as u64, ..rules }))?;
        }
        let row = upload(&array(&[1, logits.len()], logits.to_vec()), DType::F32, device)?;
        let mut tokens = sampler.sample(&row.broadcast_to((sequences, logits.len()))?)?.to_vec::<u32>()?;
        tokens.sort_unstable();
        tokens.dedup();
        if tokens != possible {
            return Err(format!("{rules:?}: {tokens:?} were drawn from {logits:?}, expected {possible:?}").into());
        }
    }
    Ok(())
}

/// A sequence's tokens depend neither on other sequences nor on where it stands, and are the same in each run.
fn independence(device: &Device) -> Outcome {
    let vocabulary = 300;
    let values = logits(&mut Inputs::new("independent"), vocabulary, 2.0, DType::F32);
    let row = upload(&array(&[1, vocabulary], values), DType::F32, device)?;
    let rules = Rules { seed: 77, frequency: 0.5, ..PLAIN };
    let tokens_at = |place: usize, sequences: usize| -> Outcome<Vec<u32>> {
        let mut sampler = Sampler::new(vocabulary, sequences, device)?;
        for sequence in 0..sequences {
            let seed = if sequence == place { 77 } else { 1000 + sequence as u64 };
            sampler.start(sequence, &sampling(&Rules { seed, ..rules }))?;
        }
        let rows = row.broadcast_to((sequences, vocabulary))?;
        (0..20).map(|_| Ok(sampler.sample(&rows)?.to_vec::<u32>()?[place])).collect()
    };
    let alone = tokens_at(0, 1)?;
    for (place, sequences) in [(0, 1), (0, 3), (2, 3)] {
        let tokens = tokens_at(place, sequences)?;
        if tokens != alone {
            return Err(format!("sequence {place} of {sequences} draws {tokens:?}, alone it draws {alone:?}").into());
        }
    }
    Ok(())
}

/// Logits that are no numbers, infinite, equal, or at the ends of their range.
fn extremes(dtype: DType, device: &Device) -> Outcome {
    let (inf, nan, most) = (f64::INFINITY, f64::NAN, if dtype == DType::F16 { 65504.0 } else { 3e38 });
    let rows: [(&[f64; 5], &[u32]); 7] = [
        (&[nan, -inf, 1.0, nan, -inf], &[2]),
        (&[0.0, inf, 1.0, -inf, nan], &[1]),
        (&[-inf; 5], &[0]),
        (&[nan; 5], &[0]),
        (&[2.0; 5], &[0, 1, 2, 3, 4]),
        (&[-most, most, most, -most, 0.0], &[1, 2]),
        (&[-most, -most, -most, -inf, -most], &[0, 1, 2, 4]),
    ];
    let all: Vec<f64> = rows.iter().flat_map(|(row, _)| **row).map(|x| round(x, dtype)).collect();
    let tensor = upload(&array(&[rows.len(), 5], all), dtype, device)?;
    let mut sampler = Sampler::new(5, rows.len(), device)?;
    for (name, rules) in RULES {
        (0..rows.len()).try_for_each(|row| sampler.start(row, &sampling(&rules)))?;
        let tokens = sampler.sample(&tensor)?.to_vec::<u32>()?;
        let greedy = ["greedy", "top_1"].contains(&name);
        for ((row, possible), token) in rows.iter().zip(tokens) {
            let possible = if greedy { &possible[..1] } else { possible };
            if !possible.contains(&token) {
                return Err(format!("{name}: token {token} of {row:?}, expected one of {possible:?}").into());
            }
        }
    }
    Ok(())
}

pub fn add(suite: &mut Suite) {
    for dtype in FLOATS {
        // Elements and quads of each dtype are kernels of their own.
        let few = [(1000, 2.0)];
        let mut sizes = if is_brief(dtype) { few.into() } else { vec![(1, 1.0), (40, 1.0), (1000, 2.0), (3001, 3.0)] };
        if full_tier() {
            // The bins of one distribution are nearly empty, and those of the other one are full.
            sizes.extend([(50_000, 3.0), (50_000, 0.1), (300_000, 2.0)]);
        }
        for (vocabulary, deviation) in sizes {
            let name = format!("{dtype}::{vocabulary}_tokens_{deviation}");
            suite.add("sampler", name, move |device| draws(vocabulary, deviation, dtype, device));
        }
        if is_brief(dtype) {
            continue;
        }
        suite.add("sampler", format!("{dtype}::strides"), move |device| strides(dtype, device));
        suite.add("sampler", format!("{dtype}::extremes"), move |device| extremes(dtype, device));
    }
    suite.add("sampler", "distributions", distributions);
    suite.add("sampler", "independence", independence);
    suite.add("sampler", "limits", limits);
}
