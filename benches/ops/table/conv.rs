//! Convolutions as residual networks have them, and the products of the same sizes.

use super::Sizes;
use super::matmul::{Order, deviation, plain, random};
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::{ensure_close, ensure_sum, numbers, places};
use anyhow::Result;
use marquetry::nn::Conv2d;
use marquetry::{ConvConfig, DType, Device, PoolConfig, ResizeConfig, Tensor};

/// A convolution of square images. Its padding keeps their size, if the stride is 1.
#[derive(Clone, Copy)]
pub struct Problem {
    pub dtype: DType,
    pub images: usize,
    pub input: usize,
    pub output: usize,
    pub side: usize,
    pub kernel: usize,
    pub groups: usize,
    pub channels_last: bool,
}

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let images = sizes.images;
    let same = |channels, side| Problem::square(sizes, channels, side);
    let squares = [same(64, 56), same(128, 28), same(256, 14), same(512, 7)];
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        for square in squares {
            let square = Problem { dtype, ..square };
            cases.extend([
                square.case(),
                Problem { channels_last: false, ..square }.case(),
                plain(dtype, square.as_product()),
            ]);
        }
    }
    let wide = Problem { output: 1024, kernel: 1, ..same(256, 14) };
    cases.extend([wide.case(), plain(DType::F16, wide.as_product())]);
    // As in ResNeXt-50 (S. Xie et al., "Aggregated Residual Transformations for Deep Neural Networks", 2017).
    for (channels, side) in [(128, 56), (256, 28), (512, 14), (1024, 7)] {
        cases.push(Problem { groups: 32, ..same(channels, side) }.case());
    }
    cases.push(Problem { groups: 32, dtype: DType::F32, ..same(256, 28) }.case());
    // As networks make images larger.
    for dtype in [DType::F16, DType::F32] {
        for kernel in [2, 4] {
            cases.push(Transposed { dtype, images, input: 128, output: 64, side: 28, kernel }.case());
        }
    }
    for (dtype, kernel) in [(DType::F16, 3), (DType::F32, 3), (DType::F16, 5), (DType::F32, 5)] {
        let depthwise = Problem { dtype, kernel, groups: 144, ..same(144, 56) };
        cases.extend([depthwise, Problem { channels_last: false, ..depthwise }].map(Problem::case));
    }
    for dtype in [DType::F16, DType::F32] {
        cases.extend([false, true].map(|channels_last| max_pool([images, 64, 112, 112], dtype, channels_last)));
        cases.push(resize([images, 64, 56, 56], dtype));
    }
    cases
}

/// The pooling behind the first convolution of residual networks.
fn max_pool(shape: [usize; 4], dtype: DType, channels_last: bool) -> Case {
    let [images, channels, side, _] = shape;
    let order = if channels_last { ", channels last" } else { "" };
    let outputs = images * channels * (side / 2).pow(2);
    Case {
        name: format!("max pool {dtype} {images}x{channels}x{side}^2, 3x3 by 2{order}"),
        cost: Cost::of_memory((images * channels * side * side + outputs) * dtype.size_in_bytes()),
        rate: Rate::Bytes,
        bound: Bound::Fma,
        prepare: Box::new(move |device| {
            let x = random_image(shape, 1.0, dtype, channels_last, device)?;
            let windows = PoolConfig::new(3).stride(2).padding(1);
            let image = x.clone();
            let check = move |y: &Tensor| {
                // Windows from the second place on have no padding.
                for (image, place) in places(images).into_iter().zip(places(side / 2 - 1)) {
                    let window = x.narrow(0, image, 1)?.narrow(1, image % channels, 1)?;
                    let window = numbers(&window.narrow(2, 2 * place + 1, 3)?.narrow(3, 2 * place + 1, 3)?)?;
                    let found = y.narrow(0, image, 1)?.narrow(1, image % channels, 1)?;
                    let found = numbers(&found.narrow(2, place + 1, 1)?.narrow(3, place + 1, 1)?)?;
                    let largest = window.into_iter().fold(f64::NEG_INFINITY, f64::max);
                    ensure_close(&format!("window {place} of image {image}"), found[0], largest, 0.0)?;
                }
                Ok(())
            };
            Ok(Prepared::alone(move |_| image.max_pool2d(&windows), check))
        }),
    }
}

