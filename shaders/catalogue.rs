//! A sample of every family, for those who want to look at the kernels: `cargo run --example kernels`.

use super::KernelConfig;
use super::assign::{Assign, Unit};
use super::cat::Cat;
use super::elementwise::{Elementwise, InputLayout};
use super::index_select::IndexSelect;
use super::matmul::{Matmul, Tile};
use super::normalize::{Normalize, NormalizeOp};
use super::random::{Distribution, Random};
use super::reduce::{Reduce, ReduceOp};
use super::workgroup::Team;
use crate::dtype::DType;
use crate::dump;
use crate::error::Result;
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::shader::{Module, Target};

fn elementwise(expr: Expr, inputs: &[(DType, InputLayout)], rank: usize) -> KernelConfig {
    KernelConfig::Elementwise(Elementwise { expr, inputs: inputs.into(), rank, scalars: 0 })
}

fn samples() -> Vec<KernelConfig> {
    use InputLayout::{Contiguous, Strided};
    let input = |i, dtype| Box::new(Expr::Input(i, dtype));
    let mut samples = Vec::new();
    for dtype in DType::ALL {
        let sum = Expr::Binary(BinaryOp::Add, input(0, dtype), input(1, dtype));
        samples.push(elementwise(sum.clone(), &[(dtype, Contiguous); 2], 0));
        samples.push(elementwise(sum, &[(dtype, Contiguous), (dtype, Strided)], 2));
        samples.push(KernelConfig::Cat(Cat { dtype, inputs: 2 }));
        samples.push(KernelConfig::IndexSelect(IndexSelect { dtype, index: DType::U32 }));
        for team in [Team::Invocation, Team::Workgroup] {
            for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::ArgMax] {
                samples.push(KernelConfig::Reduce(Reduce { op, dtype, kept_rank: 1, reduced_rank: 1, team }));
            }
            for op in [NormalizeOp::Softmax, NormalizeOp::LayerNorm].into_iter().filter(|_| dtype.is_float()) {
                samples.push(KernelConfig::Normalize(Normalize { op, dtype, kept_rank: 1, team }));
            }
        }
        let tiles = [Tile::Workgroup, Tile::Registers { columns: 1 }, Tile::Registers { columns: 4 }];
        for tile in tiles.into_iter().filter(|_| dtype != DType::U8) {
            samples.push(KernelConfig::Matmul(Matmul { dtype, batch_rank: 1, tile }));
        }
    }
    for function in [UnaryOp::Exp, UnaryOp::Log, UnaryOp::Sin, UnaryOp::Tanh, UnaryOp::Erf, UnaryOp::Gelu] {
        let expr = Expr::Unary(function, input(0, DType::F32));
        samples.push(elementwise(expr, &[(DType::F32, Contiguous)], 0));
    }
    for unit in [Unit::Byte, Unit::Half, Unit::Word, Unit::Quad] {
        samples.push(KernelConfig::Assign(Assign { unit, rank: 2 }));
    }
    for distribution in [Distribution::Uniform, Distribution::Normal] {
        samples.push(KernelConfig::Random(Random { distribution }));
    }
    samples
}

/// Generates a sample of every family of kernels. With `MARQUETRY_DUMP=dir` they are written there in all forms.
///
/// ```
/// use marquetry::{catalogue, shader::Target};
/// let kernels = catalogue(Target::VULKAN)?;
/// assert!(kernels.iter().any(|kernel| kernel.name.starts_with("matmul")));
/// # Ok::<(), marquetry::Error>(())
/// ```
///
/// # Errors
/// [`Error::Kernel`](crate::Error::Kernel) would be a mistake in this crate.
pub fn catalogue(target: Target) -> Result<Vec<Module>> {
    samples()
        .iter()
        .map(|config| {
            dump::write(config)?;
            config.generate(target)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_family_is_in_it() {
        // A new family breaks this match, and then the count.
        let family = |config: &KernelConfig| match config {
            KernelConfig::Elementwise(_) => 0,
            KernelConfig::Reduce(_) => 1,
            KernelConfig::Normalize(_) => 2,
            KernelConfig::Matmul(_) => 3,
            KernelConfig::IndexSelect(_) => 4,
            KernelConfig::Cat(_) => 5,
            KernelConfig::Assign(_) => 6,
            KernelConfig::Random(_) => 7,
        };
        let found: BTreeSet<i32> = samples().iter().map(family).collect();
        assert_eq!(found, BTreeSet::from_iter(0..8));
    }
}
