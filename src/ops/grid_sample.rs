//! Sampling of images at the places of a grid.

use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::base::shape::checked_elements;
use crate::base::word::Word;
use crate::engine::launch::Launch;
use crate::kernels::expr::Domain;
use crate::kernels::grid_sample::{AxisParameters, GridSample, Outside, Parameters, WORKGROUP};
use crate::kernels::interpolation::Interpolation;
use crate::lazy::allocate;
use crate::tensor::Tensor;

/// How [`Tensor::grid_sample`] makes a sample of the elements around its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GridSampleMode {
    /// The nearest element; of two equally near the one with the even coordinate.
    Nearest,
    /// Of the 2 x 2 elements around the place.
    #[default]
    Bilinear,
    /// Of the 4 x 4 elements around the place, by cubic convolution with the coefficient -0.75.
    Bicubic,
}

/// What [`Tensor::grid_sample`] sees outside of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GridSamplePadding {
    /// Zeros.
    #[default]
    Zeros,
    /// The nearest element of the image.
    Border,
    /// The image mirrored at its edges, again and again.
    Reflection,
}

/// How [`Tensor::grid_sample`] samples. The default is PyTorch's: bilinear, zeros, edges at -1 and 1.
///
/// ```
/// use marquetry::{GridSampleConfig, GridSampleMode, GridSamplePadding};
/// let config = GridSampleConfig::default().mode(GridSampleMode::Bicubic).padding(GridSamplePadding::Border);
/// assert_ne!(config, GridSampleConfig::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GridSampleConfig {
    mode: GridSampleMode,
    padding: GridSamplePadding,
    align_corners: bool,
}

impl GridSampleConfig {
    /// Sets how samples are made of elements.
    #[must_use]
    pub fn mode(mut self, mode: GridSampleMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets what is outside of the image.
    #[must_use]
    pub fn padding(mut self, padding: GridSamplePadding) -> Self {
        self.padding = padding;
        self
    }

    /// Sets whether -1 and 1 are the middles of the first and the last element, and not their outer edges.
    #[must_use]
    pub fn align_corners(mut self, align_corners: bool) -> Self {
        self.align_corners = align_corners;
        self
    }
}

impl Tensor {
    /// Returns samples of the images `[batch, channels, height, width]` at the places in `grid`,
    /// `[batch, rows, columns, 2]`. The result is `[batch, channels, rows, columns]`. A place is a pair (across, down)
    /// of numbers from -1 to 1. The semantics are those of PyTorch's `grid_sample`. Samples are computed in `f32`, or
    /// in `f64` if the images or the grid are `f64`.
    ///
    /// If a place is not finite, bicubic samples are NaN. Other samples are zeros if the padding is zeros, else some
    /// element of the image.
    ///
    /// ```
    /// # use marquetry::{Device, GridSampleConfig, Tensor};
    /// # let device = Device::best()?;
    /// let image = Tensor::new([[[[1f32, 2.0], [3.0, 4.0]]]], &device)?;
    /// // The middle, and the middle of the element at the lower left.
    /// let grid = Tensor::new([[[[0f32, 0.0], [-0.5, 0.5]]]], &device)?;
    /// let samples = image.grid_sample(&grid, GridSampleConfig::default())?;
    /// assert_eq!(samples.dims(), [1, 1, 1, 2]);
    /// assert_eq!(samples.to_vec::<f32>()?, [2.5, 3.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if a tensor does not have four axes; [`Error::ShapeMismatch`] if the batches differ or
    /// the grid's last axis is not 2; [`Error::UnsupportedDType`] for integers; [`Error::DeviceMismatch`];
    /// [`Error::InvalidArgument`] for images without elements, or with a side above 2^24; [`Error::SizeOverflow`],
    /// [`Error::OutOfMemory`].
    pub fn grid_sample(&self, grid: &Tensor, config: GridSampleConfig) -> Result<Tensor> {
        const OP: &str = "grid_sample";
        self.check_same_device(grid, OP)?;
        for tensor in [self, grid] {
            Domain::Floats.check(tensor.dtype(), OP)?;
        }
        let of_rank_4 = |tensor: &Tensor, expected| match *tensor.dims() {
            [a, b, c, d] => Ok([a, b, c, d]),
            _ => Err(Error::RankMismatch { op: OP, expected, shape: tensor.shape().clone() }),
        };
        let [images, channels, height, width] = of_rank_4(self, "4 (the images)")?;
        let [grids, rows, columns, pair] = of_rank_4(grid, "4 (the grid)")?;
        if images != grids || pair != 2 {
            let hint = "the first axes must be equal, and the grid's last one 2";
            return Err(Error::ShapeMismatch { op: OP, lhs: self.shape().clone(), rhs: grid.shape().clone(), hint });
        }
        let shape = Shape::from([images, channels, rows, columns]);
        let elements = checked_elements(&shape, OP)?;
        let output = allocate(&shape, self.dtype(), self.device(), OP)?;
        if elements > 0 {
            // `f32` holds every whole number up to 2^24.
            if [height, width].iter().any(|&side| !(1..=1 << 24).contains(&side)) {
                let message = format!("images of {height} x {width}; a side has 1 to 2^24 elements");
                return Err(Error::InvalidArgument { op: OP, message });
            }
            let kernel = config.kernel(self, grid);
            let axis = |side: usize| -> Result<AxisParameters> {
                let length = side as f64;
                let (span, start) = if config.align_corners { (length - 1.0, 0.0) } else { (length, -0.5) };
                let word = |number: f64| Word::of(number, kernel.places(), OP);
                Ok(AxisParameters { length: word(length)?, span: word(span)?, start: word(start)? })
            };
            let parameters = Parameters {
                count: elements,
                lengths: shape.dims().into(),
                x: self.layout().into(),
                grid: grid.layout().into(),
                vertical: axis(height)?,
                horizontal: axis(width)?,
            };
            let groups = elements.div_ceil(4).div_ceil(WORKGROUP as usize);
            let buffers = [self.buffer()?, grid.buffer()?, &output];
            self.device().runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
        }
        Ok(Tensor::from_buffer(output, shape, self.dtype(), self.device()))
    }
}

impl GridSampleConfig {
    fn kernel(self, x: &Tensor, grid: &Tensor) -> GridSample {
        let interpolation = match self.mode {
            GridSampleMode::Nearest => Interpolation::Nearest,
            GridSampleMode::Bilinear => Interpolation::Linear,
            GridSampleMode::Bicubic => Interpolation::Cubic,
        };
        let outside = match self.padding {
            GridSamplePadding::Zeros => Outside::Zeros,
            GridSamplePadding::Border => Outside::Border,
            GridSamplePadding::Reflection => Outside::Reflection,
        };
        GridSample { dtype: x.dtype(), grid: grid.dtype(), interpolation, outside }
    }
}
