//! Contexts. A lost device is lost only for its context: a new context works again.

use crate::Outcome;
use crate::device;
use crate::faults::settings;
use crate::ffi::*;
use crate::handles::{Handle, Life, Object};
use crate::pointer::Pointer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub struct Context {
    life: Life,
    lost: AtomicBool,
}

impl Object for Context {
    const OWNS_OTHERS: bool = true;

    fn life(&self) -> &Life {
        &self.life
    }

    fn context(&self) -> &Context {
        self
    }
}

impl Context {
    /// Fails if the device is lost.
    pub fn check(&self) -> Outcome {
        if self.lost.load(Ordering::SeqCst) { Err(ResultCode::ERROR_DEVICE_LOST) } else { Ok(()) }
    }

    /// Counts a submission. This submission may lose the device.
    pub fn count_submission(&self) -> Outcome {
        if settings().lost.is_due() {
            self.lost.store(true, Ordering::SeqCst);
        }
        self.check()
    }
}

pub fn context_create(driver: DriverHandle, desc: Pointer<ContextDesc>, context: Pointer<ContextHandle>) -> Outcome {
    device::check_driver(driver)?;
    desc.read()?;
    context.write(ContextHandle::create(Arc::default()))
}

pub fn context_destroy(context: ContextHandle) -> Outcome {
    context.remove().map(drop)
}

pub fn context_get_status(context: ContextHandle) -> Outcome {
    context.get().map(drop)
}