/// The bilinear resizing to twice the size in networks that segment images.
fn resize(shape: [usize; 4], dtype: DType) -> Case {
    let [images, channels, side, _] = shape;
    let inputs = images * channels * side * side;
    Case {
        name: format!("resize {dtype} {images}x{channels}x{side}^2, linear by 2"),
        cost: Cost::of_memory(5 * inputs * dtype.size_in_bytes()),
        rate: Rate::Bytes,
        bound: Bound::Fma,
        prepare: Box::new(move |device| {
            let x = random_image(shape, 1.0, dtype, false, device)?;
            let image = x.clone();
            let check = move |y: &Tensor| {
                // Output 2 i + 1 is a quarter of the way from input i to the next one, along both axes.
                for (image, place) in places(images).into_iter().zip(places(side - 1)) {
                    let around = x.narrow(0, image, 1)?.narrow(1, image % channels, 1)?;
                    let around = numbers(&around.narrow(2, place, 2)?.narrow(3, place, 2)?)?;
                    let found = y.narrow(0, image, 1)?.narrow(1, image % channels, 1)?;
                    let found = numbers(&found.narrow(2, 2 * place + 1, 1)?.narrow(3, 2 * place + 1, 1)?)?;
                    let weights = [9.0 / 16.0, 3.0 / 16.0, 3.0 / 16.0, 1.0 / 16.0];
                    let expected = around.iter().zip(weights).map(|(element, weight)| element * weight).sum();
                    // The sum may be rounded three times, and the result once to its dtype.
                    let bound = if dtype == DType::F16 { 2f64.powi(-9) } else { 2f64.powi(-20) };
                    ensure_close(&format!("element {place} of image {image}"), found[0], expected, bound)?;
                }
                Ok(())
            };
            Ok(Prepared::alone(move |_| image.resize((2 * side, 2 * side), ResizeConfig::LINEAR), check))
        }),
    }
}

impl Problem {
    /// As many outputs as inputs, with windows of 3x3.
    pub fn square(sizes: &Sizes, channels: usize, side: usize) -> Problem {
        Problem {
            dtype: DType::F16,
            images: sizes.images,
            input: channels,
            output: channels,
            side,
            kernel: 3,
            groups: 1,
            channels_last: true,
        }
    }

    fn name(&self) -> String {
        let Problem { dtype, images, input, output, side, kernel, channels_last, .. } = self;
        let (depthwise, groups) = match self.groups {
            1 => ("", String::new()),
            _ if self.is_depthwise() => ("depthwise ", String::new()),
            groups => ("", format!(", {groups} groups")),
        };
        let last = if *channels_last { ", channels last" } else { "" };
        format!("{depthwise}conv2d {dtype} {images}x{input}x{side}^2, {kernel}x{kernel} -> {output}{groups}{last}")
    }

    fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.input
    }

    /// m, n and k of the product that computes as much.
    fn as_product(&self) -> [usize; 3] {
        let Problem { images, input, output, side, kernel, groups, .. } = *self;
        [images * side * side, output, input / groups * kernel * kernel]
    }

    fn cost(&self) -> Cost {
        let [m, n, k] = self.as_product();
        let elements = m * (self.input + self.output) + n * k;
        Cost { flops: (2 * m * n * k) as f64, bytes: (elements * self.dtype.size_in_bytes()) as f64 }
    }

    pub fn case(self) -> Case {
        let Problem { dtype, images, input, output, side, kernel, groups, channels_last } = self;
        let [.., depth] = self.as_product();
        Case {
            name: self.name(),
            cost: self.cost(),
            rate: if self.is_depthwise() { Rate::Bytes } else { Rate::Flops },
            bound: if dtype == DType::F32 || self.is_depthwise() { Bound::Fma } else { Bound::Matrix(dtype) },
            prepare: Box::new(move |device| {
                let x = random_image([images, input, side, side], 1.0, dtype, channels_last, device)?;
                let shape = [output, input / groups, kernel, kernel];
                let weight = random_image(shape, deviation(depth), dtype, channels_last && groups == 1, device)?;
                let config = ConvConfig::default().padding(kernel / 2).groups(groups);
                let layer = Conv2d::new(weight.clone(), None, config);
                let image = x.clone();
                let check = move |y: &Tensor| check(&x, &weight, y, kernel / 2, groups);
                Ok(Prepared::alone(move |_| layer.forward(&image), check))
            }),
        }
    }
}

/// A transposed convolution by 2 of square images, channels last. Its padding makes the sides twice as long.
#[derive(Clone, Copy)]
struct Transposed {
    dtype: DType,
    images: usize,
    input: usize,
    output: usize,
    side: usize,
    kernel: usize,
}

