//! The most that a device can do, measured by kernels that do nothing else.

use crate::case::unit_of_flops;
use crate::close::{ensure_all_close, numbers};
use crate::measure::{Protocol, Run, Work};
use crate::native;
use crate::report::CeilingFigure;
use anyhow::Result;
use marquetry::shader::{Access, MatrixLayout, MatrixType, Type};
use marquetry::{Argument, DType, Device, Kernel, Tensor};

/// The ceilings of a device, measured in the same run as the figures that are compared with them.
#[derive(Debug, Clone)]
pub struct Ceilings {
    /// Bytes per second.
    pub memory: f64,
    /// Floating point operations per second of `f32`.
    pub fma: f64,
    /// The same of matrix units, for each dtype that they multiply.
    pub matrix_units: Vec<(DType, f64)>,
    /// The same of a native library's product on a processor.
    pub native: Option<f64>,
}

const WORKGROUP: u32 = 256;

impl Ceilings {
    /// Measures the ceilings, with streams of this many numbers.
    pub fn measure(
        device: &Device,
        protocol: &Protocol,
        numbers: usize,
        native_size: Option<usize>,
    ) -> Result<Ceilings> {
        let memory =
            [Stream::Copy, Stream::Add, Stream::Read].into_iter().map(|stream| stream.rate(device, protocol, numbers));
        let memory = memory.collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
        let fma = fma_rate(device, protocol)?;
        let native = native_size.map(|size| native::rate(size, protocol));
        let units = device.info().features.matrix_units;
        let units = [(DType::F16, units.f16), (DType::BF16, units.bf16), (DType::I8, units.i8)];
        let there = units.into_iter().filter_map(|(dtype, size)| Some((dtype, size?)));
        let matrix_units = there.map(|(dtype, size)| Ok((dtype, matrix_rate(device, protocol, dtype, size)?)));
        let matrix_units = matrix_units.collect::<Result<_>>()?;
        Ok(Ceilings { memory, fma, matrix_units, native })
    }

    /// Returns the operations per second of matrix units on a dtype.
    pub fn of_matrix_units(&self, dtype: DType) -> Option<f64> {
        self.matrix_units.iter().find(|(known, _)| *known == dtype).map(|(_, rate)| *rate)
    }

    pub fn figures(&self, device: &Device) -> Vec<CeilingFigure> {
        let (unit, scale) = unit_of_flops(device);
        let figure = |name: &str, value, unit: &str| CeilingFigure { name: name.into(), value, unit: unit.into() };
        let flops = [("fma", Some(self.fma)), ("native", self.native)];
        let mut figures = vec![figure("memory", self.memory / 1e9, "GB/s")];
        figures.extend(flops.iter().filter_map(|(name, rate)| Some(figure(name, (*rate)? / scale, unit))));
        let units = self.matrix_units.iter();
        figures.extend(units.map(|(dtype, rate)| figure(&format!("matrix units, {dtype}"), rate / scale, unit)));
        figures
    }
}

/// Kernels that move memory by vectors of four.
#[derive(Clone, Copy, PartialEq)]
enum Stream {
    Copy,
    Add,
    /// Each invocation adds up some vectors and writes one.
    Read,
}

/// The number of vectors that an invocation reads.
const READS: usize = 32;

impl Stream {
    /// Returns bytes per second.
    fn rate(self, device: &Device, protocol: &Protocol, count: usize) -> Result<f64> {
        let kernel = self.kernel(device)?;
        let x = Tensor::randn(0f32, 1.0, count, device)?;
        let z = if self == Stream::Add { Some(Tensor::randn(0f32, 1.0, count, device)?) } else { None };
        let inputs: Vec<Tensor> = std::iter::once(x).chain(z).collect();
        inputs.iter().try_for_each(Tensor::realize)?;
        let written = if self == Stream::Read { count / READS } else { count };
        let bytes = 4 * (inputs.len() * count + written);
        let run = move |_| {
            let tensors = inputs.iter().map(Argument::from);
            let arguments: Vec<_> = tensors.chain([Argument::output(written), ((written / 4) as u32).into()]).collect();
            let [y] = kernel.launch((written / 4).div_ceil(WORKGROUP as usize), arguments)?;
            Ok(y)
        };
        seconds(device, protocol, Box::new(run)).map(|seconds| bytes as f64 / seconds)
    }

    fn kernel(self, device: &Device) -> Result<Kernel> {
        let vec4 = Type::vec4(marquetry::shader::Scalar::F32);
        Ok(Kernel::build("stream", device, WORKGROUP, |k| {
            let x = k.buffer("x", vec4, Access::Read);
            let z = (self == Stream::Add).then(|| k.buffer("z", vec4, Access::Read));
            let y = k.buffer("y", vec4, Access::Write);
            let vectors = k.named_parameter("vectors", Type::U32);
            let place = k.global_index();
            k.when(place.lt(vectors), || {
                let value = match (self, z) {
                    (Stream::Read, _) => {
                        let sum = k.var(x.load(place));
                        for turn in 1..READS as u32 {
                            sum.set(sum.get() + x.load(place + vectors * turn));
                        }
                        sum.get()
                    }
                    (_, Some(z)) => x.load(place) + z.load(place),
                    _ => x.load(place),
                };
                y.store(place, value);
            });
        })?)
    }
}

