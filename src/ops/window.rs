//! Windows that slide over the spatial axes of a tensor. Convolutions and pooling share them.

use crate::base::error::{Error, Result};
use crate::base::shape::Dims;
use crate::kernels::window::WindowParameters;
use crate::tensor::Tensor;
use std::ops::Range;

/// The longest padded axis: kernels count places in signed 32-bit integers.
const MAX_LENGTH: usize = i32::MAX as usize - 0xffff;

/// A value for each spatial axis, outermost first: an array, a slice or a vector, or one value for all of them.
///
/// Padding is a pair for each axis, before and after; a number stands for the same on both sides.
///
/// ```
/// use marquetry::PerAxis;
/// assert_eq!(PerAxis::<(usize, usize)>::from([1, 2]), PerAxis::from([(1, 1), (2, 2)]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PerAxis<T>(Dims<T>);

impl<T: Copy> PerAxis<T> {
    /// The same value for every axis.
    pub(super) fn all(value: T) -> Self {
        PerAxis(Dims::from_elem(value, 1))
    }

    /// Returns the values for this number of axes.
    pub(super) fn resolve(&self, axes: usize, what: &str, op: &'static str) -> Result<Dims<T>> {
        match *self.0 {
            [value] => Ok(Dims::from_elem(value, axes)),
            _ if self.0.len() == axes => Ok(self.0.clone()),
            _ => {
                let message = format!("{what} has {} values; one is needed, or {axes}, one per axis", self.0.len());
                Err(Error::InvalidArgument { op, message })
            }
        }
    }
}

impl From<usize> for PerAxis<usize> {
    fn from(value: usize) -> Self {
        PerAxis::all(value)
    }
}

impl From<usize> for PerAxis<(usize, usize)> {
    fn from(padding: usize) -> Self {
        PerAxis::all((padding, padding))
    }
}

impl<T: Copy> From<&[T]> for PerAxis<T> {
    fn from(values: &[T]) -> Self {
        PerAxis(values.iter().copied().collect())
    }
}

impl<T: Copy, const N: usize> From<[T; N]> for PerAxis<T> {
    fn from(values: [T; N]) -> Self {
        values.as_slice().into()
    }
}

impl<T: Copy> From<Vec<T>> for PerAxis<T> {
    fn from(values: Vec<T>) -> Self {
        values.as_slice().into()
    }
}

impl From<&[usize]> for PerAxis<(usize, usize)> {
    fn from(padding: &[usize]) -> Self {
        PerAxis(padding.iter().map(|&n| (n, n)).collect())
    }
}

impl<const N: usize> From<[usize; N]> for PerAxis<(usize, usize)> {
    fn from(padding: [usize; N]) -> Self {
        padding.as_slice().into()
    }
}

impl From<Vec<usize>> for PerAxis<(usize, usize)> {
    fn from(padding: Vec<usize>) -> Self {
        padding.as_slice().into()
    }
}

/// The ranks of tensors with one, two and three spatial axes.
pub(super) const RANKS: [&str; 3] =
    ["3 (or 2, without a batch)", "4 (or 3, without a batch)", "5 (or 4, without a batch)"];

/// A window along one axis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub input: usize,
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    pub before: usize,
    pub after: usize,
}

impl Window {
    /// An axis of length 1, along which nothing happens.
    pub const TRIVIAL: Window = Window { input: 1, kernel: 1, stride: 1, dilation: 1, before: 0, after: 0 };

    /// Returns the window, if its kernel, stride and dilation are not 0 and nothing goes beyond `MAX_LENGTH`.
    pub fn checked(self, op: &'static str) -> Result<Self> {
        for (what, value) in [("kernel", self.kernel), ("stride", self.stride), ("dilation", self.dilation)] {
            if value == 0 {
                return Err(Error::InvalidArgument { op, message: format!("a {what} of 0; it must be 1 or more") });
            }
        }
        // All sums and products below are less than this one.
        let longest = (self.kernel.checked_mul(self.dilation))
            .and_then(|n| n.checked_add(self.input.max(1).checked_mul(self.stride)?))
            .and_then(|n| n.checked_add(self.before)?.checked_add(self.after));
        if longest.is_none_or(|n| n > MAX_LENGTH) {
            let Window { input, kernel, stride, dilation, before, after } = self;
            let message = format!(
                "kernel {kernel}, stride {stride}, dilation {dilation} and padding ({before}, {after}) over an axis of \
                 length {input} go beyond {MAX_LENGTH} elements"
            );
            return Err(Error::InvalidArgument { op, message });
        }
        Ok(self)
    }

    /// Whether each place meets exactly its own element.
    pub fn is_pointwise(&self) -> bool {
        [self.kernel, self.stride] == [1; 2] && [self.before, self.after] == [0; 2]
    }

    /// Returns a kernel's parameters for an output of this length.
    pub fn parameters(&self, output: usize) -> WindowParameters {
        let Window { input, kernel, stride, dilation, before, after: _ } = *self;
        WindowParameters { output, input, kernel, stride, dilation, before }
    }

    /// Returns the number of elements from the first to the last tap.
    pub fn extent(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Returns the input elements from the first to the last tap. For a single place, these are the elements that it
    /// meets. For several places, they are the elements of the first place, if all places lie in the input.
    pub fn met(&self, places: usize) -> Option<Range<usize>> {
        let end = (self.extent() + places.saturating_sub(1) * self.stride).checked_sub(self.before)?;
        if places != 1 {
            return (self.before == 0 && end <= self.input).then(|| 0..self.extent());
        }
        let start = self.before.next_multiple_of(self.dilation) - self.before;
        (start < end.min(self.input)).then(|| start..end.min(self.input))
    }

    /// Returns how many elements of the first place are input or padding.
    pub fn counted(&self) -> usize {
        self.kernel.min(self.before + self.input + self.after)
    }

    /// Returns the number of places of the window in the padded input. In `ceil_mode`, a place that reaches beyond the
    /// end counts if it starts in the input or in the padding before it.
    pub fn places(&self, ceil_mode: bool, op: &'static str) -> Result<usize> {
        let padded = self.before + self.input + self.after;
        let Some(last_start) = padded.checked_sub(self.extent()) else {
            let Window { input, kernel, dilation, before, after, .. } = self;
            let message = format!(
                "a kernel of {kernel} with dilation {dilation} reaches over {} elements, but an axis of length {input} \
                 with padding ({before}, {after}) has {padded}; pad more",
                self.extent(),
            );
            return Err(Error::InvalidArgument { op, message });
        };
        if !ceil_mode {
            return Ok(last_start / self.stride + 1);
        }
        let places = last_start.div_ceil(self.stride) + 1;
        Ok(if (places - 1) * self.stride >= self.before + self.input { places - 1 } else { places })
    }
}

/// Returns the input with a batch axis and `axes` spatial ones, and whether the batch axis was added.
pub(super) fn batched(x: &Tensor, axes: usize, op: &'static str) -> Result<(Tensor, bool)> {
    if x.rank() == axes + 2 {
        return Ok((x.clone(), false));
    }
    if x.rank() == axes + 1 {
        return Ok((x.unsqueeze(0)?, true));
    }
    Err(Error::RankMismatch { op, expected: RANKS[axes - 1], shape: x.shape().clone() })
}
