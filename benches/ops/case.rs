//! What is measured: a row of the table.

use crate::ceilings::Ceilings;
use crate::measure::Work;
use anyhow::Result;
use marquetry::{DType, Device, Tensor};

type Prepare = Box<dyn Fn(&Device) -> Result<Prepared>>;
type Check = Box<dyn Fn(&Tensor) -> Result<()>>;

/// An operation on operands of given sizes.
pub struct Case {
    pub name: String,
    pub cost: Cost,
    /// What its figure counts.
    pub rate: Rate,
    pub bound: Bound,
    /// Makes the operands on a device.
    pub prepare: Prepare,
}

/// The least work of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Floating point operations: a product counts as one, and so does a sum.
    pub flops: f64,
    /// Bytes, each operand read once and the result written once.
    pub bytes: f64,
}

impl Cost {
    pub fn of_memory(bytes: usize) -> Cost {
        Cost { flops: 0.0, bytes: bytes as f64 }
    }

    /// Floating point operations per byte.
    pub fn intensity(self) -> Option<f64> {
        (self.flops > 0.0 && self.bytes > 0.0).then(|| self.flops / self.bytes)
    }
}

/// What a figure counts. More is better.
#[derive(Debug, Clone, Copy)]
pub enum Rate {
    Bytes,
    Flops,
    /// This many of something per run, by the host's clock.
    Count(f64, &'static str),
}

impl Rate {
    /// Returns the unit, and the figure of a run that takes a second.
    pub fn per_run(self, cost: Cost, device: &Device) -> (&'static str, f64) {
        match self {
            Rate::Bytes => ("GB/s", cost.bytes / 1e9),
            Rate::Flops => {
                let (unit, flops) = unit_of_flops(device);
                (unit, cost.flops / flops)
            }
            Rate::Count(count, unit) => (unit, count),
        }
    }
}

/// Returns the unit in which a device's operations per second are given, and its size.
pub fn unit_of_flops(device: &Device) -> (&'static str, f64) {
    if crate::is_software(device) { ("GFLOP/s", 1e9) } else { ("TFLOP/s", 1e12) }
}

/// What keeps a case from being faster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// The memory's bandwidth, or sums of products in `f32`.
    Fma,
    /// The memory's bandwidth, or the speed of matrix units for a dtype. If there are no such units, floats are bound
    /// as by `Fma`.
    Matrix(DType),
    /// A product of the same size by a native library on the same processor.
    Native,
    /// Not known.
    None,
}

impl Case {
    /// Returns the runs per second that the ceilings allow, and the lower ceiling.
    pub fn ceiling(&self, ceilings: &Ceilings) -> Option<(f64, &'static str)> {
        let (name, peak) = match self.bound {
            Bound::Matrix(dtype) => match ceilings.of_matrix_units(dtype) {
                Some(peak) => ("matrix units", peak),
                None if dtype.is_float() => ("fma", ceilings.fma),
                None => return None,
            },
            Bound::Fma => ("fma", ceilings.fma),
            Bound::Native => return ceilings.native.map(|flops| (flops / self.cost.flops, "native")),
            Bound::None => return None,
        };
        let (compute, memory) = (peak / self.cost.flops, ceilings.memory / self.cost.bytes);
        Some(if compute < memory { (compute, name) } else { (memory, "memory") })
    }
}

/// An operation with its operands.
pub struct Prepared {
    pub work: Work,
    /// Fails unless the first result is right.
    pub check: Check,
}

impl Prepared {
    pub fn alone(
        run: impl Fn(usize) -> marquetry::Result<Tensor> + 'static,
        check: impl Fn(&Tensor) -> Result<()> + 'static,
    ) -> Prepared {
        Prepared { work: Work::Alone(Box::new(run)), check: Box::new(check) }
    }

    pub fn chain(
        start: Tensor,
        link: impl Fn(usize, &Tensor) -> marquetry::Result<Tensor> + 'static,
        check: impl Fn(&Tensor) -> Result<()> + 'static,
    ) -> Prepared {
        Prepared { work: Work::Chain { start, link: Box::new(link) }, check: Box::new(check) }
    }
}
