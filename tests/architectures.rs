//! The architectures of the `chat` example: small models with random weights, and the logits that another
//! implementation computes with them (`scripts/architectures_reference.py`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

#[path = "../examples/chat/architecture.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod architecture;
#[path = "../examples/chat/model.rs"]
mod model;

#[macro_use]
mod each_device;

use architecture::Config;
use marquetry::io::{Gguf, Npz};
use marquetry::nn::{KvCache, KvCacheConfig, Sampler, Sampling, Sequence};
use marquetry::{BlockFormat, DType, Device, Step, Tensor};
use model::Model;
use std::path::{Path, PathBuf};

const ARCHITECTURES: [&str; 7] = ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "bitnet"];

/// The most tokens of a sequence. Phi 3 rotates by other factors if there may be more than 24.
const CAPACITY: usize = 64;

/// The reference sums in another order: two to six layers make of 2^-24 up to 1.4e-6.
const SUMS: f32 = 1e-5;
/// Each operation rounds to 2^-11: 9.6e-4 to 3.8e-3 on lavapipe. `bf16` has three bits less: up to 7.2e-2.
const HALVES: f32 = 1.2e-2;
/// A key that lies between two whole numbers may become the other one: once on one device, which makes 1.6e-3.
const PACKED: f32 = 5e-3;
/// BitNet rounds the activations of each layer to whole numbers, too.
const INTEGERS: f32 = 2e-2;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/architectures")
}

fn load(architecture: &str, dtype: DType, device: &Device) -> Model {
    load_for(architecture, CAPACITY, dtype, device)
}

/// Loads a model for sequences of at most `capacity` tokens.
fn load_for(architecture: &str, capacity: usize, dtype: DType, device: &Device) -> Model {
    let file = Gguf::open(folder().join(format!("{architecture}.gguf"))).unwrap();
    pollster::block_on(Model::load(file, capacity, dtype, device)).unwrap()
}

fn full_tier() -> bool {
    std::env::var("MARQUETRY_TEST_TIER").is_ok_and(|tier| tier == "full")
}

/// The tokens, and what each model makes of them.
fn reference(name: &str, device: &Device) -> Tensor {
    Npz::open(folder().join("logits.npz")).unwrap().load(name, device).unwrap()
}

/// Fails if logits differ from those of some tokens by more than a part of the largest one.
fn check(what: &str, found: &Tensor, expected: &Tensor, tolerance: f32) {
    let largest = |x: &Tensor| x.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let error = largest(&found.to_dtype(DType::F32).unwrap().sub(expected).unwrap()) / largest(expected);
    println!("{what}: {error:e}");
    // A NaN is not below.
    assert!(error <= tolerance, "{what}: an error of {error}, more than {tolerance}");
}

/// Returns the logits of one pass over all tokens.
fn logits(model: &Model, format: Option<BlockFormat>) -> Tensor {
    let ids = reference("ids", model.device());
    let mut cache = model.cache(1, CAPACITY, format).unwrap();
    let sequence = cache.add();
    cache.extend(&[(sequence, ids.elem_count())]).unwrap();
    model.logits(&model.forward(&ids, &cache).unwrap()).unwrap()
}

fn logits_are_those_of_the_reference(device: &Device) {
    for architecture in ARCHITECTURES {
        let expected = reference(architecture, device);
        let model = load(architecture, DType::F32, device);
        check(&format!("{architecture} in f32"), &logits(&model, None), &expected, SUMS);
        let found = logits(&model, Some(BlockFormat::Q8_0));
        let packed = reference(&format!("{architecture}.packed"), device);
        let [halves, between] = if architecture == "bitnet" { [INTEGERS; 2] } else { [HALVES, PACKED] };
        check(&format!("{architecture} with a packed cache"), &found, &packed, between);
        // Other devices take most of their time to compile kernels.
        if full_tier() || device.id().starts_with("vulkan") {
            for (dtype, tolerance) in [(DType::F16, halves), (DType::BF16, 8.0 * halves)] {
                let model = load(architecture, dtype, device);
                check(&format!("{architecture} in {dtype}"), &logits(&model, None), &expected, tolerance);
            }
        }
    }
}

/// What happens to sequences that begin with the same tokens.
enum Event {
    /// A pass over new tokens of some sequences. A sequence that is not there begins.
    Pass(&'static [(usize, usize)]),
    Fork(usize),
    Rewind(usize, usize),
}

/// A model, and sequences in its cache.
struct Sequences {
    architecture: &'static str,
    model: Model,
    cache: KvCache,
    sequences: Vec<Sequence>,
    ids: Vec<u32>,
    expected: Tensor,
}

impl Sequences {
    fn new(architecture: &'static str, device: &Device) -> Self {
        let model = load(architecture, DType::F32, device);
        let (cache, sequences) = (model.cache(3, CAPACITY, None).unwrap(), Vec::new());
        let (ids, expected) = (reference("ids", device).to_vec().unwrap(), reference(architecture, device));
        Sequences { architecture, model, cache, sequences, ids, expected }
    }

    fn length(&self, sequence: usize) -> usize {
        self.cache.length(self.sequences[sequence]).unwrap()
    }

