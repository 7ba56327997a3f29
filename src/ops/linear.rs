//! Linear layers, and products of vectors.

use super::gemm::weighted_sum;
use crate::base::error::{Error, Result};
use crate::kernels::expr::UnaryOp;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the linear layer `x weight^T + bias` over the last axis (PyTorch's `linear`). The weight has the shape
    /// `[out, in]`, the bias `[out]`. `f16` and `bf16` are computed in `f32` and rounded once.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
    /// let weight = Tensor::new([[1f32, 0.0], [0.0, 1.0], [1.0, 1.0]], &device)?;
    /// let bias = Tensor::new([0f32, 0.0, 10.0], &device)?;
    /// assert_eq!(x.linear(&weight, Some(&bias))?.to_vec::<f32>()?, [1.0, 2.0, 13.0, 3.0, 4.0, 17.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if this is a scalar or the weight is not a matrix; [`Error::ShapeMismatch`],
    /// [`Error::DTypeMismatch`], [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] for 8-bit integers and `bool`.
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        const OP: &str = "linear";
        if weight.rank() != 2 {
            let expected = "2 (the weight, [out, in])";
            return Err(Error::RankMismatch { op: OP, expected, shape: weight.shape().clone() });
        }
        let mismatch = |lhs: &Tensor, rhs: &Tensor, hint| Error::ShapeMismatch {
            op: OP,
            lhs: lhs.shape().clone(),
            rhs: rhs.shape().clone(),
            hint,
        };
        if self.dims().last().is_some_and(|&features| features != weight.dims()[1]) {
            return Err(mismatch(self, weight, "the last axes must be equal: the weight is [out, in]"));
        }
        if let Some(bias) = bias {
            self.check_same_device(bias, OP)?;
            self.check_same_dtype(bias, OP)?;
            if bias.dims() != &weight.dims()[..1] {
                return Err(mismatch(weight, bias, "the weight is [out, in], the bias [out]"));
            }
        }
        self.check_products(OP)?;
        // The product is rounded at once only if nothing is added.
        let output = if bias.is_some() { self.dtype().widened() } else { self.dtype() };
        let product = self.product(&weight.t()?, output, OP)?;
        let terms: Vec<(&Tensor, f64)> = [&product].into_iter().chain(bias).map(|term| (term, 1.0)).collect();
        weighted_sum(&terms, self, product.shape(), OP)
    }

    /// Returns [`linear`](Self::linear), of the [`rms_norm`](Self::rms_norm) with a weight and `eps` if there is a
    /// norm. With a gate, the outputs are gates and what they gate, which are multiplied. `None` if no kernel computes
    /// all of it at once, or if something is wrong.
    pub(crate) fn linear_at_once(
        &self,
        norm: Option<(&Tensor, f64)>,
        weight: &Tensor,
        bias: Option<&Tensor>,
        gate: Option<UnaryOp>,
    ) -> Result<Option<Tensor>> {
        const OP: &str = "linear";
        if weight.rank() != 2 {
            return Ok(None);
        }
        let features = self.dims().last();
        let norm_fits = norm.is_none_or(|(weight, _)| weight.rank() == 1 && weight.dims().last() == features);
        let weight_fits = weight.dims().last() == features;
        let bias_fits = bias.is_none_or(|bias| bias.dtype() == self.dtype() && bias.dims() == &weight.dims()[..1]);
        let gate_fits = gate.is_none() || bias.is_none() && weight.dims()[0].is_multiple_of(2);
        let others = norm.map(|(weight, _)| weight).into_iter().chain([weight]).chain(bias);
        let devices_fit = others.into_iter().all(|other| other.device() == self.device());
        if !(norm_fits && weight_fits && bias_fits && gate_fits && devices_fit) {
            return Ok(None);
        }
        let output = if bias.is_some() { self.dtype().widened() } else { self.dtype() };
        let Some(product) = self.product_of_few_rows(norm, &weight.t()?, gate, output, OP)? else { return Ok(None) };
        let terms: Vec<(&Tensor, f64)> = [&product].into_iter().chain(bias).map(|term| (term, 1.0)).collect();
        weighted_sum(&terms, self, product.shape(), OP).map(Some)
    }

    /// Returns the sum of the products of two vectors' elements, a scalar. `f16` and `bf16` are computed in `f32`.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let (a, b) = (Tensor::new([1f32, 2.0, 3.0], &device)?, Tensor::new([4f32, 5.0, 6.0], &device)?);
    /// assert_eq!(a.dot(&b)?.to_scalar::<f32>()?, 32.0);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`];
    /// [`Error::UnsupportedDType`] for 8-bit integers and `bool`.
    pub fn dot(&self, rhs: &Tensor) -> Result<Tensor> {
        const OP: &str = "dot";
        check_vectors(self, rhs, OP)?;
        self.check_products(OP)?;
        if self.dims() != rhs.dims() {
            let (lhs, rhs) = (self.shape().clone(), rhs.shape().clone());
            return Err(Error::ShapeMismatch { op: OP, lhs, rhs, hint: "both vectors must have equal lengths" });
        }
        let wide = self.dtype().widened();
        self.to_dtype(wide)?.mul(&rhs.to_dtype(wide)?)?.sum_all()?.to_dtype(self.dtype())
    }

    /// Returns the outer product of two vectors: row `i` is `self[i] * rhs`.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let (a, b) = (Tensor::new([1i32, 2], &device)?, Tensor::new([3i32, 4, 5], &device)?);
    /// assert_eq!(a.outer(&b)?.to_vec::<i32>()?, [3, 4, 5, 6, 8, 10]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`].
    pub fn outer(&self, rhs: &Tensor) -> Result<Tensor> {
        const OP: &str = "outer";
        check_vectors(self, rhs, OP)?;
        self.unsqueeze(1)?.mul(rhs).map_err(Error::named(OP))
    }
}

fn check_vectors(lhs: &Tensor, rhs: &Tensor, op: &'static str) -> Result<()> {
    lhs.check_same_device(rhs, op)?;
    lhs.check_same_dtype(rhs, op)?;
    for side in [lhs, rhs] {
        if side.rank() != 1 {
            return Err(Error::RankMismatch { op, expected: "1 (a vector)", shape: side.shape().clone() });
        }
    }
    Ok(())
}
