//! The backends: ways to reach a GPU, behind one contract.

pub(crate) mod contract;
#[cfg(test)]
mod contract_tests;
#[cfg(uses_ash)]
mod cooperative_matrix2;
pub(crate) mod fork;
pub(crate) mod info;
#[cfg(has_level_zero)]
pub(crate) mod level_zero;
mod parked;
mod reads;
mod rules;
mod slots;
#[cfg(uses_ash)]
mod units;
#[cfg(has_vulkan)]
pub(crate) mod vulkan;
#[cfg(has_webgpu)]
pub(crate) mod webgpu;
