//! [`Ranges`]: a part of a tensor, as a range per axis.

use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use smallvec::SmallVec;
use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of indices for each of the first axes. Later axes are taken whole.
///
/// Made from one range, or from an array, a slice or a vector of ranges of one type. A tuple may have ranges of any
/// types: `(0..2, .., 3..)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges(SmallVec<[(Bound<usize>, Bound<usize>); 4]>);

fn bounds(range: &impl RangeBounds<usize>) -> (Bound<usize>, Bound<usize>) {
    (range.start_bound().cloned(), range.end_bound().cloned())
}

/// Returns the indices of a range along an axis of `length`. The end may lie beyond the axis.
pub(crate) fn resolve(range: &impl RangeBounds<usize>, length: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => length,
    };
    start..end
}

impl Ranges {
    /// Returns a range for every axis of `shape`. Each range lies inside its axis.
    pub(crate) fn resolve(&self, shape: &Shape, op: &'static str) -> Result<Vec<Range<usize>>> {
        if self.0.len() > shape.rank() {
            let message = format!(
                "{} ranges for shape {shape}, which has {} axes; give at most one for each",
                self.0.len(),
                shape.rank()
            );
            return Err(Error::InvalidArgument { op, message });
        }
        let given = self.0.iter().copied().chain(std::iter::repeat((Bound::Unbounded, Bound::Unbounded)));
        let resolved = shape.iter().zip(given).enumerate().map(|(axis, (&length, range))| {
            let Range { start, end } = resolve(&range, length);
            if start > end || end > length {
                return Err(Error::RangeOutOfBounds { op, axis, start, end, shape: shape.clone() });
            }
            Ok(start..end)
        });
        resolved.collect()
    }
}

macro_rules! ranges_from_one {
    ($($range:ty),+) => {$(
        impl From<$range> for Ranges {
            fn from(range: $range) -> Self {
                Ranges(SmallVec::from_elem(bounds(&range), 1))
            }
        }
    )+};
}

ranges_from_one!(
    Range<usize>,
    RangeFrom<usize>,
    RangeFull,
    RangeInclusive<usize>,
    RangeTo<usize>,
    RangeToInclusive<usize>
);

impl<R: RangeBounds<usize>> From<&[R]> for Ranges {
    fn from(ranges: &[R]) -> Self {
        Ranges(ranges.iter().map(bounds).collect())
    }
}

impl<R: RangeBounds<usize>> From<Vec<R>> for Ranges {
    fn from(ranges: Vec<R>) -> Self {
        ranges.as_slice().into()
    }
}

impl<R: RangeBounds<usize>, const N: usize> From<[R; N]> for Ranges {
    fn from(ranges: [R; N]) -> Self {
        ranges.as_slice().into()
    }
}

macro_rules! ranges_from_tuple {
    ($($name:ident),+) => {
        impl<$($name: RangeBounds<usize>),+> From<($($name,)+)> for Ranges {
            #[allow(non_snake_case, reason = "each variable is named as its type")]
            fn from(($($name,)+): ($($name,)+)) -> Self {
                Ranges(SmallVec::from_slice(&[$(bounds(&$name)),+]))
            }
        }
    };
}

ranges_from_tuple!(A, B);
ranges_from_tuple!(A, B, C);
ranges_from_tuple!(A, B, C, D);
ranges_from_tuple!(A, B, C, D, E);
ranges_from_tuple!(A, B, C, D, E, F);

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(ranges: impl Into<Ranges>) -> Result<Vec<Range<usize>>> {
        ranges.into().resolve(&Shape::from((4, 5, 6)), "test")
    }

    #[test]
    fn ranges_of_every_sort() {
        assert_eq!(resolved(1..3).unwrap(), [1..3, 0..5, 0..6]);
        assert_eq!(resolved((.., 2..=4, 6..)).unwrap(), [0..4, 2..5, 6..6]);
        assert_eq!(resolved([0..1, 0..2]).unwrap(), [0..1, 0..2, 0..6]);
        assert_eq!(resolved(vec![..3]).unwrap(), [0..3, 0..5, 0..6]);
        assert_eq!(resolved(&[] as &[Range<usize>]).unwrap(), [0..4, 0..5, 0..6]);
    }

    #[test]
    fn ranges_that_leave_the_shape() {
        let message = |result: Result<_>| Result::<Vec<_>>::unwrap_err(result).to_string();
        assert_eq!(message(resolved((.., 3..6, ..))), "test: range 3..6 leaves axis 1 of shape [4, 5, 6]");
        #[allow(clippy::reversed_empty_ranges, reason = "it is what is tested")]
        let reversed = resolved(3..2);
        assert_eq!(message(reversed), "test: range 3..2 leaves axis 0 of shape [4, 5, 6]");
        assert_eq!(
            message(resolved([0..1, 0..1, 0..1, 0..1])),
            "test: 4 ranges for shape [4, 5, 6], which has 3 axes; give at most one for each"
        );
        assert!(resolved(..=usize::MAX).is_err());
    }
}
