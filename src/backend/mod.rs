//! The backends: ways to reach a GPU, behind one contract.

pub(crate) mod contract;
#[cfg(test)]
#[cfg(device_tests)]
mod contract_tests;
#[cfg(uses_ash)]
mod cooperative_matrix2;
mod explicit;
pub(crate) mod fork;
pub(crate) mod info;
#[cfg(has_level_zero)]
mod level_zero;
#[cfg(uses_ash)]
mod memory_types;
mod parked;
mod reads;
pub(crate) mod registry;
mod rules;
mod slots;
#[cfg(uses_ash)]
mod units;
#[cfg(has_vulkan)]
mod vulkan;
#[cfg(has_webgpu)]
mod webgpu;
