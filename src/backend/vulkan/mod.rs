//! The Vulkan backend: compute on Vulkan 1.2 or newer, through `ash`.
//!
//! Each file has one concept, and uses the files above it in this table.
//!
//! | file | concept |
//! |---|---|
//! | [`validation`] | the validation layer |
//! | [`instance`] | the process's Vulkan instance |
//! | [`adapter`] | the devices that there are, with their [`extensions`] and [`properties`] |
//! | [`device`] | creation, errors, loss |
//! | [`blocks`] | blocks of memory, cut into pieces |
//! | [`memory`] | buffers |
//! | [`pipeline`] | compiling |
//! | [`kernel`] | compiled kernels |
//! | [`plan`] | checked steps |
//! | [`timer`] | timestamps |
//! | [`batch`] | recording |
//! | [`clock`] | the device's time in the host's |
//! | [`queue`] | submission, tickets |

mod adapter;
mod batch;
mod blocks;
mod clock;
mod device;
mod extensions;
mod instance;
mod kernel;
mod memory;
mod pipeline;
mod plan;
mod properties;
mod queue;
#[cfg(test)]
#[cfg(device_tests)]
mod tests;
mod timer;
mod validation;

use crate::backend::contract::Backend;
use crate::backend::explicit::{Api, ExplicitBackend};
use crate::backend::info::DeviceInfo;
use crate::backend::reads::Reads;
use crate::base::backend_kind::BackendKind;
use crate::base::error::Result;
use crate::shader::Target;
use adapter::Adapter;
use device::Device;
use kernel::Kernels;
use memory::Memory;
use queue::Queue;
use std::sync::Arc;

/// Describes the devices that can be opened. A device's index is its position.
pub(super) async fn list() -> Result<Vec<DeviceInfo>> {
    VulkanBackend::list()
}

/// Opens a device by its index.
pub(super) async fn open(index: usize) -> Result<Box<dyn Backend>> {
    Ok(Box::new(VulkanBackend::open(index)?))
}

/// A Vulkan device.
type VulkanBackend = ExplicitBackend<Vulkan>;

/// Vulkan, as an explicit API.
struct Vulkan;

impl Api for Vulkan {
    const KIND: BackendKind = BackendKind::Vulkan;
    const NAME: &'static str = "Vulkan";

    type Adapter = Adapter;
    type Device = Device;
    type Memory = Memory;
    type Kernels = Kernels;
    type Queue = Queue;

    fn adapters() -> Result<Vec<Adapter>> {
        adapter::all(instance::shared()?)
    }

    fn open(adapter: Adapter) -> Result<VulkanBackend> {
        let device = Arc::new(Device::open(instance::shared()?, adapter)?);
        let (queue, copies) = Queue::all(&device)?;
        Ok(VulkanBackend {
            queue,
            copies,
            reads: Reads::new(),
            kernels: Kernels::new(device.clone()),
            memory: Memory::new(device.clone()),
            device,
        })
    }

    fn info(adapter: &Adapter) -> &DeviceInfo {
        &adapter.info
    }

    fn adapter(device: &Device) -> &Adapter {
        &device.adapter
    }

    fn target(info: &DeviceInfo) -> Target {
        Target {
            unpacks_halves: info.unpacks_halves(),
            packs_halves: info.packs_halves(),
            integer_dot_products: info.features.integer_dot_products,
            ..Target::VULKAN
        }
    }

    fn budget(device: &Device) -> u64 {
        device.budget()
    }

    fn alive(device: &Device) -> Result<()> {
        device.alive()
    }

    fn check_validation() -> Result<()> {
        validation::check()
    }
}
