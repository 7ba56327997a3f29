//! For which sort of device kernels are chosen.

use crate::device::{Device, DeviceInfo, DeviceKind};
use std::sync::LazyLock;

/// Whether `MARQUETRY_TUNING=gpu` has the kernels of GPUs chosen for every device, to test them.
pub(crate) fn as_gpu() -> bool {
    static AS_GPU: LazyLock<bool> = LazyLock::new(|| std::env::var("MARQUETRY_TUNING").is_ok_and(|name| name == "gpu"));
    *AS_GPU
}

/// Whether kernels are chosen for a driver that runs on the processor.
pub(crate) fn is_software(device: &Device) -> bool {
    device.info().kind == DeviceKind::Cpu && !as_gpu()
}

/// Whether lanes may hand each other what they load: subgroups have eight lanes or a small multiple of that, and so have
/// the workgroups of the kernels that do it.
pub(crate) fn lanes_broadcast(device: &Device) -> bool {
    let DeviceInfo { features, limits, .. } = device.info();
    let sizes = &limits.subgroup_sizes;
    features.subgroups && !sizes.is_empty() && sizes.iter().all(|size| [8, 16, 32].contains(size))
}
