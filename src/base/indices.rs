//! [`Indices`]: a part of a tensor, as an index or a range of indices per axis.

use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use smallvec::SmallVec;
use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// An index along an axis, which takes the axis away, or a range of indices, which keeps it.
///
/// A negative index counts from the end, so that `-1` is the last. The bounds of a range count from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AxisIndex(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    At(isize),
    Range(Bound<usize>, Bound<usize>),
}

/// An [`AxisIndex`] for each of the first axes; axes behind them are whole.
///
/// Made from one index or range, a tuple of indices and ranges, as in `(0, .., 3..)`, or an array, a slice or a vector
/// of ranges of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Indices(SmallVec<[AxisIndex; 4]>);

/// Returns the indices of a range along an axis, which it must not leave.
pub(crate) fn resolve(
    range: &impl RangeBounds<usize>,
    axis: usize,
    shape: &Shape,
    op: &'static str,
) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => shape[axis],
    };
    if start > end || end > shape[axis] {
        return Err(Error::RangeOutOfBounds { op, axis, start, end, shape: shape.clone() });
    }
    Ok(start..end)
}

impl AxisIndex {
    fn of_range(range: &impl RangeBounds<usize>) -> Self {
        AxisIndex(Kind::Range(range.start_bound().cloned(), range.end_bound().cloned()))
    }

    /// Returns the part of an axis that it names, of length 1 for an index.
    fn resolve(self, axis: usize, shape: &Shape, op: &'static str) -> Result<Range<usize>> {
        let index = match self.0 {
            Kind::Range(start, end) => return resolve(&(start, end), axis, shape, op),
            Kind::At(index) => index,
        };
        let length = shape[axis];
        let from_start = if index < 0 { index.checked_add_unsigned(length) } else { Some(index) };
        let found = from_start.and_then(|i| usize::try_from(i).ok()).filter(|&i| i < length);
        found.map(|i| i..i + 1).ok_or_else(|| {
            let rule = match length {
                0 => "the axis is empty".to_string(),
                _ => format!("give one from -{length} to {}", length - 1),
            };
            let message = format!("index {index} leaves axis {axis} of shape {shape}; {rule}");
            Error::InvalidArgument { op, message }
        })
    }
}

impl Indices {
    /// Returns the part of a layout that they name.
    pub(crate) fn part_of(&self, layout: &Layout, op: &'static str) -> Result<Layout> {
        let shape = &layout.shape;
        if self.0.len() > shape.rank() {
            let message = format!(
                "{} indices for shape {shape}, which has {} axes; give at most one for each",
                self.0.len(),
                shape.rank()
            );
            return Err(Error::InvalidArgument { op, message });
        }
        let mut part = layout.clone();
        let mut kept = 0;
        for (axis, index) in self.0.iter().enumerate() {
            let range = index.resolve(axis, shape, op)?;
            part = part.sliced(kept, range.start, range.len(), 1);
            match index.0 {
                Kind::At(_) => part = part.without(kept),
                Kind::Range(..) => kept += 1,
            }
        }
        Ok(part)
    }
}

macro_rules! from_one {
    ($($ty:ty: $index:expr),+ $(,)?) => {$(
        impl From<$ty> for AxisIndex {
            fn from(index: $ty) -> Self {
                $index(index)
            }
        }

        impl From<$ty> for Indices {
            fn from(index: $ty) -> Self {
                Indices(SmallVec::from_elem(index.into(), 1))
            }
        }
    )+};
}

from_one!(
    // No axis is so long: what saturates here is out of range later.
    usize: |index| AxisIndex(Kind::At(isize::try_from(index).unwrap_or(isize::MAX))),
    isize: |index| AxisIndex(Kind::At(index)),
    i32: |index| AxisIndex(Kind::At(index as isize)),
    Range<usize>: |range| AxisIndex::of_range(&range),
    RangeFrom<usize>: |range| AxisIndex::of_range(&range),
    RangeFull: |range| AxisIndex::of_range(&range),
    RangeInclusive<usize>: |range| AxisIndex::of_range(&range),
    RangeTo<usize>: |range| AxisIndex::of_range(&range),
    RangeToInclusive<usize>: |range| AxisIndex::of_range(&range),
);

