//! Tensors with a border.

use crate::base::error::{Error, Result};
use crate::base::layout::collapse;
use crate::base::number::Number;
use crate::base::shape::{Axis, Dims, Shape};
use crate::base::shape::{MAX_ELEMENTS, checked_elements};
use crate::base::word::Word;
use crate::engine::launch::Launch;
use crate::kernels::pad::{AxisParameters, Border, Pad, Parameters, WORKGROUP};
use crate::kernels::parameters::Strided;
use crate::lazy::allocate;
use crate::tensor::Tensor;

/// What [`Tensor::pad`] makes a border of.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum PadMode {
    /// A number, which the dtype must be able to hold, as in `PadMode::Constant(0.into())`.
    Constant(Number),
    /// The elements mirrored at the first and the last one, which are not repeated: `c b | a b c | b a`.
    Reflect,
    /// The first and the last element: `a a | a b c | c c` (numpy's and ONNX's `edge`).
    Replicate,
    /// The elements from the other end: `b c | a b c | a b` (numpy's and ONNX's `wrap`).
    Circular,
}

impl PadMode {
    fn border(self) -> Border {
        match self {
            PadMode::Constant(_) => Border::Constant,
            PadMode::Reflect => Border::Reflect,
            PadMode::Replicate => Border::Replicate,
            PadMode::Circular => Border::Circular,
        }
    }

    /// Returns the longest border that an axis of this length can have, and why.
    fn longest(self, length: usize) -> (usize, &'static str) {
        match self {
            PadMode::Constant(_) => (usize::MAX, ""),
            PadMode::Reflect => (length.saturating_sub(1), "a reflection is shorter than the axis"),
            PadMode::Replicate if length == 0 => (0, "there is no element to repeat"),
            PadMode::Replicate => (usize::MAX, ""),
            PadMode::Circular => (length, "a circular border is no longer than the axis"),
        }
    }
}