    /// Announces the next tokens of sequences. Returns them, and the rows of the reference for them.
    fn announce(&mut self, parts: &[(usize, usize)]) -> (Tensor, Tensor) {
        while parts.iter().any(|&(sequence, _)| sequence >= self.sequences.len()) {
            self.sequences.push(self.cache.add());
        }
        let places: Vec<u32> = parts
            .iter()
            .flat_map(|&(sequence, more)| self.length(sequence)..self.length(sequence) + more)
            .map(|place| place as u32)
            .collect();
        let more: Vec<_> = parts.iter().map(|&(sequence, more)| (self.sequences[sequence], more)).collect();
        self.cache.extend(&more).unwrap();
        let ids: Vec<u32> = places.iter().map(|&place| self.ids[place as usize]).collect();
        let device = self.model.device();
        let places = Tensor::new(places, device).unwrap();
        (Tensor::new(ids, device).unwrap(), self.expected.index_select(&places, 0).unwrap())
    }

    fn happens(&mut self, event: &Event) {
        match *event {
            Event::Pass(parts) => {
                let (ids, expected) = self.announce(parts);
                let found = self.model.logits(&self.model.forward(&ids, &self.cache).unwrap()).unwrap();
                check(&format!("{}, pass {parts:?}", self.architecture), &found, &expected, SUMS);
            }
            Event::Fork(sequence) => self.sequences.push(self.cache.fork(self.sequences[sequence]).unwrap()),
            Event::Rewind(sequence, length) => self.cache.rewind(self.sequences[sequence], length).unwrap(),
        }
    }

    fn captured(&self, sequences: usize) -> Step {
        let device = self.model.device();
        let step = device.capture(|args| {
            let ids = args.input("ids", sequences, DType::U32)?;
            Ok([("logits", self.model.logits(&self.model.forward(&ids, &self.cache)?)?)])
        });
        step.unwrap()
    }
}

/// Chunks, sequences of different lengths in one pass, forks, rewinds and captured steps give the logits that one pass
/// over a sequence gives.
fn passes_of_any_kind_give_the_same_logits(device: &Device) {
    const STORY: [Event; 8] = [
        Event::Pass(&[(0, 23), (1, 9)]),
        Event::Pass(&[(1, 5), (0, 1)]),
        Event::Fork(1),
        Event::Pass(&[(2, 6), (0, 1), (1, 1)]),
        Event::Rewind(0, 22),
        Event::Rewind(2, 7),
        Event::Pass(&[(2, 3), (1, 3), (0, 3)]),
        Event::Pass(&[(0, 1), (2, 1)]),
    ];
    for architecture in ARCHITECTURES {
        let mut sequences = Sequences::new(architecture, device);
        STORY.iter().for_each(|event| sequences.happens(event));
        let mut steps = [None, None];
        for run in 0..8 {
            let count = 3 - run % 2;
            let parts: Vec<_> = (0..count).map(|sequence| (sequence, 1)).collect();
            let (ids, expected) = sequences.announce(&parts);
            let step = steps[run % 2].get_or_insert_with(|| sequences.captured(count));
            let found = step.run([("ids", (&ids).into())]).unwrap();
            check(&format!("{architecture}, run {run}"), found.get("logits").unwrap(), &expected, SUMS);
        }
    }
}

/// Phi 3 rotates short texts by other factors.
fn short_texts_have_their_own_factors(device: &Device) {
    let expected = reference("phi3.short", device);
    let tokens = expected.dims()[0];
    let model = load_for("phi3", tokens, DType::F32, device);
    let mut cache = model.cache(1, tokens, None).unwrap();
    let sequence = cache.add();
    cache.extend(&[(sequence, tokens)]).unwrap();
    let ids = reference("ids", device).narrow(0, 0, tokens).unwrap();
    let found = model.logits(&model.forward(&ids, &cache).unwrap()).unwrap();
    check("phi3, a short text", &found, &expected, SUMS);
}

/// A model whose layers see a window writes tokens without end in the memory of a few pages. Each token is drawn, and
/// is the next one's input.
fn memory_stays_flat(device: &Device) {
    let tokens = if full_tier() { 10_000 } else { 500 };
    let model = load_for("phi3", tokens, DType::F32, device);
    let Config { layers, kv_heads, head_width, vocabulary, .. } = model.config;
    let window = model.config.window_of_all();
    assert!(window.is_some());
    let config = KvCacheConfig::new(layers, kv_heads, head_width).length(tokens).tokens(192).window(window);
    let mut cache = KvCache::new(&config, device).unwrap();
    let (sequence, mut sampler) = (cache.add(), Sampler::new(vocabulary, 1, device).unwrap());
    sampler.start(0, &Sampling::default().frequency(0.1)).unwrap();
    let mut id = Tensor::new([1u32], device).unwrap();
    let (mut step, mut stats) = (None, None);
    for place in 0..tokens {
        cache.extend(&[(sequence, 1)]).unwrap();
        let step = step.get_or_insert_with(|| {
            let step = device.capture(|args| {
                let id = args.input("id", 1, DType::U32)?;
                Ok([("next", sampler.sample(&model.logits(&model.forward(&id, &cache)?)?)?)])
            });
            step.unwrap()
        });
        id = step.run([("id", (&id).into())]).unwrap().get("next").unwrap().clone();
        // Runs in flight have buffers of their own, and the host may be far ahead.
        if place % 50 == 0 {
            assert!(id.to_vec::<u32>().unwrap()[0] < vocabulary as u32);
        }
        if place == tokens / 2 {
            stats = Some(device.memory_stats().reserved);
        }
    }
    assert_eq!(Some(device.memory_stats().reserved), stats);
    assert_eq!(cache.length(sequence).unwrap(), tokens);
}

on_each_device! {
    logits_are_those_of_the_reference
    passes_of_any_kind_give_the_same_logits
    short_texts_have_their_own_factors
    memory_stays_flat
}
