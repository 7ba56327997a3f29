//! Channels rearranged into blocks of pixels, and back.

use crate::base::error::{Error, Result};
use crate::base::shape::MAX_ELEMENTS;
use crate::base::shape::Shape;
use crate::tensor::Tensor;

impl Tensor {
    /// Rearranges each group of `factor`² channels into blocks of `factor` x `factor` pixels. The shape
    /// `[.., channels * factor², height, width]` becomes `[.., channels, height * factor, width * factor]`. W. Shi and
    /// others, "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural
    /// Network", 2016.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(0u32, 8, &device)?.reshape((4, 1, 2))?;
    /// let y = x.pixel_shuffle(2)?;
    /// assert_eq!(y.dims(), [1, 2, 4]);
    /// assert_eq!(y.to_vec::<u32>()?, [0, 2, 1, 3, 4, 6, 5, 7]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] below three axes; [`Error::InvalidArgument`] if `factor` is 0, or if the channels are
    /// not a multiple of its square.
    pub fn pixel_shuffle(&self, factor: usize) -> Result<Tensor> {
        const OP: &str = "pixel_shuffle";
        let (batch, [channels, height, width]) = self.image(OP)?;
        let block = factor.checked_mul(factor).filter(|&block| block > 0 && channels % block == 0);
        let Some(block) = block else {
            let message = format!("{channels} channels are not a multiple of the square of the factor {factor}");
            return Err(Error::InvalidArgument { op: OP, message });
        };
        let blocks = [channels / block, factor, factor, height, width];
        let image = [Some(channels / block), height.checked_mul(factor), width.checked_mul(factor)];
        self.rearranged(batch, blocks, [0, 3, 1, 4, 2], image, OP)
    }

    /// Reverses [`pixel_shuffle`](Self::pixel_shuffle). The shape `[.., channels, height * factor, width * factor]`
    /// becomes `[.., channels * factor², height, width]`.
    ///
    /// # Errors
    /// [`Error::RankMismatch`] below three axes; [`Error::InvalidArgument`] if `factor` is 0, or if height and width
    /// are not multiples of it.
    pub fn pixel_unshuffle(&self, factor: usize) -> Result<Tensor> {
        const OP: &str = "pixel_unshuffle";
        let (batch, [channels, height, width]) = self.image(OP)?;
        if factor == 0 || height % factor != 0 || width % factor != 0 {
            let message = format!("{height} x {width} pixels are not in blocks of {factor} x {factor}");
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let blocks = [channels, height / factor, factor, width / factor, factor];
        let channels = factor.checked_mul(factor).and_then(|block| channels.checked_mul(block));
        let image = [channels, Some(height / factor), Some(width / factor)];
        self.rearranged(batch, blocks, [0, 2, 4, 1, 3], image, OP)
    }

    /// Returns the axes before the last three, and the last three.
    fn image(&self, op: &'static str) -> Result<(&[usize], [usize; 3])> {
        match self.dims() {
            [batch @ .., channels, height, width] => Ok((batch, [*channels, *height, *width])),
            _ => Err(Error::RankMismatch { op, expected: "3 or more", shape: self.shape().clone() }),
        }
    }

    /// Splits the last three axes into five, reorders them, and merges them into three others.
    fn rearranged(
        &self,
        batch: &[usize],
        blocks: [usize; 5],
        order: [usize; 5],
        image: [Option<usize>; 3],
        op: &'static str,
    ) -> Result<Tensor> {
        let [Some(channels), Some(height), Some(width)] = image else {
            // The tensor is empty: any other one has no more elements than before.
            return Err(Error::SizeOverflow { op, shape: self.shape().clone(), limit: MAX_ELEMENTS as u64 });
        };
        let shape = |last: &[usize]| -> Shape { batch.iter().chain(last).copied().collect() };
        let order: Vec<usize> = (0..batch.len()).chain(order.map(|axis| batch.len() + axis)).collect();
        self.reshape(shape(&blocks))?.permute(order)?.reshape(shape(&[channels, height, width]))
    }
}
