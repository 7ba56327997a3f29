//! Elements picked by an index tensor.

use crate::error::{Error, Result};
use crate::kernels::index_select::{IndexSelect, WORKGROUP};
use crate::shape::{Axis, Shape};
use crate::tensor::{Tensor, allocate, checked_elements, checked_parts};

impl Tensor {
    /// The slices along `axis` that `indexes`, a vector of integers, names.
    ///
    /// The indexes are on the device, where nothing can be reported: one that is out of range (a negative one too)
    /// yields a slice of NaN for floats, of the smallest number for signed integers, of the largest one for unsigned
    /// integers, and of true.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 2.0], [3.0, 4.0], [5.0, 6.0]], &device)?;
    /// let rows = Tensor::new([2u32, 0], &device)?;
    /// assert_eq!(x.index_select(&rows, 0)?.to_vec::<f32>()?, [5.0, 6.0, 1.0, 2.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::DeviceMismatch`]; [`Error::RankMismatch`] where `indexes` is not a vector;
    /// [`Error::UnsupportedDType`] where it does not hold integers; [`Error::InvalidArgument`] where it names slices of an empty
    /// axis.
    pub fn index_select(&self, indexes: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        const OP: &str = "index_select";
        let axis = axis.into().resolve(self.shape(), OP)?;
        self.check_same_device(indexes, OP)?;
        if indexes.rank() != 1 {
            return Err(Error::RankMismatch { op: OP, expected: "1 (the indexes)", shape: indexes.shape().clone() });
        }
        self.select(indexes, axis, OP)
    }

    /// The rows of this table, a matrix, that `ids` names; the result has the shape of `ids` and one more axis.
    ///
    /// Ids that are out of range yield NaN, see [`index_select`](Self::index_select).
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let table = Tensor::zeros((100, 8), DType::F32, &device)?;
    /// let ids = Tensor::new([[1u32, 2, 3], [4, 5, 6]], &device)?;
    /// assert_eq!(table.embedding(&ids)?.dims(), [2, 3, 8]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] where this is not a matrix; [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`]
    /// where `ids` does not hold integers; [`Error::InvalidArgument`] where it names rows of an empty table.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        const OP: &str = "embedding";
        self.check_same_device(ids, OP)?;
        if self.rank() != 2 {
            return Err(Error::RankMismatch { op: OP, expected: "2 (the table)", shape: self.shape().clone() });
        }
        let shape: Shape = ids.dims().iter().copied().chain([self.dims()[1]]).collect();
        checked_elements(&shape, OP)?;
        self.select(&ids.flatten_all()?, 0, OP)?.reshape(shape)
    }

    fn select(&self, indexes: &Tensor, axis: usize, op: &'static str) -> Result<Tensor> {
        indexes.check_indexes(op)?;
        let (selected, length) = (indexes.elem_count(), self.dims()[axis]);
        let shape: Shape = self.dims().iter().enumerate().map(|(i, &n)| if i == axis { selected } else { n }).collect();
        // Elements of 64 bits are moved as two words.
        let parts = self.dtype().parts();
        let elements = checked_parts(&shape, self.dtype(), op)?;
        if length == 0 && elements > 0 {
            let message = format!("{selected} indexes into axis {axis} of shape {}, which is empty", self.shape());
            return Err(Error::InvalidArgument { op, message });
        }
        let output = allocate(&shape, self.dtype(), self.device(), op)?;
        if elements > 0 {
            let table = self.contiguous()?;
            let inner = self.dims()[axis + 1..].iter().product::<usize>() * parts;
            let offset = table.layout().offset * parts;
            let parameters = [elements, selected, inner, length, offset, indexes.layout().offset];
            let mut parameters = parameters.map(|n| n as u32).to_vec();
            parameters.push(indexes.strides()[0] as u32);
            let config = IndexSelect { dtype: self.dtype(), index: indexes.dtype() };
            let groups = elements.div_ceil(4).div_ceil(WORKGROUP as usize);
            let buffers = [&*table.buffer()?, &*indexes.buffer()?, &output];
            self.device().runtime().launch(config, &buffers, &parameters, groups)?;
        }
        Ok(Tensor::from_buffer(output, shape, self.dtype(), self.device()))
    }
}
