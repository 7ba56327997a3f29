//! The backends: ways to reach a GPU, behind one contract.

pub(crate) mod contract;
#[cfg(test)]
#[cfg(device_tests)]
#[cfg(any(feature = "vulkan", feature = "webgpu", feature = "level-zero"))]
mod contract_tests;
#[cfg(any(feature = "vulkan", wgpu_on_vulkan))]
mod cooperative_matrix2;
pub(crate) mod fork;
pub(crate) mod info;
#[cfg(all(feature = "level-zero", not(target_family = "wasm")))]
pub(crate) mod level_zero;
#[cfg(any(feature = "vulkan", all(feature = "webgpu", not(target_family = "wasm"))))]
mod parked;
#[cfg(any(feature = "vulkan", feature = "level-zero"))]
mod reads;
#[cfg(any(feature = "vulkan", feature = "level-zero"))]
mod rules;
#[cfg(any(feature = "vulkan", feature = "level-zero"))]
mod slots;
#[cfg(any(feature = "vulkan", wgpu_on_vulkan))]
mod units;
#[cfg(feature = "vulkan")]
pub(crate) mod vulkan;
#[cfg(feature = "webgpu")]
pub(crate) mod webgpu;
