//! The compiled kernels of a device. The key in memory is the configuration; on disk it is all that the binary depends
//! on.

use crate::backend::contract::{Backend, KernelId};
use crate::backend::info::{DeviceInfo, DeviceKind};
use crate::base::error::Result;
use crate::base::lock::Mutex;
use crate::engine::disk_cache::DiskCache;
use crate::engine::dump;
use crate::engine::host_trace::HostTrace;
use crate::kernels::{Generate, KernelConfig};
use crate::shader::{Access, Module, Target};
use rustc_hash::FxHashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};

/// A kernel of an app, ready to be dispatched.
pub(crate) struct CompiledKernel {
    pub id: KernelId,
    /// How it uses each of its buffers.
    pub bindings: Box<[Access]>,
}

/// A kernel of this crate. It is generated when it is asked for, and compiled when it is dispatched.
pub(crate) struct OwnKernel {
    /// How it uses each of its buffers.
    pub bindings: Box<[Access]>,
    /// Whether it reaches them by their addresses.
    addresses: bool,
    id: OnceLock<KernelId>,
    /// What is compiled, until that has been done.
    module: Mutex<Option<Module>>,
}

impl OwnKernel {
    /// Returns the compiled kernel, if it has been compiled.
    #[inline]
    pub fn id(&self) -> Option<KernelId> {
        self.id.get().copied()
    }
}

type Kernels = Mutex<FxHashMap<KernelConfig, Arc<Mutex<Option<Arc<OwnKernel>>>>>>;

/// The kernels. Each has its own lock, so that different kernels compile at the same time and none compiles twice.
#[derive(Default)]
pub(crate) struct KernelCache {
    kernels: Kernels,
    /// Kernels for launches with a buffer that is too large to be bound.
    for_large_buffers: Kernels,
    disk: Option<DiskCache>,
    host_trace: Arc<HostTrace>,
    compiles: AtomicU64,
    reuses: AtomicU64,
}

/// Whether a kernel is faster if it reaches its buffers by their addresses, which have to fit behind its parameters.
/// lavapipe's atomic operations on an address take twice as long.
fn gains_by_addresses(module: &Module, info: &DeviceInfo) -> bool {
    let words = module.parameter_words + 2 * module.bindings.len();
    let has_atomics = module.requires.atomics || module.requires.float_atomics;
    let is_slower = module.prefers_bindings || has_atomics && info.kind == DeviceKind::Cpu;
    !is_slower && words <= info.limits.max_addressed_words as usize
}

impl KernelCache {
    /// Returns a cache without kernels in memory. Earlier processes may have left binaries on disk.
    pub fn new(disk: Option<DiskCache>, host_trace: Arc<HostTrace>) -> Self {
        KernelCache { disk, host_trace, ..KernelCache::default() }
    }

    /// Returns the kernel of a configuration. The first call generates it.
    pub fn get(
        &self,
        config: &KernelConfig,
        generate: Generate,
        large_buffers: bool,
        target: Target,
        info: &DeviceInfo,
    ) -> Result<Arc<OwnKernel>> {
        if large_buffers && target.addresses {
            let usual = self.get(config, generate, false, target, info)?;
            if usual.addresses {
                return Ok(usual);
            }
        }
        let kernels = if large_buffers { &self.for_large_buffers } else { &self.kernels };
        let known = kernels.lock().get(config).cloned();
        let entry = known.unwrap_or_else(|| kernels.lock().entry(config.clone()).or_default().clone());
        let mut kernel = entry.lock();
        if let Some(kernel) = &*kernel {
            return Ok(kernel.clone());
        }
        let target = target.for_buffers(large_buffers);
        let mut module = generate(config, target)?;
        if module.addresses && !large_buffers && !gains_by_addresses(&module, info) {
            module = generate(config, Target { addresses: false, ..target })?;
        }
        module.large_buffers = large_buffers;
        dump::write(config, Target { addresses: module.addresses, ..target }, large_buffers)?;
        let (bindings, addresses) = (module.bindings.as_slice().into(), module.addresses);
        let own = OwnKernel { bindings, addresses, id: OnceLock::new(), module: Some(module).into() };
        Ok(kernel.insert(Arc::new(own)).clone())
    }

    /// Returns the compiled kernel. The first call compiles it.
    pub fn id_of(&self, kernel: &OwnKernel, backend: &dyn Backend) -> Result<KernelId> {
        let mut module = kernel.module.lock();
        if let Some(waiting) = &*module {
            _ = kernel.id.set(self.compile(waiting, backend)?.id);
            *module = None;
        }
        // Whoever takes the module has set the number before.
        Ok(kernel.id().unwrap_or(KernelId(u64::MAX)))
    }

