//! Softmax and normalisations.

use super::gemm::weighted_sum;
use super::row_cut::{Cut, RowView};
use super::rows::RowsPrologue;
use super::subgroup_lanes;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::checked_elements;
use crate::base::shape::{Axis, Dims};
use crate::base::word::Word;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::expr::{BinaryOp, Domain, UnaryOp};
use crate::kernels::normalize::{ChannelParameters, Held, Load, Normalize, NormalizeOp, Parameters};
use crate::kernels::parameters::Strided;
use crate::kernels::workgroup::Team;
use crate::lazy::{Deferred, Epilogue, ExpressionBuilder, Operand, Placement, Produced, Producer, allocate};
use crate::tensor::Tensor;
use crate::tuning::UnitBlock;
use smallvec::SmallVec;
use std::ops::Range;

/// The most operations of a prologue that is computed again in each pass over a row.
const MOST_REPEATED: usize = 8;

/// A normalisation of the rows of a tensor.
struct Normalization {
    op: NormalizeOp,
    name: &'static str,
    /// The axes along which the elements of a row lie.
    axes: Range<usize>,
    eps: f64,
    /// Vectors.
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    /// The groups of channels, if the weights are per channel.
    channels: Option<ChannelParameters>,
}

impl Tensor {
    /// Returns `exp(x) / sum(exp(x))` along an axis. It is computed in `f32` (`f64` for `f64`) from `x - max(x)`, so
    /// that it never overflows.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[0f32, 0.0], [1000.0, 0.0]], &device)?;
    /// assert_eq!(x.softmax(-1)?.to_vec::<f32>()?, [0.5, 0.5, 1.0, 0.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::UnsupportedDType`] for integers.
    pub fn softmax(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.along(axis.into(), NormalizeOp::Softmax, 0.0, "softmax")
    }

    /// Returns `log(softmax(x))` along an axis. It is computed in `f32` (`f64` for `f64`) as
    /// `x - max(x) - log(sum(exp(x - max(x))))`, which keeps the digits of small probabilities.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([1000f32, 0.0], &device)?;
    /// assert_eq!(x.log_softmax(0)?.to_vec::<f32>()?, [0.0, -1000.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::UnsupportedDType`] for integers.
    pub fn log_softmax(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.along(axis.into(), NormalizeOp::LogSoftmax, 0.0, "log_softmax")
    }

