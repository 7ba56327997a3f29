//! A second real model from end to end: text detection and recognition of the `ocr` example, and its command line.
//!
//! `make setup` runs the Python package rapidocr-onnxruntime, which contains the weights and computes with ONNX
//! Runtime, on `examples/data/ocr.png` (`scripts/ocr_reference.py`). It stores the inputs and outputs of both networks,
//! the boxes and the texts in `target/ocr-reference`. The picture was drawn with Pillow in its own font.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

#[path = "../examples/ocr/boxes.rs"]
mod boxes;
#[path = "../examples/ocr/detection.rs"]
mod detection;
#[path = "../examples/ocr/layers.rs"]
mod layers;
#[path = "../examples/ocr/picture.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod picture;
#[path = "../examples/ocr/reader.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod reader;
#[path = "../examples/ocr/recognition.rs"]
mod recognition;
#[path = "../examples/ocr/weights.rs"]
mod weights;

use boxes::ProbabilityMap;
use marquetry::io::Npz;
use marquetry::{Device, Tensor};
use reader::Reader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

/// The logits of characters reach 40 and those of pixels reach 140. There, steps of `f32` are 4e-6 and 1.5e-5.
const TOLERANCE: f32 = 1e-3;
/// The package rounds the corners of boxes to pixels before and after they grow.
const CORNER_TOLERANCE: f32 = 2.0;
/// The width and height of the picture. The detector gets it without resizing.
const PICTURE: (u32, u32) = (320, 160);

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn open(name: &str) -> Device {
    name.parse().unwrap_or_else(|error| panic!("{error}\nrun `make setup`"))
}

/// Returns the folder with the weights from `scripts/setup.sh`.
fn folder() -> PathBuf {
    std::env::var_os("MARQUETRY_OCR").map_or_else(|| root("target/ocr"), PathBuf::from)
}

fn load(device: &Device) -> Reader {
    Reader::load(&folder(), device).unwrap_or_else(|error| panic!("`make setup` brings the model: {error:#}"))
}

fn reference(name: &str) -> PathBuf {
    let path = root("target/ocr-reference").join(name);
    assert!(path.is_file(), "there is no {}: run `make setup`", path.display());
    path
}

/// Returns the largest difference between two tensors. A NaN counts as an infinite difference.
fn distance(found: &Tensor, expected: &Tensor) -> f32 {
    assert_eq!(found.dims(), expected.dims());
    let numbers = |x: &Tensor| x.to_vec::<f32>().unwrap();
    let differences = numbers(found).into_iter().zip(numbers(expected)).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most, difference| if difference <= most { most } else { difference })
}

fn reads_what_the_reference_reads(device: &Device) {
    let start = Instant::now();
    let reader = load(device);
    let arrays = Npz::open(reference("reference.npz")).unwrap();
    let array = |name: &str| arrays.load(name, device).unwrap();
    let check = |name: &str, found: &Tensor| {
        let distance = distance(found, &array(name));
        println!("{name}: {distance:e} from the reference");
        assert!(distance <= TOLERANCE, "{name} is up to {distance:e} from the reference");
    };
    println!("loaded after {:.1?}", start.elapsed());

    let logits = reader.detector.forward(&array("detection.input")).unwrap();
    check("detection.logits", &logits);
    let probabilities = logits.sigmoid().unwrap();
    check("detection.output", &probabilities);
    println!("detected after {:.1?}", start.elapsed());
    let logits = reader.recogniser.forward(&array("recognition.input")).unwrap();
    check("recognition.logits", &logits);
    check("recognition.output", &logits.softmax(-1).unwrap());
    println!("recognised after {:.1?}", start.elapsed());

    // The example's report, computed from the package's boxes and texts.
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(reference("reference.json")).unwrap()).unwrap();
    let expected = report.as_array().unwrap();
    let probabilities: Vec<f32> = probabilities.to_vec().unwrap();
    let map = ProbabilityMap { probabilities: &probabilities, width: PICTURE.0 as usize, height: PICTURE.1 as usize };
    let boxes = boxes::find(&map, PICTURE.0, PICTURE.1);
    assert_eq!(boxes.len(), expected.len(), "{boxes:?}");
    for (found, expected) in boxes.iter().zip(expected) {
        for (corner, expected) in found.iter().zip(expected["corners"].as_array().unwrap()) {
            let expected = [0, 1].map(|axis| expected[axis].as_f64().unwrap() as f32);
            let distance = (corner.x - expected[0]).abs().max((corner.y - expected[1]).abs());
            assert!(distance <= CORNER_TOLERANCE, "{corner:?} instead of {expected:?} in {boxes:?}");
        }
    }
    // Lines are read in order of their length.
    let mut lines = reader.recogniser.decode(&logits).unwrap();
    let mut texts: Vec<(&str, f64)> =
        expected.iter().map(|line| (line["text"].as_str().unwrap(), line["confidence"].as_f64().unwrap())).collect();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    texts.sort_by(|a, b| a.0.cmp(b.0));
    assert_eq!(lines.len(), texts.len());
    for ((text, confidence), (expected_text, expected_confidence)) in lines.iter().zip(texts) {
        assert_eq!(text, expected_text);
        assert!((f64::from(*confidence) - expected_confidence).abs() < 1e-4, "{text}: {confidence}");
    }
}