impl<R: RangeBounds<usize>> From<&[R]> for Indices {
    fn from(ranges: &[R]) -> Self {
        Indices(ranges.iter().map(AxisIndex::of_range).collect())
    }
}

impl<R: RangeBounds<usize>> From<Vec<R>> for Indices {
    fn from(ranges: Vec<R>) -> Self {
        ranges.as_slice().into()
    }
}

impl<R: RangeBounds<usize>, const N: usize> From<[R; N]> for Indices {
    fn from(ranges: [R; N]) -> Self {
        ranges.as_slice().into()
    }
}

macro_rules! from_tuple {
    ($($name:ident),+) => {
        impl<$($name: Into<AxisIndex>),+> From<($($name,)+)> for Indices {
            #[allow(non_snake_case, reason = "each variable is named as its type")]
            fn from(($($name,)+): ($($name,)+)) -> Self {
                Indices(SmallVec::from_slice(&[$($name.into()),+]))
            }
        }
    };
}

from_tuple!(A, B);
from_tuple!(A, B, C);
from_tuple!(A, B, C, D);
from_tuple!(A, B, C, D, E);
from_tuple!(A, B, C, D, E, F);

#[cfg(test)]
mod tests {
    use super::*;

    /// Shape and offset of the part.
    fn part(indices: impl Into<Indices>) -> Result<(Vec<usize>, usize)> {
        let part = indices.into().part_of(&Layout::contiguous((4, 5, 6).into()), "test")?;
        Ok((part.shape.to_vec(), part.offset))
    }

    #[test]
    fn ranges_of_every_sort() {
        assert_eq!(part(1..3).unwrap(), (vec![2, 5, 6], 30));
        assert_eq!(part((.., 2..=4, 6..)).unwrap(), (vec![4, 3, 0], 12));
        assert_eq!(part([0..1, 0..2]).unwrap(), (vec![1, 2, 6], 0));
        assert_eq!(part(vec![..3]).unwrap(), (vec![3, 5, 6], 0));
        assert_eq!(part(&[] as &[Range<usize>]).unwrap(), (vec![4, 5, 6], 0));
    }

    #[test]
    fn indices_take_axes_away() {
        assert_eq!(part(2).unwrap(), (vec![5, 6], 60));
        assert_eq!(part(-1).unwrap(), (vec![5, 6], 90));
        assert_eq!(part((1usize, .., -6isize)).unwrap(), (vec![5], 30));
        assert_eq!(part((.., 4, 1..)).unwrap(), (vec![4, 5], 25));
        assert_eq!(part((3, 4, 5)).unwrap(), (vec![], 119));
    }

    #[test]
    fn indices_that_leave_the_shape() {
        let message = |result: Result<_>| Result::<(Vec<_>, _)>::unwrap_err(result).to_string();
        assert_eq!(message(part((.., 3..6, ..))), "test: range 3..6 leaves axis 1 of shape [4, 5, 6]");
        #[allow(clippy::reversed_empty_ranges, reason = "it is what is tested")]
        let reversed = part(3..2);
        assert_eq!(message(reversed), "test: range 3..2 leaves axis 0 of shape [4, 5, 6]");
        assert_eq!(message(part((0, 5))), "test: index 5 leaves axis 1 of shape [4, 5, 6]; give one from -5 to 4");
        assert_eq!(message(part(-5)), "test: index -5 leaves axis 0 of shape [4, 5, 6]; give one from -4 to 3");
        assert_eq!(
            message(part((0, .., 0, 0))),
            "test: 4 indices for shape [4, 5, 6], which has 3 axes; give at most one for each"
        );
        assert!(part(..=usize::MAX).is_err() && part(usize::MAX).is_err() && part(isize::MIN).is_err());
    }
}
