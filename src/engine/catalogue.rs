//! A sample of every family of kernels, for those who want to look at the kernels: `cargo run --example kernels`.

use crate::base::error::Result;
use crate::engine::dump;
use crate::kernels::KernelConfig;
use crate::shader::{Module, Target};

/// Generates a sample of every family of kernels, but for those that a target has no instructions for. With `MARQUETRY_DUMP=dir` they are written there in all forms.
///
/// ```
/// use marquetry::{internals::catalogue, shader::Target};
/// let kernels = catalogue(Target::VULKAN)?;
/// assert!(kernels.iter().any(|kernel| kernel.name.starts_with("matmul")));
/// # Ok::<(), marquetry::Error>(())
/// ```
///
/// # Errors
/// [`Error::Kernel`](crate::Error::Kernel) would be a mistake in this crate.
pub fn catalogue(target: Target) -> Result<Vec<Module>> {
    let mut kernels = Vec::new();
    for config in KernelConfig::samples() {
        dump::write(&config, false)?;
        if !config.targets(&[target])?.is_empty() {
            kernels.push(config.generate(target)?);
        }
    }
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::dtype::DType;
    use crate::base::features::Features;

    #[test]
    fn products_are_estimated_by_the_parameters() {
        use crate::kernels::conv::Conv;
        use crate::kernels::encoding::Encoding;
        use crate::kernels::matmul::Matmul;
        use crate::kernels::tiles::Tile;
        let tile = crate::kernels::matmul::Tile::Registers { columns: 1 };
        let (dtype, output) = (DType::F32, DType::F32);
        let matmul = Matmul::of(Encoding::Dense(dtype), output, 0, tile);
        // Batches, rows, columns, depth; operands follow.
        assert_eq!(KernelConfig::from(matmul.clone()).products(&[2, 3, 5, 7, 0, 7, 1, 0, 5, 1]), 210);
        assert_eq!(KernelConfig::from(matmul.clone()).products(&[u32::MAX; 4]), u64::MAX);
        let words = Matmul::of(Encoding::Words(DType::I8), DType::I32, 0, tile);
        assert_eq!(KernelConfig::from(words).products(&[1, 3, 5, 7]), 420);
        let tile = Tile::Registers { rows: 1, columns: 1 };
        let conv = Conv { dtype, axes: 2, transposed: false, bias: false, tile, slides: false, clipped: false };
        // Images, groups, channels of both; per axis the lengths of output, input and kernel first.
        let axes = [11, 13, 3, 1, 1, 0, 17, 19, 5, 1, 1, 0];
        let parameters = [[2, 1, 3, 7].as_slice(), &axes].concat();
        assert_eq!(KernelConfig::from(conv.clone()).products(&parameters), 42 * 11 * 3 * 17 * 5);
        let transposed = Conv { transposed: true, ..conv };
        assert_eq!(KernelConfig::from(transposed).products(&parameters), 42 * 13 * 3 * 19 * 5);
    }

    #[test]
    fn matrix_units_are_for_vulkan() {
        let count = |target| {
            let kernels = catalogue(target).unwrap();
            kernels.iter().filter(|kernel| kernel.name.contains("units")).count()
        };
        assert!(count(Target::VULKAN) > 0);
        assert_eq!([Target::WEBGPU, Target::LEVEL_ZERO].map(count), [0, 0]);
    }

    #[test]
    fn what_is_made_of_words_needs_no_feature() {
        let mut names = String::new();
        for config in KernelConfig::samples() {
            let Features { i64, f64, .. } = config.generate(Target::VULKAN).unwrap().requires;
            if !i64 && !f64 {
                names += &config.name();
                names += "\n";
            }
        }
        for dtype in ["i64", "f64"] {
            for start in ["gather(", "sort_blocks(", "sort_take(", "scatter_replace(", "resize("] {
                assert!(names.contains(&format!("\n{start}{dtype}")), "{start}{dtype} of\n{names}");
            }
        }
        for name in ["sort_merge(2 words)", "scatter_add(i64", "random_wideinteger"] {
            assert!(names.contains(name), "{name} of\n{names}");
        }
    }
}
