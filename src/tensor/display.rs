//! Tensors as text, laid out as PyTorch does it.

use super::Tensor;
use crate::dtype::{DType, Element};
use crate::error::Result;
use half::f16;
use std::fmt;

/// Above so many elements, only the ends of each axis are shown.
const THRESHOLD: usize = 1000;
/// How many elements are shown at each end then.
const EDGE: usize = 3;
/// Digits behind the point.
const PRECISION: usize = 4;

/// Prints the elements, or what went wrong in computing them. It reads the tensor and so waits for the device.
///
/// ```
/// # use marquetry::{Device, Tensor};
/// # let device = Device::best()?;
/// let x = Tensor::new([[1f32, 2.5], [-3.0, 4.0]], &device)?;
/// let text = x.to_string();
/// assert!(text.starts_with("tensor([[ 1.0000,  2.5000],\n        [-3.0000,  4.0000]]"));
/// # Ok::<(), marquetry::Error>(())
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shown_elements() {
            Ok(elements) => write!(f, "{}", Picture::new(self, &elements)),
            Err(error) => write!(f, "tensor(<{error}>, {})", description(self)),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor {{ {} }}", description(self))
    }
}

fn description(tensor: &Tensor) -> String {
    format!("shape={}, dtype={}, device='{}'", tensor.shape(), tensor.dtype(), tensor.device().id())
}

impl Tensor {
    /// The elements that are printed, in row-major order: of a large tensor, only the ends of each axis are read.
    fn shown_elements(&self) -> Result<Vec<f64>> {
        fn read<T: Element>(tensor: &Tensor) -> Result<Vec<f64>> {
            Ok(tensor.to_vec::<T>()?.into_iter().map(T::to_f64).collect())
        }
        let mut shown = self.clone();
        if self.elem_count() > THRESHOLD {
            for axis in 0..self.rank() {
                let length = self.dims()[axis];
                if length > 2 * EDGE {
                    let ends = [shown.narrow(axis, 0, EDGE)?, shown.narrow(axis, length - EDGE, EDGE)?];
                    shown = Tensor::cat(&ends, axis)?;
                }
            }
        }
        match self.dtype() {
            DType::U8 => read::<u8>(&shown),
            DType::U32 => read::<u32>(&shown),
            DType::I32 => read::<i32>(&shown),
            DType::F16 => read::<f16>(&shown),
            DType::F32 => read::<f32>(&shown),
        }
    }
}

/// How the numbers of one tensor are written.
enum Notation {
    /// Whole numbers without a point.
    Integer,
    /// Whole numbers of a float type: `2.`
    Whole,
    Fixed,
    Scientific,
}

impl Notation {
    /// PyTorch's rule: scientific where the magnitudes span more than three decades or leave 1e-4..1e8.
    fn choose(dtype: DType, elements: &[f64]) -> Notation {
        if !dtype.is_float() {
            return Notation::Integer;
        }
        let magnitudes = || elements.iter().map(|x| x.abs()).filter(|x| x.is_finite() && *x != 0.0);
        let (low, high) = magnitudes().fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
        if elements.iter().all(|x| !x.is_finite() || x.fract() == 0.0) {
            if high / low > 1000.0 && high > 1e8 { Notation::Scientific } else { Notation::Whole }
        } else if high / low > 1000.0 || high > 1e8 || low < 1e-4 {
            Notation::Scientific
        } else {
            Notation::Fixed
        }
    }

    fn write(&self, x: f64) -> String {
        if !x.is_finite() {
            return if x.is_nan() { "nan".into() } else { format!("{x}") };
        }
        match self {
            Notation::Integer => format!("{x:.0}"),
            Notation::Whole => format!("{x:.0}."),
            Notation::Fixed => format!("{x:.PRECISION$}"),
            Notation::Scientific => {
                let text = format!("{x:.PRECISION$e}");
                let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
                format!("{mantissa}e{sign}{digits:0>2}")
            }
        }
    }
}

/// The elements as text of one width.
struct Picture<'a> {
    tensor: &'a Tensor,
    cells: Vec<String>,
    /// The lengths of the axes of what is shown, and whether the middle of each was left out.
    shown: Vec<(usize, bool)>,
}

impl<'a> Picture<'a> {
    fn new(tensor: &'a Tensor, elements: &[f64]) -> Self {
        let notation = Notation::choose(tensor.dtype(), elements);
        let cells: Vec<String> = elements.iter().map(|&x| notation.write(x)).collect();
        let width = if tensor.rank() == 0 { 0 } else { cells.iter().map(String::len).max().unwrap_or(0) };
        let cut = tensor.elem_count() > THRESHOLD;
        let shown = tensor.dims().iter().map(|&n| if cut && n > 2 * EDGE { (2 * EDGE, true) } else { (n, false) });
        Picture {
            tensor,
            cells: cells.into_iter().map(|cell| format!("{cell:>width$}")).collect(),
            shown: shown.collect(),
        }
    }

    fn axis(&self, f: &mut fmt::Formatter<'_>, axis: usize, cells: &[String]) -> fmt::Result {
        let Some(&(length, cut)) = self.shown.get(axis) else { return f.write_str(&cells[0]) };
        let last = axis + 1 == self.shown.len();
        let separator = match last {
            true => ", ".to_string(),
            false => format!(",{}{}", "\n".repeat(self.shown.len() - axis - 1), " ".repeat("tensor(".len() + axis + 1)),
        };
        f.write_str("[")?;
        let step = cells.len().checked_div(length).unwrap_or(0);
        for i in 0..length {
            if i > 0 {
                f.write_str(&separator)?;
            }
            if cut && i == EDGE {
                f.write_str("...")?;
                f.write_str(&separator)?;
            }
            self.axis(f, axis + 1, &cells[i * step..(i + 1) * step])?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for Picture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor(")?;
        if self.cells.is_empty() {
            write!(f, "[], size={}", self.tensor.shape())?;
        } else {
            self.axis(f, 0, &self.cells)?;
        }
        write!(f, ", device='{}'", self.tensor.device().id())?;
        if self.tensor.dtype() != DType::F32 {
            write!(f, ", dtype={}", self.tensor.dtype())?;
        }
        f.write_str(")")
    }
}
