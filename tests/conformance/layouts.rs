//! Memory layouts of test tensors.

use crate::compare::{Sample, upload};
use crate::reference::numbers::limits;
use crate::reference::{ArrayD, Axis, Slice, array, broadcast};
use crate::suite::Outcome;
use marquetry::{DType, Device, Tensor};

/// A memory layout, tested with a shape of its own.
///
/// With these shapes, strided layouts keep their three axes and so share kernels. A software device takes tens of
/// milliseconds to compile a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Contiguous,
    /// Contiguous, from an offset that is a multiple of four elements.
    Offset,
    /// Contiguous, from an offset that is not a multiple of four elements.
    Unaligned,
    Transposed,
    /// Every second element along each axis, starting at the second.
    Sliced,
    /// Reversed along the middle axis.
    Flipped,
    /// Stride 0 along the middle axis.
    Broadcast,
    /// An axis of length 0.
    Empty,
    /// One element.
    One,
    /// No length is a multiple of four.
    Odd,
    /// The axis after the first one is the innermost one in memory, as channels of images may be. Not in `ALL`.
    ChannelsLast,
    /// A pending expression. Not in `ALL`: for operations that read their operands through one.
    Pending,
    /// A transposed view of a pending expression.
    PendingTransposed,
}

impl Layout {
    pub const ALL: [Layout; 10] = [
        Layout::Contiguous,
        Layout::Offset,
        Layout::Unaligned,
        Layout::Transposed,
        Layout::Sliced,
        Layout::Flipped,
        Layout::Broadcast,
        Layout::Empty,
        Layout::One,
        Layout::Odd,
    ];

    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// The shape to test the layout with.
    pub fn shape(self) -> [usize; 3] {
        match self {
            Layout::Empty => [4, 0, 6],
            Layout::One => [1, 1, 1],
            Layout::Odd => [3, 65, 7],
            _ => [4, 5, 6],
        }
    }

    /// Makes a tensor of this layout with these elements. `Broadcast` repeats the first slice along the middle axis.
    pub fn place(self, values: ArrayD<f64>, dtype: DType, device: &Device) -> Outcome<Sample> {
        let (tensor, values) = match self {
            Layout::Contiguous | Layout::Empty | Layout::One | Layout::Odd => (upload(&values, dtype, device)?, values),
            Layout::Offset | Layout::Unaligned => {
                // One or two rows of 30 elements precede the tensor.
                let rows = if self == Layout::Offset { 2 } else { 1 };
                let mut base = values.shape().to_vec();
                base[0] += rows;
                let mut base = poison(&base, dtype);
                base.slice_axis_mut(Axis(0), Slice::from(rows..)).assign(&values);
                (upload(&base, dtype, device)?.narrow(0, rows, values.shape()[0])?, values)
            }
            Layout::Transposed => {
                let reversed: Vec<usize> = (0..values.ndim()).rev().collect();
                let base = values.view().permuted_axes(reversed.clone()).as_standard_layout().into_owned();
                (upload(&base, dtype, device)?.permute(reversed)?, values)
            }
            Layout::ChannelsLast => {
                let rank = values.ndim();
                let last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
                let first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
                let base = values.view().permuted_axes(last).as_standard_layout().into_owned();
                (upload(&base, dtype, device)?.permute(first)?, values)
            }
            Layout::Pending => (pending(&values, dtype, device)?, values),
            Layout::PendingTransposed => {
                let reversed: Vec<usize> = (0..values.ndim()).rev().collect();
                let base = values.view().permuted_axes(reversed.clone()).as_standard_layout().into_owned();
                (pending(&base, dtype, device)?.permute(reversed)?, values)
            }
            Layout::Sliced => {
                let base: Vec<usize> = values.shape().iter().map(|n| 2 * n + 1).collect();
                let mut base = poison(&base, dtype);
                base.slice_each_axis_mut(|_| Slice::new(1, None, 2)).assign(&values);
                let mut tensor = upload(&base, dtype, device)?;
                for axis in 0..values.ndim() {
                    tensor = tensor.slice(axis, 1.., 2)?;
                }
                (tensor, values)
            }
            Layout::Flipped => {
                let axis = values.ndim() / 2;
                let mut base = values.clone();
                base.invert_axis(Axis(axis));
                (upload(&base.as_standard_layout().into_owned(), dtype, device)?.slice(axis, .., -1)?, values)
            }
            Layout::Broadcast => {
                let axis = values.ndim() / 2;
                let base = values.slice_axis(Axis(axis), Slice::from(..1)).as_standard_layout().into_owned();
                let shape = values.shape();
                (upload(&base, dtype, device)?.broadcast_to(shape)?, broadcast(&base, shape))
            }
        };
        Ok(Sample { tensor, values })
    }
}

/// A tensor with these elements that has not been computed: every third element comes from one tensor, the others from
/// another. All else in the two tensors is poison.
fn pending(values: &ArrayD<f64>, dtype: DType, device: &Device) -> Outcome<Tensor> {
    let is_first = |i: usize| i.is_multiple_of(3);
    let chosen = |first: bool, poison: f64| -> Vec<f64> {
        values.iter().enumerate().map(|(i, &x)| if is_first(i) == first { x } else { poison }).collect()
    };
    let poison = poison(&[1], dtype)[[0]];
    let [first, second] = [true, false].map(|first| array(values.shape(), chosen(first, poison)));
    let from_first = array(values.shape(), (0..values.len()).map(|i| f64::from(is_first(i))).collect());
    // They begin at different places of their buffers.
    let place = |values: &ArrayD<f64>, dtype: DType, rows: usize| -> Outcome<Tensor> {
        let mut base = values.shape().to_vec();
        base[0] += rows;
        let mut base = ArrayD::from_elem(base, if dtype == DType::Bool { 1.0 } else { poison });
        base.slice_axis_mut(Axis(0), Slice::from(rows..)).assign(values);
        Ok(upload(&base, dtype, device)?.narrow(0, rows, values.shape()[0])?)
    };
    let condition = place(&from_first, DType::Bool, 2)?;
    Ok(condition.where_cond(&place(&first, dtype, 0)?, &place(&second, dtype, 1)?)?)
}

/// An array of elements that no kernel may read: NaN for floats, else the largest number.
fn poison(shape: &[usize], dtype: DType) -> ArrayD<f64> {
    ArrayD::from_elem(shape, if dtype.is_float() { f64::NAN } else { limits(dtype).1 })
}
