//! Rotary position embeddings.

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::{Layout, collapse};
use crate::base::shape::checked_elements;
use crate::base::shape::{Dims, Shape};
use crate::engine::launch::Launch;
use crate::kernels::expr::Domain;
use crate::kernels::parameters::Strided;
use crate::kernels::rotary::{Pairs, Parameters, Rotary, WORKGROUP};
use crate::lazy::allocate;
use crate::tensor::Tensor;

/// The most features that tables are made for: many times the features of a head.
const MAX_FEATURES: usize = 1 << 16;

impl Tensor {
    /// Returns the rotary position embedding of queries or keys. A pair of features `(a, b)` becomes
    /// `(a cos - b sin, a sin + b cos)`. The pairs are features `i` and `i + r / 2`, as in GPT-NeoX and Llama. J. Su et
    /// al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
    ///
    /// `cos` and `sin` have the tensor's dtype or `f32`, and a column for each pair. Only the first `r` features, two
    /// for each column, are rotated; the others stay. The other axes of the tables broadcast to the tensor's. For
    /// `(batch, heads, tokens, features)` the tables are `(tokens, r / 2)`, or `(batch, 1, tokens, r / 2)` if sequences
    /// begin at different positions. [`rotary_tables`](Self::rotary_tables) makes tables. A sequence that goes on takes
    /// `cos.narrow(0, offset, tokens)`, and any positions take `cos.embedding(&positions)`.
    ///
    /// The result is computed in `f32` (`f64` for `f64`) from any strides, with two products and a sum.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 2.0, 3.0, 4.0, 5.0]], &device)?;
    /// // The first pair is turned by 90 degrees, the second by 180; the fifth feature has no pair.
    /// let (cos, sin) = (Tensor::new([[0f32, -1.0]], &device)?, Tensor::new([[1f32, 0.0]], &device)?);
    /// assert_eq!(x.rope(&cos, &sin)?.to_vec::<f32>()?, [-3.0, -2.0, 1.0, -4.0, 5.0]);
    /// assert_eq!(x.rope_i(&cos, &sin)?.to_vec::<f32>()?, [-2.0, 1.0, -3.0, -4.0, 5.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] for scalars; [`Error::ShapeMismatch`] if the tables differ in shape, do not broadcast,
    /// or have more pairs than the features; [`Error::DTypeMismatch`], [`Error::DeviceMismatch`];
    /// [`Error::UnsupportedDType`] for integers.
    pub fn rope(&self, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        self.rotary(cos, sin, Pairs::Halves, "rope")
    }

    /// Returns the rotary position embedding whose pairs are neighbours, features `2 i` and `2 i + 1`, as in GPT-J and
    /// in the original. See [`rope`](Self::rope).
    ///
    /// # Errors
    /// As [`rope`](Self::rope).
    pub fn rope_i(&self, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        self.rotary(cos, sin, Pairs::Neighbours, "rope_i")
    }

    /// Returns the tables `cos` and `sin` for rotary embeddings of `dim` features, at the positions that this tensor
    /// holds. At each position, pair `i` is rotated by the angle `position * theta^(-2 i / dim)`. The tables have the
    /// shape of this tensor and one more axis of `dim / 2`. They are `f32`, or `f64` for positions in `f64`.
    ///
    /// The angle is rounded to that dtype before its cosine is taken, as in the training of models. In `f32`, cosine
    /// and sine are within 2e-6 up to position 131,072. Beyond, they lose digits on devices that do not fuse products
    /// and sums.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let positions = Tensor::arange(0u32, 100, &device)?;
    /// let (cos, sin) = positions.rotary_tables(64, 10_000.0)?;
    /// assert_eq!((cos.dims(), sin.dims()), (&[100, 32][..], &[100, 32][..]));
    /// // A model generates its 8th token.
    /// let query = Tensor::randn(0f32, 1.0, (1, 4, 1, 64), &device)?;
    /// let query = query.rope(&cos.narrow(0, 7, 1)?, &sin.narrow(0, 7, 1)?)?;
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `dim` is odd or more than 65,536, or if `theta` is not positive and finite;
    /// [`Error::SizeOverflow`].
    pub fn rotary_tables(&self, dim: usize, theta: f64) -> Result<(Tensor, Tensor)> {
        const OP: &str = "rotary_tables";
        if !dim.is_multiple_of(2) || dim > MAX_FEATURES {
            let message = format!("{dim} features are no pairs: `dim` must be even, and {MAX_FEATURES} at most");
            return Err(Error::InvalidArgument { op: OP, message });
        }
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(Error::InvalidArgument {
                op: OP,
                message: format!("theta must be positive and finite, not {theta}"),
            });
        }
        let frequencies = (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect();
        self.cosines_and_sines(frequencies, OP)
    }