impl Tensor {
    /// Returns the tensor with a border along its last axes, a pair of `amounts` for each of them: how many elements to
    /// add before and after it. Negative amounts crop. The tensor is cropped first, so that a border shows no cropped
    /// element.
    ///
    /// ```
    /// # use marquetry::{Device, PadMode, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 2.0, 3.0]], &device)?;
    /// assert_eq!(x.pad(&[(1, 2)], PadMode::Reflect)?.to_vec::<f32>()?, [2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
    /// let zero = PadMode::Constant(0.into());
    /// assert_eq!(x.pad(&[(1, 0), (-1, 1)], zero)?.to_vec::<f32>()?, [0.0, 0.0, 0.0, 2.0, 3.0, 0.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more pairs than axes, if more is cropped than there is, for a reflection as long
    /// as its axis, for a circular border longer than its axis, or for a number that the dtype cannot hold;
    /// [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn pad(&self, amounts: &[(isize, isize)], mode: PadMode) -> Result<Tensor> {
        self.padded(amounts, mode, "pad")
    }

    /// Returns the tensor with zeros before and after it along an axis (candle's name for a [`pad`](Self::pad) with
    /// zeros).
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::SizeOverflow`], [`Error::OutOfMemory`].
    pub fn pad_with_zeros(&self, axis: impl Into<Axis>, before: usize, after: usize) -> Result<Tensor> {
        self.padded_axis(axis.into(), before, after, PadMode::Constant(0.into()), "pad_with_zeros")
    }

    /// Returns the tensor with its first and last element along an axis repeated (candle's name for a
    /// [`pad`](Self::pad) with [`PadMode::Replicate`]).
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if the axis is empty; [`Error::SizeOverflow`],
    /// [`Error::OutOfMemory`].
    pub fn pad_with_same(&self, axis: impl Into<Axis>, before: usize, after: usize) -> Result<Tensor> {
        self.padded_axis(axis.into(), before, after, PadMode::Replicate, "pad_with_same")
    }

    fn padded_axis(&self, axis: Axis, before: usize, after: usize, mode: PadMode, op: &'static str) -> Result<Tensor> {
        let axis = axis.resolve(self.shape(), op)?;
        // An amount that saturates is more than there can be.
        let amount = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
        let mut amounts = vec![(0, 0); self.rank() - axis];
        amounts[0] = (amount(before), amount(after));
        self.padded(&amounts, mode, op)
    }

    fn padded(&self, amounts: &[(isize, isize)], mode: PadMode, op: &'static str) -> Result<Tensor> {
        let Some(kept) = self.rank().checked_sub(amounts.len()) else {
            let message = format!(
                "{} pairs of borders for shape {}, which has {} axes; give one pair for each of the last axes",
                amounts.len(),
                self.shape(),
                self.rank()
            );
            return Err(Error::InvalidArgument { op, message });
        };
        let fill = match mode {
            PadMode::Constant(number) => Some(Word::of(number, self.dtype(), op)?),
            _ => None,
        };
        let cropped = self.cropped(kept, amounts, op)?;
        let mut borders: Dims<[usize; 2]> = (0..kept).map(|_| [0, 0]).collect();
        borders.extend(amounts.iter().map(|&(before, after)| [before, after].map(|n| n.max(0).unsigned_abs())));
        let mut shape = Dims::new();
        for (axis, (&length, &[before, after])) in cropped.dims().iter().zip(&borders).enumerate() {
            let (longest, why) = mode.longest(length);
            if before.max(after) > longest {
                let message = format!("borders of {before} and {after} along axis {axis} of length {length}: {why}");
                return Err(Error::InvalidArgument { op, message });
            }
            let padded = length.checked_add(before).and_then(|n| n.checked_add(after));
            shape.push(padded.ok_or_else(|| Error::SizeOverflow {
                op,
                shape: cropped.shape().clone(),
                limit: MAX_ELEMENTS as u64,
            })?);
        }
        let shape = Shape::from(shape);
        checked_elements(&shape, op)?;
        cropped.with_borders(&borders, &shape, mode.border(), fill, op)
    }

    /// Returns the view without the elements that negative amounts crop.
    fn cropped(&self, kept: usize, amounts: &[(isize, isize)], op: &'static str) -> Result<Tensor> {
        let mut view = self.clone();
        for (axis, &(before, after)) in (kept..).zip(amounts) {
            let [before, after] = [before, after].map(|n| n.min(0).unsigned_abs());
            if before > 0 || after > 0 {
                let length = self.dims()[axis];
                let rest = length.checked_sub(before).and_then(|rest| rest.checked_sub(after)).ok_or_else(|| {
                    let message = format!("axis {axis} of length {length} cannot be cropped by {before} and {after}");
                    Error::InvalidArgument { op, message }
                })?;
                view = view.narrow(axis, before, rest)?;
            }
        }
        Ok(view)
    }

    /// Returns the tensor with these borders for each axis, which make it this shape.
    fn with_borders(
        &self,
        borders: &[[usize; 2]],
        shape: &Shape,
        border: Border,
        fill: Option<Word>,
        op: &'static str,
    ) -> Result<Tensor> {
        let padded: Vec<usize> = (0..self.rank()).filter(|&axis| borders[axis] != [0, 0]).collect();
        if padded.is_empty() {
            return Ok(self.clone());
        }
        if let (Some(word), 0) = (fill, self.elem_count()) {
            return Tensor::constant(word, shape.clone(), self.device(), op);
        }
        let (lengths, strides, merged) = self.merged(borders);
        let config = Pad { dtype: self.dtype(), border, rank: lengths.len() };
        if !self.device().takes(&config) {
            if !self.is_contiguous() {
                return self.contiguous()?.with_borders(borders, shape, border, fill, op);
            }
            // Axes can also be padded one after the other: the first half of them is padded first.
            let half = padded[padded.len() / 2];
            let part = |outer: bool| -> Dims<[usize; 2]> {
                let axes = borders.iter().enumerate();
                axes.map(|(axis, &border)| if (axis < half) == outer { border } else { [0, 0] }).collect()
            };
            let between: Shape = shape[..half].iter().chain(&self.dims()[half..]).copied().collect();
            let outer = self.with_borders(&part(true), &between, border, fill, op)?;
            return outer.with_borders(&part(false), shape, border, fill, op);
        }
        let elements = checked_elements(shape, op)?;
        let output = allocate(shape, self.dtype(), self.device(), op)?;
        if elements > 0 {
            let axes = || lengths.iter().zip(&merged);
            let parameters = Parameters {
                count: elements,
                lengths: axes().map(|(length, [before, after])| length + before + after).collect(),
                x: Strided { offset: self.layout().offset, strides },
                axes: axes().map(|(&length, &[before, _])| AxisParameters { before, length }).collect(),
                fill,
            };
            let buffers = [self.buffer()?, &output];
            let groups = elements.div_ceil(4).div_ceil(WORKGROUP as usize);
            self.device().runtime().run(Launch { kernel: config, buffers: &buffers, parameters, groups })?;
        }
        Ok(Tensor::from_buffer(output, shape.clone(), self.dtype(), self.device()))
    }

    /// Returns lengths, strides and borders of the axes. Neighbours without a border are merged if the strides allow
    /// it.
    fn merged(&self, borders: &[[usize; 2]]) -> (Dims, Dims<isize>, Dims<[usize; 2]>) {
        let (mut lengths, mut strides, mut merged) = (Dims::new(), Dims::new(), Dims::new());
        let mut axis = 0;
        while axis < self.rank() {
            let plain = borders[axis..].iter().take_while(|border| **border == [0, 0]).count();
            let end = axis + plain.max(1);
            if plain == 0 {
                lengths.push(self.dims()[axis]);
                strides.push(self.strides()[axis]);
            } else {
                let (some_lengths, some_strides) = collapse(&self.dims()[axis..end], [&self.strides()[axis..end]]);
                lengths.extend(some_lengths);
                strides.extend(some_strides.into_iter().flatten());
            }
            merged.resize(lengths.len(), borders[axis]);
            axis = end;
        }
        (lengths, strides, merged)
    }
}
