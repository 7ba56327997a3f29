//! The open device: its context, its loss, and the errors of its calls.

use super::adapter::Adapter;
use super::ffi::*;
use super::loader::{self, Api, ok};
use crate::base::backend_kind::BackendKind;
use crate::base::error::{Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device in a context of its own. Everything that was created in it holds it in an `Arc`, so it is dropped last.
pub(super) struct Device {
    /// The functions.
    pub api: &'static Api,
    /// Its description.
    pub adapter: Adapter,
    /// Owns everything that is created.
    pub context: ContextHandle,
    /// Bytes of live buffers.
    in_use: AtomicU64,
    /// Why the device is lost.
    lost: OnceLock<String>,
}

impl Device {
    /// Opens a device.
    pub fn open(api: &'static Api, adapter: Adapter) -> Result<Device> {
        let mut context = ContextHandle::NULL;
        // SAFETY: the driver is of this library, and the structures outlive the call.
        ok(unsafe { (api.context_create)(adapter.driver, &ContextDesc::default(), &mut context) })
            .map_err(|code| loader::unavailable(format_args!("{}: zeContextCreate failed: {code}", adapter.info)))?;
        Ok(Device { api, adapter, context, in_use: AtomicU64::new(0), lost: OnceLock::new() })
    }

    /// Describes the device, for errors.
    pub fn describe(&self) -> String {
        self.adapter.info.to_string()
    }

    /// Fails once the device is lost.
    pub fn alive(&self) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(self.lost_by(reason)),
            None => Ok(()),
        }
    }

    /// Returns how many nanoseconds to wait for the device to finish. A lost device may never finish.
    pub fn patience(&self) -> u64 {
        if self.lost.get().is_some() { 1_000_000_000 } else { u64::MAX }
    }

    /// Declares the device lost.
    pub fn lose(&self, reason: impl FnOnce() -> String) -> Error {
        self.lost_by(self.lost.get_or_init(reason))
    }

    /// Converts the result of a driver's call to the crate's.
    pub fn check(&self, call: &'static str, code: ResultCode) -> Result<()> {
        ok(code).map_err(|code| self.error(call, code))
    }

    /// Does the same for a call that asks whether something has happened.
    pub fn check_ready(&self, call: &'static str, code: ResultCode) -> Result<bool> {
        if code == ResultCode::NOT_READY { Ok(false) } else { self.check(call, code).map(|()| true) }
    }

    /// Converts a driver's error to the crate's, and remembers a loss of the device.
    pub fn error(&self, call: &'static str, code: ResultCode) -> Error {
        match code {
            ResultCode::ERROR_DEVICE_LOST | ResultCode::ERROR_DEVICE_REQUIRES_RESET => {
                self.lose(|| format!("{call} reported it"))
            }
            // The driver wanted this memory for itself, and does not report how much it was.
            ResultCode::ERROR_OUT_OF_HOST_MEMORY | ResultCode::ERROR_OUT_OF_DEVICE_MEMORY => self.out_of_memory(0),
            code => Error::Driver { backend: BackendKind::LevelZero, call, message: code.to_string() },
        }
    }

    /// Logs the failure of a call that releases something, because nobody could handle it.
    pub fn log_failure(&self, call: &'static str, code: ResultCode) {
        if code != ResultCode::SUCCESS && self.lost.get().is_none() {
            log::error!("Level Zero: {call} failed: {code}");
        }
    }

    /// Returns the error for `requested` bytes that the device does not have.
    pub fn out_of_memory(&self, requested: u64) -> Error {
        Error::OutOfMemory { requested, in_use: self.in_use.load(Ordering::Relaxed), limit: self.adapter.info.memory }
    }

    /// Returns the error for a buffer that no kernel could address.
    pub fn too_large(&self, requested: u64) -> Error {
        let limit = self.adapter.info.limits.max_buffer_bytes;
        Error::OutOfMemory { requested, in_use: self.in_use.load(Ordering::Relaxed), limit }
    }

    /// Counts the bytes of a new buffer.
    pub fn count_allocated(&self, bytes: u64) {
        self.in_use.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts the bytes of a buffer that is gone.
    pub fn count_freed(&self, bytes: u64) {
        self.in_use.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn lost_by(&self, reason: &str) -> Error {
        Error::DeviceLost { device: self.describe(), reason: reason.into() }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything that was created in the context held it, and is gone.
        self.log_failure("zeContextDestroy", unsafe { (self.api.context_destroy)(self.context) });
    }
}
