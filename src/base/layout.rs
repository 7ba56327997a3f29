//! Where a tensor's elements lie in its buffer: shape, strides and offset.

use crate::base::error::{Error, Result};
use crate::base::shape::{Dims, Shape};

/// A strided view of a buffer. Its numbers count elements.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub shape: Shape,
    pub strides: Dims<isize>,
    pub offset: usize,
}

impl Clone for Layout {
    fn clone(&self) -> Self {
        Layout { shape: self.shape.clone(), strides: Dims::from_slice(&self.strides), offset: self.offset }
    }
}

impl Layout {
    /// Returns the contiguous layout: row-major order without gaps.
    pub fn contiguous(shape: Shape) -> Self {
        let (mut strides, mut next) = (Dims::from_elem(1, shape.rank()), 1isize);
        for (stride, &length) in strides.iter_mut().zip(shape.iter()).rev() {
            *stride = next;
            // If the tensor is empty, other axes may be so long that the product wraps. The strides are then never
            // used.
            next = next.wrapping_mul(length.max(1) as isize);
        }
        Layout { shape, strides, offset: 0 }
    }

    /// Returns any strided view over the elements of this layout, which must be contiguous.
    pub fn strided(&self, shape: Shape, strides: &[isize], offset: usize, op: &'static str) -> Result<Self> {
        if shape.rank() != strides.len() {
            let message =
                format!("{} strides for the {} axes of shape {shape}; give one for each", strides.len(), shape.rank());
            return Err(Error::InvalidArgument { op, message });
        }
        let Some(elements) = shape.elem_count() else {
            return Err(Error::SizeOverflow { op, shape, limit: usize::MAX as u64 });
        };
        // The lowest and the highest place that the view reaches.
        let (mut low, mut high) = (offset as i128, offset as i128);
        for (&length, &stride) in shape.iter().zip(strides) {
            let reach = length.saturating_sub(1) as i128 * stride as i128;
            (low, high) = (low.saturating_add(reach.min(0)), high.saturating_add(reach.max(0)));
        }
        let (strides, available) = (Dims::from_slice(strides), self.elements());
        if elements > 0 && (low < 0 || high >= available as i128) {
            let message =
                format!("shape {shape} with strides {strides:?} reaches from {low} to {high}, of {available} elements");
            return Err(Error::InvalidArgument { op, message });
        }
        // An empty view has no first element. Its offset must still lie in the buffer.
        Ok(Layout { shape, strides, offset: self.offset + if elements > 0 { offset } else { 0 } })
    }

    /// Returns the number of elements. Layouts exist only for shapes whose number of elements fits a `usize`.
    pub fn elements(&self) -> usize {
        self.shape.elem_count().unwrap_or(usize::MAX)
    }

    /// Whether the elements lie in row-major order without gaps, from `offset` on.
    pub fn is_contiguous(&self) -> bool {
        // An empty tensor has no gaps, and other axes may be so long that their product wraps.
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

    /// Whether the layout shows a whole storage with this number of elements, in the storage's order.
    pub fn is_all(&self, elements: usize) -> bool {
        self.is_dense() && self.elements() == elements
    }

    /// Whether the elements lie in row-major order without gaps, from the start on.
    pub fn is_dense(&self) -> bool {
        self.offset == 0 && self.is_contiguous()
    }

    /// Returns the axes from the outermost one in memory to the innermost one, if the elements lie in that order
    /// without gaps.
    pub fn order(&self) -> Option<Dims> {
        let mut axes: Dims = (0..self.shape.rank()).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(self.strides[axis]));
        self.permuted(&axes).is_contiguous().then_some(axes)
    }

    /// Returns this view as it is seen through another one: `seen` is a view of the elements of this layout's shape in
    /// row-major order. Returns `None` if the result has no strides.
    pub fn through(&self, seen: &Layout) -> Option<Layout> {
        if self.shape.contains(&0) || seen.shape.contains(&0) {
            // Nothing is read.
            return Some(Layout { strides: seen.strides.clone(), shape: seen.shape.clone(), offset: 0 });
        }
        let (lengths, [strides]) = collapse(&self.shape, [&self.strides]);
        // The first element's place along each axis, and the range of places that the view reaches.
        let rows = Layout::contiguous(Shape::from(&lengths[..])).strides;
        let mut low: Dims<isize> = Dims::new();
        let mut rest = seen.offset;
        for &row in &rows {
            low.push((rest / row as usize) as isize);
            rest %= row as usize;
        }
        let offset: isize = low.iter().zip(&strides).map(|(&place, &stride)| place.wrapping_mul(stride)).sum();
        let mut high = low.clone();
        let mut result = Dims::new();
        for (&length, &step) in seen.shape.iter().zip(&seen.strides) {
            if length == 1 || step == 0 {
                result.push(0);
                continue;
            }
            // The axis along which the view steps. The steps stay on it, so they are shorter than it.
            let axis = rows.iter().position(|row| step % row == 0)?;
            let (step, reach) = (step / rows[axis], (step / rows[axis]).checked_mul(length as isize - 1)?);
            if reach < 0 {
                low[axis] += reach
            } else {
                high[axis] += reach
            }
            result.push(step.wrapping_mul(strides[axis]));
        }
        let inside = low.iter().zip(&high).zip(&lengths).all(|((&low, &high), &n)| low >= 0 && high < n as isize);
        let offset = self.offset.wrapping_add_signed(offset);
        inside.then(|| Layout { shape: seen.shape.clone(), strides: result, offset })
    }

