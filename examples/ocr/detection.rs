//! PP-OCRv4's text detector: LCNetV3, a feature pyramid with squeeze-and-excitation, and the head of Differentiable
//! Binarization. The head tells how likely each pixel is inside of a line of text.
//!
//! M. Liao et al., "Real-time Scene Text Detection with Differentiable Binarization", 2019.

use crate::layers::{Backbone, ConvTransposed, Filter, LcNet, SqueezeExcite, conv};
use crate::weights::Weights;
use anyhow::Result;
use marquetry::nn::Conv2d;
use marquetry::{Device, Tensor};
use std::path::Path;

/// The height and the width of a picture for the detector are multiples of this.
pub const GRAIN: usize = 32;

const BACKBONE: Backbone = Backbone {
    stem: (0, 0),
    first_layer: 394,
    stages: &[
        &[([1, 1], None)],
        &[([2, 2], None), ([1, 1], None)],
        &[([2, 2], None), ([1, 1], None)],
        &[([2, 2], None), ([1, 1], None), ([1, 1], None), ([1, 1], None), ([1, 1], None)],
        &[([2, 2], Some(96)), ([1, 1], Some(107)), ([1, 1], None), ([1, 1], None)],
    ],
};

/// The numbers of the convolutions of each level of the pyramid, the finest level first: the backbone's outlet, the way
/// in, and the way out. Two convolutions of squeeze-and-excitation follow the way in, and two follow the way out.
const LEVELS: [(usize, usize, usize); 4] = [(131, 135, 138), (132, 141, 144), (133, 147, 150), (134, 153, 156)];

/// A convolution, and the squeeze-and-excitation that is added to it.
struct Excited {
    conv: Conv2d,
    excite: SqueezeExcite,
}

impl Excited {
    fn load(weights: &Weights, n: usize) -> Result<Self> {
        const SLOPE: f64 = 0.2;
        Ok(Excited { conv: conv(weights, n)?, excite: SqueezeExcite::load(weights, n + 1, SLOPE)? })
    }

    fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let x = self.conv.forward(x)?;
        x.add(&self.excite.forward(&x)?)
    }
}

/// One level of the pyramid.
struct Level {
    outlet: Conv2d,
    inward: Excited,
    outward: Excited,
}

/// The network with its weights on a device.
pub struct Detector {
    backbone: LcNet,
    levels: Vec<Level>,
    shrink: Conv2d,
    grow: [ConvTransposed; 2],
}

impl Detector {
    /// Reads `ch_PP-OCRv4_det_infer.onnx`.
    pub fn load(path: &Path, device: &Device) -> Result<Self> {
        let weights = Weights::load(path, device)?;
        let level = |&(outlet, inward, outward): &(usize, usize, usize)| {
            Ok(Level {
                outlet: conv(&weights, outlet)?,
                inward: Excited::load(&weights, inward)?,
                outward: Excited::load(&weights, outward)?,
            })
        };
        Ok(Detector {
            backbone: LcNet::load(&weights, &BACKBONE)?,
            levels: LEVELS.iter().map(level).collect::<Result<_>>()?,
            shrink: Filter::load(&weights, 159)?.batch_norm("batch_norm_0")?.conv([1, 1])?,
            grow: [
                Filter::load_transposed(&weights, 0)?.batch_norm("batch_norm_1")?.conv_transposed()?,
                Filter::load_transposed(&weights, 1)?.conv_transposed()?,
            ],
        })
    }

    /// Returns the logit that each pixel is text, `[batch, 1, height, width]`. Pictures are
    /// `[batch, 3, height, width]`, with numbers from -1 to 1 and blue first.
    pub fn forward(&self, pictures: &Tensor) -> marquetry::Result<Tensor> {
        let stages = self.backbone.forward(pictures)?;
        // From the coarsest level on, each level is added to the next finer one.
        let mut coarser: Option<Tensor> = None;
        let mut outputs = Vec::new();
        for (place, (level, stage)) in self.levels.iter().zip(&stages[1..]).enumerate().rev() {
            let mut x = level.inward.forward(&level.outlet.forward(stage)?)?;
            if let Some(coarser) = &coarser {
                x = x.add(&enlarged(coarser, 2)?)?;
            }
            outputs.push(enlarged(&level.outward.forward(&x)?, 1 << place)?);
            coarser = Some(x);
        }
        let x = self.shrink.forward(&Tensor::cat(&outputs, 1)?)?.relu()?;
        let x = self.grow[0].forward(&x)?.relu()?;
        self.grow[1].forward(&x)
    }
}

/// Enlarges each pixel to a square of `factor` x `factor` pixels.
fn enlarged(x: &Tensor, factor: usize) -> marquetry::Result<Tensor> {
    x.upsample_nearest2d(x.dim(2)? * factor, x.dim(3)? * factor)
}
