//! A sample of every family of kernels, for people who want to look at them: `cargo run --example kernels`.

use crate::base::error::Result;
use crate::engine::dump;
use crate::kernels::KernelConfig;
use crate::shader::{Module, Target};

/// Generates a sample of every family of kernels, except those that need instructions the target lacks. With
/// `MARQUETRY_DUMP=dir`, writes all samples there in all forms.
///
/// ```
/// use marquetry::{internals::catalogue, shader::Target};
/// let kernels = catalogue(Target::VULKAN)?;
/// assert!(kernels.iter().any(|kernel| kernel.name().starts_with("matmul")));
/// # Ok::<(), marquetry::Error>(())
/// ```
///
/// # Errors
/// [`Error::Kernel`](crate::Error::Kernel) would be a mistake in this crate. A dump that cannot be written is an error,
/// too.
pub fn catalogue(target: Target) -> Result<Vec<Module>> {
    let tuned = Target { addresses: true, loads_in_pairs: true, lanes_at_once: Some(8), ..Target::VULKAN };
    let mut kernels = Vec::new();
    for config in KernelConfig::samples() {
        dump::write(&config, tuned, false)?;
        if !config.targets(&[target])?.is_empty() {
            kernels.push(config.generate(target)?);
        }
    }
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::features::Features;

    #[test]
    fn kernels_declare_the_parameters_that_launches_have() {
        for config in KernelConfig::samples() {
            let declared = config.generate(Target::VULKAN).unwrap().parameter_words;
            assert_eq!(declared, config.parameter_words(), "{}", config.name());
        }
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
            let sorts = ["sort_short(", "sort_row(", "sort_count(", "sort_scatter(", "sort_select(", "sort_take("];
            for start in sorts.into_iter().chain(["gather(", "scatter_replace(", "resize("]) {
                assert!(names.contains(&format!("\n{start}{dtype}")), "{start}{dtype} of\n{names}");
            }
        }
        for name in ["sort_merge(i64", "scatter_add(i64", "random_wideinteger"] {
            assert!(names.contains(name), "{name} of\n{names}");
        }
    }
}