    /// Returns the view with its axes in another order.
    pub fn permuted(&self, axes: &[usize]) -> Self {
        let shape = axes.iter().map(|&axis| self.shape[axis]).collect();
        Layout { shape, strides: axes.iter().map(|&axis| self.strides[axis]).collect(), offset: self.offset }
    }

    /// Returns the view of `length` elements along an axis, `step` apart, from `start` on.
    pub fn sliced(&self, axis: usize, start: usize, length: usize, step: isize) -> Self {
        let mut dims: Dims = self.shape.iter().copied().collect();
        dims[axis] = length;
        let mut strides = self.strides.clone();
        let stride = strides[axis];
        strides[axis] = stride.wrapping_mul(step);
        // An empty view has no first element. Its offset must still lie in the buffer.
        let moved = if length == 0 { 0 } else { (start as isize).wrapping_mul(stride) };
        Layout { shape: dims.into(), strides, offset: self.offset.wrapping_add_signed(moved) }
    }

    /// Returns the view without an axis of length 1.
    pub fn without(&self, axis: usize) -> Self {
        let mut strides = self.strides.clone();
        strides.remove(axis);
        let shape = self.shape[..axis].iter().chain(&self.shape[axis + 1..]).copied().collect();
        Layout { shape, strides, offset: self.offset }
    }