    /// Returns the cosine and the sine of each position times each frequency.
    pub(crate) fn cosines_and_sines(&self, frequencies: Vec<f64>, op: &'static str) -> Result<(Tensor, Tensor)> {
        let pairs = frequencies.len();
        let shape: Shape = self.dims().iter().copied().chain([pairs]).collect();
        checked_elements(&shape, op)?;
        let frequencies = if self.dtype() == DType::F64 {
            Tensor::from_vec(frequencies, pairs, self.device())?
        } else {
            Tensor::from_vec(frequencies.into_iter().map(|x| x as f32).collect(), pairs, self.device())?
        };
        let angles = self.to_dtype(frequencies.dtype())?.unsqueeze(-1)?.mul(&frequencies)?;
        Ok((angles.cos()?, angles.sin()?))
    }

    fn rotary(&self, cos: &Tensor, sin: &Tensor, pairs: Pairs, op: &'static str) -> Result<Tensor> {
        Domain::Floats.check(self.dtype(), op)?;
        for table in [cos, sin] {
            self.check_same_device(table, op)?;
            if table.dtype() != DType::F32 {
                self.check_same_dtype(table, op)?;
            }
        }
        cos.check_same_dtype(sin, op)?;
        for tensor in [self, cos] {
            if tensor.rank() == 0 {
                return Err(Error::RankMismatch { op, expected: "1 or more", shape: tensor.shape().clone() });
            }
        }
        if cos.shape() != sin.shape() {
            let hint = "cosine and sine must have the same shape";
            return Err(Error::ShapeMismatch { op, lhs: cos.shape().clone(), rhs: sin.shape().clone(), hint });
        }
        let (outer, features) = (&self.dims()[..self.rank() - 1], self.dims()[self.rank() - 1]);
        let count = cos.dims()[cos.rank() - 1];
        let shape: Shape = outer.iter().copied().chain([count]).collect();
        let hint = "the first is (.., tokens, features), and the tables (the second) must be (tokens, pairs), with a \
                    row for each token and at most features / 2 pairs; take the rows of your tokens with `narrow`";
        let mismatch = || Error::ShapeMismatch { op, lhs: self.shape().clone(), rhs: cos.shape().clone(), hint };
        if count > features / 2 {
            return Err(mismatch());
        }
        let elements = checked_elements(self.shape(), op)?;
        if elements == 0 || count == 0 {
            return Ok(self.clone());
        }
        let tables = [cos, sin].map(|table| table.layout().broadcast_to(&shape, op).map_err(|_| mismatch()));
        let [cos_view, sin_view] = tables;
        let (x_view, cos_view, sin_view) = (self.layout(), cos_view?, sin_view?);
        let rank = outer.len();
        let views = [x_view, &cos_view, &sin_view].map(|view| &view.strides[..rank]);
        let (lengths, [x_outer, cos_outer, sin_outer]) = collapse(outer, views);
        let config = Rotary { dtype: self.dtype(), table: cos.dtype(), pairs, rank: lengths.len() };
        if !self.device().takes(&config) {
            // There are too many axes that do not merge. In row-major order they are one.
            let dense = |table: &Tensor| table.broadcast_to(shape.clone())?.contiguous();
            return self.contiguous()?.rotary(&dense(cos)?, &dense(sin)?, pairs, op);
        }
        let strided = |view: &Layout, mut strides: Dims<isize>| {
            strides.extend_from_slice(&view.strides[rank..]);
            Strided { offset: view.offset, strides }
        };
        let parameters = Parameters {
            count: elements,
            features,
            pairs: count,
            lengths,
            x: strided(x_view, x_outer),
            cos: strided(&cos_view, cos_outer),
            sin: strided(&sin_view, sin_outer),
        };
        let output = allocate(self.shape(), self.dtype(), self.device(), op)?;
        let buffers = [self.buffer()?, cos.buffer()?, sin.buffer()?, &output];
        let groups = elements.div_ceil(4).div_ceil(WORKGROUP as usize);
        self.device().runtime().run(Launch { kernel: config, buffers: &buffers, parameters, groups })?;
        Ok(Tensor::from_buffer(output, self.shape().clone(), self.dtype(), self.device()))
    }
}