impl Transposed {
    fn case(self) -> Case {
        let Transposed { dtype, images, input, output, side, kernel } = self;
        let (places, taps) = (images * side * side, output * kernel * kernel);
        let elements = places * (input + 4 * output) + input * taps;
        Case {
            name: format!("conv_transpose2d {dtype} {images}x{input}x{side}^2, {kernel}x{kernel} by 2 -> {output}"),
            cost: Cost { flops: (2 * places * input * taps) as f64, bytes: (elements * dtype.size_in_bytes()) as f64 },
            rate: Rate::Flops,
            bound: if dtype == DType::F32 { Bound::Fma } else { Bound::Matrix(dtype) },
            prepare: Box::new(move |device| {
                let x = random_image([images, input, side, side], 1.0, dtype, true, device)?;
                let depth = input * kernel * kernel / 4;
                let weight = random_image([input, output, kernel, kernel], deviation(depth), dtype, false, device)?;
                let padding = kernel / 2 - 1;
                let config = ConvConfig::default().stride(2).padding(padding);
                let (image, taps) = (x.clone(), weight.clone());
                let check = move |y: &Tensor| check_transposed(&x, &weight, y, padding);
                Ok(Prepared::alone(move |_| image.conv_transpose2d(&taps, None, &config), check))
            }),
        }
    }
}

/// Checks some elements of a transposed convolution of stride 2.
fn check_transposed(x: &Tensor, weight: &Tensor, y: &Tensor, padding: usize) -> Result<()> {
    let [images, outputs, height, width] = [0, 1, 2, 3].map(|axis| y.dims()[axis]);
    let kernel = weight.dims()[2];
    // The inputs that an output meets, with their taps.
    let met = |place: usize, length: usize| -> Vec<(usize, usize)> {
        let input = |tap: usize| (place + padding).checked_sub(tap).filter(|distance| distance % 2 == 0);
        (0..kernel).filter_map(|tap| Some((input(tap)? / 2, tap))).filter(|&(input, _)| input < length).collect()
    };
    for ((image, output), (row, column)) in
        places(images).into_iter().zip(places(outputs)).zip(places(height).into_iter().zip(places(width)))
    {
        let mut products = Vec::new();
        for (i, down) in met(row, x.dims()[2]) {
            for &(j, across) in &met(column, x.dims()[3]) {
                let elements = numbers(&x.narrow(0, image, 1)?.narrow(2, i, 1)?.narrow(3, j, 1)?)?;
                let factors = numbers(&weight.narrow(1, output, 1)?.narrow(2, down, 1)?.narrow(3, across, 1)?)?;
                products.extend(elements.iter().zip(&factors).map(|(a, b)| a * b));
            }
        }
        let found = numbers(&y.narrow(0, image, 1)?.narrow(1, output, 1)?.narrow(2, row, 1)?.narrow(3, column, 1)?)?;
        ensure_sum(&format!("element ({image}, {output}, {row}, {column})"), found[0], &products, y.dtype())?;
    }
    Ok(())
}

fn random_image(
    shape: [usize; 4],
    deviation: f32,
    dtype: DType,
    channels_last: bool,
    device: &Device,
) -> Result<Tensor> {
    let [images, channels, height, width] = shape;
    if !channels_last {
        return Ok(
            random(images * channels, height * width, deviation, dtype, Order::RowMajor, device)?.reshape(shape)?
        );
    }
    let x = random(images * height * width, channels, deviation, dtype, Order::RowMajor, device)?;
    Ok(x.reshape((images, height, width, channels))?.permute([0, 3, 1, 2])?)
}

/// Checks some elements of a convolution of stride 1.
fn check(x: &Tensor, weight: &Tensor, y: &Tensor, padding: usize, groups: usize) -> Result<()> {
    let [images, outputs, height, width] = [0, 1, 2, 3].map(|axis| y.dims()[axis]);
    let [inputs, kernel] = [weight.dims()[1], weight.dims()[2]];
    for ((image, output), (row, column)) in
        places(images).into_iter().zip(places(outputs)).zip(places(height).into_iter().zip(places(width)))
    {
        let first = output / (outputs / groups) * inputs;
        let padded = x.narrow(0, image, 1)?.narrow(1, first, inputs)?.contiguous()?;
        let sides = [(0, 0), (0, 0), (padding as isize, padding as isize), (padding as isize, padding as isize)];
        let padded = padded.pad(&sides, marquetry::PadMode::Constant(0.into()))?;
        let window = numbers(&padded.narrow(2, row, kernel)?.narrow(3, column, kernel)?)?;
        let weights = numbers(&weight.narrow(0, output, 1)?)?;
        let products: Vec<f64> = window.iter().zip(&weights).map(|(a, b)| a * b).collect();
        let found = numbers(&y.narrow(0, image, 1)?.narrow(1, output, 1)?.narrow(2, row, 1)?.narrow(3, column, 1)?)?;
        ensure_sum(&format!("element ({image}, {output}, {row}, {column})"), found[0], &products, y.dtype())?;
    }
    Ok(())
}
