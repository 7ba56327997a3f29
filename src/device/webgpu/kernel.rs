//! Kernels: WGSL, pipelines, and the layouts that kernels share.

use super::guard::{GuardedDevice, describe, driver_error};
use crate::device::DeviceInfo;
use crate::device::backend::{KernelId, check_fits};
use crate::error::{Error, Result};
use crate::shader::{Access, Module, wgsl};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// A kernel, ready to be dispatched.
pub(super) struct Kernel {
    name: String,
    pipeline: wgpu::ComputePipeline,
    layout: Arc<Layout>,
    buffers: usize,
    parameter_words: usize,
}

impl Kernel {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pipeline(&self) -> &wgpu::ComputePipeline {
        &self.pipeline
    }

    /// The layout of its bind group: buffer `i` at binding `i`, then the parameter block at a dynamic offset.
    pub fn group_layout(&self) -> &wgpu::BindGroupLayout {
        &self.layout.group
    }

    pub fn parameter_words(&self) -> usize {
        self.parameter_words
    }

    /// Fails unless a dispatch brings as many buffers and parameters as the kernel takes.
    pub fn check_arguments(&self, buffers: usize, parameter_words: usize) -> Result<()> {
        if buffers == self.buffers && parameter_words == self.parameter_words {
            return Ok(());
        }
        let message = format!(
            "dispatched with {buffers} buffers and {parameter_words} parameter words; it takes {} and {}",
            self.buffers, self.parameter_words
        );
        Err(Error::Kernel { kernel: self.name.clone(), message })
    }
}

/// The binding layout of all kernels of one signature.
struct Layout {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

/// What tells two layouts apart.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Signature {
    read_only: SmallVec<[bool; 8]>,
    has_parameters: bool,
}

/// All kernels of a device.
pub(super) struct Kernels {
    gpu: Arc<GuardedDevice>,
    layouts: Mutex<HashMap<Signature, Arc<Layout>>>,
    compiled: RwLock<Vec<Kernel>>,
}

impl Kernels {
    pub fn new(gpu: Arc<GuardedDevice>) -> Kernels {
        Kernels { gpu, layouts: Mutex::default(), compiled: RwLock::default() }
    }

    /// Compiles a kernel. No lock is held while the driver works, so that threads compile in parallel.
    pub fn compile(&self, module: &Module, info: &DeviceInfo) -> Result<KernelId> {
        check_fits(module, info)?;
        let mut source = wgsl::translate(module)?;
        if cfg!(target_arch = "wasm32") {
            source = wgsl::for_browser(&source, module);
        }
        let layout = self.layout(module)?;
        let refuse = |error| Error::Kernel { kernel: module.name.clone(), message: describe(&error) };
        let pipeline = self.gpu.catch(|| self.create_pipeline(&module.name, source, &layout.pipeline), refuse)?;
        let kernel = Kernel {
            name: module.name.clone(),
            pipeline,
            layout,
            buffers: module.bindings.len(),
            parameter_words: module.parameter_words,
        };
        let mut compiled = self.compiled.write();
        compiled.push(kernel);
        Ok(KernelId(compiled.len() as u64 - 1))
    }

    /// All kernels, for a thread that looks up many: kernel `i` is at index `i`.
    pub fn lock(&self) -> RwLockReadGuard<'_, Vec<Kernel>> {
        self.compiled.read()
    }

    fn create_pipeline(&self, name: &str, source: String, layout: &wgpu::PipelineLayout) -> wgpu::ComputePipeline {
        let descriptor =
            wgpu::ShaderModuleDescriptor { label: Some(name), source: wgpu::ShaderSource::Wgsl(source.into()) };
        // SAFETY: without wgpu's runtime checks a kernel must keep within its buffers, divide by no zero and end its
        // loops by itself. Kernels come from this crate's generators only, which guard every access by the lengths
        // in the kernel's parameters.
        let module =
            unsafe { self.gpu.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) };
        self.gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(layout),
            module: &module,
            // The only one, whatever naga has named it.
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions {
                // Kernels write workgroup memory before they read it, and clearing it can cost 40 times the compile.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        })
    }

    /// The layout of a kernel, made for the first kernel of its signature.
    fn layout(&self, module: &Module) -> Result<Arc<Layout>> {
        let signature = Signature {
            read_only: module.bindings.iter().map(|&access| access == Access::Read).collect(),
            has_parameters: module.parameter_words > 0,
        };
        let mut layouts = self.layouts.lock();
        if let Some(layout) = layouts.get(&signature) {
            return Ok(Arc::clone(layout));
        }
        let refuse = |error| driver_error("Device::create_pipeline_layout", describe(&error));
        let layout = Arc::new(self.gpu.catch(|| create_layout(&self.gpu.device, &signature), refuse)?);
        layouts.insert(signature, Arc::clone(&layout));
        Ok(layout)
    }
}

fn create_layout(device: &wgpu::Device, signature: &Signature) -> Layout {
    use wgpu::BufferBindingType::{Storage, Uniform};
    let buffers = signature.read_only.iter().map(|&read_only| (Storage { read_only }, false));
    let parameters = signature.has_parameters.then_some((Uniform, true));
    let entries: Vec<_> = (0..)
        .zip(buffers.chain(parameters))
        .map(|(binding, (ty, has_dynamic_offset))| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None },
            count: None,
        })
        .collect();
    let group = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
    let pipeline = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: None,
        bind_group_layouts: &[Some(&group)],
        immediate_size: 0,
    });
    Layout { group, pipeline }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{add_kernel, open};
    use super::*;
    use crate::device::backend::Backend;

    #[test]
    fn kernels_of_one_signature_share_a_layout() {
        let backend = open();
        backend.compile(&add_kernel(1.0)).unwrap();
        backend.compile(&add_kernel(2.0)).unwrap();
        assert_eq!(backend.kernels.layouts.lock().len(), 1);
    }

    #[test]
    fn a_kernel_that_does_not_fit_is_unsupported() {
        let backend = open();
        type Change = fn(&mut Module);
        let cases: [(Change, &str); 4] = [
            (|m| m.bindings = vec![Access::Read; 5_000_000], "5000000 buffers"),
            (|m| m.parameter_words = 1025, "1025 parameter words"),
            (|m| m.workgroup = [u32::MAX; 3], "invocations per workgroup"),
            (|m| m.workgroup_memory = u32::MAX, "bytes of workgroup memory"),
        ];
        for (grow, expected) in cases {
            let mut module = add_kernel(0.0);
            grow(&mut module);
            let error = backend.compile(&module).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn a_feature_that_the_device_lacks_is_unsupported() {
        let backend = open();
        let mut module = add_kernel(0.0);
        module.requires.f16 = true;
        let mut info = backend.info.clone();
        info.features.f16 = false;
        let error = backend.kernels.compile(&module, &info).unwrap_err();
        assert!(error.to_string().contains("16-bit floats"), "{error}");
    }

    #[test]
    fn errors_of_naga_and_of_wgpu_name_the_kernel() {
        let backend = open();
        let mut unreadable = add_kernel(0.0);
        unreadable.spirv.truncate(20);
        // Not what the SPIR-V says: wgpu finds binding 2 written that the layout says is only read.
        let mut contradictory = add_kernel(0.0);
        contradictory.bindings[2] = Access::Read;
        for module in [unreadable, contradictory] {
            let error = backend.compile(&module).unwrap_err();
            assert!(matches!(&error, Error::Kernel { kernel, .. } if *kernel == module.name), "{error}");
        }
        // Neither error lingers.
        backend.compile(&add_kernel(0.0)).unwrap();
    }
}
