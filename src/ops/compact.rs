//! Elements selected by whether they are nonzero. Only the device knows how many there are: the size of the result
//! takes one readback.

use crate::base::dtype::DType;
use crate::base::error::{Error, Result, check_may_block};
use crate::base::shape::Shape;
use crate::base::shape::checked_elements;
use crate::engine::launch::Launch;
use crate::kernels::compact::{Compact, Parameters, WORKGROUP};
use crate::kernels::expr::Domain;
use crate::lazy::allocate;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the coordinates of the nonzero elements in row-major order, a `u32` row for each element. NaN is
    /// nonzero.
    ///
    /// The device counts the elements: the call blocks until the count is read. In a browser, where nothing may block,
    /// use [`nonzero_async`](Self::nonzero_async).
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[0f32, 2.0], [3.0, 0.0]], &device)?;
    /// let places = x.nonzero()?;
    /// assert_eq!((places.dims(), places.to_vec::<u32>()?), (&[2, 2][..], vec![0, 1, 1, 0]));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SizeOverflow`], [`Error::OutOfMemory`]; any error of the computation so far.
    pub fn nonzero(&self) -> Result<Tensor> {
        const OP: &str = "nonzero";
        check_may_block(OP, "nonzero_async")?;
        let counts = Counts::of(self, OP)?;
        counts.places(counts.all().map_err(Error::named(OP))?, OP)?.coordinates(self.shape())
    }

    /// Returns the result of [`nonzero`](Self::nonzero) without blocking.
    ///
    /// # Errors
    /// As [`nonzero`](Self::nonzero).
    pub async fn nonzero_async(&self) -> Result<Tensor> {
        const OP: &str = "nonzero_async";
        let counts = Counts::of(self, OP)?;
        counts.places(counts.all_async().await.map_err(Error::named(OP))?, OP)?.coordinates(self.shape())
    }

    /// Returns the elements whose `mask` is nonzero, as a vector in row-major order. Both are broadcast.
    ///
    /// The call blocks as [`nonzero`](Self::nonzero) does.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, -2.0], [3.0, -4.0]], &device)?;
    /// let positive = x.gt(0.0)?;
    /// assert_eq!(x.masked_select(&positive)?.to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for a mask of floats; [`Error::ShapeMismatch`], [`Error::DeviceMismatch`];
    /// [`Error::SizeOverflow`], [`Error::OutOfMemory`]; any error of the computation so far.
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        const OP: &str = "masked_select";
        check_may_block(OP, "masked_select_async")?;
        let (x, counts) = self.masked(mask, OP)?;
        x.index_select(&counts.places(counts.all().map_err(Error::named(OP))?, OP)?, 0)
    }

    /// Returns the result of [`masked_select`](Self::masked_select) without blocking.
    ///
    /// # Errors
    /// As [`masked_select`](Self::masked_select).
    pub async fn masked_select_async(&self, mask: &Tensor) -> Result<Tensor> {
        const OP: &str = "masked_select_async";
        let (x, counts) = self.masked(mask, OP)?;
        x.index_select(&counts.places(counts.all_async().await.map_err(Error::named(OP))?, OP)?, 0)
    }

    /// Returns the broadcast elements as a vector, and the running counts of the broadcast mask.
    fn masked(&self, mask: &Tensor, op: &'static str) -> Result<(Tensor, Counts)> {
        self.check_same_device(mask, op)?;
        Domain::Bits.check(mask.dtype(), op)?;
        let shape = self.shape().broadcast_with(mask.shape(), op)?;
        checked_elements(&shape, op)?;
        let counts = Counts::of(&mask.broadcast_to(&shape)?, op)?;
        Ok((self.broadcast_to(&shape)?.flatten_all()?, counts))
    }

    /// Returns the coordinates in a shape, for places counted in row-major order.
    fn coordinates(&self, shape: &Shape) -> Result<Tensor> {
        let rank = shape.rank();
        // The number of elements inside of each axis. An empty tensor has no places.
        let inner = |axis: usize| shape[axis + 1..].iter().fold(1u32, |n, &length| n.wrapping_mul(length as u32));
        let vector = |words: Vec<u32>| Tensor::from_vec(words, rank, self.device());
        let inner = vector((0..rank).map(inner).collect())?;
        let lengths = vector(shape.iter().map(|&length| length as u32).collect())?;
        self.unsqueeze(1)?.div(&inner)?.rem(&lengths)
    }
}

/// For each element, how many elements up to and including it are nonzero.
struct Counts(Tensor);

impl Counts {
    fn of(tensor: &Tensor, op: &'static str) -> Result<Counts> {
        checked_elements(tensor.shape(), op)?;
        tensor.ne(0)?.flatten_all()?.cumsum(0).map(Counts)
    }

    /// Returns the last count, if there is an element.
    fn last(&self) -> Result<Option<Tensor>> {
        let elements = self.0.elem_count();
        (elements > 0).then(|| self.0.narrow(0, elements - 1, 1)).transpose()
    }

    /// Reads the last count from the device.
    fn all(&self) -> Result<usize> {
        self.last()?.map_or(Ok(0), |last| Ok(last.to_scalar::<u32>()? as usize))
    }

    async fn all_async(&self) -> Result<usize> {
        match self.last()? {
            None => Ok(0),
            Some(last) => Ok(last.to_vec_async::<u32>().await?[0] as usize),
        }
    }

    /// Returns the places of the `count` nonzero elements.
    fn places(&self, count: usize, op: &'static str) -> Result<Tensor> {
        let (elements, device) = (self.0.elem_count(), self.0.device());
        let places = allocate(&count.into(), DType::U32, device, op)?;
        if count > 0 {
            let buffers = [&self.0.row_major_buffer()?, &places];
            let parameters = Parameters { count: elements };
            let groups = elements.div_ceil(WORKGROUP as usize);
            device.runtime().run(Launch { kernel: Compact, buffers: &buffers, parameters, groups })?;
        }
        Ok(Tensor::from_buffer(places, count.into(), DType::U32, device))
    }
}
