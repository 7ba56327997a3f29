//! Whole networks for images, with random weights: one of residual blocks, as ResNet-50 (K. He et al., "Deep Residual
//! Learning for Image Recognition", 2016), and one of depthwise convolutions, as MobileNetV2 (M. Sandler et al.,
//! "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018). After each convolution, channels are scaled and
//! shifted, as a batch norm does.

use super::Sizes;
use super::matmul::deviation;
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::{ensure_close, numbers, rounding};
use marquetry::nn::Conv2d;
use marquetry::{ConvConfig, DType, Device, PoolConfig, Tensor};

/// Sides of the images, and the number of classes.
const SIDE: usize = 224;
const CLASSES: usize = 1000;

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let batches: &[usize] = if sizes.images > 1 { &[1, 32] } else { &[1] };
    let dtype = if sizes.images > 1 { DType::F16 } else { DType::F32 };
    let all = |build: Build, name: &'static str| batches.iter().map(move |&images| case(name, build, dtype, images));
    all(residual, "residual network").chain(all(depthwise, "depthwise network")).collect()
}

type Build = fn(&mut Weights) -> marquetry::Result<Vec<Block>>;

fn case(name: &str, build: Build, dtype: DType, images: usize) -> Case {
    Case {
        name: format!("{name} {dtype}, {images} images"),
        cost: Cost::default(),
        rate: Rate::Count(images as f64, "images/s"),
        bound: Bound::None,
        prepare: Box::new(move |device| {
            let network = |dtype| Network::new(build, dtype, device);
            let (own, exact) = (network(dtype)?, network(DType::F32)?);
            let x = Tensor::rand(0f32, 1.0, (images, SIDE, SIDE, 3), device)?.to_dtype(dtype)?;
            x.realize()?;
            let x = x.permute([0, 3, 1, 2])?;
            let image = x.clone();
            let check = move |y: &Tensor| {
                let expected = numbers(&exact.forward(&image.to_dtype(DType::F32)?)?)?;
                let largest = expected.iter().fold(0f64, |largest, x| largest.max(x.abs()));
                // Some fifty layers round three times each. The roundings add up like the root of their number. None of
                // 32,000 scores is off by more than six deviations.
                let tolerance = 6.0 * 150f64.sqrt() * rounding(dtype) * largest;
                let pairs = numbers(y)?.into_iter().zip(expected);
                pairs.enumerate().try_for_each(|(i, (found, expected))| {
                    ensure_close(&format!("score {i}"), found, expected, tolerance)
                })
            };
            Ok(Prepared::alone(move |_| own.forward(&x), check))
        }),
    }
}

/// The same random numbers for every dtype.
struct Weights<'a> {
    device: &'a Device,
    dtype: DType,
    count: usize,
}

impl Weights<'_> {
    fn random(&mut self, shape: impl Into<marquetry::Shape>, deviation: f32) -> marquetry::Result<Tensor> {
        self.count += 1;
        let shape = shape.into();
        let length = shape.iter().product::<usize>();
        // Fractions of multiples of an irrational number are spread evenly.
        let step = 0.618_033_988_749_895 * self.count as f64;
        let number = |i: usize| {
            let fraction = ((i as f64 + 1.0) * step + (i as f64).sqrt()).fract();
            (fraction - 0.5) as f32 * 12f32.sqrt() * deviation
        };
        let x = Tensor::from_vec((0..length).map(number).collect(), shape, self.device)?.to_dtype(self.dtype)?;
        x.realize()?;
        Ok(x)
    }

    /// Returns a convolution of `input` channels per group, which keeps sides divided by the stride.
    fn conv(&mut self, [input, output]: [usize; 2], kernel: usize, config: ConvConfig) -> marquetry::Result<Conv> {
        // Rectified numbers have half of their squares left.
        let deviation = 2f32.sqrt() * deviation(input * kernel * kernel);
        let weight = self.random((output, input, kernel, kernel), deviation)?;
        let scale = (self.random((output, 1, 1), 0.1)? + 1.0)?;
        scale.realize()?;
        let shift = self.random((output, 1, 1), 0.1)?;
        Ok(Conv { conv: Conv2d::new(weight, None, config.padding(kernel / 2)), scale, shift })
    }
}

/// A convolution whose channels are scaled and shifted.
struct Conv {
    conv: Conv2d,
    scale: Tensor,
    shift: Tensor,
}

