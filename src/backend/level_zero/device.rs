//! The open device: its context, its health, and what becomes of the errors of its calls.

use super::adapter::Adapter;
use super::ffi::*;
use super::loader::{self, Api, ok};
use crate::base::backend_kind::BackendKind;
use crate::base::error::{Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device in a context of its own. Whatever was created in it holds it in an `Arc`, so that it goes last.
pub(super) struct Device {
    /// The functions.
    pub api: &'static Api,
    /// What it is.
    pub adapter: Adapter,
    /// Owns all that is created.
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

    /// The device in words, for errors.
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

    /// For how many nanoseconds to wait for what the device still has: a lost one may never let go of it.
    pub fn patience(&self) -> u64 {
        if self.lost.get().is_some() { 1_000_000_000 } else { u64::MAX }
    }

    /// Declares the device lost.
    pub fn lose(&self, reason: impl FnOnce() -> String) -> Error {
        self.lost_by(self.lost.get_or_init(reason))
    }

    /// Turns the result of a call of the driver into the crate's.
    pub fn check(&self, call: &'static str, code: ResultCode) -> Result<()> {
        ok(code).map_err(|code| self.error(call, code))
    }

    /// The same for a call that asks whether something has happened.
    pub fn check_ready(&self, call: &'static str, code: ResultCode) -> Result<bool> {
        if code == ResultCode::NOT_READY { Ok(false) } else { self.check(call, code).map(|()| true) }
    }

    /// Turns an error of the driver into the crate's, and remembers a loss of the device.
    pub fn error(&self, call: &'static str, code: ResultCode) -> Error {
        match code {
            ResultCode::ERROR_DEVICE_LOST | ResultCode::ERROR_DEVICE_REQUIRES_RESET => {
                self.lose(|| format!("{call} reported it"))
            }
            // The driver asked for this memory for itself, and does not tell how much it was.
            ResultCode::ERROR_OUT_OF_HOST_MEMORY | ResultCode::ERROR_OUT_OF_DEVICE_MEMORY => self.out_of_memory(0),
            code => Error::Driver { backend: BackendKind::LevelZero, call, message: code.to_string() },
        }
    }

    /// Logs the failure of a call that gives something back, where nobody could do anything about it.
    pub fn log_failure(&self, call: &'static str, code: ResultCode) {
        if code != ResultCode::SUCCESS && self.lost.get().is_none() {
            log::error!("Level Zero: {call} failed: {code}");
        }
    }

    /// The error for `requested` bytes that the device does not have.
    pub fn out_of_memory(&self, requested: u64) -> Error {
        Error::OutOfMemory { requested, in_use: self.in_use.load(Ordering::Relaxed), limit: self.adapter.info.memory }
    }

    /// The error for a buffer that no kernel could address.
    pub fn too_large(&self, requested: u64) -> Error {
        let limit = self.adapter.info.limits.max_buffer_bytes;
        Error::OutOfMemory { requested, in_use: self.in_use.load(Ordering::Relaxed), limit }
    }

    /// Counts the bytes of a new buffer.
    pub fn count_allocated(&self, bytes: u64) {
        self.in_use.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts the bytes of a buffer that is gone.
    pub fn count_freed(&self, bytes: u64) {
        self.in_use.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn lost_by(&self, reason: &str) -> Error {
        Error::DeviceLost { device: self.describe(), reason: reason.into() }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: whatever was created in the context held it alive, and is gone.
        self.log_failure("zeContextDestroy", unsafe { (self.api.context_destroy)(self.context) });
    }
}
