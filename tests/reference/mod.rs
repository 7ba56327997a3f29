//! An independent model of the tensor operations: doubles on the host, as simple as possible. A double holds every
//! number of every dtype exactly (except large `i64` numbers), so one kind of array serves all dtypes.

pub mod attention;
pub mod functions;
pub mod grid_sample;
pub mod index;
pub mod inputs;
pub mod linear;
pub mod normalize;
pub mod numbers;
pub mod pad;
pub mod rearrange;
pub mod reduce;
pub mod resize;
pub mod sampling;
pub mod threefry;
pub mod window;

pub use ndarray::{ArrayD, Axis, IxDyn, Slice};

/// Makes an array from elements in row-major order.
pub fn array(shape: &[usize], elements: Vec<f64>) -> ArrayD<f64> {
    ArrayD::from_shape_vec(IxDyn(shape), elements).expect("as many elements as the shape holds")
}

/// The shape that two shapes broadcast to.
pub fn broadcast_shape(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let length = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    (0..rank).map(|axis| if length(a, axis) == 1 { length(b, axis) } else { length(a, axis) }).collect()
}

/// Repeats an array to a shape that it broadcasts to.
pub fn broadcast(x: &ArrayD<f64>, shape: &[usize]) -> ArrayD<f64> {
    x.broadcast(shape).expect("shapes that broadcast").to_owned()
}

/// Applies a function to the elements of two arrays, with broadcasting.
pub fn zip(a: &ArrayD<f64>, b: &ArrayD<f64>, function: impl Fn(f64, f64) -> f64) -> ArrayD<f64> {
    let shape = broadcast_shape(a.shape(), b.shape());
    let (a, b) = (broadcast(a, &shape), broadcast(b, &shape));
    array(&shape, a.iter().zip(&b).map(|(&a, &b)| function(a, b)).collect())
}
