//! The catalogue: one sample of every family of kernels. Some kernels are for other hardware than this machine's, but
//! all compilers see them: generating the catalogue stores its kernels with the kernels of the run.

use crate::suite::Suite;
use marquetry::internals::catalogue;
use marquetry::{Device, shader::Target};

pub fn add(suite: &mut Suite) {
    suite.add("catalogue", "generated", |device| {
        let target = if matches!(device, Device::WebGpu(_)) { Target::WEBGPU } else { Target::VULKAN };
        let kernels = catalogue(target)?;
        if kernels.iter().any(|kernel| kernel.name.starts_with("matmul(f32, 64x64")) {
            return Ok(());
        }
        let names: Vec<_> = kernels.iter().map(|kernel| &kernel.name).collect();
        Err(format!("no tiled matrix product among {names:?}").into())
    });
}
