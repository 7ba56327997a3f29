//! What a device can do at most, by kernels that do nothing else.

use crate::case::unit_of_flops;
use crate::close::{ensure_all_close, numbers};
use crate::measure::{Protocol, Run, Work};
use crate::native;
use crate::report::CeilingFigure;
use anyhow::Result;
use marquetry::shader::{Access, Type};
use marquetry::{Argument, Device, Kernel, Tensor};

/// The ceilings of a device, measured in the run that is compared with them.
#[derive(Debug, Clone, Copy)]
pub struct Ceilings {
    /// Bytes per second.
    pub memory: f64,
    /// Floating point operations per second of `f32`.
    pub fma: f64,
    /// Whether matrix units compute narrow products, of which no peak is measured.
    pub matrix_units: bool,
    /// The same of a native library's product on a processor.
    pub native: Option<f64>,
}

const WORKGROUP: u32 = 256;

impl Ceilings {
    /// Measures them, with streams of so many numbers.
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
        let matrix_units = device.info().features.matrix_units.f16.is_some();
        Ok(Ceilings { memory, fma, matrix_units, native })
    }

    pub fn figures(&self, device: &Device) -> Vec<CeilingFigure> {
        let (unit, scale) = unit_of_flops(device);
        let memory = Some(("memory", self.memory / 1e9, "GB/s"));
        let flops = [("fma", Some(self.fma)), ("native", self.native)];
        let flops = flops.map(|(name, rate)| rate.map(|rate| (name, rate / scale, unit)));
        let figures = std::iter::once(memory).chain(flops).flatten();
        figures.map(|(name, value, unit)| CeilingFigure { name: name.into(), value, unit: unit.into() }).collect()
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

/// Vectors that an invocation reads.
const READS: usize = 32;

impl Stream {
    /// Bytes per second.
    fn rate(self, device: &Device, protocol: &Protocol, count: usize) -> Result<f64> {
        let kernel = self.kernel(device)?;
        let x = Tensor::randn(0f32, 1.0, count, device)?;
        let z = if self == Stream::Add { Some(Tensor::randn(0f32, 1.0, count, device)?) } else { None };
        let inputs: Vec<Tensor> = std::iter::once(x).chain(z).collect();
        inputs.iter().try_for_each(Tensor::eval)?;
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

/// Sums of products in registers: `x = a x + b`, in several chains of vectors, so that none waits for another.
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

fn seconds(device: &Device, protocol: &Protocol, run: Run) -> Result<f64> {
    let measured = protocol.measure(device, &Work::Alone(run))?;
    Ok(measured.device.unwrap_or(measured.wall))
}
