//! Sliding windows: convolution and pooling over explicitly padded arrays.

use super::numbers::wrap;
use super::{ArrayD, array};
use marquetry::DType;
use ndarray::{Array5, Ix5, s};

/// The parameters of a sliding window over three spatial axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slide {
    pub stride: [usize; 3],
    pub dilation: [usize; 3],
    pub padding: [(usize, usize); 3],
    pub output_padding: [usize; 3],
    pub groups: usize,
}

impl Slide {
    pub const PLAIN: Slide =
        Slide { stride: [1; 3], dilation: [1; 3], padding: [(0, 0); 3], output_padding: [0; 3], groups: 1 };
}

/// Reshapes `(outer, inner, spatial..)` to three spatial axes: axes of length 1 are inserted in front.
pub fn lifted(x: &ArrayD<f64>) -> Array5<f64> {
    let mut shape = x.shape().to_vec();
    while shape.len() < 5 {
        shape.insert(2, 1);
    }
    array(&shape, x.iter().copied().collect()).into_dimensionality::<Ix5>().unwrap()
}

/// Adds a border of `value` around the spatial axes.
pub fn padded(x: &Array5<f64>, padding: [(usize, usize); 3], value: f64) -> Array5<f64> {
    let (n, c, d, h, w) = x.dim();
    let long = |axis: usize, length: usize| padding[axis].0 + length + padding[axis].1;
    let mut result = Array5::from_elem((n, c, long(0, d), long(1, h), long(2, w)), value);
    let [from_d, from_h, from_w] = padding.map(|(before, _)| before);
    result.slice_mut(s![.., .., from_d..from_d + d, from_h..from_h + h, from_w..from_w + w]).assign(x);
    result
}

/// All positions in a box, in row-major order.
pub fn places([d, h, w]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..d).flat_map(move |i| (0..h).flat_map(move |j| (0..w).map(move |k| [i, j, k])))
}

fn spatial(x: &Array5<f64>) -> [usize; 3] {
    [x.dim().2, x.dim().3, x.dim().4]
}

/// Sums of products, and the sums of their magnitudes.
struct Sums {
    dtype: DType,
    values: Array5<f64>,
    magnitudes: Array5<f64>,
}

impl Sums {
    fn new(shape: (usize, usize, usize, usize, usize), dtype: DType) -> Self {
        Sums { dtype, values: Array5::zeros(shape), magnitudes: Array5::zeros(shape) }
    }

    fn add(&mut self, place: (usize, usize, usize, usize, usize), a: f64, b: f64) {
        if self.dtype.is_float() {
            self.values[place] += a * b;
            self.magnitudes[place] += (a * b).abs();
        } else {
            let product = (a as i64).wrapping_mul(b as i64);
            self.values[place] = wrap((self.values[place] as i64).wrapping_add(product), self.dtype);
        }
    }
}

/// The convolution over three spatial axes, and each element's sum of the magnitudes of its terms.
pub fn conv(
    x: &ArrayD<f64>,
    weight: &ArrayD<f64>,
    bias: Option<&ArrayD<f64>>,
    slide: Slide,
    dtype: DType,
) -> (Array5<f64>, Array5<f64>) {
    let (x, weight) = (padded(&lifted(x), slide.padding, 0.0), lifted(weight));
    let (images, (outputs, channels, ..)) = (x.dim().0, weight.dim());
    let (length, kernel) = (spatial(&x), spatial(&weight));
    let out: [usize; 3] =
        std::array::from_fn(|i| (length[i] - (kernel[i] - 1) * slide.dilation[i] - 1) / slide.stride[i] + 1);
    let mut sums = Sums::new((images, outputs, out[0], out[1], out[2]), dtype);
    for (n, o) in (0..images).flat_map(|n| (0..outputs).map(move |o| (n, o))) {
        let group = o / (outputs / slide.groups);
        for p in places(out) {
            let y = (n, o, p[0], p[1], p[2]);
            for (c, t) in (0..channels).flat_map(|c| places(kernel).map(move |t| (c, t))) {
                let i: [usize; 3] = std::array::from_fn(|a| p[a] * slide.stride[a] + t[a] * slide.dilation[a]);
                sums.add(y, x[(n, group * channels + c, i[0], i[1], i[2])], weight[(o, c, t[0], t[1], t[2])]);
            }
            bias.iter().for_each(|bias| sums.add(y, bias[[o]], 1.0));
        }
    }
    (sums.values, sums.magnitudes)
}

