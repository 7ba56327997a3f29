//! Finds and reads the texts in a picture.

use crate::boxes::{self, Corners, ProbabilityMap};
use crate::detection::{Detector, GRAIN};
use crate::picture;
use crate::recognition::{HEIGHT, Recogniser};
use anyhow::{Result, ensure};
use image::RgbImage;
use marquetry::{Device, Tensor};
use std::path::Path;

pub const DETECTOR_FILE: &str = "ch_PP-OCRv4_det_infer.onnx";
pub const RECOGNISER_FILE: &str = "ch_PP-OCRv4_rec_infer.onnx";

/// Texts with a lower confidence are left out.
const LEAST_CONFIDENCE: f32 = 0.5;
/// The number of lines that are read at a time.
const BATCH: usize = 6;
/// Lines are padded to at least this width.
const LEAST_WIDTH: usize = 320;

/// A line of text in a picture.
pub struct Line {
    pub corners: Corners,
    pub text: String,
    pub confidence: f32,
}

/// Both networks with their weights on a device.
pub struct Reader {
    pub detector: Detector,
    pub recogniser: Recogniser,
    device: Device,
}

impl Reader {
    /// Reads both files in a folder.
    pub fn load(folder: &Path, device: &Device) -> Result<Self> {
        Ok(Reader {
            detector: Detector::load(&folder.join(DETECTOR_FILE), device)?,
            recogniser: Recogniser::load(&folder.join(RECOGNISER_FILE), device)?,
            device: device.clone(),
        })
    }

    /// Returns the boxes around the lines of a picture. A larger picture is scaled down to this longest side first.
    pub fn find(&self, picture: &RgbImage, longest: usize) -> Result<Vec<Corners>> {
        let (width, height) = picture.dimensions();
        ensure!(width > 0 && height > 0, "the picture is empty");
        let scale = (longest as f64 / f64::from(width.max(height))).min(1.0);
        let fit = |length: u32| ((f64::from(length) * scale / GRAIN as f64).round() as usize).max(1) * GRAIN;
        let pixels = picture::to_tensor(picture, &self.device)?.upsample_bilinear2d(fit(height), fit(width), false)?;
        let probabilities: Vec<f32> = self.detector.forward(&pixels)?.sigmoid()?.to_vec()?;
        let map = ProbabilityMap { probabilities: &probabilities, width: fit(width), height: fit(height) };
        Ok(boxes::find(&map, width, height))
    }

    /// Returns the texts in boxes of a picture.
    pub fn read(&self, picture: &RgbImage, boxes: &[Corners]) -> Result<Vec<Line>> {
        let ratio = |image: &RgbImage| image.width() as f32 / image.height() as f32;
        let mut cuts: Vec<(usize, RgbImage)> = Vec::new();
        for (place, corners) in boxes.iter().enumerate() {
            cuts.extend(picture::cut(picture, corners).map(|line| (place, line)));
        }
        // Lines of similar length in a batch need little padding.
        cuts.sort_by(|(_, a), (_, b)| ratio(a).total_cmp(&ratio(b)));
        let mut lines: Vec<(usize, Line)> = Vec::new();
        for batch in cuts.chunks(BATCH) {
            let images: Vec<&RgbImage> = batch.iter().map(|(_, image)| image).collect();
            let texts = self.recogniser.decode(&self.recogniser.forward(&self.batch(&images)?)?)?;
            lines.extend(
                batch
                    .iter()
                    .zip(texts)
                    .map(|(&(place, _), (text, confidence))| (place, Line { corners: boxes[place], text, confidence })),
            );
        }
        lines.retain(|(_, line)| line.confidence >= LEAST_CONFIDENCE);
        lines.sort_by_key(|(place, _)| *place);
        Ok(lines.into_iter().map(|(_, line)| line).collect())
    }

    /// Scales lines to one height, and pads them on the right to one width.
    fn batch(&self, lines: &[&RgbImage]) -> marquetry::Result<Tensor> {
        let scaled = |line: &RgbImage| HEIGHT as f32 * line.width() as f32 / line.height() as f32;
        let width = lines.iter().map(|line| scaled(line) as usize).fold(LEAST_WIDTH, usize::max);
        let row = |line: &RgbImage| {
            let own = (scaled(line).ceil() as usize).clamp(1, width);
            let pixels = picture::to_tensor(line, &self.device)?.upsample_bilinear2d(HEIGHT, own, false)?;
            pixels.pad_with_zeros(3, 0, width - own)
        };
        Tensor::cat(&lines.iter().map(|line| row(line)).collect::<marquetry::Result<Vec<_>>>()?, 0)
    }
}