    /// Returns `x / max(|x|, eps)` along an axis (PyTorch's `normalize`); `|x|` is the Euclidean length of a row. It is
    /// computed in `f32` (`f64` for `f64`).
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[3f32, 4.0], [0.0, 0.0]], &device)?;
    /// assert_eq!(x.l2_normalize(-1, 1e-12)?.to_vec::<f32>()?[2..], [0.0, 0.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::UnsupportedDType`] for integers.
    pub fn l2_normalize(&self, axis: impl Into<Axis>, eps: f64) -> Result<Tensor> {
        self.along(axis.into(), NormalizeOp::L2, eps, "l2_normalize")
    }

    fn along(&self, axis: Axis, op: NormalizeOp, eps: f64, name: &'static str) -> Result<Tensor> {
        Domain::Floats.check(self.dtype(), name)?;
        let axis = axis.resolve(self.shape(), name)?;
        let (weight, bias, channels) = (None, None, None);
        self.normalize(Normalization { op, name, axes: axis..axis + 1, eps, weight, bias, channels })
    }

    /// Returns `(x - mean) / sqrt(variance + eps) * weight + bias` over the last axes, which are the axes of `weight`.
    /// `bias` has the shape of `weight`, or is `None`. The result is computed in `f32` (`f64` for `f64`), with the
    /// biased variance. J. L. Ba and others, "Layer Normalization", 2016.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 3.0], [5.0, 5.0]], &device)?;
    /// let (weight, bias) = (Tensor::ones(2, DType::F32, &device)?, Tensor::zeros(2, DType::F32, &device)?);
    /// assert_eq!(x.layer_norm(&weight, &bias, 0.0001)?.to_vec::<f32>()?[2..], [0.0, 0.0]);
    /// assert_eq!(x.layer_norm(&weight, None, 3.0)?.to_vec::<f32>()?, [-0.5, 0.5, 0.0, 0.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the shapes are not the last axes of the tensor; [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] for integers.
    pub fn layer_norm<'a>(&self, weight: &Tensor, bias: impl Into<Option<&'a Tensor>>, eps: f64) -> Result<Tensor> {
        self.over_last_axes(weight, bias.into(), NormalizeOp::LayerNorm, eps, "layer_norm")
    }

    /// Returns `x / sqrt(mean(x^2) + eps) * weight` over the last axes, which are the axes of `weight`. It is computed
    /// in `f32` (`f64` for `f64`). B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization", 2019.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let (x, weight) = (Tensor::new([[1f32, 7.0]], &device)?, Tensor::new([1f32, 10.0], &device)?);
    /// assert_eq!(x.rms_norm(&weight, 0.0)?.to_vec::<f32>()?, [0.2, 14.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`layer_norm`](Self::layer_norm).
    pub fn rms_norm(&self, weight: &Tensor, eps: f64) -> Result<Tensor> {
        self.over_last_axes(weight, None, NormalizeOp::RmsNorm, eps, "rms_norm")
    }

    fn over_last_axes(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        op: NormalizeOp,
        eps: f64,
        name: &'static str,
    ) -> Result<Tensor> {
        Domain::Floats.check(self.dtype(), name)?;
        for parameter in [weight].into_iter().chain(bias) {
            self.check_same_device(parameter, name)?;
            self.check_same_dtype(parameter, name)?;
        }
        let hint = "weight and bias must have the shape of the tensor's last axes, at least one";
        if weight.rank() == 0 || !self.dims().ends_with(weight.dims()) {
            return Err(Error::ShapeMismatch {
                op: name,
                lhs: self.shape().clone(),
                rhs: weight.shape().clone(),
                hint,
            });
        }
        if let Some(bias) = bias.filter(|bias| bias.shape() != weight.shape()) {
            return Err(Error::ShapeMismatch {
                op: name,
                lhs: weight.shape().clone(),
                rhs: bias.shape().clone(),
                hint,
            });
        }
        let axes = self.rank() - weight.rank()..self.rank();
        let (weight, bias) = (Some(weight.flatten_all()?), bias.map(Tensor::flatten_all).transpose()?);
        self.normalize(Normalization { op, name, axes, eps, weight, bias, channels: None })
    }

    /// Returns the [`layer_norm`](Self::layer_norm) over groups of channels, for tensors of shape
    /// `[batch, channels, ..]`. Mean and variance are taken over the channels of a group and all axes behind them.
    /// Weight and bias are vectors with a number per channel, or `None`. Y. Wu and K. He, "Group Normalization", 2018.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[[1f32], [3.0], [10.0], [20.0]]], &device)?;
    /// assert_eq!(x.group_norm(2, None, None, 0.0)?.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] below two axes; [`Error::InvalidArgument`] if the channels cannot be divided into the
    /// groups; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`];
    /// [`Error::UnsupportedDType`] for integers.
    pub fn group_norm<'a>(
        &self,
        groups: usize,
        weight: impl Into<Option<&'a Tensor>>,
        bias: impl Into<Option<&'a Tensor>>,
        eps: f64,
    ) -> Result<Tensor> {
        self.over_channels(Some(groups), weight.into(), bias.into(), eps, "group_norm")
    }

    /// Returns the [`group_norm`](Self::group_norm) with each channel as a group of its own. D. Ulyanov and others,
    /// "Instance Normalization: The Missing Ingredient for Fast Stylization", 2016.
    ///
    /// # Errors
    /// As [`group_norm`](Self::group_norm).
    pub fn instance_norm<'a>(
        &self,
        weight: impl Into<Option<&'a Tensor>>,
        bias: impl Into<Option<&'a Tensor>>,
        eps: f64,
    ) -> Result<Tensor> {
        self.over_channels(None, weight.into(), bias.into(), eps, "instance_norm")
    }

    /// Normalises each group of channels, or each channel if the number of groups is `None`.
    fn over_channels(
        &self,
        groups: Option<usize>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
        name: &'static str,
    ) -> Result<Tensor> {
        let channels = self.check_channels(&[weight, bias], name)?;
        let groups = groups.unwrap_or(channels.max(1));
        if groups == 0 || !channels.is_multiple_of(groups) {
            let message = format!(
                "{channels} channels, of shape {}, do not make {groups} groups; their number must divide the channels",
                self.shape()
            );
            return Err(Error::InvalidArgument { op: name, message });
        }
        let grouped = self.with_layout(self.layout().split(1, groups));
        let (op, axes) = (NormalizeOp::LayerNorm, 2..grouped.rank());
        // The other axes of an empty tensor may have a product that wraps.
        let elements = self.dims()[2..].iter().fold(1usize, |product, &n| product.wrapping_mul(n));
        let channels = (weight.is_some() || bias.is_some()).then_some(ChannelParameters {
            groups,
            channels: channels / groups,
            elements,
        });
        let (weight, bias) = (weight.cloned(), bias.cloned());
        grouped.normalize(Normalization { op, name, axes, eps, weight, bias, channels })?.reshape(self.shape())
    }

    /// Returns `(x - mean) / sqrt(variance + eps) * weight + bias` for known statistics: PyTorch's `batch_norm` for
    /// inference. The tensor has the shape `[batch, channels, ..]`. Each parameter is a vector with a number per
    /// channel; weight and bias may be `None`. The operation is elementwise and fuses with others. It is computed in
    /// `f32` (`f64` for `f64`). S. Ioffe and C. Szegedy, "Batch Normalization", 2015.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 10.0], [3.0, 20.0]], &device)?;
    /// let (mean, variance) = (Tensor::new([1f32, 10.0], &device)?, Tensor::new([4f32, 25.0], &device)?);
    /// assert_eq!(x.batch_norm(&mean, &variance, None, &mean, 0.0)?.to_vec::<f32>()?, [1.0, 10.0, 2.0, 12.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] below two axes; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] for integers.
    pub fn batch_norm<'a>(
        &self,
        mean: &Tensor,
        variance: &Tensor,
        weight: impl Into<Option<&'a Tensor>>,
        bias: impl Into<Option<&'a Tensor>>,
        eps: f64,
    ) -> Result<Tensor> {
        const OP: &str = "batch_norm";
        let (weight, bias) = (weight.into(), bias.into());
        let channels = self.check_channels(&[Some(mean), Some(variance), weight, bias], OP)?;
        let mut column = Dims::from_slice(&[channels]);
        column.resize(self.rank() - 1, 1);
        let vector = |vector: &Tensor| vector.reshape(column.clone());
        let wide = self.dtype().widened();

        let mut builder = ExpressionBuilder::new(column.clone().into(), self.device());
        let variance = builder.tensor(&vector(variance)?, OP)?;
        let variance = builder.cast(wide, variance);
        let eps = builder.scalar(Word::of(eps, wide, OP)?);
        let shifted = builder.binary(BinaryOp::Add, variance, eps);
        let mut scale = builder.unary(UnaryOp::Rsqrt, shifted);
        if let Some(weight) = weight {
            let weight = builder.tensor(&vector(weight)?, OP)?;
            let weight = builder.cast(wide, weight);
            scale = builder.binary(BinaryOp::Mul, weight, scale);
        }
        let scale: Tensor = builder.finish(scale, OP)?;

        let mut builder = ExpressionBuilder::in_order_of(self);
        let [x, mean] = [self, &vector(mean)?].map(|tensor| builder.tensor(tensor, OP));
        let [x, mean] = [x?, mean?].map(|value| builder.cast(wide, value));
        let scale = builder.tensor(&scale, OP)?;
        let centred = builder.binary(BinaryOp::Sub, x, mean);
        let scaled = builder.binary(BinaryOp::Mul, centred, scale);
        let scaled = builder.finish(scaled, OP)?;
        let bias = bias.map(vector).transpose()?;
        let terms: Vec<(&Tensor, f64)> = [&scaled].into_iter().chain(&bias).map(|term| (term, 1.0)).collect();
        weighted_sum(&terms, self, self.shape(), OP)
    }

    /// Returns the number of channels, and checks that each of the vectors has one number per channel.
    fn check_channels(&self, vectors: &[Option<&Tensor>], name: &'static str) -> Result<usize> {
        Domain::Floats.check(self.dtype(), name)?;
        if self.rank() < 2 {
            let expected = "2 or more ([batch, channels, ..])";
            return Err(Error::RankMismatch { op: name, expected, shape: self.shape().clone() });
        }
        for vector in vectors.iter().flatten() {
            self.check_same_device(vector, name)?;
            self.check_same_dtype(vector, name)?;
            if vector.dims() != &self.dims()[1..2] {
                let hint =
                    "the second must be a vector with one number per channel; the channels are axis 1 of the tensor";
                let (lhs, rhs) = (self.shape().clone(), vector.shape().clone());
                return Err(Error::ShapeMismatch { op: name, lhs, rhs, hint });
            }
        }
        Ok(self.dims()[1])
    }

    /// Returns the normalised tensor. If the kernel of a product below cannot compute it, the launch waits until it is
    /// needed.
    fn normalize(&self, what: Normalization) -> Result<Tensor> {
        if checked_elements(self.shape(), what.name)? == 0 {
            return Tensor::zeros(self.shape().clone(), self.dtype(), self.device());
        }
        // A wrong number is an error now, not when the result is read.
        let eps = Word::of(what.eps, self.dtype().widened(), what.name)?;
        for vector in [&what.weight, &what.bias].into_iter().flatten() {
            vector.realize()?;
        }
        if let (NormalizeOp::RmsNorm, Some(weight)) = (what.op, &what.weight)
            && what.axes.len() == 1
            // Products that can add squares up in subgroups.
            && subgroup_lanes(self.device()) == Some(UnitBlock::LANES)
            && let Some(normalized) = self.as_ref().normalized_by_product(weight.as_ref(), eps)?
        {
            return Ok(Tensor::from_buffer(normalized, self.shape().clone(), self.dtype(), self.device()));
        }
        let (placement, dtype) = (Placement::contiguous(self.shape().clone(), self.device()), self.dtype());
        let normalized = Normalized { x: Deferred::new(self)?, what };
        Tensor::from_producer(normalized, placement, dtype)
    }
}

