//! Shapes, axes, and numpy's broadcasting rule.

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Deref;

/// A list of one number per axis.
pub(crate) type Dims<T = usize> = SmallVec<[T; 6]>;

/// The lengths of a tensor's axes, outermost first. A scalar has none.
///
/// Made from a number, a tuple, an array, a slice or a vector:
/// ```
/// use marquetry::Shape;
/// assert_eq!(Shape::from((2, 3)).dims(), &[2, 3]);
/// assert_eq!(Shape::from([2, 3, 4]).rank(), 3);
/// assert_eq!(Shape::from(()).elem_count(), Some(1));
/// ```
#[derive(PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Clone for Shape {
    fn clone(&self) -> Self {
        // Faster than the clone of a `SmallVec`, and every operation makes several.
        Shape(Dims::from_slice(&self.0))
    }
}

impl Shape {
    /// The lengths, outermost axis first.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of elements, or `None` if it does not fit a `usize`.
    #[inline]
    pub fn elem_count(&self) -> Option<usize> {
        // A zero anywhere makes the tensor empty, however large the other axes are.
        if self.0.contains(&0) {
            return Some(0);
        }
        self.0.iter().try_fold(1usize, |count, &n| count.checked_mul(n))
    }

    /// Returns the shape with the axes of `outer`, then those of `inner`.
    #[inline]
    pub(crate) fn joined(outer: &[usize], inner: &[usize]) -> Shape {
        let mut dims = Dims::from_slice(outer);
        dims.extend_from_slice(inner);
        Shape(dims)
    }

    /// Returns the shape with another length of one axis.
    pub(crate) fn with_length(&self, axis: usize, length: usize) -> Shape {
        self.iter().enumerate().map(|(i, &n)| if i == axis { length } else { n }).collect()
    }

    pub(crate) fn display_count(&self) -> String {
        self.elem_count().map_or_else(|| "too many".to_string(), |n| n.to_string())
    }

    /// Lists the valid axes, for an error's message.
    pub(crate) fn display_axes(&self) -> String {
        match self.rank() {
            0 => "a scalar, which has no axes".into(),
            rank => format!("-{rank}..{rank}"),
        }
    }

