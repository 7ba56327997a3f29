//! A real model from end to end: the sentence-embedding model of the `search` example, and its command line.
//!
//! `tests/data/minilm.*` hold another implementation's results for five sentences: the tokens, the vectors of the
//! tokens after the embedding layer and after each of the six other layers, and the embeddings. Between `f32` and
//! `f64`, that implementation's own results differ by 2.9e-6 and 1.2e-7.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

#[macro_use]
mod each_device;
#[path = "../examples/search/model.rs"]
mod model;
#[path = "../examples/search/folder.rs"]
mod model_folder;
#[path = "../examples/search/tokens.rs"]
mod tokens;

use marquetry::{DType, Device, Tensor};
use model::Model;
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tokenizers::Encoding;
use tokens::Tokens;

const EMBEDDING_TOLERANCE: f32 = 2e-6;
const HIDDEN_TOLERANCE: f32 = 5e-5;

on_each_device! {
    agrees_with_the_reference
    is_submitted_at_once_and_waits_only_for_the_read
    leaves_nothing_behind_in_hundreds_of_passes
    gives_the_same_bits_when_it_is_captured
    knows_what_is_alike
    search_finds_the_line_that_answers
}

fn folder() -> PathBuf {
    std::env::var_os("MARQUETRY_MINILM").map_or_else(|| "target/minilm".into(), PathBuf::from)
}

fn load(device: &Device) -> (Model, Tokens) {
    model_folder::load(&folder(), device).unwrap_or_else(|error| panic!("`make setup` brings the model: {error:#}"))
}

/// A sentence with its tokens and the expected results.
struct Sample {
    sentence: String,
    ids: Vec<u32>,
    /// The tokens' vectors after each layer.
    hidden: Vec<Vec<f32>>,
    embedding: Vec<f32>,
}

