//! Handles and the objects behind them.
//!
//! A handle is a number that is never reused, so the driver can recognise destroyed handles.

use crate::Outcome;
use crate::command_list::CommandList;
use crate::context::Context;
use crate::event::{Event, EventPool};
use crate::ffi::*;
use crate::kernel::Kernel;
use crate::module::{BuildLog, Module};
use crate::pointer::Argument;
use crate::queue::{Fence, Queue};
use crate::report::{misuse, note};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Records whether an object still has its handle, and how many pending commands use the object.
pub struct Life {
    alive: AtomicBool,
    pending: AtomicUsize,
}

impl Default for Life {
    fn default() -> Self {
        Self { alive: AtomicBool::new(true), pending: AtomicUsize::new(0) }
    }
}

impl Life {
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    /// Ends the object's life. True if pending commands still use the object.
    pub fn end(&self) -> bool {
        self.alive.store(false, Ordering::SeqCst);
        self.pending.load(Ordering::SeqCst) > 0
    }

    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::SeqCst) > 0
    }

    pub fn begin_use(&self) {
        self.pending.fetch_add(1, Ordering::SeqCst);
    }

    pub fn end_use(&self) {
        self.pending.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An object behind a handle.
pub trait Object: Send + Sync + 'static {
    fn life(&self) -> &Life;

    fn context(&self) -> &Context;

    /// True if the object must not be destroyed while others refer to it.
    const OWNS_OTHERS: bool = false;
}

/// The live objects of one kind.
pub struct Registry<T> {
    kind: &'static str,
    live: Mutex<BTreeMap<usize, Arc<T>>>,
}

/// Handles start far from all addresses, and are never used as addresses.
const FIRST: usize = 0x7e00_0000_0000_0000;
static NEXT: AtomicUsize = AtomicUsize::new(FIRST);

impl<T: Object> Registry<T> {
    const fn new(kind: &'static str) -> Self {
        Self { kind, live: Mutex::new(BTreeMap::new()) }
    }

    fn insert(&self, object: Arc<T>) -> usize {
        let number = NEXT.fetch_add(16, Ordering::Relaxed);
        self.live.lock().insert(number, object);
        number
    }

    fn get(&self, number: usize) -> Outcome<Arc<T>> {
        let object = self.live.lock().get(&number).cloned();
        let object = object.ok_or_else(|| self.invalid(number, "used"))?;
        object.context().check()?;
        Ok(object)
    }

    fn remove(&self, number: usize) -> Outcome<Arc<T>> {
        let object = self.live.lock().remove(&number);
        let object = object.ok_or_else(|| self.invalid(number, "destroyed again"))?;
        if object.life().end() && object.context().check().is_ok() {
            note(format!("{} destroyed while pending commands use it", self.kind));
        }
        if T::OWNS_OTHERS && Arc::strong_count(&object) > 1 {
            note(format!("{} destroyed before the objects that belong to it", self.kind));
        }
        Ok(object)
    }

    fn invalid(&self, number: usize, action: &str) -> ResultCode {
        let history = match number {
            0 => "null",
            _ if (FIRST..NEXT.load(Ordering::Relaxed)).contains(&number) => "destroyed",
            _ => "unknown",
        };
        misuse(ResultCode::ERROR_INVALID_NULL_HANDLE, format!("{history} {} {action}", self.kind))
    }
}

/// A handle of the interface, and the driver's type of object behind it.
pub trait Handle: Copy + Sized {
    type Object: Object;

    fn registry() -> &'static Registry<Self::Object>;
    fn number(self) -> usize;
    fn from_number(number: usize) -> Self;

    /// Gives a handle to an object.
    fn create(object: Arc<Self::Object>) -> Self {
        Self::from_number(Self::registry().insert(object))
    }

    /// Returns the live object. Fails if there is none or if its device is lost.
    fn get(self) -> Outcome<Arc<Self::Object>> {
        Self::registry().get(self.number())
    }

    /// True if this is the handle of `object`.
    fn names(self, object: &Arc<Self::Object>) -> bool {
        Self::registry().live.lock().get(&self.number()).is_some_and(|own| Arc::ptr_eq(own, object))
    }

    /// Removes the handle. This also works if the device is lost.
    fn remove(self) -> Outcome<Arc<Self::Object>> {
        Self::registry().remove(self.number())
    }
}

macro_rules! objects {
    ($($handle:ident => $object:ident, $kind:literal, $plural:literal;)*) => {
        $(
            impl Handle for $handle {
                type Object = $object;

                fn registry() -> &'static Registry<$object> {
                    static REGISTRY: Registry<$object> = Registry::new($kind);
                    &REGISTRY
                }

                fn number(self) -> usize {
                    self.0 as usize
                }

                fn from_number(number: usize) -> Self {
                    Self(number as *mut c_void)
                }
            }
        )*

        /// Counts the live objects of each kind.
        pub fn live_counts() -> Vec<(&'static str, usize)> {
            vec![$(($plural, $handle::registry().live.lock().len())),*]
        }
    };
}

objects! {
    ContextHandle => Context, "context", "contexts";
    CommandQueueHandle => Queue, "command queue", "queues";
    CommandListHandle => CommandList, "command list", "lists";
    FenceHandle => Fence, "fence", "fences";
    EventPoolHandle => EventPool, "event pool", "pools";
    EventHandle => Event, "event", "events";
    ModuleHandle => Module, "module", "modules";
    ModuleBuildLogHandle => BuildLog, "build log", "logs";
    KernelHandle => Kernel, "kernel", "kernels";
}

/// Implements [`Argument`] for types that C and the driver share.
macro_rules! plain_arguments {
    ($($ty:ty)*) => {
        $(
            impl Argument for $ty {
                type Checked = $ty;

                unsafe fn checked(self) -> $ty {
                    self
                }
            }
        )*
    };
}

plain_arguments! {
    u32 u64 usize InitFlags KernelIndirectAccessFlags DriverHandle DeviceHandle
    ContextHandle CommandQueueHandle CommandListHandle FenceHandle EventPoolHandle EventHandle
    ModuleHandle ModuleBuildLogHandle KernelHandle
}
