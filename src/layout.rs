//! Where a tensor's elements lie in its buffer: shape, strides and offset.

use crate::error::{Error, Result};
use crate::shape::{Dims, Shape};

/// A strided view, counted in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub shape: Shape,
    pub strides: Dims<isize>,
    pub offset: usize,
}

impl Layout {
    /// Row-major order without gaps.
    pub fn contiguous(shape: Shape) -> Self {
        let mut strides: Dims<isize> = shape.iter().map(|_| 1).collect();
        for axis in (1..shape.rank()).rev() {
            // An empty tensor may have other axes so long that the product wraps; its strides are never used.
            strides[axis - 1] = strides[axis].wrapping_mul(shape[axis].max(1) as isize);
        }
        Layout { shape, strides, offset: 0 }
    }

    /// The number of elements; a layout is only made for shapes where it fits a `usize`.
    pub fn elements(&self) -> usize {
        self.shape.elem_count().unwrap_or(usize::MAX)
    }

    /// Whether the elements lie in row-major order without gaps, from `offset` on.
    pub fn is_contiguous(&self) -> bool {
        // An empty tensor has nothing between which a gap could be, and other axes so long that their product wraps.
        if self.shape.contains(&0) {
            return true;
        }
        let mut expected = 1isize;
        for (&length, &stride) in self.shape.iter().zip(&self.strides).rev().filter(|(length, _)| **length != 1) {
            if stride != expected {
                return false;
            }
            expected = expected.wrapping_mul(length as isize);
        }
        true
    }

    /// The view with its axes in another order.
    pub fn permuted(&self, axes: &[usize]) -> Self {
        let shape = axes.iter().map(|&axis| self.shape[axis]).collect();
        Layout { shape, strides: axes.iter().map(|&axis| self.strides[axis]).collect(), offset: self.offset }
    }

    /// `length` elements along an axis, `step` apart, from `start` on.
    pub fn sliced(&self, axis: usize, start: usize, length: usize, step: usize) -> Self {
        let mut dims: Dims = self.shape.iter().copied().collect();
        dims[axis] = length;
        let mut strides = self.strides.clone();
        let stride = strides[axis];
        strides[axis] = stride.wrapping_mul(step as isize);
        // An empty view has no first element: the offset stays inside of the buffer.
        let moved = if length == 0 { 0 } else { (start as isize).wrapping_mul(stride) };
        Layout { shape: dims.into(), strides, offset: self.offset.wrapping_add_signed(moved) }
    }

    /// The view repeated along new outer axes and axes of length 1.
    pub fn broadcast_to(&self, shape: &Shape, op: &'static str) -> Result<Self> {
        let mismatch = || Error::ShapeMismatch {
            op,
            lhs: self.shape.clone(),
            rhs: shape.clone(),
            hint: "the first must have no more axes, aligned from the right, each equal or 1",
        };
        let added = shape.rank().checked_sub(self.shape.rank()).ok_or_else(mismatch)?;
        let mut strides: Dims<isize> = shape.iter().map(|_| 0).collect();
        for (axis, (&length, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            match (length, shape[added + axis]) {
                (from, to) if from == to => strides[added + axis] = stride,
                (1, _) => {}
                _ => return Err(mismatch()),
            }
        }
        Ok(Layout { shape: shape.clone(), strides, offset: self.offset })
    }

    /// The view of elements as `parts` smaller ones each, along a new last axis.
    pub fn split(&self, parts: usize) -> Self {
        Layout {
            shape: self.shape.iter().copied().chain([parts]).collect(),
            strides: self.strides.iter().map(|stride| stride.wrapping_mul(parts as isize)).chain([1]).collect(),
            offset: self.offset * parts,
        }
    }

    /// The same elements in another shape, where that needs no copy.
    pub fn reshaped(&self, shape: &Shape) -> Option<Self> {
        self.is_contiguous().then(|| Layout { offset: self.offset, ..Layout::contiguous(shape.clone()) })
    }
}

/// Drops axes of length 1 and merges neighbouring axes that all views walk as one, so that kernels count fewer.
pub(crate) fn collapse(shape: &[usize], views: &[&[isize]]) -> (Dims, Vec<Dims<isize>>) {
    let mut lengths: Dims = Dims::new();
    let mut strides: Vec<Dims<isize>> = views.iter().map(|_| Dims::new()).collect();
    for axis in (0..shape.len()).filter(|&axis| shape[axis] != 1) {
        let mergeable = lengths.last().is_some()
            && views.iter().zip(&strides).all(|(view, merged)| {
                merged.last().is_some_and(|&outer| outer == view[axis].wrapping_mul(shape[axis] as isize))
            });
        if mergeable && let Some(last) = lengths.last_mut() {
            // Only the axes of an empty tensor can wrap, and nobody walks those.
            *last = last.wrapping_mul(shape[axis]);
        } else {
            lengths.push(shape[axis]);
        }
        for (merged, view) in strides.iter_mut().zip(views) {
            if mergeable {
                merged.pop();
            }
            merged.push(view[axis]);
        }
    }
    (lengths, strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_merge_where_all_views_allow_it() {
        let (lengths, strides) = collapse(&[2, 1, 3, 4], &[&[12, 7, 4, 1], &[0, 0, 4, 1]]);
        assert_eq!(lengths.as_slice(), [2, 12]);
        assert_eq!((strides[0].as_slice(), strides[1].as_slice()), ([12, 1].as_slice(), [0, 1].as_slice()));
        let (lengths, strides) = collapse(&[5, 6], &[&[0, 0]]);
        assert_eq!((lengths.as_slice(), strides[0].as_slice()), ([30].as_slice(), [0].as_slice()));
        assert!(collapse(&[1, 1], &[&[3, 4]]).0.is_empty());
    }

    #[test]
    fn contiguity_ignores_axes_of_one() {
        let layout = Layout::contiguous((2, 1, 3).into());
        assert!(layout.is_contiguous() && layout.permuted(&[1, 0, 2]).is_contiguous());
        assert!(!layout.permuted(&[2, 1, 0]).is_contiguous());
        assert!(!layout.sliced(2, 0, 2, 1).is_contiguous() && layout.sliced(0, 1, 1, 1).is_contiguous());
        assert!(layout.sliced(2, 3, 0, 1).is_contiguous());
    }
}
