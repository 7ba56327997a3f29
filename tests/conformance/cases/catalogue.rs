//! The sample of every family of kernels: some are for hardware that is not at hand, but every compiler sees them, as
//! generating the catalogue leaves its kernels with those of the run.

use crate::suite::Suite;
use marquetry::BackendKind;
use marquetry::internals::catalogue;
use marquetry::shader::{Module, Target};

pub fn add(suite: &mut Suite) {
    suite.add("catalogue", "generated", |device| {
        let target = if device.info().backend == BackendKind::WebGpu { Target::WEBGPU } else { Target::VULKAN };
        let kernels = catalogue(target)?;
        if kernels.iter().any(|kernel| kernel.name().starts_with("matmul(f32, 64x64")) {
            return Ok(());
        }
        let names: Vec<_> = kernels.iter().map(Module::name).collect();
        Err(format!("no tiled matrix product among {names:?}").into())
    });
}
