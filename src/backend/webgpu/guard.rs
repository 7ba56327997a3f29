//! A wgpu device whose failures come back as results.
//!
//! wgpu reports errors in four ways, and here they all become [`Error`]s:
//!
//! - to error scopes
//! - to a handler of uncaught errors, which panics unless one is set
//! - to a callback, if the device is lost
//! - by a panic in `poll`

use super::adapter::SPIRV;
use crate::backend::info::DeviceInfo;
use crate::backend::parked::Parked;
use crate::base::backend_kind::BackendKind;
use crate::base::environment;
use crate::base::error::{Error, Result};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

/// wgpu's devices that are open and not in use, by their descriptions, because each opening finds new adapters.
static PARKED: Parked<DeviceInfo, (wgpu::Device, wgpu::Queue)> = Parked::new();

/// A device that is watched for everything that can go wrong with it.
pub(super) struct GuardedDevice {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    info: DeviceInfo,
    faults: Arc<Faults>,
}

/// What wgpu's callbacks have reported.
#[derive(Default)]
struct Faults {
    /// Why the device was lost, once it is.
    lost: OnceLock<String>,
    /// The first error that no call has returned yet.
    stray: Mutex<Option<Error>>,
}

impl GuardedDevice {
    /// Returns a device that was open before and works.
    pub fn parked(info: &DeviceInfo) -> Option<GuardedDevice> {
        let (device, queue) = PARKED.take(info)?;
        let gpu = GuardedDevice::new(device, queue, info.clone());
        match gpu.poll(wgpu::PollType::wait_indefinitely()) {
            Ok(()) => Some(gpu),
            Err(error) => {
                // A lost device is not kept again.
                _ = gpu.faults.lost.set(error.to_string());
                None
            }
        }
    }

    /// Installs the callbacks. This must come before anything else on the device.
    pub fn new(device: wgpu::Device, queue: wgpu::Queue, info: DeviceInfo) -> GuardedDevice {
        let faults = Arc::new(Faults::default());
        let watcher = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error| {
            log::error!("webgpu: {}", describe(&error));
            watcher.stray.lock().get_or_insert_with(|| match &error {
                wgpu::Error::Validation { .. } => Error::Validation { message: describe(&error) },
                _ => driver_error("an earlier call", describe(&error)),
            });
        }));
        let watcher = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, message| {
            // Dropping the last handle of a device "loses" it too, but then nobody is left to care.
            log::debug!("webgpu: device lost ({reason:?}): {message}");
            let reason = if message.is_empty() { format!("{reason:?}").to_lowercase() } else { message };
            let _ = watcher.lost.set(reason);
        });
        GuardedDevice { device, queue, info, faults }
    }

    /// Returns whether kernels may go to the driver as SPIR-V.
    pub fn takes_spirv(&self) -> bool {
        self.device.features().contains(SPIRV)
    }

    /// Fails if the device is lost.
    pub fn check_lost(&self) -> Result<()> {
        match self.faults.lost.get() {
            Some(reason) => Err(self.lost(reason)),
            None => Ok(()),
        }
    }

    /// Fails if the device is lost, or with an error that came after its call had returned.
    pub fn check(&self) -> Result<()> {
        self.check_lost()?;
        self.faults.stray.lock().take().map_or(Ok(()), Err)
    }

    /// Returns the error for a lost device.
    pub fn lost(&self, reason: &str) -> Error {
        Error::DeviceLost { device: self.info.name.clone(), reason: reason.to_string() }
    }

    /// Returns the error for what the device does not have.
    #[cfg(wgpu_on_vulkan)]
    pub fn lacks(&self, feature: String) -> Error {
        Error::Unsupported { feature, device: self.info.to_string() }
    }

    /// Runs `work`. If wgpu raises an error in it, returns the error that `explain` makes of it.
    ///
    /// wgpu's error scopes belong to the calling thread, so any number of threads may be in here at once. In a browser,
    /// scopes answer later than a call may wait. There errors are left to [`check`](Self::check).
    pub fn catch<T>(&self, work: impl FnOnce() -> T, explain: impl FnOnce(wgpu::Error) -> Error) -> Result<T> {
        self.check_lost()?;
        let (value, caught) = self.in_scopes(work);
        self.check_lost()?;
        match caught {
            Some(error) => Err(explain(error)),
            None => Ok(value),
        }
    }

    fn in_scopes<T>(&self, work: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
        if cfg!(not(native)) {
            return (work(), None);
        }
        let filters = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation];
        let scopes = filters.map(|filter| self.device.push_error_scope(filter));
        let value = work();
        // Outside browsers the answer is there at once, so this does not block.
        let caught = scopes.into_iter().rev().filter_map(|scope| pollster::block_on(scope.pop())).last();
        (value, caught)
    }

    /// Lets wgpu run the callbacks that are due, or blocks until it can. Does nothing in a browser, which runs them
    /// by itself.
    pub fn poll(&self, how: wgpu::PollType) -> Result<()> {
        self.check_lost()?;
        // wgpu panics if the driver reports in `poll` that it lost the device. By then wgpu has called the callback
        // above and its other callbacks, and holds no lock. So unwinding is safe.
        let polled = catch_unwind(AssertUnwindSafe(|| self.device.poll(how)));
        self.check_lost()?;
        match polled {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(driver_error("Device::poll", error.to_string())),
            Err(_) => Err(driver_error("Device::poll", "wgpu panicked".into())),
        }
    }
}

impl Drop for GuardedDevice {
    fn drop(&mut self) {
        // Under validation the device is destroyed, because the layers look for leaks then. A browser destroys it
        // safely.
        if cfg!(native) && self.faults.lost.get().is_none() && !environment::settings().validation {
            PARKED.put(self.info.clone(), (self.device.clone(), self.queue.clone()));
        }
    }
}

/// Returns the error for a failed call that has no error of its own.
pub(super) fn driver_error(call: &'static str, message: String) -> Error {
    Error::Driver { backend: BackendKind::WebGpu, call, message }
}

/// Returns the text of a wgpu error, without the heading that every validation error has.
pub(super) fn describe(error: &wgpu::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("Validation Error").unwrap_or(&text).trim_start();
    text.strip_prefix("Caused by:").unwrap_or(text).trim().to_string()
}
