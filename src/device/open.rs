//! Finding and opening devices.

use super::filter::sort_best_first;
use super::{Device, Handle};
use crate::backend::info::DeviceInfo;
use crate::backend::registry;
use crate::base::backend_kind::{BackendKind, parse_device};
use crate::base::environment;
use crate::base::error::{Error, Result, check_may_block};
use crate::engine::runtime::Runtime;
use crate::tuning::Tuning;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, Weak};

/// The open devices. Opening one of them again gives the same device.
static OPEN: Mutex<BTreeMap<(BackendKind, usize), Weak<Runtime>>> = Mutex::new(BTreeMap::new());

fn find_open(backend: BackendKind, index: usize) -> Option<Device> {
    let runtime = OPEN.lock().get(&(backend, index))?.upgrade()?;
    // A lost device stays lost for its tensors, but may be opened again.
    runtime.is_alive().then(|| wrap(backend, runtime))
}

/// Adds a device that has just been opened, unless another thread was faster.
fn enter(backend: BackendKind, index: usize, runtime: Runtime) -> Device {
    let runtime = Arc::new(runtime);
    let mut open = OPEN.lock();
    let entry = open.entry((backend, index)).or_default();
    let winner = entry.upgrade().filter(|other| other.is_alive());
    if winner.is_none() {
        *entry = Arc::downgrade(&runtime);
    }
    drop(open);
    wrap(backend, winner.unwrap_or(runtime))
}

fn wrap(backend: BackendKind, runtime: Arc<Runtime>) -> Device {
    match backend {
        BackendKind::Vulkan => Device::Vulkan(Handle(runtime)),
        BackendKind::WebGpu => Device::WebGpu(Handle(runtime)),
        BackendKind::LevelZero => Device::LevelZero(Handle(runtime)),
    }
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

/// Opens a device with other tuning data. If it is open already, the two are separate.
pub fn open_tuned(text: &str, tuning: &'static Tuning) -> Result<Device> {
    let (backend, index) = parse_device(text)?;
    check_may_block("open_tuned", "Device::webgpu_async")?;
    environment::get()?.prepare_folders()?;
    let runtime = block_on(open_runtime(backend, index))?.tuned(tuning);
    Ok(wrap(backend, Arc::new(runtime)))
}

async fn open_runtime(backend: BackendKind, index: usize) -> Result<Runtime> {
    registry::open(backend, index).await.map(Runtime::new)
}

/// Opens a device outside browsers. There, only WebGPU can be asked for a device, and that takes a while.
fn open_now(backend: BackendKind, index: usize) -> Result<Device> {
    if backend == BackendKind::WebGpu {
        check_may_block("webgpu", "Device::webgpu_async")?;
    }
    block_on(open(backend, index))
}

/// Runs a future that never waits: outside browsers, the calls that open a device block.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    pollster::block_on(future)
}

impl Device {
    /// Returns the devices of all backends that are compiled in and find a driver, in the order of the backends.
    ///
    /// One GPU shows up once per backend that reaches it. Not for browsers: see [`list_async`](Self::list_async).
    ///
    /// If an environment variable has a value that is not understood, no device can be opened. Then the list is empty,
    /// the error is logged, and [`best`](Self::best) returns it.
    pub fn list() -> Vec<DeviceInfo> {
        if let Err(error) = check_may_block("list", "Device::list_async") {
            log::error!("{error}");
            return Vec::new();
        }
        block_on(Device::list_async())
    }

    /// Does the same as [`list`](Self::list) in browsers, where asking for devices takes a while and must not block.
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

    /// Opens the best device. If `MARQUETRY_DEVICE` is set (as in `webgpu:0`), this is the device that it names.
    ///
    /// Else discrete GPUs come before integrated, virtual and software ones, then Vulkan before Level Zero before
    /// WebGPU, then more compute units before fewer.
    ///
    /// # Errors
    /// - [`Error::NoDevice`] with what each backend says
    /// - [`Error::Environment`] if a variable has a value that is not understood
    /// - [`Error::BackendUnavailable`] with what is missing, if `MARQUETRY_DEVICE` is set
    pub fn best() -> Result<Device> {
        check_may_block("best", "Device::best_async")?;
        block_on(Device::best_async())
    }

    /// Does the same as [`best`](Self::best) in browsers.
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

    /// Opens the Vulkan device with this index, in the order of [`list`](Self::list).
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] with what is missing; [`Error::Environment`].
    pub fn vulkan(index: usize) -> Result<Device> {
        open_now(BackendKind::Vulkan, index)
    }

    /// Opens the WebGPU device with this index, in the order of [`list`](Self::list). Not for browsers.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] with what is missing; [`Error::Environment`].
    pub fn webgpu(index: usize) -> Result<Device> {
        open_now(BackendKind::WebGpu, index)
    }

    /// Does the same as [`webgpu`](Self::webgpu) in browsers, where index 0 is the only one.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] with what is missing; [`Error::Environment`].
    pub async fn webgpu_async(index: usize) -> Result<Device> {
        open(BackendKind::WebGpu, index).await
    }

    /// Opens the Level Zero device with this index, in the order of [`list`](Self::list).
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] with what is missing; [`Error::Environment`].
    pub fn level_zero(index: usize) -> Result<Device> {
        open_now(BackendKind::LevelZero, index)
    }
}

impl FromStr for Device {
    type Err = Error;

    /// Opens the device that a string names, such as `vulkan` or `webgpu:1`. Not for browsers.
    fn from_str(text: &str) -> Result<Device> {
        let (backend, index) = parse_device(text)?;
        open_now(backend, index)
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
