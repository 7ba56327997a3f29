//! The parts of both networks: convolutions, the backbone LCNetV3 and squeeze-and-excitation.
//!
//! C. Cui et al., "PP-LCNet: A Lightweight CPU Convolutional Neural Network", 2021; J. Hu et al.,
//! "Squeeze-and-Excitation Networks", 2018. Images are `[batch, channels, height, width]`.

use crate::weights::{Array, Weights};
use anyhow::{Result, ensure};
use marquetry::nn::Conv2d;
use marquetry::{ConvConfig, Tensor};

/// What batch normalisation adds to the variance.
const BATCH_NORM_EPS: f32 = 1e-5;

/// The numbers of a convolution before they go to the device. Linear operations that follow the convolution are folded
/// into them, and cost nothing.
pub struct Filter<'a> {
    weights: &'a Weights,
    kernel: Array,
    bias: Option<Vec<f32>>,
    /// The axis of the kernel with the output's channels.
    channels: usize,
}

impl<'a> Filter<'a> {
    /// Loads convolution number `n`: `conv2d_n`.
    pub fn load(weights: &'a Weights, n: usize) -> Result<Self> {
        Filter::named(weights, &format!("conv2d_{n}"), 0)
    }

    /// Loads transposed convolution number `n`.
    pub fn load_transposed(weights: &'a Weights, n: usize) -> Result<Self> {
        Filter::named(weights, &format!("conv2d_transpose_{n}"), 1)
    }

    fn named(weights: &'a Weights, name: &str, channels: usize) -> Result<Self> {
        let kernel = weights.array(&format!("{name}.w_0"))?.clone();
        ensure!(kernel.shape.len() == 4, "`{name}` has shape {:?}, not four axes", kernel.shape);
        let bias = weights.array(&format!("{name}.b_0")).ok().map(|bias| bias.numbers.clone());
        Ok(Filter { weights, kernel, bias, channels })
    }

    /// Folds in batch normalisation: each channel gets mean 0 and variance 1, and is then scaled and shifted.
    pub fn batch_norm(self, name: &str) -> Result<Self> {
        let part = |part: &str| Ok::<_, anyhow::Error>(&self.weights.array(&format!("{name}.{part}"))?.numbers);
        let (weight, bias, mean, variance) = (part("w_0")?, part("b_0")?, part("w_1")?, part("w_2")?);
        let scales: Vec<f32> = weight.iter().zip(variance).map(|(w, v)| w / (v + BATCH_NORM_EPS).sqrt()).collect();
        let shifts: Vec<f32> = bias.iter().zip(mean).zip(&scales).map(|((b, m), s)| b - m * s).collect();
        self.affine(&scales, &shifts)
    }

    /// Folds in a product and a sum for each channel.
    pub fn affine(mut self, scales: &[f32], shifts: &[f32]) -> Result<Self> {
        let count = self.kernel.shape[self.channels];
        let mut bias = self.bias.take().unwrap_or_else(|| vec![0.0; count]);
        ensure!([bias.len(), scales.len(), shifts.len()] == [count; 3], "a convolution has {count} channels");
        let inner: usize = self.kernel.shape[self.channels + 1..].iter().product();
        for (i, number) in self.kernel.numbers.iter_mut().enumerate() {
            *number *= scales[i / inner % count];
        }
        for ((b, scale), shift) in bias.iter_mut().zip(scales).zip(shifts) {
            *b = *b * scale + shift;
        }
        Ok(Filter { bias: Some(bias), ..self })
    }

    /// Folds in the same product and sum for all channels.
    fn affine_all(self, scale: f32, shift: f32) -> Result<Self> {
        let count = self.kernel.shape[self.channels];
        self.affine(&vec![scale; count], &vec![shift; count])
    }

    /// Uploads the convolution, padded so that a stride of 1 keeps height and width. If the kernel sees one channel,
    /// the convolution is depthwise.
    pub fn conv(self, stride: [usize; 2]) -> Result<Conv2d> {
        let &[channels, seen, height, width] = &self.kernel.shape[..] else {
            unreachable!("checked when it was loaded")
        };
        let groups = if seen == 1 { channels } else { 1 };
        let config = ConvConfig::default().stride(stride).padding([height / 2, width / 2]).groups(groups);
        Ok(Conv2d::new(self.weights.upload(&self.kernel)?, self.upload_bias()?, config))
    }

    /// Uploads the transposed convolution, whose kernels lie side by side.
    pub fn conv_transposed(self) -> Result<ConvTransposed> {
        let config = ConvConfig::default().stride([self.kernel.shape[2], self.kernel.shape[3]]);
        Ok(ConvTransposed { weight: self.weights.upload(&self.kernel)?, bias: self.upload_bias()?, config })
    }

    fn upload_bias(&self) -> Result<Option<Tensor>> {
        let upload = |bias: &Vec<f32>| self.weights.upload(&Array { shape: vec![bias.len()], numbers: bias.clone() });
        self.bias.as_ref().map(upload).transpose()
    }
}

