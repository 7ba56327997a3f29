//! Linear layers and lookups, with weights that may be quantised.

use super::RmsNorm;
#[cfg(has_io)]
use super::Weights;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::kernels::expr::UnaryOp;
use crate::quantized::QuantizedTensor;
use crate::tensor::Tensor;

/// A matrix of weights, quantised or not.
#[derive(Debug, Clone)]
pub enum Matrix {
    /// Of floats.
    Dense(Tensor),
    /// Of packed blocks.
    Quantized(QuantizedTensor),
}

impl From<Tensor> for Matrix {
    fn from(matrix: Tensor) -> Self {
        Matrix::Dense(matrix)
    }
}

impl From<QuantizedTensor> for Matrix {
    fn from(matrix: QuantizedTensor) -> Self {
        Matrix::Quantized(matrix)
    }
}

impl Matrix {
    /// Returns the lengths of the axes.
    pub fn dims(&self) -> &[usize] {
        match self {
            Matrix::Dense(matrix) => matrix.dims(),
            Matrix::Quantized(matrix) => matrix.dims(),
        }
    }
}

/// The linear layer `x weight^T + bias`, as in PyTorch. The weight is `[out, in]`, quantised or not, the bias `[out]`.
///
/// ```
/// use marquetry::{BlockFormat, Device, QuantizedTensor, Tensor, nn::Linear};
///
/// let device = Device::best()?;
/// let row = |byte: u8| [&[0x00, 0x3c][..], &[byte; 32]].concat();
/// let weight = QuantizedTensor::from_bytes(&[row(1), row(3)].concat(), BlockFormat::Q8_0, (2, 32), &device)?;
/// let layer = Linear::new(weight, Tensor::new([0.5f32, 0.0], &device)?);
/// let x = Tensor::arange(0f32, 32.0, &device)?;
/// assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, [496.5, 1488.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Linear {
    /// The rows, in several matrices if they could not be packed into one.
    parts: Vec<Matrix>,
    bias: Option<Tensor>,
}

impl Linear {
    /// Returns the layer of a weight and a bias, which may be `None`.
    pub fn new(weight: impl Into<Matrix>, bias: impl Into<Option<Tensor>>) -> Linear {
        Linear { parts: vec![weight.into()], bias: bias.into() }
    }

    /// Loads `weight`, and `bias` if it is there.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    #[cfg(has_io)]
    pub fn load(weights: &Weights) -> Result<Linear> {
        Ok(Linear { parts: vec![weights.matrix("weight")?], bias: weights.optional("bias")? })
    }