#[test]
fn reads_on_vulkan() {
    reads_what_the_reference_reads(&open("vulkan"));
}

#[test]
fn reads_on_webgpu() {
    reads_what_the_reference_reads(&open("webgpu"));
}

#[test]
fn reads_on_level_zero() {
    reads_what_the_reference_reads(&open("level-zero"));
}

/// Runs the example, which `cargo test` has built beside the tests.
fn ocr(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.ancestors().nth(2).unwrap().join("examples");
    let program = folder.join(format!("ocr{}", std::env::consts::EXE_SUFFIX));
    assert!(program.is_file(), "run `cargo build --example ocr`: there is no {}", program.display());
    Command::new(program)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("MARQUETRY_OCR", self::folder())
        .envs(environment.iter().copied())
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn the_example_prints_and_draws_what_it_reads() {
    let drawn = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ocr.png");
    let output = ocr(&["--device", "vulkan", "--output", drawn.to_str().unwrap()], &[]);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.contains("lines: 3 in examples/data/ocr.png"), "{stdout}");
    let (before, after) = (picture::load(&root("examples/data/ocr.png")).unwrap(), picture::load(&drawn).unwrap());
    assert_eq!(before.dimensions(), after.dimensions());
    assert_ne!(before, after);
}

/// Asserts that the example fails with one line that contains the reason.
fn assert_refused(arguments: &[&str], environment: &[(&str, &str)], reason: &str) {
    let output = ocr(arguments, environment);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stdout}{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains(reason), "{arguments:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
}

#[test]
fn the_example_says_what_is_missing() {
    assert_refused(&["no-such-file.png"], &[], "cannot read no-such-file.png");
    assert_refused(&["examples/data/notes.txt"], &[], "cannot read examples/data/notes.txt");
    assert_refused(&["--model", "no-such-folder"], &[], "run `make setup`");
    assert_refused(&[], &[("MARQUETRY_OCR", "no-such-folder")], "run `make setup`");
    assert_refused(&["--device", "nonsense"], &[], "`nonsense` names no device");
    assert_refused(&["--device", "vulkan:99"], &[], "vulkan is not available");
}

#[test]
fn the_example_refuses_a_broken_model() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-ocr");
    std::fs::create_dir_all(&scratch).unwrap();
    let arguments = ["--device", "vulkan", "--model", scratch.to_str().unwrap()];
    let (detector, recogniser) = (scratch.join(reader::DETECTOR_FILE), scratch.join(reader::RECOGNISER_FILE));
    std::fs::write(&detector, b"not a model").unwrap();
    std::fs::write(&recogniser, b"").unwrap();
    assert_refused(&arguments, &[], reader::DETECTOR_FILE);
    // A valid file of another network.
    std::fs::copy(folder().join(reader::RECOGNISER_FILE), &detector).unwrap();
    assert_refused(&arguments, &[], "the network has no weights `conv2d_");
}