/// Loads convolution number `n`, with stride 1 and nothing folded in.
pub fn conv(weights: &Weights, n: usize) -> Result<Conv2d> {
    Filter::load(weights, n)?.conv([1, 1])
}

/// A transposed convolution: each pixel becomes as many pixels as the kernel has.
pub struct ConvTransposed {
    weight: Tensor,
    bias: Option<Tensor>,
    config: ConvConfig,
}

impl ConvTransposed {
    pub fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        x.conv_transpose2d(&self.weight, self.bias.as_ref(), &self.config)
    }
}

/// Squeeze-and-excitation: each channel is multiplied by a number from 0 to 1, which follows from the means of all
/// channels.
pub struct SqueezeExcite {
    squeeze: Conv2d,
    excite: Conv2d,
    slope: f64,
}

impl SqueezeExcite {
    /// Loads convolutions `n` and `n + 1`. `slope` is the slope of the hard sigmoid.
    pub fn load(weights: &Weights, n: usize, slope: f64) -> Result<Self> {
        Ok(SqueezeExcite { squeeze: conv(weights, n)?, excite: conv(weights, n + 1)?, slope })
    }

    pub fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let inner = self.squeeze.forward(&x.mean_keepdim((2, 3))?)?.relu()?;
        let scales = self.excite.forward(&inner)?.affine(self.slope, 0.5)?.clamp(0.0, 1.0)?;
        x.mul(&scales)
    }
}

/// A convolution with an activation that has a learned scale and shift.
struct RepLayer {
    conv: Conv2d,
    /// The factor and the addend of the hard swish; `None` if there is no activation.
    activation: Option<(f32, f32)>,
}

impl RepLayer {
    /// Loads layer `n` of a backbone. Layers that halve both height and width have no activation.
    fn load(weights: &Weights, backbone: &Backbone, n: usize, stride: [usize; 2]) -> Result<Self> {
        let affine = |name: String| {
            Ok::<_, anyhow::Error>((weights.number(&format!("{name}.w_0"))?, weights.number(&format!("{name}.w_1"))?))
        };
        let (scale, shift) = affine(format!("mobile_one_block_{n}"))?;
        let conv = Filter::load(weights, backbone.first_layer + n)?.affine_all(scale, shift)?.conv(stride)?;
        let activation = (stride != [2, 2]).then(|| affine(format!("whswish_b_{}", n + 1))).transpose()?;
        Ok(RepLayer { conv, activation })
    }

    fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let y = self.conv.forward(x)?;
        match self.activation {
            Some((scale, shift)) => y.hardswish()?.affine(scale.into(), shift.into()),
            None => Ok(y),
        }
    }
}

/// A block of LCNetV3: a convolution within each channel, squeeze-and-excitation in some blocks, and a convolution
/// across channels.
struct Block {
    depthwise: RepLayer,
    excite: Option<SqueezeExcite>,
    pointwise: RepLayer,
}

impl Block {
    fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let mut x = self.depthwise.forward(x)?;
        if let Some(excite) = &self.excite {
            x = excite.forward(&x)?;
        }
        self.pointwise.forward(&x)
    }
}

/// The plan of a block: its stride down and across, and the number of the first convolution of its
/// squeeze-and-excitation.
pub type Plan = ([usize; 2], Option<usize>);

/// The plan of a backbone.
pub struct Backbone {
    /// The numbers of the first convolution and of its batch normalisation.
    pub stem: (usize, usize),
    /// The number of the first convolution after the stem.
    pub first_layer: usize,
    /// The blocks, by stage.
    pub stages: &'static [&'static [Plan]],
}

/// LCNetV3: a convolution and several stages of blocks.
pub struct LcNet {
    stem: Conv2d,
    stages: Vec<Vec<Block>>,
}

impl LcNet {
    pub fn load(weights: &Weights, plan: &Backbone) -> Result<Self> {
        const SLOPE: f64 = 1.0 / 6.0;
        let (conv, norm) = plan.stem;
        let mut layer = 0;
        let mut block = |&(stride, excite): &Plan| {
            let depthwise = RepLayer::load(weights, plan, layer, stride)?;
            let pointwise = RepLayer::load(weights, plan, layer + 1, [1, 1])?;
            layer += 2;
            let excite = excite.map(|n| SqueezeExcite::load(weights, n, SLOPE)).transpose()?;
            Ok(Block { depthwise, excite, pointwise })
        };
        Ok(LcNet {
            stem: Filter::load(weights, conv)?.batch_norm(&format!("batch_norm2d_{norm}"))?.conv([2, 2])?,
            stages: plan.stages.iter().map(|stage| stage.iter().map(&mut block).collect()).collect::<Result<_>>()?,
        })
    }

    /// Returns the output of each stage.
    pub fn forward(&self, x: &Tensor) -> marquetry::Result<Vec<Tensor>> {
        let mut x = self.stem.forward(x)?;
        let mut outputs = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            x = stage.iter().try_fold(x, |x, block| block.forward(&x))?;
            outputs.push(x.clone());
        }
        Ok(outputs)
    }
}
