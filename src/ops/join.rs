//! Joining of tensors.

use crate::base::error::{Error, Result};
use crate::base::shape::checked_parts;
use crate::base::shape::{Axis, Shape};
use crate::engine::launch::Launch;
use crate::kernels::cat::{Cat, InputParameters, Parameters, WORKGROUP};
use crate::lazy::allocate;
use crate::tensor::Tensor;
use std::borrow::Borrow;

/// The most tensors that one launch joins: every device can bind as many buffers and one more.
const INPUTS_PER_LAUNCH: usize = 3;

impl Tensor {
    /// Returns the tensors joined along an axis. All other axes must be equal.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let a = Tensor::new([[1u8, 2]], &device)?;
    /// let b = Tensor::new([[3u8, 4], [5, 6]], &device)?;
    /// assert_eq!(Tensor::cat(&[&a, &b], 0)?.to_vec::<u8>()?, [1, 2, 3, 4, 5, 6]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no tensors; [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`],
    /// [`Error::DTypeMismatch`], [`Error::DeviceMismatch`].
    pub fn cat<T: Borrow<Tensor>>(tensors: &[T], axis: impl Into<Axis>) -> Result<Tensor> {
        const OP: &str = "cat";
        let Some(first) = tensors.first().map(Borrow::borrow) else {
            return Err(Error::InvalidArgument {
                op: OP,
                message: "there are no tensors to join; give one or more".into(),
            });
        };
        let axis = axis.into().resolve(first.shape(), OP)?;
        for tensor in tensors.iter().map(Borrow::borrow) {
            first.check_same_device(tensor, OP)?;
            first.check_same_dtype(tensor, OP)?;
            let fits = tensor.rank() == first.rank()
                && (0..first.rank()).all(|i| i == axis || tensor.dims()[i] == first.dims()[i]);
            if !fits {
                let hint = "all axes but the joined one must be equal";
                return Err(Error::ShapeMismatch {
                    op: OP,
                    lhs: first.shape().clone(),
                    rhs: tensor.shape().clone(),
                    hint,
                });
            }
        }
        let mut parts: Vec<Tensor> = tensors.iter().map(|tensor| tensor.borrow().clone()).collect();
        while parts.len() > 1 {
            parts = parts.chunks(INPUTS_PER_LAUNCH).map(|chunk| join(chunk, axis)).collect::<Result<_>>()?;
        }
        Ok(parts.swap_remove(0))
    }

    /// Returns the tensors, all of one shape, joined along a new axis before `axis`.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let (x, y) = (Tensor::new([1u32, 2], &device)?, Tensor::new([3u32, 4], &device)?);
    /// assert_eq!(Tensor::stack(&[&x, &y], 0)?.to_vec2::<u32>()?, [[1, 2], [3, 4]]);
    /// assert_eq!(Tensor::stack(&[&x, &y], -1)?.to_vec2::<u32>()?, [[1, 3], [2, 4]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`cat`](Self::cat).
    pub fn stack<T: Borrow<Tensor>>(tensors: &[T], axis: impl Into<Axis>) -> Result<Tensor> {
        let Some(first) = tensors.first().map(Borrow::borrow) else {
            return Err(Error::InvalidArgument {
                op: "stack",
                message: "there are no tensors to join; give one or more".into(),
            });
        };
        let axis = axis.into().resolve_position(first.shape(), "stack")?;
        if let Some(other) = tensors.iter().map(Borrow::borrow).find(|other| other.shape() != first.shape()) {
            let hint = "stack joins tensors of equal shapes";
            return Err(Error::ShapeMismatch {
                op: "stack",
                lhs: first.shape().clone(),
                rhs: other.shape().clone(),
                hint,
            });
        }
        let parts = tensors.iter().map(|tensor| tensor.borrow().unsqueeze(axis)).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&parts, axis).map_err(Error::named("stack"))
    }
}

/// Joins a few tensors whose shapes fit.
fn join(tensors: &[Tensor], axis: usize) -> Result<Tensor> {
    let [first, .., last] = tensors else { return Ok(tensors[0].clone()) };
    let (device, dtype) = (first.device(), first.dtype());
    let overflow = || Error::SizeOverflow { op: "cat", shape: last.shape().clone(), limit: usize::MAX as u64 };
    let mut ends = Vec::with_capacity(tensors.len());
    let mut length = 0usize;
    for tensor in tensors {
        length = length.checked_add(tensor.dims()[axis]).ok_or_else(overflow)?;
        ends.push(length);
    }
    let shape: Shape = first.dims().iter().enumerate().map(|(i, &n)| if i == axis { length } else { n }).collect();
    // 64-bit elements are moved as two words.
    let parts = dtype.parts();
    let elements = checked_parts(&shape, dtype, "cat")?;
    let output = allocate(&shape, dtype, device, "cat")?;
    if elements > 0 {
        let tensors = tensors.iter().map(Tensor::contiguous).collect::<Result<Vec<_>>>()?;
        let inputs = tensors.iter().zip(ends);
        let parameters = Parameters {
            count: elements,
            length,
            inner: shape[axis + 1..].iter().product::<usize>() * parts,
            inputs: inputs.map(|(x, end)| InputParameters { offset: x.layout().offset * parts, end }).collect(),
        };
        let buffers = tensors.iter().map(Tensor::buffer).collect::<Result<Vec<_>>>()?;
        let buffers: Vec<_> = buffers.into_iter().chain([&output]).collect();
        let kernel = Cat { dtype: dtype.moved(), inputs: tensors.len() };
        let groups = elements.div_ceil(4).div_ceil(WORKGROUP as usize);
        device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
    }
    Ok(Tensor::from_buffer(output, shape, dtype, device))
}