fn samples() -> Vec<Sample> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let sentences: serde_json::Value =
        serde_json::from_slice(&std::fs::read(data.join("minilm.json")).unwrap()).unwrap();
    let bytes = std::fs::read(data.join("minilm.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |name| -> Vec<f32> { bytemuck::pod_collect_to_vec(file.tensor(name).unwrap().data()) };
    let (hidden, embeddings) = (numbers("hidden"), numbers("embeddings"));
    let &[layers, all_tokens, width] = file.tensor("hidden").unwrap().shape() else { panic!("hidden is not 3-d") };

    let mut first = 0;
    let samples = sentences.as_array().unwrap().iter().zip(embeddings.chunks(width)).map(|(entry, embedding)| {
        let ids: Vec<u32> = entry["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let rows = |layer| (layer * all_tokens + first) * width..(layer * all_tokens + first + ids.len()) * width;
        let hidden = (0..layers).map(|layer| hidden[rows(layer)].to_vec()).collect();
        first += ids.len();
        Sample { sentence: entry["sentence"].as_str().unwrap().into(), ids, hidden, embedding: embedding.to_vec() }
    });
    samples.collect()
}

fn sentences(samples: &[Sample]) -> Vec<&str> {
    samples.iter().map(|sample| sample.sentence.as_str()).collect()
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    // A NaN on either side fails this comparison.
    let close = |(a, b): &(&f32, &f32)| (*a - *b).abs() <= tolerance;
    if let Some(at) = found.iter().zip(expected).position(|pair| !close(&pair)) {
        panic!("{what}: at {at} {} instead of {}, more than {tolerance} away", found[at], expected[at]);
    }
}

/// Returns the output of every layer, `[batch, tokens, width]` each.
fn hidden_states(model: &Model, encodings: &[Encoding]) -> marquetry::Result<Vec<Tensor>> {
    let (ids, mask) = model.inputs(encodings)?;
    let padding = model::padding_bias(&mask)?;
    let mut states = vec![model.embeddings.forward(&ids)?];
    for layer in &model.layers {
        states.push(layer.forward(&states[states.len() - 1], &padding)?);
    }
    Ok(states)
}

/// Sentences give the same results in a batch as alone, whatever the padding.
fn agrees_with_the_reference(device: &Device) {
    let (model, tokens) = load(device);
    let samples = samples();
    // First all sentences as one batch, then each one alone.
    for group in std::iter::once(&samples[..]).chain(samples.chunks(1)) {
        let encodings = tokens.encode(&sentences(group)).unwrap();
        let states = hidden_states(&model, &encodings).unwrap();
        let embeddings: Vec<f32> = model.embed(&encodings).unwrap().to_vec().unwrap();
        for (i, sample) in group.iter().enumerate() {
            let what = |part: &str| format!("{part} of {:?} in a batch of {}", sample.sentence, group.len());
            let length = sample.ids.len();
            assert_eq!(encodings[i].get_ids()[..length], sample.ids, "{}", what("tokens"));
            assert!(encodings[i].get_ids()[length..].iter().all(|&id| id == 0), "{}", what("padding"));
            for (layer, (state, expected)) in states.iter().zip(&sample.hidden).enumerate() {
                let rows = state.narrow(0, i, 1).unwrap().narrow(1, 0, length).unwrap();
                let rows: Vec<f32> = rows.to_vec().unwrap();
                assert_close(&rows, expected, HIDDEN_TOLERANCE, &what(&format!("layer {layer}")));
            }
            let width = sample.embedding.len();
            let found = &embeddings[i * width..][..width];
            assert_close(found, &sample.embedding, EMBEDDING_TOLERANCE, &what("embedding"));
        }
    }
}

fn is_submitted_at_once_and_waits_only_for_the_read(device: &Device) {
    let (model, tokens) = load(device);
    let encodings = tokens.encode(&sentences(&samples())).unwrap();
    let warm: Vec<f32> = model.embed(&encodings).unwrap().to_vec().unwrap();

    let before = device.stats();
    let embeddings = model.embed(&encodings).unwrap();
    embeddings.realize().unwrap();
    let recorded = device.stats();
    let again: Vec<f32> = embeddings.to_vec().unwrap();
    let after = device.stats();

    let launches = after.launches - before.launches;
    println!("{launches} launches in {} submissions", after.submissions - before.submissions);
    // Eight for each layer: the packed projections, attention, its heads side by side, the projection back with the
    // residual, a norm, and the network's two products and norm. Then the embeddings, the mask, and the mean.
    assert!(launches <= 6 * 8 + 9, "{launches} launches");
    assert_eq!(recorded.waits, before.waits, "the host has waited before the read");
    assert_eq!(after.waits, before.waits + 1);
    // The device starts while the host still records. How many batches follow depends on how far it falls behind.
    let submissions = recorded.submissions - before.submissions;
    assert!((2..=launches).contains(&submissions), "{submissions} submissions of {launches} launches");
    assert_eq!(after.compiles, before.compiles);
    assert_eq!(warm, again);
}

fn leaves_nothing_behind_in_hundreds_of_passes(device: &Device) {
    let (model, tokens) = load(device);
    let encodings = tokens.encode(&["A man is eating food."]).unwrap();
    assert_eq!(encodings[0].len(), 8);
    let read_pass = || -> Vec<f32> { model.embed(&encodings).unwrap().to_vec().unwrap() };
    let memory = || (device.memory_stats().in_use, device.memory_stats().cached);

    let first = read_pass();
    let compiles = device.stats().compiles;
    let passes = |passes: std::ops::Range<u32>| {
        for pass in passes {
            if pass % 100 == 99 {
                assert_eq!(read_pass(), first, "pass {pass}");
            } else {
                model.embed(&encodings).unwrap().realize().unwrap();
            }
        }
        memory()
    };
    let (in_use, cached) = passes(1..100);
    let full_tier = std::env::var("MARQUETRY_TEST_TIER").is_ok_and(|tier| tier == "full");
    let (in_use_at_last, cached_at_last) = passes(100..if full_tier { 1000 } else { 300 });
    assert_eq!(in_use_at_last, in_use, "bytes in use");
    // On unified memory, the host writes tokens to buffers that no batch in flight reads. How many batches are in
    // flight depends on the machine: at most 17, of 5 passes with two buffers of 256 bytes each. If each pass left a
    // buffer behind, that would be at least 51,200 bytes.
    let in_flight = 17 * 5 * 2 * 256;
    assert!(cached_at_last <= cached + in_flight, "{cached} bytes in the pool's cache, then {cached_at_last}");
    assert_eq!(device.stats().compiles, compiles);
}

fn gives_the_same_bits_when_it_is_captured(device: &Device) {
    let (model, tokens) = load(device);
    let samples = samples();
    let encodings = tokens.encode(&sentences(&samples)).unwrap();
    // Batches of one shape, with other sentences and padding.
    let batches: Vec<&[Encoding]> = vec![&encodings[0..2], &encodings[2..4], &encodings[3..5]];
    let shape = (2, encodings[0].len());
    let step = device.capture(|args| {
        let (ids, mask) = (args.input("ids", shape, DType::U32)?, args.input("mask", shape, DType::F32)?);
        Ok([("embeddings", model.embed_ids(&ids, &mask)?)])
    });
    let step = step.unwrap();
    let before = device.stats();
    let inputs: Vec<_> = batches.iter().map(|batch| model.inputs(batch).unwrap()).collect();
    let run = |(ids, mask): &(Tensor, Tensor)| step.run([("ids", ids.into()), ("mask", mask.into())]).unwrap();
    let outputs: Vec<_> = inputs.iter().map(run).collect();
    let recorded = device.stats();
    assert_eq!((recorded.waits, recorded.compiles), (before.waits, before.compiles));
    for (batch, outputs) in batches.iter().zip(&outputs) {
        let expected: Vec<f32> = model.embed(batch).unwrap().to_vec().unwrap();
        let found: Vec<f32> = outputs.get("embeddings").unwrap().to_vec().unwrap();
        assert!(found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{found:?}, not {expected:?}");
    }
    // The step keeps the weights.
    drop(model);
    let again: Vec<f32> = run(&inputs[0]).get("embeddings").unwrap().to_vec().unwrap();
    assert_eq!(again, outputs[0].get("embeddings").unwrap().to_vec::<f32>().unwrap());
}

fn knows_what_is_alike(device: &Device) {
    let (model, tokens) = load(device);
    let texts = [
        "A man is eating food.",
        "Someone is having a meal.",
        "A man is driving a car.",
        "The stock market fell sharply on Monday.",
    ];
    let embeddings = model.embed(&tokens.encode(&texts).unwrap()).unwrap();
    let cosines = embeddings.matmul(&embeddings.t().unwrap()).unwrap();
    let to_first: Vec<f32> = cosines.narrow(0, 0, 1).unwrap().to_vec().unwrap();
    assert!((to_first[0] - 1.0).abs() < 1e-6, "a text is as close to itself as can be: {to_first:?}");
    assert!(to_first[1] > to_first[2] && to_first[2] > to_first[3], "{to_first:?}");
}

/// Runs the example, which `cargo test` has built beside the tests.
fn search(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.ancestors().nth(2).unwrap().join("examples");
    let program = folder.join(format!("search{}", std::env::consts::EXE_SUFFIX));
    assert!(program.is_file(), "run `cargo build --example search`: there is no {}", program.display());
    let model = self::folder();
    Command::new(program)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("MARQUETRY_MINILM", model)
        .envs(environment.iter().copied())
        .args(arguments)
        .output()
        .unwrap()
}

fn search_finds_the_line_that_answers(device: &Device) {
    let query = "how do plants make food from sunlight?";
    let output = search(&["--device", &device.id(), "--top", "3", "--query", query], &[]);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.starts_with(&format!("device: {device}\nsentences: 300 in examples/data/notes.txt, ")), "{stdout}");
    let matches: Vec<&str> = stdout.lines().skip_while(|line| !line.starts_with("  1.")).collect();
    assert!(matches[0].contains("photosynthesis"), "{stdout}");
    assert!(matches[3].is_empty() && matches[4].starts_with("first result after "), "{stdout}");

    // The number beside a match is its line number in the file.
    let number = matches[0].split_once("line ").unwrap().1.split_once(':').unwrap().0;
    let notes = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/notes.txt")).unwrap();
    let line = notes.lines().nth(number.trim().parse::<usize>().unwrap() - 1).unwrap();
    assert!(matches[0].ends_with(line), "{stdout}");
    let question: Vec<&str> = query.trim_end_matches('?').split(' ').filter(|word| *word != "from").collect();
    assert!(line.split([' ', ',', '.']).all(|word| !question.contains(&word)), "the words alone would find {line:?}");
}

/// Asserts that the example fails with one line that contains the reason.
fn assert_refused(arguments: &[&str], environment: &[(&str, &str)], reason: &str) {
    let output = search(arguments, environment);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stdout}{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains(reason), "{arguments:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
}

#[test]
fn search_says_what_is_missing() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = |name: &str, bytes: &[u8]| {
        let path = scratch.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let (blank, binary) = (file("blank.txt", b"\n  \n"), file("binary.txt", &[0xff, 0xfe, 0]));
    assert_refused(&["no-such-file.txt", "--query", "x"], &[], "cannot read no-such-file.txt");
    assert_refused(&[&blank, "--query", "x"], &[], "has no text in it");
    assert_refused(&[&binary, "--query", "x"], &[], "cannot read");

    assert_refused(&["--model", "no-such-folder", "--query", "x"], &[], "run `make setup`");
    assert_refused(&["--query", "x"], &[("MARQUETRY_MINILM", "no-such-folder")], "run `make setup`");

    for (device, reason) in [
        ("nonsense", "`nonsense` names no device"),
        ("vulkan:", "`vulkan:` names no device"),
        ("vulkan:99", "vulkan is not available"),
        ("webgpu:99", "webgpu is not available"),
        ("level-zero:99", "level-zero is not available"),
    ] {
        assert_refused(&["--device", device, "--query", "x"], &[], reason);
        assert_refused(&["--query", "x"], &[("MARQUETRY_DEVICE", device)], reason);
    }
    // The same as on a machine without a driver.
    let no_driver = |device| {
        let none = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "ZE_ENABLE_ALT_DRIVERS"].map(|name| (name, "none"));
        [none[0], none[1], none[2], ("MARQUETRY_DEVICE", device)]
    };
    assert_refused(&["--query", "x"], &no_driver("vulkan"), "vulkan is not available");
    assert_refused(&["--query", "x"], &no_driver("webgpu"), "webgpu is not available");
    assert_refused(&["--query", "x"], &no_driver("level-zero"), "level-zero is not available");
    assert_refused(&["--query", "x"], &no_driver(""), "no usable device");
}

#[test]
fn search_refuses_a_broken_model() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-model");
    std::fs::create_dir_all(&scratch).unwrap();
    let arguments = ["--model", scratch.to_str().unwrap(), "--query", "x"];
    std::fs::write(scratch.join("model.safetensors"), b"not a model").unwrap();
    std::fs::write(scratch.join("tokenizer.json"), b"{}").unwrap();
    assert_refused(&arguments, &[], "tokenizer.json");
    std::fs::copy(folder().join("tokenizer.json"), scratch.join("tokenizer.json")).unwrap();
    assert_refused(&arguments, &[], "model.safetensors is not this model");
    // A valid file with other tensors.
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/minilm.safetensors");
    std::fs::copy(reference, scratch.join("model.safetensors")).unwrap();
    assert_refused(&arguments, &[], "embeddings.word_embeddings.weight");
}