impl Conv {
    fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        (self.conv.forward(x)? * &self.scale)? + &self.shift
    }
}

#[derive(Clone, Copy)]
enum Activation {
    Relu,
    Relu6,
}

impl Activation {
    fn apply(self, x: &Tensor) -> marquetry::Result<Tensor> {
        match self {
            Activation::Relu => x.relu(),
            Activation::Relu6 => x.clamp(0.0, 6.0),
        }
    }
}

/// Convolutions with activations between them.
struct Block {
    convs: Vec<Conv>,
    activation: Activation,
    /// What is added to the result.
    skip: Skip,
    /// Whether the result is activated, too.
    activated: bool,
    pooled: bool,
}

enum Skip {
    None,
    Input,
    Conv(Box<Conv>),
}

impl Block {
    fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let mut y = x.clone();
        for (i, conv) in self.convs.iter().enumerate() {
            if i > 0 {
                // Nobody asks for `y` again, so it is not stored.
                y = self.activation.apply(&y)?;
            }
            y = conv.forward(&y)?;
        }
        y = match &self.skip {
            Skip::None => y,
            Skip::Input => (y + x)?,
            Skip::Conv(conv) => (y + conv.forward(x)?)?,
        };
        if self.activated {
            y = self.activation.apply(&y)?;
        }
        if self.pooled { y.max_pool2d(&PoolConfig::new(3).stride(2).padding(1)) } else { Ok(y) }
    }
}

struct Network {
    blocks: Vec<Block>,
    classes: Tensor,
}

impl Network {
    fn new(build: Build, dtype: DType, device: &Device) -> marquetry::Result<Network> {
        let mut weights = Weights { device, dtype, count: 0 };
        let blocks = build(&mut weights)?;
        let width = if blocks.len() > 17 { 1280 } else { 2048 };
        Ok(Network { blocks, classes: weights.random((width, CLASSES), deviation(width))? })
    }

    fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let mut x = x.clone();
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        x.mean([2, 3])?.matmul(&self.classes)
    }
}

fn residual(weights: &mut Weights) -> marquetry::Result<Vec<Block>> {
    let stem = weights.conv([3, 64], 7, ConvConfig::default().stride(2))?;
    let activation = Activation::Relu;
    let mut blocks = vec![Block { convs: vec![stem], activation, skip: Skip::None, activated: true, pooled: true }];
    let mut input = 64;
    for (width, count, stride) in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)] {
        for i in 0..count {
            let output = 4 * width;
            let stride = ConvConfig::default().stride(if i == 0 { stride } else { 1 });
            let convs = vec![
                weights.conv([input, width], 1, ConvConfig::default())?,
                weights.conv([width, width], 3, stride.clone())?,
                weights.conv([width, output], 1, ConvConfig::default())?,
            ];
            let skip = if i == 0 { Skip::Conv(weights.conv([input, output], 1, stride)?.into()) } else { Skip::Input };
            blocks.push(Block { convs, activation, skip, activated: true, pooled: false });
            input = output;
        }
    }
    Ok(blocks)
}

fn depthwise(weights: &mut Weights) -> marquetry::Result<Vec<Block>> {
    let activation = Activation::Relu6;
    let plain = |convs| Block { convs, activation, skip: Skip::None, activated: true, pooled: false };
    let mut blocks = vec![plain(vec![weights.conv([3, 32], 3, ConvConfig::default().stride(2))?])];
    let mut input = 32;
    for (factor, output, count, stride) in
        [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    {
        for i in 0..count {
            let wide = factor * input;
            let stride = if i == 0 { stride } else { 1 };
            let mut convs = Vec::new();
            if factor > 1 {
                convs.push(weights.conv([input, wide], 1, ConvConfig::default())?);
            }
            let config = ConvConfig::default().stride(stride).groups(wide);
            convs.push(weights.conv([1, wide], 3, config)?);
            convs.push(weights.conv([wide, output], 1, ConvConfig::default())?);
            let skip = if stride == 1 && input == output { Skip::Input } else { Skip::None };
            blocks.push(Block { convs, activation, skip, activated: false, pooled: false });
            input = output;
        }
    }
    blocks.push(plain(vec![weights.conv([input, 1280], 1, ConvConfig::default())?]));
    Ok(blocks)
}