    /// Loads several layers of the same input as one, whose outputs follow each other: one product computes all. They
    /// have the names `names` under the prefix of `weights`.
    ///
    /// Quantised weights of one format stay as they are. If the formats differ, there is a product for each.
    ///
    /// ```
    /// # #[cfg(feature = "safetensors")] {
    /// # use marquetry::{DType, Device, Tensor, io::SafeTensors, nn::{Linear, Weights}};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("model.safetensors");
    /// # let device = Device::best()?;
    /// let (key, value) = (Tensor::new([[1f32, 2.0]], &device)?, Tensor::new([[3f32, 4.0]], &device)?);
    /// SafeTensors::save(&path, [("0.key.weight", &key), ("0.value.weight", &value)])?;
    /// let weights = Weights::new(SafeTensors::open(&path)?, &device);
    /// let both = Linear::load_packed(&weights.at(0), &["key", "value"])?;
    /// let x = Tensor::ones((1, 2), DType::F32, &device)?;
    /// assert_eq!(both.forward(&x)?.to_vec::<f32>()?, [3.0, 7.0]);
    /// # }
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Weights::tensor`]; [`Error::InvalidArgument`] if only some layers have a bias.
    #[cfg(has_io)]
    pub fn load_packed(weights: &Weights, names: &[&str]) -> Result<Linear> {
        let matrices: Vec<String> = names.iter().map(|name| format!("{name}.weight")).collect();
        let biases = names.iter().map(|name| weights.at(name).optional("bias")).collect::<Result<Vec<_>>>()?;
        match weights.packed(&matrices)? {
            Some(matrix) => Ok(Linear { parts: vec![matrix], bias: joined_biases(biases)? }),
            None => {
                let layer = |(name, bias): (&String, _)| Ok(Linear { parts: vec![weights.matrix(name)?], bias });
                Linear::packed(&matrices.iter().zip(biases).map(layer).collect::<Result<Vec<_>>>()?)
            }
        }
    }

    /// Returns one layer that computes what all of these compute, one output behind the other. Weights that are not
    /// quantised become one matrix.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no layers, or if only some have a bias; [`Error::ShapeMismatch`],
    /// [`Error::DTypeMismatch`], [`Error::DeviceMismatch`].
    pub fn packed(layers: &[Linear]) -> Result<Linear> {
        let bias = joined_biases(layers.iter().map(|layer| layer.bias.clone()).collect())?;
        let parts: Vec<&Matrix> = layers.iter().flat_map(|layer| &layer.parts).collect();
        let dense = parts.iter().map(|part| match part {
            Matrix::Dense(matrix) => Some(matrix),
            Matrix::Quantized(_) => None,
        });
        let parts = match dense.collect::<Option<Vec<&Tensor>>>() {
            Some(matrices) => vec![Matrix::Dense(Tensor::cat(&matrices, 0).map_err(Error::named("packed"))?)],
            None => parts.into_iter().cloned().collect(),
        };
        Ok(Linear { parts, bias })
    }

    /// Returns `x weight^T + bias` over the last axis of `x`.
    ///
    /// # Errors
    /// As [`Tensor::linear`] and [`Tensor::linear_quantized`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let apply = |part: &Matrix, bias: Option<&Tensor>| match part {
            Matrix::Dense(matrix) => x.linear(matrix, bias),
            Matrix::Quantized(matrix) => x.linear_quantized(matrix, bias),
        };
        if let [whole] = &self.parts[..] {
            return apply(whole, self.bias.as_ref());
        }
        let products = self.parts.iter().map(|part| apply(part, None)).collect::<Result<Vec<_>>>()?;
        let product = Tensor::cat(&products.iter().collect::<Vec<_>>(), -1)?;
        match &self.bias {
            Some(bias) => product.add(bias),
            None => Ok(product),
        }
    }

    /// Returns the layer's output for the norm of `x`. For a row or two, such as the next token of a language model,
    /// one kernel computes both, if the weight is not quantised. It does not round what it normalises.
    ///
    /// If the weight is quantised, one kernel computes both for `f16` on NVIDIA's matrix units, if there is no bias,
    /// and if the layer has so few outputs that all of the kernel's workgroups run at once.
    ///
    /// ```
    /// use marquetry::{Device, Tensor, nn::{Linear, RmsNorm}};
    ///
    /// let device = Device::best()?;
    /// let norm = RmsNorm::new(Tensor::new([1f32, 2.0], &device)?, 0.0);
    /// let layer = Linear::new(Tensor::new([[1f32, 1.0]], &device)?, None);
    /// assert_eq!(layer.forward_norm(&norm, &Tensor::new([[3f32, -3.0]], &device)?)?.to_vec::<f32>()?, [-1.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`RmsNorm::forward`] and [`forward`](Self::forward).
    pub fn forward_norm(&self, norm: &RmsNorm, x: &Tensor) -> Result<Tensor> {
        match self.at_once(Some(norm), None, x)? {
            Some(y) => Ok(y),
            None => self.forward(&norm.forward(x)?),
        }
    }

    /// Returns the layer's output for the norm of `x`, with a gate if there is one, if one kernel computes all of it.
    pub(super) fn at_once(&self, norm: Option<&RmsNorm>, gate: Option<UnaryOp>, x: &Tensor) -> Result<Option<Tensor>> {
        let norm = norm.map(RmsNorm::parts);
        match (&self.parts[..], &self.bias) {
            ([Matrix::Dense(matrix)], bias) => x.linear_at_once(norm, matrix, bias.as_ref(), gate),
            ([Matrix::Quantized(matrix)], None) => x.linear_quantized_at_once(norm, matrix, gate),
            _ => Ok(None),
        }
    }

