//! Text recognition: finds the lines of text in a picture and reads them, with the networks of PP-OCRv4.
//!
//! ```text
//! make setup
//! cargo run --release --example ocr -- examples/data/ocr.png
//! ```

mod boxes;
mod detection;
mod layers;
mod picture;
mod reader;
mod recognition;
mod weights;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use marquetry::Device;
use reader::{DETECTOR_FILE, RECOGNISER_FILE, Reader};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Read the text in a picture with PP-OCRv4
#[derive(Parser)]
struct Args {
    /// The picture, a PNG or JPEG file
    #[arg(default_value = "examples/data/ocr.png")]
    picture: PathBuf,
    /// Where to write the picture with the boxes and the texts drawn on it
    #[arg(long, default_value = "ocr.png")]
    output: PathBuf,
    /// The device to run on, as in `vulkan:0` or `webgpu`; without it, the best one
    #[arg(long)]
    device: Option<String>,
    /// The longest side to which a larger picture is scaled down to find lines
    #[arg(long, default_value = "960")]
    longest: NonZeroUsize,
    /// The folder with ch_PP-OCRv4_det_infer.onnx and ch_PP-OCRv4_rec_infer.onnx
    #[arg(long, env = "MARQUETRY_OCR", default_value = "target/ocr")]
    model: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let start = Instant::now();
    let picture = picture::load(&args.picture)?;
    check_model(&args.model)?;

    let device: Device = args.device.as_deref().map_or_else(Device::best, str::parse)?;
    writeln!(out, "device: {device}")?;
    let open = start.elapsed();

    let reader = Reader::load(&args.model, &device)?;
    device.synchronize()?;
    let load = start.elapsed() - open;

    let boxes = reader.find(&picture, args.longest.get())?;
    let find = start.elapsed() - open - load;

    let lines = reader.read(&picture, &boxes)?;
    let read = start.elapsed() - open - load - find;

    for line in &lines {
        let [corner, ..] = line.corners;
        writeln!(out, "{:>5.1}%  at {:>4}, {:>4}: {}", 100.0 * line.confidence, corner.x, corner.y, line.text)?;
    }
    let annotated = picture::annotated(&picture, &lines);
    annotated.save(&args.output).with_context(|| format!("cannot write {}", args.output.display()))?;
    writeln!(
        out,
        "\nlines: {} in {}, drawn in {}\nopen device {open:.2?}, load model {load:.2?}, find {find:.2?}, read {read:.2?}",
        lines.len(),
        args.picture.display(),
        args.output.display()
    )?;
    Ok(())
}

/// Reports missing files before the device is opened.
fn check_model(folder: &Path) -> Result<()> {
    for name in [DETECTOR_FILE, RECOGNISER_FILE] {
        let path = folder.join(name);
        ensure!(
            path.is_file(),
            "there is no {}; run `make setup`, or name the folder of PP-OCRv4 with --model",
            path.display()
        );
    }
    Ok(())
}