/// A normalisation that has not run.
struct Normalized {
    x: Deferred,
    what: Normalization,
}

impl Producer for Normalized {
    fn accumulator(&self) -> DType {
        self.x.dtype().widened()
    }

    fn produce(&self, epilogue: Option<&Epilogue>) -> Result<Produced> {
        let operand = self.x.operand(true)?;
        if let Some(produced) = self.launch(&operand, epilogue)? {
            operand.note_computed();
            return Ok(produced);
        }
        let computed = if operand.is_plain() { operand } else { self.x.computed()? };
        if let Some(produced) = self.launch(&computed, epilogue)? {
            return Ok(produced);
        }
        // Long rows that lie side by side in the tensor but not in the result, or the other way round, or strides that
        // no parameter block holds: a copy in order.
        let copy = Operand::plain(computed.inputs[0].copied()?);
        let produced = self.launch(&copy, epilogue)?;
        produced.ok_or_else(|| {
            let feature = format!("`{}` of shape {}", self.what.name, copy.inputs[0].shape());
            Error::Unsupported { feature, device: copy.inputs[0].device().to_string() }
        })
    }
}

impl Normalized {
    /// Launches the kernel over an operand. Returns `None` if another operand suits it better.
    fn launch(&self, operand: &Operand, epilogue: Option<&Epilogue>) -> Result<Option<Produced>> {
        let Normalization { op, name, axes, eps, weight, bias, channels } = &self.what;
        let (x, dtype) = (&operand.inputs[0], self.x.dtype());
        let (device, plain) = (x.device(), operand.is_plain());
        let layouts: SmallVec<[&Layout; 4]> = operand.inputs.iter().map(|input| input.layout()).collect();
        let view = RowView::new(&layouts, axes);
        if view.is_turned(device) && !(plain && x.layout().is_dense()) {
            return Ok(None);
        }
        let vectors_have_fours = match channels {
            Some(channels) => channels.elements.is_multiple_of(4),
            None => [weight, bias]
                .into_iter()
                .flatten()
                .all(|vector| vector.strides()[0] == 1 && vector.layout().offset.is_multiple_of(4)),
        };
        let Cut { team, load, held } = view.cut(x, vectors_have_fours);
        let stores = |dtype: DType| load != Load::Element || dtype.size_in_bytes() >= 4;
        let suits = !matches!(team, Team::Columns { .. })
            && (matches!(held, Held::Registers(_)) || operand.expr.operations() <= MOST_REPEATED)
            && (operand.kept.is_none() || stores(dtype));
        if !plain && !suits {
            return Ok(None);
        }
        let is_subgroup = subgroup_lanes(device) == Some(team.size());
        let in_subgroups = matches!(team, Team::Workgroup(_)) && (matches!(held, Held::Registers(_)) || is_subgroup);
        let prologue = RowsPrologue::new(operand, &view.axes, load == Load::Along)?;
        // Without an epilogue, results of 32 bits can hold the row.
        let by_subgroup = is_subgroup && load == Load::Along && matches!(team, Team::Workgroup(_));
        let held_alone = match held {
            Held::Memory(turn) if by_subgroup && (*op, dtype) == (NormalizeOp::Softmax, DType::F32) => {
                Held::Results(turn)
            }
            held => held,
        };
        let kernel = Normalize {
            op: *op,
            rows: view.axes.ty(x.dtype),
            prologue: prologue.as_ref().map(|prologue| prologue.kernel.clone()),
            keeps_elements: operand.kept.is_some(),
            epilogue: None,
            weight: weight.is_some(),
            bias: bias.is_some(),
            per_channel: channels.is_some(),
            team,
            subgroup: subgroup_lanes(device).filter(|_| in_subgroups),
            load,
            held: held_alone,
        };
        let others = prologue.iter().flat_map(|prologue| &prologue.buffers);
        let mut inputs: SmallVec<[&Buffer; 4]> = [x.buffer()?].into_iter().chain(others).collect();
        for vector in [weight, bias].into_iter().flatten() {
            inputs.push(vector.buffer()?);
        }
        let outputs = 1 + usize::from(operand.kept.is_some());
        if !plain && inputs.len() + outputs > device.info().limits.max_bindings as usize {
            return Ok(None);
        }
        if !(device.takes(&kernel) || plain && x.layout().is_dense()) {
            return Ok(None);
        }
        let vector =
            |vector: &Tensor| Strided { offset: vector.layout().offset, strides: vector.layout().strides.clone() };
        let parameters = Parameters {
            count: view.rows,
            length: view.length,
            inner: view.inner,
            rows: view.axes.parameters(x.layout().offset),
            prologue: prologue.as_ref().map(|prologue| prologue.parameters.clone()),
            columns: None,
            epilogue: None,
            eps: op.has_eps().then(|| Word::of(*eps, dtype.widened(), name)).transpose()?,
            channels: channels.clone(),
            weight: weight.as_ref().map(vector),
            bias: bias.as_ref().map(vector),
        };
        let shape = x.shape();
        let elements = operand.kept.as_ref().map(|_| allocate(shape, dtype, device, name)).transpose()?;
        let groups = team.groups(view.rows / load.across() as usize);
        let finished = epilogue.and_then(|epilogue| {
            let (inner, length) = (view.inner, view.length);
            // A store of four elements stays in a row of the epilogue.
            let columns = match load {
                _ if inner == 1 => length,
                Load::Across => shape.dims().last().copied().unwrap_or(1),
                Load::Element | Load::Along => 1,
            };
            let fours = load != Load::Element;
            let (config, at) = (!fours || columns.is_multiple_of(4)).then(|| epilogue.plan(columns, fours))??;
            let kernel = Normalize { epilogue: Some(config.into()), held, ..kernel.clone() };
            let fits = epilogue.fits(&kernel, inputs.len() + outputs, stores, device);
            let parameters = Parameters { columns: Some(columns), epilogue: Some(at), ..parameters.clone() };
            fits.then_some((kernel, parameters, epilogue))
        });
        let produced = if let Some((kernel, parameters, epilogue)) = finished {
            epilogue.run(inputs, elements.as_slice(), (device, name), |buffers| {
                device.runtime().run(Launch { kernel, buffers, parameters, groups })
            })?
        } else {
            let stored = load.output(dtype);
            let output = allocate(shape, stored, device, name)?;
            let buffers: Vec<&Buffer> = inputs.into_iter().chain([&output]).chain(&elements).collect();
            device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
            if stored == dtype && epilogue.is_none() {
                Produced::Finished { result: output, kept: SmallVec::new() }
            } else {
                let stored = Tensor::from_buffer(output, shape.clone(), stored, device);
                Produced::unfinished(stored.to_dtype(dtype)?)
            }
        };
        if let (Some(kept), Some(elements)) = (&operand.kept, elements) {
            kept.keep(elements);
        }
        Ok(Some(produced))
    }
}
