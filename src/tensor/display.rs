//! Tensors as text, laid out as PyTorch does it.

use super::Tensor;
use crate::base::dtype::{DType, Element};
use crate::base::error::Result;
use half::{bf16, f16};
use std::fmt;

/// Above so many elements, only the ends of each axis are shown.
const THRESHOLD: usize = 1000;
/// How many elements are shown at each end then.
const EDGE: usize = 3;
/// Lines are broken at this width.
const LINE: usize = 80;
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
            Ok(column) => write!(f, "{}", Picture::new(self, column)),
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
    fn shown_elements(&self) -> Result<Column> {
        fn read<T: Element>(tensor: &Tensor) -> Result<Column> {
            Ok(Column::of(&tensor.to_vec::<T>()?))
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
            DType::Bool => read::<bool>(&shown),
            DType::U8 => read::<u8>(&shown),
            DType::I8 => read::<i8>(&shown),
            DType::U32 => read::<u32>(&shown),
            DType::I32 => read::<i32>(&shown),
            DType::F16 => read::<f16>(&shown),
            DType::BF16 => read::<bf16>(&shown),
            DType::F32 => read::<f32>(&shown),
            DType::I64 => read::<i64>(&shown),
            DType::F64 => read::<f64>(&shown),
        }
    }
}

/// The elements of one tensor as text, padded to a width.
struct Column {
    cells: Vec<String>,
    width: usize,
}

impl Column {
    fn of<T: Element>(elements: &[T]) -> Column {
        if T::DTYPE.is_float() {
            let numbers: Vec<f64> = elements.iter().map(|x| x.to_f64()).collect();
            return Column::of_floats(&numbers);
        }
        // As Rust writes integers and truth values.
        let cells: Vec<String> = elements.iter().map(|x| format!("{x:?}")).collect();
        let width = cells.iter().map(String::len).max().unwrap_or(1);
        Column::padded(cells, width)
    }

    /// Zeros and numbers that are not finite do not widen the column.
    fn of_floats(numbers: &[f64]) -> Column {
        let style = Style::choose(numbers);
        let width = counted(numbers).map(|x| style.write(x).len()).max().unwrap_or(1);
        Column::padded(numbers.iter().map(|&x| style.write(x)).collect(), width)
    }

    fn padded(cells: Vec<String>, width: usize) -> Column {
        Column { cells: cells.into_iter().map(|cell| format!("{cell:>width$}")).collect(), width }
    }
}

/// The numbers by which PyTorch chooses how to write all of them.
fn counted(numbers: &[f64]) -> impl Iterator<Item = f64> {
    numbers.iter().copied().filter(|x| x.is_finite() && *x != 0.0)
}

/// How floats are written.
#[derive(Clone, Copy)]
enum Style {
    /// Whole numbers: `2.`
    Whole,
    Fixed,
    Scientific,
}

impl Style {
    /// PyTorch's rule: scientific where the magnitudes span more than three decades or leave 1e-4..1e8.
    fn choose(numbers: &[f64]) -> Style {
        let range = |(low, high): (f64, f64), x: f64| (low.min(x.abs()), high.max(x.abs()));
        let (low, high) = counted(numbers).fold((f64::INFINITY, 0.0), range);
        let whole = counted(numbers).all(|x| x.fract() == 0.0);
        let wide = high / low > 1000.0 || high > 1e8;
        match (wide || (!whole && low < 1e-4), whole) {
            (true, _) => Style::Scientific,
            (false, true) => Style::Whole,
            (false, false) => Style::Fixed,
        }
    }

    fn write(self, x: f64) -> String {
        if x.is_nan() {
            return "nan".into();
        }
        if x.is_infinite() {
            return x.to_string();
        }
        match self {
            Style::Whole => format!("{x:.0}."),
            Style::Fixed => format!("{x:.PRECISION$}"),
            Style::Scientific => {
                let text = format!("{x:.PRECISION$e}");
                let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
                format!("{mantissa}e{sign}{digits:0>2}")
            }
        }
    }
}

/// The elements as text, laid out in brackets.
struct Picture<'a> {
    tensor: &'a Tensor,
    cells: Vec<String>,
    width: usize,
    /// The lengths of the axes of what is shown, and whether the middle of each was left out.
    shown: Vec<(usize, bool)>,
}

impl<'a> Picture<'a> {
    fn new(tensor: &'a Tensor, column: Column) -> Self {
        let cut = tensor.elem_count() > THRESHOLD;
        let shown = tensor.dims().iter().map(|&n| if cut && n > 2 * EDGE { (2 * EDGE, true) } else { (n, false) });
        Picture { tensor, cells: column.cells, width: column.width, shown: shown.collect() }
    }

    /// The innermost axis, broken into lines.
    fn row(&self, cells: &[String], cut: bool, indent: usize) -> String {
        let mut cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        if cut {
            cells.insert(EDGE, " ...");
        }
        let per_line = (LINE.saturating_sub(indent) / (self.width + 2)).max(1);
        let lines: Vec<String> = cells.chunks(per_line).map(|line| line.join(", ")).collect();
        format!("[{}]", lines.join(&format!(",\n{}", " ".repeat(indent + 1))))
    }

    fn axis(&self, axis: usize, cells: &[String], indent: usize) -> String {
        let Some(&(length, cut)) = self.shown.get(axis) else { return cells[0].clone() };
        let inner = self.shown.len() - axis - 1;
        if inner == 0 {
            return self.row(cells, cut, indent);
        }
        let mut slices: Vec<String> =
            cells.chunks(cells.len() / length).map(|slice| self.axis(axis + 1, slice, indent + 1)).collect();
        if cut {
            slices.insert(EDGE, "...".into());
        }
        format!("[{}]", slices.join(&format!(",{}{}", "\n".repeat(inner), " ".repeat(indent + 1))))
    }

    /// What stands behind the elements.
    fn suffixes(&self) -> Vec<String> {
        let mut suffixes = vec![format!("device='{}'", self.tensor.device().id())];
        if self.cells.is_empty() && self.tensor.rank() != 1 {
            suffixes.push(format!("size={}", self.tensor.shape()).replace('[', "(").replace(']', ")"));
        }
        if self.tensor.dtype() != DType::F32 {
            suffixes.push(format!("dtype={}", self.tensor.dtype()));
        }
        suffixes
    }
}

impl fmt::Display for Picture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PREFIX: &str = "tensor(";
        let body = if self.cells.is_empty() { "[]".into() } else { self.axis(0, &self.cells, PREFIX.len()) };
        let text = format!("{PREFIX}{body}");
        f.write_str(&text)?;
        // PyTorch counts the last line with one column more, and a first line with two.
        let mut column = text.rfind('\n').map_or(text.len() + 2, |newline| text.len() - newline + 1);
        for suffix in self.suffixes() {
            if column + suffix.len() + 2 > LINE {
                write!(f, ",\n{}{suffix}", " ".repeat(PREFIX.len()))?;
                column = PREFIX.len() + suffix.len();
            } else {
                write!(f, ", {suffix}")?;
                column += suffix.len() + 2;
            }
        }
        f.write_str(")")
    }
}
