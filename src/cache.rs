//! Compiled kernels of a device, by configuration.

use crate::device::backend::{Backend, KernelId};
use crate::dump;
use crate::error::Result;
use crate::kernels::KernelConfig;
use crate::shader::{Access, Module};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kernel that is ready to be dispatched.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub id: KernelId,
    /// How it uses each of its buffers.
    pub bindings: Arc<[Access]>,
}

/// Each configuration has a lock of its own, so that different kernels are compiled side by side and none twice.
#[derive(Default)]
pub(crate) struct KernelCache {
    kernels: Mutex<HashMap<KernelConfig, Arc<Mutex<Option<Kernel>>>>>,
    compiles: AtomicU64,
}

impl KernelCache {
    /// The kernel of a configuration, generated and compiled when it is first asked for.
    pub fn get(&self, config: &KernelConfig, backend: &dyn Backend) -> Result<Kernel> {
        let known = self.kernels.lock().get(config).cloned();
        let entry = known.unwrap_or_else(|| self.kernels.lock().entry(config.clone()).or_default().clone());
        let mut kernel = entry.lock();
        if let Some(kernel) = &*kernel {
            return Ok(kernel.clone());
        }
        let module = config.generate(backend.target())?;
        dump::write(config)?;
        Ok(kernel.insert(self.compile(&module, backend)?).clone())
    }

    /// Compiles a kernel that has no configuration, and so is not kept here.
    pub fn compile(&self, module: &Module, backend: &dyn Backend) -> Result<Kernel> {
        let id = backend.compile(module, None)?.kernel;
        self.compiles.fetch_add(1, Ordering::Relaxed);
        Ok(Kernel { id, bindings: module.bindings.as_slice().into() })
    }

    /// The number of kernels compiled so far.
    pub fn compiles(&self) -> u64 {
        self.compiles.load(Ordering::Relaxed)
    }
}
