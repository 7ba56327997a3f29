//! Finding and opening devices.

use super::Device;
use super::filter::sort_best_first;
use crate::backend::info::DeviceInfo;
use crate::backend::registry;
use crate::base::backend_kind::{BackendKind, parse_device};
use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::engine::runtime::Runtime;
use crate::tuning::Tuning;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, Weak};

/// The devices that are open, so that opening one again gives the same.
static OPEN: Mutex<BTreeMap<(BackendKind, usize), Weak<Runtime>>> = Mutex::new(BTreeMap::new());

fn find_open(backend: BackendKind, index: usize) -> Option<Device> {
    let runtime = OPEN.lock().get(&(backend, index))?.upgrade()?;
    // A device that was lost stays lost for its tensors, but may be opened anew.
    runtime.is_alive().then(|| Device(runtime))
}

/// Enters a device that has just been opened, unless another thread was faster.
fn enter(backend: BackendKind, index: usize, runtime: Runtime) -> Device {
    let runtime = Arc::new(runtime);
    let mut open = OPEN.lock();
    let entry = open.entry((backend, index)).or_default();
    let winner = entry.upgrade().filter(|other| other.is_alive());
    if winner.is_none() {
        *entry = Arc::downgrade(&runtime);
    }
    drop(open);
    Device(winner.unwrap_or(runtime))
}

async fn open(backend: BackendKind, index: usize) -> Result<Device> {
    if let Some(device) = find_open(backend, index) {
        return Ok(device);
    }
    environment::get()?.prepare_folders()?;
    // Threads that want the same device wait for the one that opens it. A browser has one thread, and must not block.
    if cfg!(native) {
        open_alone(backend, index)
    } else {
        Ok(enter(backend, index, open_runtime(backend, index).await?))
    }
}

fn open_alone(backend: BackendKind, index: usize) -> Result<Device> {
    static OPENING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = OPENING.lock();
    match find_open(backend, index) {
        Some(device) => Ok(device),
        None => Ok(enter(backend, index, block_on(open_runtime(backend, index))?)),
    }
}

/// Opens a device once more, apart from where it is open already, with other data for how work is cut.
pub fn open_tuned(text: &str, tuning: &'static Tuning) -> Result<Device> {
    let (backend, index) = parse_device(text)?;
    environment::get()?.prepare_folders()?;
    let runtime = block_on(open_runtime(backend, index))?.tuned(tuning);
    Ok(Device(Arc::new(runtime)))
}

async fn open_runtime(backend: BackendKind, index: usize) -> Result<Runtime> {
    registry::open(backend, index).await.map(Runtime::new)
}

/// Runs a future that only pretends to wait: outside of browsers, opening a device blocks.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    pollster::block_on(future)
}

impl Device {
    /// The devices of all backends that are compiled in and find a driver, in the order of the backends.
    ///
    /// One GPU shows up once per backend that reaches it. If an environment variable has a value that is not
    /// understood, no device can be opened, and the list is empty; the error is logged, and [`best`](Self::best)
    /// returns it. Not for browsers: see [`list_async`](Self::list_async).
    pub fn list() -> Vec<DeviceInfo> {
        block_on(Device::list_async())
    }

    /// The same for browsers, where asking for devices takes a while and must not block.
    pub async fn list_async() -> Vec<DeviceInfo> {
        let mut devices = Vec::new();
        if let Err(error) = environment::get() {
            log::error!("no device can be opened: {error}");
            return devices;
        }
        for backend in BackendKind::ALL {
            match registry::list(backend).await {
                Ok(found) => devices.extend(found),
                Err(error) => log::debug!("{error}"),
            }
        }
        devices
    }

    /// The best device: the one that `MARQUETRY_DEVICE` names (as in `webgpu:0`) if it is set; else discrete GPUs come
    /// before integrated, virtual and software ones, Vulkan before Level Zero before WebGPU, and more
    /// compute units before fewer.
    ///
    /// # Errors
    /// [`Error::NoDevice`] with what each backend says; [`Error::Environment`] for a variable that is not understood;
    /// if `MARQUETRY_DEVICE` is set, [`Error::BackendUnavailable`] with what is missing.
    pub fn best() -> Result<Device> {
        block_on(Device::best_async())
    }

    /// The same for browsers.
    ///
    /// # Errors
    /// As [`best`](Self::best).
    pub async fn best_async() -> Result<Device> {
        if let Some((backend, index)) = environment::get()?.device {
            return open(backend, index).await;
        }
        let mut candidates = Vec::new();
        let mut reasons = Vec::new();
        for backend in BackendKind::ALL {
            match registry::list(backend).await {
                Ok(found) => candidates.extend(found),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        sort_best_first(&mut candidates);
        for info in candidates {
            match open(info.backend, info.index).await {
                Ok(device) => return Ok(device),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(Error::NoDevice { reasons: reasons.join("; ") })
    }

    /// The Vulkan device of an index, counted in the order of [`list`](Self::list).
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] with what is missing; [`Error::Environment`].
    pub fn vulkan(index: usize) -> Result<Device> {
        block_on(open(BackendKind::Vulkan, index))
    }

    /// The WebGPU device of an index, counted in the order of [`list`](Self::list). Not for browsers.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] with what is missing; [`Error::Environment`].
    pub fn webgpu(index: usize) -> Result<Device> {
        block_on(open(BackendKind::WebGpu, index))
    }

    /// The same for browsers, where index 0 is the only one.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] with what is missing; [`Error::Environment`].
    pub async fn webgpu_async(index: usize) -> Result<Device> {
        open(BackendKind::WebGpu, index).await
    }

    /// The Level Zero device of an index, counted in the order of [`list`](Self::list).
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] with what is missing; [`Error::Environment`].
    pub fn level_zero(index: usize) -> Result<Device> {
        block_on(open(BackendKind::LevelZero, index))
    }
}

impl FromStr for Device {
    type Err = Error;

    /// Opens the device that a string names: `vulkan`, `webgpu:1`. Not for browsers.
    fn from_str(text: &str) -> Result<Device> {
        let (backend, index) = parse_device(text)?;
        block_on(open(backend, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_may_move_futures_between_threads() {
        fn is_send(_: impl Send) {}
        is_send(Device::list_async());
        is_send(Device::best_async());
        is_send(Device::webgpu_async(0));
    }
}