/// The transposed convolution: each input element is spread over the output. The padding is cut off the result.
pub fn conv_transpose(
    x: &ArrayD<f64>,
    weight: &ArrayD<f64>,
    bias: Option<&ArrayD<f64>>,
    slide: Slide,
    dtype: DType,
) -> (Array5<f64>, Array5<f64>) {
    let (x, weight) = (lifted(x), lifted(weight));
    let ((images, channels, ..), outputs) = (x.dim(), weight.dim().1);
    let (length, kernel) = (spatial(&x), spatial(&weight));
    let full: [usize; 3] = std::array::from_fn(|a| {
        (length[a] - 1) * slide.stride[a] + (kernel[a] - 1) * slide.dilation[a] + 1 + slide.output_padding[a]
    });
    let mut sums = Sums::new((images, outputs * slide.groups, full[0], full[1], full[2]), dtype);
    for (n, c) in (0..images).flat_map(|n| (0..channels).map(move |c| (n, c))) {
        let group = c / (channels / slide.groups);
        for (i, o) in places(length).flat_map(|i| (0..outputs).map(move |o| (i, o))) {
            for t in places(kernel) {
                let p: [usize; 3] = std::array::from_fn(|a| i[a] * slide.stride[a] + t[a] * slide.dilation[a]);
                let y = (n, group * outputs + o, p[0], p[1], p[2]);
                sums.add(y, x[(n, c, i[0], i[1], i[2])], weight[(c, o, t[0], t[1], t[2])]);
            }
        }
    }
    if let Some(bias) = bias {
        let (n, c, d, h, w) = sums.values.dim();
        for (n, c) in (0..n).flat_map(|n| (0..c).map(move |c| (n, c))) {
            places([d, h, w]).for_each(|p| sums.add((n, c, p[0], p[1], p[2]), bias[[c]], 1.0));
        }
    }
    let cut = |y: Array5<f64>| {
        let [d, h, w]: [std::ops::Range<usize>; 3] =
            std::array::from_fn(|a| slide.padding[a].0..full[a] - slide.padding[a].1);
        y.slice(s![.., .., d, h, w]).to_owned()
    };
    (cut(sums.values), cut(sums.magnitudes))
}

/// The number of windows along each axis (PyTorch's `pooling_output_shape`).
pub fn window_counts(length: [usize; 3], kernel: [usize; 3], slide: Slide, ceil_mode: bool) -> [usize; 3] {
    std::array::from_fn(|a| {
        let ((before, after), stride) = (slide.padding[a], slide.stride[a]);
        let room = before + length[a] + after - slide.dilation[a] * (kernel[a] - 1) - 1;
        let count = (room + if ceil_mode { stride - 1 } else { 0 }) / stride + 1;
        if ceil_mode && (count - 1) * stride >= length[a] + before { count - 1 } else { count }
    })
}

/// Applies a function to each window. The array is padded with `value` as far as any window reaches.
pub fn windows(
    x: &Array5<f64>,
    kernel: [usize; 3],
    slide: Slide,
    counts: [usize; 3],
    value: f64,
    function: impl Fn(&[f64]) -> f64,
) -> Array5<f64> {
    let beyond = std::array::from_fn(|a| {
        let (before, after) = slide.padding[a];
        (before, after + kernel[a] * slide.dilation[a] + slide.stride[a])
    });
    let x = padded(x, beyond, value);
    let (n, c, ..) = x.dim();
    Array5::from_shape_fn((n, c, counts[0], counts[1], counts[2]), |(n, c, d, h, w)| {
        let p = [d, h, w];
        let elements = places(kernel).map(|t| {
            let i: [usize; 3] = std::array::from_fn(|a| p[a] * slide.stride[a] + t[a] * slide.dilation[a]);
            x[(n, c, i[0], i[1], i[2])]
        });
        function(&elements.collect::<Vec<_>>())
    })
}

/// Applies a function to each adaptive window. With `n` windows along an axis, window `i` covers
/// `floor(i length / n)..ceil((i + 1) length / n)`.
pub fn adaptive_windows(x: &Array5<f64>, counts: [usize; 3], function: impl Fn(&[f64]) -> f64) -> Array5<f64> {
    let (images, channels, ..) = x.dim();
    let length = spatial(x);
    Array5::from_shape_fn((images, channels, counts[0], counts[1], counts[2]), |(n, c, d, h, w)| {
        let range = |a: usize, i: usize| {
            let exact = |i: usize| (i * length[a]) as f64 / counts[a] as f64;
            exact(i).floor() as usize..exact(i + 1).ceil() as usize
        };
        let window = x.slice(s![n, c, range(0, d), range(1, h), range(2, w)]);
        function(&window.iter().copied().collect::<Vec<_>>())
    })
}