    /// Returns the same as [`forward`](Self::forward), but in `f32`, whatever the dtype of `x` is. The bias may be of
    /// any float dtype, and is added in `f32`. Use it for logits: rounded to `f16` or `bf16`, the largest ones are
    /// often equal.
    ///
    /// ```
    /// use marquetry::{DType, Device, Tensor, nn::Linear};
    ///
    /// let device = Device::best()?;
    /// let halves = |x: &[f32]| Tensor::from_slice(x, (1, x.len()), &device)?.to_dtype(DType::BF16);
    /// let layer = Linear::new(halves(&[1.0, 1.0])?, halves(&[0.5])?.flatten_all()?);
    /// // The `bf16` next to 256 is 258.
    /// assert_eq!(layer.forward_f32(&halves(&[256.0, 0.25])?)?.to_vec::<f32>()?, [256.75]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::matmul_f32`] and [`Tensor::matmul_quantized_f32`], also for the bias; [`Error::RankMismatch`] if
    /// the weight is not a matrix.
    pub fn forward_f32(&self, x: &Tensor) -> Result<Tensor> {
        const OP: &str = "forward_f32";
        let product = |part: &Matrix| match part {
            Matrix::Dense(matrix) if matrix.rank() != 2 => {
                let expected = "2 (the weight, [out, in])";
                Err(Error::RankMismatch { op: OP, expected, shape: matrix.shape().clone() })
            }
            Matrix::Dense(matrix) => x.matmul_f32(&matrix.t()?),
            Matrix::Quantized(matrix) => x.matmul_quantized_f32(matrix),
        };
        let mut products = self.parts.iter().map(product).collect::<Result<Vec<_>>>()?;
        let product = match products.len() {
            1 => products.remove(0),
            _ => Tensor::cat(&products, -1)?,
        };
        let Some(bias) = &self.bias else { return Ok(product) };
        let rows = product.dims().last().copied().unwrap_or(1);
        product.add(&wide_bias(bias, product.shape(), rows, OP)?).map_err(Error::named(OP))
    }
}

/// Returns floats as `f32`.
pub(super) fn wide(x: &Tensor, op: &'static str) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return Err(Error::UnsupportedDType { op, dtype: x.dtype(), expected: "f32, f16, bf16 and f64" });
    }
    x.to_dtype(DType::F32)
}

/// Returns a bias as `f32`. It must have a number for each of `rows` outputs. `shape` tells the user of these.
pub(super) fn wide_bias(bias: &Tensor, shape: &Shape, rows: usize, op: &'static str) -> Result<Tensor> {
    if bias.dims() != [rows] {
        let hint = "the bias is [out], a number for each output";
        return Err(Error::ShapeMismatch { op, lhs: shape.clone(), rhs: bias.shape().clone(), hint });
    }
    wide(bias, op)
}

/// Joins the biases of several layers, which all have one, or none.
fn joined_biases(biases: Vec<Option<Tensor>>) -> Result<Option<Tensor>> {
    let invalid = |message: &str| Err(Error::InvalidArgument { op: "packed", message: message.into() });
    let count = biases.len();
    let there: Vec<Tensor> = biases.into_iter().flatten().collect();
    match there.len() {
        _ if count == 0 => invalid("there are no layers to pack; give at least one"),
        0 => Ok(None),
        some if some == count => Tensor::cat(&there.iter().collect::<Vec<_>>(), 0).map(Some),
        _ => invalid("some of the layers have a bias and some have none; give zeros to those without"),
    }
}

/// A table from which ids select rows, quantised or not.
///
/// ```
/// use marquetry::{DType, Device, Tensor, nn::Embedding};
///
/// let device = Device::best()?;
/// let table = Embedding::new(Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?);
/// let ids = Tensor::new([1u32, 1, 0], &device)?;
/// assert_eq!(table.forward(&ids)?.to_vec::<f32>()?, [3.0, 4.0, 3.0, 4.0, 1.0, 2.0]);
/// // A model with tied embeddings computes its logits with the same matrix.
/// let head = table.tied();
/// assert_eq!(head.forward(&Tensor::ones(2, DType::F32, &device)?)?.to_vec::<f32>()?, [3.0, 7.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Matrix,
    /// Of the rows of a quantised table.
    dtype: DType,
}

impl Embedding {
    /// Returns the lookup into a table. Rows of a quantised one are unpacked to `f32`.
    pub fn new(table: impl Into<Matrix>) -> Embedding {
        Embedding { table: table.into(), dtype: DType::F32 }
    }

    /// Loads the table `weight`.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    #[cfg(has_io)]
    pub fn load(weights: &Weights) -> Result<Embedding> {
        Ok(Embedding::new(weights.matrix("weight")?))
    }

    /// Unpacks the rows of a quantised table to this dtype.
    pub fn dtype(mut self, dtype: DType) -> Embedding {
        self.dtype = dtype;
        self
    }

    /// Returns the rows that `ids` selects, with one more axis than `ids`.
    ///
    /// # Errors
    /// As [`Tensor::embedding`] and [`QuantizedTensor::embedding`].
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        match &self.table {
            Matrix::Dense(table) => table.embedding(ids),
            Matrix::Quantized(table) => table.embedding(ids, self.dtype),
        }
    }

    /// Returns the linear layer whose weight is the table.
    pub fn tied(&self) -> Linear {
        Linear::new(self.table.clone(), None)
    }
}