    /// Returns the shape that `self` and `other` broadcast to. Axes are aligned at the innermost one. Their lengths
    /// must be equal or 1.
    pub(crate) fn broadcast_with(&self, other: &Shape, op: &'static str) -> Result<Shape> {
        if self == other {
            return Ok(self.clone());
        }
        let rank = self.rank().max(other.rank());
        let length = |s: &Shape, axis: usize| (axis + s.rank()).checked_sub(rank).map_or(1, |a| s.0[a]);
        (0..rank)
            .map(|axis| match (length(self, axis), length(other, axis)) {
                (a, b) if a == b => Ok(a),
                (1, n) | (n, 1) => Ok(n),
                _ => Err(Error::ShapeMismatch {
                    op,
                    lhs: self.clone(),
                    rhs: other.clone(),
                    hint: "axes are aligned from the right and must be equal or 1",
                }),
            })
            .collect::<Result<Dims>>()
            .map(Shape)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<()> for Shape {
    fn from((): ()) -> Self {
        Shape::default()
    }
}

impl From<usize> for Shape {
    fn from(n: usize) -> Self {
        Shape(SmallVec::from_slice(&[n]))
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(SmallVec::from_slice(&dims))
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(SmallVec::from_vec(dims))
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl From<Dims> for Shape {
    fn from(dims: Dims) -> Self {
        Shape(dims)
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Self {
        Shape(dims.into_iter().collect())
    }
}

macro_rules! shape_from_tuple {
    ($($name:ident),+) => {
        impl From<($(shape_from_tuple!(@usize $name),)+)> for Shape {
            #[allow(non_snake_case)]
            fn from(($($name,)+): ($(shape_from_tuple!(@usize $name),)+)) -> Self {
                Shape(SmallVec::from_slice(&[$($name),+]))
            }
        }
    };
    (@usize $name:ident) => { usize };
}

shape_from_tuple!(a);
shape_from_tuple!(a, b);
shape_from_tuple!(a, b, c);
shape_from_tuple!(a, b, c, d);
shape_from_tuple!(a, b, c, d, e);
shape_from_tuple!(a, b, c, d, e, f);

/// One axis of a tensor. Negative numbers count from the innermost axis: `-1` is the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis(isize);

impl From<usize> for Axis {
    fn from(axis: usize) -> Self {
        // No tensor has that many axes. The saturated number is out of range later.
        Axis(isize::try_from(axis).unwrap_or(isize::MAX))
    }
}

impl From<isize> for Axis {
    fn from(axis: isize) -> Self {
        Axis(axis)
    }
}

impl From<i32> for Axis {
    fn from(axis: i32) -> Self {
        Axis(axis as isize)
    }
}

impl Axis {
    /// Returns the axis as an index into `shape`.
    pub(crate) fn resolve(self, shape: &Shape, op: &'static str) -> Result<usize> {
        self.resolve_in(shape.rank(), shape, op)
    }

    /// Returns the index of a position between axes. `rank` is the position behind the last axis.
    pub(crate) fn resolve_position(self, shape: &Shape, op: &'static str) -> Result<usize> {
        self.resolve_in(shape.rank() + 1, shape, op)
    }

    fn resolve_in(self, rank: usize, shape: &Shape, op: &'static str) -> Result<usize> {
        let index = if self.0 < 0 { self.0.checked_add_unsigned(rank) } else { Some(self.0) };
        index.and_then(|i| usize::try_from(i).ok()).filter(|&i| i < rank).ok_or_else(|| Error::AxisOutOfRange {
            op,
            axis: self.0,
            shape: shape.clone(),
        })
    }
}

/// A set of axes: one number, an array, a slice or a vector of them, or `()` for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axes(Dims<Axis>);

macro_rules! axes_from_number {
    ($($number:ty),+) => {$(
        impl From<$number> for Axes {
            fn from(axis: $number) -> Self {
                Axes(SmallVec::from_elem(axis.into(), 1))
            }
        }
    )+};
}

axes_from_number!(Axis, usize, isize, i32);

impl From<()> for Axes {
    fn from((): ()) -> Self {
        Axes(SmallVec::new())
    }
}

impl<T: Into<Axis> + Copy> From<&[T]> for Axes {
    fn from(axes: &[T]) -> Self {
        Axes(axes.iter().map(|&a| a.into()).collect())
    }
}

impl<T: Into<Axis> + Copy, const N: usize> From<[T; N]> for Axes {
    fn from(axes: [T; N]) -> Self {
        axes.as_slice().into()
    }
}

impl<T: Into<Axis> + Copy> From<&Vec<T>> for Axes {
    fn from(axes: &Vec<T>) -> Self {
        axes.as_slice().into()
    }
}

impl<T: Into<Axis> + Copy> From<Vec<T>> for Axes {
    fn from(axes: Vec<T>) -> Self {
        axes.as_slice().into()
    }
}

impl<A: Into<Axis>, B: Into<Axis>> From<(A, B)> for Axes {
    fn from((a, b): (A, B)) -> Self {
        Axes(SmallVec::from_iter([a.into(), b.into()]))
    }
}

impl<A: Into<Axis>, B: Into<Axis>, C: Into<Axis>> From<(A, B, C)> for Axes {
    fn from((a, b, c): (A, B, C)) -> Self {
        Axes(SmallVec::from_iter([a.into(), b.into(), c.into()]))
    }
}

impl Axes {
    /// Returns the axes as distinct indices into `shape`, in the order given.
    pub(crate) fn resolve(&self, shape: &Shape, op: &'static str) -> Result<Dims> {
        let mut indices = Dims::new();
        for axis in &self.0 {
            let index = axis.resolve(shape, op)?;
            if indices.contains(&index) {
                return Err(Error::DuplicateAxis { op, axis: axis.0 });
            }
            indices.push(index);
        }
        Ok(indices)
    }
}

/// The largest number of elements that a kernel counts with 32 bits. It leaves room for rounding up.
pub(crate) const MAX_ELEMENTS: usize = u32::MAX as usize - 0xffff;

/// Returns the number of elements of a shape to be stored, if kernels can count them.
#[inline]
pub(crate) fn checked_elements(shape: &Shape, op: &'static str) -> Result<usize> {
    shape.elem_count().filter(|&n| n <= MAX_ELEMENTS).ok_or_else(|| Error::SizeOverflow {
        op,
        shape: shape.clone(),
        limit: MAX_ELEMENTS as u64,
    })
}

/// Returns the number of parts that kernels count. An element of 64 bits has two parts.
pub(crate) fn checked_parts(shape: &Shape, dtype: DType, op: &'static str) -> Result<usize> {
    let limit = MAX_ELEMENTS / dtype.parts();
    let elements = shape.elem_count().filter(|&n| n <= limit);
    let overflow = || Error::SizeOverflow { op, shape: shape.clone(), limit: limit as u64 };
    elements.map(|n| n * dtype.parts()).ok_or_else(overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        let broadcast =
            |a: &[usize], b: &[usize]| Shape::from(a).broadcast_with(&b.into(), "test").map(|s| s.to_string());
        assert_eq!(broadcast(&[3, 1], &[4]).unwrap(), "[3, 4]");
        assert_eq!(broadcast(&[], &[2, 0]).unwrap(), "[2, 0]");
        assert_eq!(broadcast(&[1, 5], &[0, 1]).unwrap(), "[0, 5]");
        assert!(broadcast(&[3], &[4]).unwrap_err().to_string().contains("[3] and [4]"));
    }

    #[test]
    fn axes_count_from_either_end() {
        let shape = Shape::from((2, 3, 4));
        let axis = |a: i32| Axis::from(a).resolve(&shape, "test");
        assert_eq!((axis(-1).unwrap(), axis(-3).unwrap(), axis(2).unwrap()), (2, 0, 2));
        assert!(axis(3).is_err() && axis(-4).is_err());
        assert!(Axis::from(isize::MIN).resolve(&shape, "test").is_err());
        assert!(Axis::from(usize::MAX).resolve(&shape, "test").is_err());
        assert!(matches!(Axes::from([0, -3]).resolve(&shape, "test"), Err(Error::DuplicateAxis { .. })));
    }

    #[test]
    fn counts_do_not_overflow() {
        assert_eq!(Shape::from((usize::MAX, 2)).elem_count(), None);
        assert_eq!(Shape::from((usize::MAX, 2, 0)).elem_count(), Some(0));
    }
}