    /// Compiles kernels, several at a time. `progress` gets the number of kernels that are done, and of all.
    pub fn compile_all(
        &self,
        kernels: &[Arc<OwnKernel>],
        backend: &dyn Backend,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<()> {
        let several = cfg!(native) && !cfg!(model_locks);
        let threads = if several { std::thread::available_parallelism().map_or(1, NonZeroUsize::get) } else { 1 };
        let compile = |kernel: &OwnKernel| self.id_of(kernel, backend).map(drop);
        if threads == 1 || kernels.len() < 2 {
            return kernels.iter().enumerate().try_for_each(|(place, kernel)| {
                compile(kernel)?;
                progress(place + 1, kernels.len());
                Ok(())
            });
        }
        let (next, (sender, done)) = (AtomicUsize::new(0), mpsc::channel());
        std::thread::scope(|scope| {
            // The receiver is below. If it is gone, so is whoever asked.
            let work = |sender: &mpsc::Sender<Result<()>>| {
                while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                    _ = sender.send(compile(kernel));
                }
            };
            let mut started = false;
            for _ in 0..threads.min(kernels.len()) {
                let (sender, builder) = (sender.clone(), std::thread::Builder::new().name("marquetry compile".into()));
                started |= builder.spawn_scoped(scope, move || work(&sender)).is_ok();
            }
            // The system may have no thread left.
            if !started {
                work(&sender);
            }
            drop(sender);
            let mut result = Ok(());
            for (place, compiled) in done.into_iter().enumerate() {
                progress(place + 1, kernels.len());
                result = result.and(compiled);
            }
            result
        })
    }

    /// Compiles a kernel, or loads its binary from disk.
    pub fn compile(&self, module: &Module, backend: &dyn Backend) -> Result<CompiledKernel> {
        let _span = self.host_trace.span(|| format!("compile {}", module.name));
        let stored = self.disk.as_ref().zip(backend.binary_key(module));
        let place = stored.map(|(disk, key)| (disk, disk.path(&key, module)));
        let binary = place.as_ref().and_then(|(disk, path)| disk.load(path));
        let compiled = backend.compile(module, binary.as_deref())?;
        let counter = if compiled.reused { &self.reuses } else { &self.compiles };
        counter.fetch_add(1, Ordering::Relaxed);
        if let (Some((disk, path)), Some(binary)) = (place, compiled.binary) {
            disk.store(&path, &binary);
        }
        Ok(CompiledKernel { id: compiled.kernel, bindings: module.bindings.as_slice().into() })
    }

    /// The number of kernels that the driver has compiled.
    pub fn compiles(&self) -> u64 {
        self.compiles.load(Ordering::Relaxed)
    }

    /// The number of kernels whose binaries were found on disk.
    pub fn reuses(&self) -> u64 {
        self.reuses.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::backend_kind::BackendKind;
    use crate::shader::{KernelBuilder, Type};

    fn module(write: impl FnOnce(&KernelBuilder)) -> Module {
        let k = KernelBuilder::new("sample", Target::VULKAN, 64);
        write(&k);
        k.finish().unwrap()
    }

    #[test]
    fn addresses_have_to_fit_and_to_help() {
        let gains = |module: &Module, kind: DeviceKind, words: u32| {
            let mut info = DeviceInfo::sample(BackendKind::Vulkan, kind, Some(1));
            info.limits.max_addressed_words = words;
            gains_by_addresses(module, &info)
        };
        // Two words for the address of the buffer, and one for the parameter.
        let plain = module(|k| {
            k.buffer("x", Type::U32, Access::ReadWrite).store(0, k.parameter(Type::U32));
        });
        let of_gpu = |module: &Module| gains(module, DeviceKind::Discrete, 3);
        assert!(of_gpu(&plain) && gains(&plain, DeviceKind::Cpu, 3));
        assert!(!gains(&plain, DeviceKind::Discrete, 2));
        let counting = module(|k| {
            k.buffer("x", Type::U32, Access::ReadWrite).atomic_add(0, k.parameter(Type::U32));
        });
        assert!(of_gpu(&counting) && !gains(&counting, DeviceKind::Cpu, 3));
        let bound = module(KernelBuilder::prefer_bindings);
        assert!(!of_gpu(&bound));
    }
}
