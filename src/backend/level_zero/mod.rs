//! The Level Zero backend: compute on Intel's GPUs, and on everything else that has a driver for the interface. The
//! library is found at run time.
//!
//! Each file has one concept, and uses the files above it in this table.
//!
//! | file | concept |
//! |---|---|
//! | [`ffi`] | the interface |
//! | [`loader`] | the library |
//! | [`adapter`] | the devices that there are |
//! | [`device`] | context, errors, loss |
//! | [`memory`] | buffers |
//! | [`kernel`] | compilation |
//! | [`region`] | copies of boxes |
//! | [`plan`] | checked steps |
//! | [`event`] | what the device signals |
//! | [`timing`] | when steps ran |
//! | [`batch`] | recording |
//! | [`queue`] | submission, tickets |

mod adapter;
mod batch;
mod device;
mod event;
mod ffi;
mod kernel;
mod loader;
mod memory;
mod plan;
mod queue;
mod region;
#[cfg(test)]
#[cfg(device_tests)]
mod tests;
mod timing;

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
    LevelZeroBackend::list()
}

/// Opens a device by its index.
pub(super) async fn open(index: usize) -> Result<Box<dyn Backend>> {
    Ok(Box::new(LevelZeroBackend::open(index)?))
}

/// A Level Zero device.
type LevelZeroBackend = ExplicitBackend<LevelZero>;

/// Level Zero, as an explicit API.
struct LevelZero;

impl Api for LevelZero {
    const KIND: BackendKind = BackendKind::LevelZero;
    const NAME: &'static str = "Level Zero";

    type Adapter = Adapter;
    type Device = Device;
    type Memory = Memory;
    type Kernels = Kernels;
    type Queue = Queue;

    fn adapters() -> Result<Vec<Adapter>> {
        adapter::all(loader::shared()?)
    }

    fn open(adapter: Adapter) -> Result<LevelZeroBackend> {
        let device = Arc::new(Device::open(&loader::shared()?.api, adapter)?);
        let (queue, copies) = Queue::all(&device)?;
        Ok(LevelZeroBackend {
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
        let sizes = &info.limits.subgroup_sizes;
        // On Intel's data-centre GPUs an instruction has 16 lanes. On the others 16 lanes take two, and 32 need more
        // registers.
        let chosen = sizes.iter().find(|size| **size == 16).or(sizes.first());
        let integer_dot_products = info.features.integer_dot_products;
        // With 8 lanes at least, the compiler chooses 8 by itself for kernels that need many registers.
        let narrow_lanes = sizes.first().copied().filter(|&size| size == 16);
        Target { subgroup_size: chosen.copied(), narrow_lanes, integer_dot_products, ..Target::LEVEL_ZERO }
    }

    fn alive(device: &Device) -> Result<()> {
        device.alive()
    }
}
