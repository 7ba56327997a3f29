//! Elements picked by whether they are not 0. How many there are is known only on the device: the size of the result
//! takes one read.

use super::is_software;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::compact::{Compact, Step};
use crate::kernels::workgroup::{Team, WORKGROUP};
use crate::shape::Shape;
use crate::tensor::{Tensor, allocate, checked_elements};

/// Into how many blocks elements are cut at most. One workgroup adds up their counts.
const MOST_BLOCKS: usize = 4096;

impl Tensor {
    /// The places of the elements that are not 0, in row-major order: a `u32` row of coordinates for each. NaN is not 0.
    ///
    /// How many there are is counted on the device: the call blocks until that number is read. In a browser, where
    /// nothing may block, use [`nonzero_async`](Self::nonzero_async).
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
    /// [`Error::SizeOverflow`], [`Error::OutOfMemory`]; whatever went wrong in the computation so far.
    pub fn nonzero(&self) -> Result<Tensor> {
        const OP: &str = "nonzero";
        let flags = Flags::of(self, OP)?;
        flags.places(flags.count()?, OP)?.coordinates(self.shape())
    }

    /// The same without blocking.
    ///
    /// # Errors
    /// As [`nonzero`](Self::nonzero).
    pub async fn nonzero_async(&self) -> Result<Tensor> {
        const OP: &str = "nonzero_async";
        let flags = Flags::of(self, OP)?;
        flags.places(flags.count_async().await?, OP)?.coordinates(self.shape())
    }

    /// The elements where `mask` is not 0, as a vector, in row-major order. Both are broadcast.
    ///
    /// It blocks as [`nonzero`](Self::nonzero) does.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, -2.0], [3.0, -4.0]], &device)?;
    /// let positive = x.gt(&Tensor::full(0f32, (), &device)?)?;
    /// assert_eq!(x.masked_select(&positive)?.to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for a mask of floats; [`Error::ShapeMismatch`], [`Error::DeviceMismatch`];
    /// [`Error::SizeOverflow`], [`Error::OutOfMemory`]; whatever went wrong in the computation so far.
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        const OP: &str = "masked_select";
        let (x, flags) = self.masked(mask, OP)?;
        x.index_select(&flags.places(flags.count()?, OP)?, 0)
    }

    /// The same without blocking.
    ///
    /// # Errors
    /// As [`masked_select`](Self::masked_select).
    pub async fn masked_select_async(&self, mask: &Tensor) -> Result<Tensor> {
        const OP: &str = "masked_select_async";
        let (x, flags) = self.masked(mask, OP)?;
        x.index_select(&flags.places(flags.count_async().await?, OP)?, 0)
    }

    /// The elements as a vector, and which of them a mask selects.
    fn masked(&self, mask: &Tensor, op: &'static str) -> Result<(Tensor, Flags)> {
        self.check_same_device(mask, op)?;
        if mask.dtype().is_float() {
            return Err(Error::UnsupportedDType { op, dtype: mask.dtype(), expected: "bool, u8, i8, u32, i32 and i64 (the mask)" });
        }
        let shape = self.shape().broadcast_with(mask.shape(), op)?;
        checked_elements(&shape, op)?;
        let flags = Flags::of(&mask.broadcast_to(&shape)?, op)?;
        Ok((self.broadcast_to(&shape)?.flatten_all()?, flags))
    }

    /// The coordinates in a shape of places that are counted in row-major order.
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

/// Which elements are not 0, and how many of them are before each block of elements.
struct Flags {
    /// A vector of bytes, 0 or 1.
    flags: Tensor,
    /// The sums before each block, and that of all.
    sums: Tensor,
    /// The number of blocks and their length.
    blocks: usize,
    length: usize,
    team: Team,
}

impl Flags {
    fn of(tensor: &Tensor, op: &'static str) -> Result<Flags> {
        let device = tensor.device();
        let elements = checked_elements(tensor.shape(), op)?;
        let zero = Tensor::zeros((), tensor.dtype(), device)?;
        let flags = tensor.ne(&zero)?.to_dtype(DType::U8)?.flatten_all()?;
        let team = if is_software(device) { Team::Invocation } else { Team::Workgroup };
        let length = elements.div_ceil(MOST_BLOCKS).max(4 * WORKGROUP as usize);
        let blocks = elements.div_ceil(length);
        let sums = match blocks {
            0 => Tensor::zeros(1, DType::U32, device)?,
            _ => {
                let runtime = device.runtime();
                let [counts, sums] = [blocks, blocks + 1].map(|n| allocate(&n.into(), DType::U32, device, op));
                let (counts, sums) = (counts?, sums?);
                let parameters = [elements as u32, blocks as u32, length as u32];
                let count = Compact { step: Step::Count, team };
                runtime.launch(count, &[&*flags.buffer()?, &counts], &parameters, team.groups(blocks))?;
                let add_up = Compact { step: Step::AddUp, team: Team::Workgroup };
                runtime.launch(add_up, &[&counts, &sums], &[blocks as u32], 1)?;
                Tensor::from_buffer(sums, (blocks + 1).into(), DType::U32, device)
            }
        };
        Ok(Flags { flags, sums, blocks, length, team })
    }

    fn total(&self) -> Result<Tensor> {
        self.sums.narrow(0, self.blocks, 1)
    }

    /// The number of flags that are 1, read from the device.
    fn count(&self) -> Result<usize> {
        Ok(self.total()?.to_vec::<u32>()?[0] as usize)
    }

    async fn count_async(&self) -> Result<usize> {
        Ok(self.total()?.to_vec_async::<u32>().await?[0] as usize)
    }

    /// The places of the flags that are 1, of which there are so many.
    fn places(&self, count: usize, op: &'static str) -> Result<Tensor> {
        let device = self.flags.device();
        let places = allocate(&count.into(), DType::U32, device, op)?;
        if count > 0 {
            let parameters = [self.flags.elem_count(), self.blocks, self.length].map(|n| n as u32);
            let buffers = [&*self.flags.buffer()?, &*self.sums.buffer()?, &places];
            let write = Compact { step: Step::Write, team: self.team };
            device.runtime().launch(write, &buffers, &parameters, self.team.groups(self.blocks))?;
        }
        Ok(Tensor::from_buffer(places, count.into(), DType::U32, device))
    }
}