    /// Repeats the view along new outer axes and along axes of length 1.
    pub fn broadcast_to(&self, shape: &Shape, op: &'static str) -> Result<Self> {
        let mismatch = || Error::ShapeMismatch {
            op,
            lhs: self.shape.clone(),
            rhs: shape.clone(),
            hint: "the first must have no more axes than the second, each equal or 1, aligned from the right",
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

    /// Splits each element into `parts` smaller ones along a new last axis.
    pub fn in_parts(&self, parts: usize) -> Self {
        Layout {
            shape: self.shape.iter().copied().chain([parts]).collect(),
            strides: self.strides.iter().map(|stride| stride.wrapping_mul(parts as isize)).chain([1]).collect(),
            offset: self.offset * parts,
        }
    }

    /// Replaces two axes by their diagonal, a new last axis that steps along both. Its index along `second` is `offset`
    /// more than its index along `first`.
    pub fn diagonal(&self, first: usize, second: usize, offset: isize) -> Self {
        let lengths = [self.shape[first], self.shape[second]];
        let skipped = if offset < 0 { [offset.unsigned_abs(), 0] } else { [0, offset.unsigned_abs()] };
        let length = lengths[0].saturating_sub(skipped[0]).min(lengths[1].saturating_sub(skipped[1]));
        let start = if length == 0 { [0, 0] } else { skipped };
        let view = self.sliced(first, start[0], length, 1).sliced(second, start[1], length, 1);
        let others = (0..self.shape.rank()).filter(|axis| ![first, second].contains(axis));
        let stride = view.strides[first].wrapping_add(view.strides[second]);
        Layout {
            shape: others.clone().map(|axis| view.shape[axis]).chain([length]).collect(),
            strides: others.map(|axis| view.strides[axis]).chain([stride]).collect(),
            offset: view.offset,
        }
    }

    /// Splits an axis in two. `outer` is the length of the outer one; it must divide the length of the axis.
    pub fn split(&self, axis: usize, outer: usize) -> Self {
        let (mut dims, mut strides): (Dims, _) = (self.shape.iter().copied().collect(), self.strides.clone());
        dims[axis] /= outer;
        strides.insert(axis, strides[axis].wrapping_mul(dims[axis] as isize));
        dims.insert(axis, outer);
        Layout { shape: dims.into(), strides, offset: self.offset }
    }

    /// Merges the axes from `start` to `end` (included) into one. Returns `None` if that needs a copy.
    pub fn merged(&self, start: usize, end: usize) -> Option<Self> {
        let axes = start..end + 1;
        if self.shape.contains(&0) {
            return None;
        }
        let (lengths, strides) = collapse(&self.shape[axes.clone()], [&self.strides[axes]]);
        if lengths.len() > 1 {
            return None;
        }
        let (length, stride) = (lengths.first().copied().unwrap_or(1), strides[0].first().copied().unwrap_or(0));
        let shape = self.shape[..start].iter().chain([&length]).chain(&self.shape[end + 1..]).copied().collect();
        let strides = self.strides[..start].iter().chain([&stride]).chain(&self.strides[end + 1..]).copied().collect();
        Some(Layout { shape, strides, offset: self.offset })
    }

    /// Whether two elements may lie at the same place. If the strides alone cannot tell, the answer is true.
    pub fn may_overlap(&self) -> bool {
        if self.shape.contains(&0) {
            return false;
        }
        let axes = self.shape.iter().zip(&self.strides).filter(|(length, _)| **length > 1);
        let mut axes: Dims<(usize, usize)> = axes.map(|(&length, &stride)| (stride.unsigned_abs(), length)).collect();
        axes.sort_unstable();
        // How far the axes with smaller strides reach.
        let mut reach = 0usize;
        axes.into_iter().any(|(stride, length)| {
            let overlaps = stride <= reach;
            reach = reach.saturating_add(stride.saturating_mul(length - 1));
            overlaps
        })
    }

    /// Returns the same elements in another shape, or `None` if that needs a copy.
    pub fn reshaped(&self, shape: &Shape) -> Option<Self> {
        let reshaped = Layout::contiguous(shape.clone());
        if self.is_contiguous() { Some(Layout { offset: self.offset, ..reshaped }) } else { self.through(&reshaped) }
    }
}

/// Drops axes of length 1, and merges neighbouring axes that all views walk as one. Kernels then count fewer axes.
/// Returns the remaining lengths, and the strides of each view.
pub(crate) fn collapse<const N: usize>(shape: &[usize], views: [&[isize]; N]) -> (Dims, [Dims<isize>; N]) {
    let mut strides = std::array::from_fn(|_| Dims::new());
    (merge(shape, &views, &mut strides), strides)
}

/// The same for a number of views that is known only at run time.
pub(crate) fn collapse_all(shape: &[usize], views: &[&[isize]]) -> (Dims, Vec<Dims<isize>>) {
    let mut strides = vec![Dims::new(); views.len()];
    (merge(shape, views, &mut strides), strides)
}

fn merge(shape: &[usize], views: &[&[isize]], strides: &mut [Dims<isize>]) -> Dims {
    let mut lengths: Dims = Dims::new();
    for axis in (0..shape.len()).filter(|&axis| shape[axis] != 1) {
        let mergeable = lengths.last().is_some()
            && views.iter().zip(&*strides).all(|(view, merged)| {
                merged.last().is_some_and(|&outer| outer == view[axis].wrapping_mul(shape[axis] as isize))
            });
        if mergeable && let Some(last) = lengths.last_mut() {
            // Only an empty tensor has axes that wrap, and nothing walks them.
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
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_merge_where_all_views_allow_it() {
        let (lengths, strides) = collapse(&[2, 1, 3, 4], [&[12, 7, 4, 1], &[0, 0, 4, 1]]);
        assert_eq!(lengths.as_slice(), [2, 12]);
        assert_eq!((strides[0].as_slice(), strides[1].as_slice()), ([12, 1].as_slice(), [0, 1].as_slice()));
        let (lengths, strides) = collapse(&[5, 6], [&[0, 0]]);
        assert_eq!((lengths.as_slice(), strides[0].as_slice()), ([30].as_slice(), [0].as_slice()));
        assert!(collapse(&[1, 1], [&[3, 4]]).0.is_empty());
    }

    /// Returns the places that a layout reads, in the order of its elements.
    fn places(layout: &Layout) -> Vec<usize> {
        let mut places = vec![layout.offset as isize];
        for (&length, &stride) in layout.shape.iter().zip(&layout.strides) {
            places = places.iter().flat_map(|place| (0..length as isize).map(move |i| place + i * stride)).collect();
        }
        places.into_iter().map(|place| place as usize).collect()
    }

    #[test]
    fn views_are_reshaped_without_a_copy_if_their_strides_allow_it() {
        let image = Layout::contiguous([2, 4, 5, 3].as_slice().into()).permuted(&[0, 3, 1, 2]);
        for shape in [[2, 3, 20].as_slice(), &[2, 3, 2, 2, 5], &[1, 2, 3, 4, 5]] {
            let reshaped = image.reshaped(&shape.into()).unwrap();
            assert_eq!((&reshaped.shape[..], places(&reshaped)), (shape, places(&image)));
        }
        assert_eq!(image.reshaped(&[6, 20].as_slice().into()), None, "images and channels are not neighbours");
        let repeated = Layout::contiguous([1, 6].as_slice().into()).broadcast_to(&[4, 6].into(), "test").unwrap();
        let reshaped = repeated.reshaped(&[2, 2, 3, 2].as_slice().into()).unwrap();
        assert_eq!(places(&reshaped), places(&repeated));
        assert_eq!(repeated.reshaped(&[8, 3].as_slice().into()), None);
    }

    #[test]
    fn orders_are_told_of_layouts_without_gaps() {
        let dense = Layout::contiguous([2, 4, 5, 3].as_slice().into());
        assert_eq!(dense.order().as_deref(), Some([0, 1, 2, 3].as_slice()));
        assert_eq!(dense.permuted(&[0, 3, 1, 2]).order().as_deref(), Some([0, 2, 3, 1].as_slice()));
        assert_eq!(dense.sliced(3, 0, 2, 1).order(), None);
        assert_eq!(dense.sliced(3, 2, 3, -1).order(), None);
        let one = Layout::contiguous([1, 6].as_slice().into());
        assert_eq!(one.broadcast_to(&[4, 6].into(), "test").unwrap().order(), None);
    }

    #[test]
    fn views_of_views_read_the_same_elements() {
        let dense = |shape: &[usize]| Layout::contiguous(shape.into());
        let row = dense(&[6]).broadcast_to(&[4, 6].into(), "test").unwrap();
        let column = dense(&[4, 1]).broadcast_to(&[4, 6].into(), "test").unwrap();
        let turned = dense(&[6, 4]).permuted(&[1, 0]);
        let part = dense(&[5, 9]).sliced(0, 1, 4, 1).sliced(1, 8, 6, -1);
        let all = dense(&[4, 6]);
        let seen = [
            all.clone(),
            all.permuted(&[1, 0]),
            all.sliced(1, 5, 3, -2).sliced(0, 3, 2, -3),
            all.split(1, 2).permuted(&[1, 0, 2]),
            all.sliced(0, 2, 1, 1).broadcast_to(&[3, 6].into(), "test").unwrap(),
            dense(&[24]),
            dense(&[2, 12]),
            dense(&[2, 2, 3, 2]).permuted(&[3, 0, 2, 1]),
            Layout { shape: [3].into(), strides: [7].into_iter().collect(), offset: 0 },
            Layout { shape: [4].into(), strides: [6].into_iter().collect(), offset: 5 },
        ];
        let mut refused = 0;
        for view in [&all, &row, &column, &turned, &part] {
            let storage = places(view);
            for seen in &seen {
                let expected: Vec<usize> = places(seen).into_iter().map(|place| storage[place]).collect();
                match view.through(seen) {
                    Some(both) => assert_eq!((both.shape.clone(), places(&both)), (seen.shape.clone(), expected)),
                    None => refused += 1,
                }
            }
        }
        // A row that is repeated has no single stride along both axes.
        assert_eq!(refused, 12);
        assert!(row.through(&all.split(1, 3)).is_some() && row.through(&dense(&[24])).is_none());
    }

    #[test]
    fn axes_become_one_where_no_copy_is_needed() {
        let turned = Layout::contiguous((2, 3, 4, 5).into()).permuted(&[2, 0, 1, 3]);
        let merged = turned.merged(1, 2).unwrap();
        assert_eq!((merged.shape.dims(), merged.strides.as_slice()), ([4, 6, 5].as_slice(), [5, 20, 1].as_slice()));
        assert!(turned.merged(0, 1).is_none() && turned.merged(2, 3).is_none());
        assert_eq!(turned.merged(1, 1), Some(turned));
    }

    #[test]
    fn overlaps_are_told_by_the_strides() {
        let layout = |shape: [usize; 2], strides: [isize; 2]| Layout {
            shape: shape.into(),
            strides: strides.into_iter().collect(),
            offset: 0,
        };
        assert!(!layout([3, 4], [4, 1]).may_overlap() && !layout([4, 3], [1, -4]).may_overlap());
        assert!(layout([3, 4], [3, 1]).may_overlap() && layout([3, 4], [0, 1]).may_overlap());
        assert!(!layout([1, 4], [0, 1]).may_overlap() && !layout([0, 4], [0, 0]).may_overlap());
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