/// Measures sums of products in registers: `x = a x + b`, in several chains of vectors, so that none waits for another.
fn fma_rate(device: &Device, protocol: &Protocol) -> Result<f64> {
    const CHAINS: u32 = 8;
    const UNROLLED: u32 = 16;
    let turns: u32 = if crate::is_software(device) { 16 } else { 256 };
    let groups = 64 * device.info().compute_units.unwrap_or(64) as usize;
    let invocations = groups * WORKGROUP as usize;
    let kernel = Kernel::build("fma", device, WORKGROUP, |k| {
        let y = k.buffer("y", Type::F32, Access::Write);
        let [a, b] = ["a", "b"].map(|name| k.named_parameter(name, Type::F32).splat(4));
        let turns = k.named_parameter("turns", Type::U32);
        let index = k.global_index();
        let start = index.convert(marquetry::shader::Scalar::F32);
        let chains: Vec<_> = (0..CHAINS).map(|chain| k.var((start + chain as f32).splat(4))).collect();
        k.for_range(0, turns, |_| {
            for _ in 0..UNROLLED {
                for x in &chains {
                    x.set(x.get().fma(a, b));
                }
            }
        });
        let sum = chains.iter().map(|x| x.get()).reduce(|sum, x| sum + x);
        let lanes = sum.map(|sum| sum.lanes()).unwrap_or_default();
        if let Some(sum) = lanes.into_iter().reduce(|sum, lane| sum + lane) {
            y.store(index, sum);
        }
    })?;
    let run = move |_| {
        let arguments = [Argument::output(invocations), 0.5f32.into(), 1f32.into(), turns.into()];
        let [y] = kernel.launch(groups, arguments)?;
        Ok(y)
    };
    // Whatever a chain begins with, it ends at b / (1 - a).
    let y = numbers(&run(0)?)?;
    ensure_all_close("sums of chains", &y[..1000], &[f64::from(4 * CHAINS) * 2.0; 1000], 1e-6)?;
    let flops = 2.0 * f64::from(4 * CHAINS * UNROLLED * turns) * invocations as f64;
    seconds(device, protocol, Box::new(run)).map(|seconds| flops / seconds)
}

/// Measures products of matrices that stay in registers, added up in several chains. Only the units' own speed limits
/// them.
fn matrix_rate(device: &Device, protocol: &Protocol, dtype: DType, size: [u32; 3]) -> Result<f64> {
    const CHAINS: u32 = 8;
    const UNROLLED: u32 = 8;
    const TURNS: u32 = 128;
    const SUBGROUPS: u32 = 4;
    let groups = 16 * device.info().compute_units.unwrap_or(64) as usize;
    let ([m, n, k], bytes) = (size, dtype.size_in_bytes() as u32);
    let [a, b, c] = MatrixType::of_units(dtype, size);
    let kernel = Kernel::build("matrix units", device, 32 * SUBGROUPS, |kernel| {
        kernel.use_matrices();
        let x = kernel.matrix_buffer("x", dtype, Access::Read);
        let y = kernel.matrix_buffer("y", c.dtype, Access::Write);
        let turns = kernel.named_parameter("turns", Type::U32);
        let rows = MatrixLayout::Rows;
        let (a, b) = (x.load_matrix(0, k * bytes / 16, rows, a), x.load_matrix(0, n * bytes / 16, rows, b));
        let chains: Vec<_> = (0..CHAINS).map(|_| kernel.zero_matrix(c)).collect();
        kernel.for_range(0, turns, |_| {
            for sum in (0..UNROLLED).flat_map(|_| &chains) {
                sum.set(a.multiply_add(b, sum.get()));
            }
        });
        kernel.when((kernel.global_index() / 32).eq(0), || {
            for (chain, sum) in (0..).zip(&chains) {
                y.store_matrix(chain * m * n / 4, n / 4, rows, sum.get());
            }
        });
    })?;
    let x = Tensor::ones((m.max(n) * k) as usize, dtype, device)?;
    let outputs = (CHAINS * m * n) as usize;
    let run = move |_| {
        let [y] = kernel.launch(groups, [(&x).into(), Argument::output(outputs), TURNS.into()])?;
        Ok(y)
    };
    let sums = vec![f64::from(k * UNROLLED * TURNS); outputs];
    ensure_all_close("sums of products of ones", &numbers(&run(0)?)?, &sums, 0.0)?;
    let products = f64::from(SUBGROUPS * CHAINS * UNROLLED * TURNS) * groups as f64;
    let flops = 2.0 * f64::from(m * n * k) * products;
    seconds(device, protocol, Box::new(run)).map(|seconds| flops / seconds)
}

fn seconds(device: &Device, protocol: &Protocol, run: Run) -> Result<f64> {
    let measured = protocol.measure(device, &Work::Alone(run))?;
    Ok(measured.device.unwrap_or(measured.wall))
}
