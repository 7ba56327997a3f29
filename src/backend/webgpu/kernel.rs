//! Kernels: their text, their pipelines, and the layouts that they share.

use super::adapter::uniform_words;
use super::guard::{GuardedDevice, describe, driver_error};
use crate::backend::contract::{KernelId, check_fits};
use crate::backend::info::DeviceInfo;
use crate::base::error::{Error, Result};
use crate::base::features::MatrixUnits;
use crate::shader::{Access, Code, Module, ParameterBlock, wgsl};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// A kernel, ready to be dispatched.
pub(super) struct WebGpuKernel {
    name: String,
    pipeline: wgpu::ComputePipeline,
    layout: Arc<Layout>,
    buffers: usize,
    parameters: ParameterBlock,
    parameter_words: usize,
}

impl WebGpuKernel {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pipeline(&self) -> &wgpu::ComputePipeline {
        &self.pipeline
    }

    /// Returns the layout of its bind group: buffer `i` at binding `i`, then a uniform parameter block at a dynamic
    /// offset.
    pub fn group_layout(&self) -> &wgpu::BindGroupLayout {
        &self.layout.group
    }

    /// Returns the words of its parameter block, if that is in a uniform buffer. Else returns 0.
    pub fn uniform_words(&self) -> usize {
        if self.parameters == ParameterBlock::Uniform { self.parameter_words } else { 0 }
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

/// The binding layout of all kernels with the same signature.
struct Layout {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

/// The key of a layout.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Signature {
    read_only: SmallVec<[bool; 8]>,
    has_uniform: bool,
    immediate_words: usize,
}

/// All kernels of a device.
pub(super) struct Kernels {
    gpu: Arc<GuardedDevice>,
    layouts: Mutex<HashMap<Signature, Arc<Layout>>>,
    compiled: RwLock<Vec<WebGpuKernel>>,
}

impl Kernels {
    pub fn new(gpu: Arc<GuardedDevice>) -> Kernels {
        Kernels { gpu, layouts: Mutex::default(), compiled: RwLock::default() }
    }

    /// Compiles a kernel. No lock is held while the driver works, so threads compile in parallel.
    pub fn compile(&self, module: &Module, info: &DeviceInfo) -> Result<KernelId> {
        self.check(module, info)?;
        let source = Source::of(module, self.gpu.takes_spirv())?;
        let layout = self.layout(module)?;
        let refuse = |message| Error::Kernel { kernel: module.name.clone(), message };
        let is_spirv = matches!(source, Source::Spirv(_));
        let create = || wgsl::without_panics(|| self.create_pipeline(module, source, &layout.pipeline));
        // wgpu's error scopes belong to a thread, and its naga needs a large stack. naga does not read SPIR-V, which
        // goes to the driver.
        let compile = || self.gpu.catch(create, |error| refuse(describe(&error)));
        let compiled = if is_spirv { compile() } else { wgsl::on_large_stack(compile).map_err(refuse)? };
        let pipeline = compiled?.map_err(refuse)?;
        let kernel = WebGpuKernel {
            name: module.name.clone(),
            pipeline,
            layout,
            buffers: module.bindings.len(),
            parameters: module.parameters,
            parameter_words: module.parameter_words,
        };
        let mut compiled = self.compiled.write();
        compiled.push(kernel);
        Ok(KernelId(compiled.len() as u64 - 1))
    }

    /// Fails with what the device lacks. A uniform buffer has more room for parameters.
    fn check(&self, module: &Module, info: &DeviceInfo) -> Result<()> {
        let mut info = info.clone();
        if module.parameters == ParameterBlock::Uniform {
            info.limits.max_parameter_words = uniform_words(&self.gpu.device.limits());
        }
        check_fits(module, &info)
    }

    /// Returns all kernels, for a thread that looks up many: kernel `i` is at index `i`.
    pub fn lock(&self) -> RwLockReadGuard<'_, Vec<WebGpuKernel>> {
        self.compiled.read()
    }

    fn create_pipeline(
        &self,
        module: &Module,
        source: Source<'_>,
        layout: &wgpu::PipelineLayout,
    ) -> wgpu::ComputePipeline {
        #[cfg(wgpu_on_vulkan)]
        let unchecked = module.trusted && matches!(source, Source::Spirv(_));
        let shader = self.create_shader(module, source);
        let descriptor = wgpu::ComputePipelineDescriptor {
            label: Some(&*module.name),
            layout: Some(layout),
            module: &shader,
            entry_point: match module.code {
                Code::Wgsl(_) => Some(&module.entry_point),
                // SPIR-V has only one, whatever naga has named it.
                Code::Spirv(_) => None,
            },
            compilation_options: wgpu::PipelineCompilationOptions {
                // This crate's kernels write workgroup memory before they read it, and clearing it can make the compile
                // 40 times as long. Other kernels could read there what is not theirs.
                zero_initialize_workgroup_memory: !module.trusted,
                ..Default::default()
            },
            cache: None,
        };
        let create = || self.gpu.device.create_compute_pipeline(&descriptor);
        #[cfg(wgpu_on_vulkan)]
        if unchecked {
            return super::hooks::unchecked(create);
        }
        create()
    }

    fn create_shader(&self, module: &Module, source: Source<'_>) -> wgpu::ShaderModule {
        let (device, label) = (&self.gpu.device, Some(&*module.name));
        let text = match source {
            Source::Spirv(words) => {
                let [x, y, z] = module.workgroup;
                let name = Cow::Borrowed(&*module.entry_point);
                let descriptor = wgpu::ShaderModuleDescriptorPassthrough {
                    label,
                    entry_points: Cow::Owned(vec![wgpu::PassthroughShaderEntryPoint {
                        name,
                        workgroup_size: (x, y, z),
                    }]),
                    spirv: Some(Cow::Borrowed(words)),
                    ..Default::default()
                };
                // SAFETY: this crate's generator has made the code, with the bindings of the layout, and for features
                // that the device has. The kernel keeps within its buffers by itself.
                return unsafe { device.create_shader_module_passthrough(descriptor) };
            }
            Source::Wgsl(text) => text,
        };
        let descriptor = wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(text) };
        if module.trusted {
            // SAFETY: without wgpu's runtime checks a kernel must by itself keep within its buffers, divide by no zero
            // and end its loops. `trusted` says that it does. This crate's own kernels guard every access by the
            // lengths in their parameters.
            unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
        } else {
            device.create_shader_module(descriptor)
        }
    }

    /// Returns the layout of a kernel. The first kernel of a signature creates it.
    fn layout(&self, module: &Module) -> Result<Arc<Layout>> {
        let signature = Signature {
            read_only: module.bindings.iter().map(|&access| access == Access::Read).collect(),
            has_uniform: module.parameters == ParameterBlock::Uniform && module.parameter_words > 0,
            immediate_words: if module.parameters == ParameterBlock::PushConstants {
                module.parameter_words
            } else {
                0
            },
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

/// The form of a kernel that wgpu gets.
enum Source<'a> {
    Wgsl(Cow<'a, str>),
    /// For the driver. wgpu does not read it.
    Spirv(&'a [u32]),
}

impl<'a> Source<'a> {
    /// Chooses the form. Kernels that are not trusted pass wgpu's checks, except those with matrices, which WGSL lacks.
    /// The kernel language keeps these within their buffers.
    fn of(module: &'a Module, takes_spirv: bool) -> Result<Source<'a>> {
        let has_matrices = module.requires.matrix_units != MatrixUnits::default();
        let text = match &module.code {
            Code::Spirv(words) if takes_spirv && (module.trusted || has_matrices) => return Ok(Source::Spirv(words)),
            Code::Spirv(_) => wgsl::translate(module)?.into(),
            Code::Wgsl(text) => Cow::Borrowed(&**text),
        };
        Ok(Source::Wgsl(if cfg!(not(native)) { wgsl::for_browser(&text, module).into() } else { text }))
    }
}

fn create_layout(device: &wgpu::Device, signature: &Signature) -> Layout {
    use wgpu::BufferBindingType::{Storage, Uniform};
    let buffers = signature.read_only.iter().map(|&read_only| (Storage { read_only }, false));
    let parameters = signature.has_uniform.then_some((Uniform, true));
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
        immediate_size: 4 * signature.immediate_words as u32,
    });
    Layout { group, pipeline }
}

#[cfg(test)]
#[cfg(device_tests)]
mod tests {
    use super::super::WebGpuBackend;
    use super::super::tests::open;
    use super::*;
    use crate::backend::contract::{Backend, BufferId, Command, Step};
    use crate::backend::contract_tests::{add_kernel, compile, compile_add, download_bytes, upload_bytes};
    use crate::base::features::Features;
    use crate::shader::{KernelBuilder, Target, Type};

    #[test]
    fn kernels_of_one_signature_share_a_layout() {
        let backend = open();
        let [one, other] = [1.0, 2.0].map(|constant| compile(&backend, &add_kernel(&backend, constant)));
        assert_ne!(one, other);
        assert_eq!(backend.kernels.layouts.lock().len(), 1);
    }

    #[test]
    fn a_feature_that_the_device_lacks_is_unsupported() {
        let backend = open();
        let mut module = add_kernel(&backend, 0.0);
        module.requires.f16 = true;
        let mut info = backend.info.clone();
        info.features.f16 = false;
        let error = backend.kernels.compile(&module, &info).unwrap_err();
        assert!(error.to_string().contains("16-bit floats"), "{error}");
    }

    /// Returns a kernel as a user brings it: WGSL with an entry point `run`, not trusted.
    fn wgsl_kernel(source: &str, bindings: &[Access], parameter_words: usize) -> Module {
        Module {
            name: "brought".into(),
            code: Code::Wgsl(source.into()),
            entry_point: "run".into(),
            bindings: bindings.to_vec(),
            parameter_words,
            parameters: ParameterBlock::Uniform,
            workgroup: [64, 1, 1],
            workgroup_memory: 0,
            requires: Features::default(),
            trusted: false,
            large_registers: false,
            prefers_bindings: false,
            large_buffers: false,
            addresses: false,
        }
    }

    /// A kernel as a user brings it, with a second entry point beside the right one.
    const SCALE: &str = "
        struct Parameters { start: u32, factor: u32 }
        @group(0) @binding(0) var<storage, read> x: array<u32>;
        @group(0) @binding(1) var<storage, read_write> y: array<u32>;
        @group(0) @binding(2) var<uniform> parameters: Parameters;
        @compute @workgroup_size(1) fn other() { y[0] = 7u; }
        @compute @workgroup_size(64) fn run(@builtin(global_invocation_id) id: vec3<u32>) {
            let factor = parameters.factor;
            if id.x >= parameters.start { y[id.x] = factor * x[id.x]; }
        }";

    fn dispatch(kernel: KernelId, buffers: &[BufferId], parameters: &[u32]) -> Step {
        let (buffers, parameters) = (buffers.iter().copied().collect(), parameters.iter().copied().collect());
        Step { command: Command::Dispatch { kernel, buffers, parameters, groups: [1, 1, 1] }, barrier: true }
    }

    fn words(backend: &WebGpuBackend, buffer: BufferId, count: usize) -> Vec<u32> {
        bytemuck::pod_collect_to_vec(&download_bytes(backend, buffer, 4 * count))
    }

    #[test]
    fn wgsl_runs_as_it_is() {
        let backend = open();
        let x: Vec<u32> = (0..64).collect();
        let x = upload_bytes(&backend, bytemuck::cast_slice(&x));
        for trusted in [false, true] {
            let module = Module { trusted, ..wgsl_kernel(SCALE, &[Access::Read, Access::ReadWrite], 2) };
            let kernel = compile(&backend, &module);
            let y = upload_bytes(&backend, &[0; 256]);
            backend.submit(&[dispatch(kernel, &[x, y], &[3, 5])], false).unwrap();
            let expected: Vec<u32> = (0..64).map(|i| if i < 3 { 0 } else { 5 * i }).collect();
            assert_eq!(words(&backend, y, 64), expected);
        }
    }

    #[test]
    fn errors_in_wgsl_tell_where_they_are() {
        let backend = open();
        let cases = [
            // Errors of the parser, of the validator and of the pipeline.
            (SCALE.replace("factor * x", "factor +* x"), ":9:"),
            (SCALE.replace("= parameters.factor", "= 1.5 * parameters.factor"), ":8:26"),
            (SCALE.replace("fn run", "fn runs"), "entry point 'run'"),
            (SCALE.replace("@binding(2)", "@binding(3)"), "binding"),
            ("\u{0}".into(), ":1:1"),
        ];
        for (text, expected) in cases {
            let error = backend.compile(&wgsl_kernel(&text, &[Access::Read, Access::ReadWrite], 2), None).unwrap_err();
            assert!(matches!(&error, Error::Kernel { kernel, .. } if kernel == "brought"), "{error}");
            assert!(error.to_string().contains(expected), "{expected}: {error}");
        }
        backend.compile(&wgsl_kernel(SCALE, &[Access::Read, Access::ReadWrite], 2), None).unwrap();
    }

    /// Mesa's software device checks bounds and clears workgroup memory by itself, so this shows more on GPUs.
    #[test]
    fn a_kernel_that_is_not_trusted_does_no_harm() {
        let backend = open();
        let text = "
            @group(0) @binding(0) var<storage, read_write> y: array<u32>;
            var<workgroup> shared_words: array<u32, 1024>;
            @compute @workgroup_size(64) fn run(@builtin(local_invocation_index) i: u32) {
                var table = array<u32, 4>(1, 2, 3, 4);
                table[0] += i & 1;
                // Workgroup memory that nobody has written, and elements that there are not.
                let sum = shared_words[16 * i] + table[997 * (y[i] + 1)];
                for (var far = 64u; far < 1000000u; far *= 2) { y[far + i] = 99u; }
                workgroupBarrier();
                shared_words[16 * i] = 77u;
                y[i] = sum;
            }";
        let kernel = backend.compile(&wgsl_kernel(text, &[Access::ReadWrite], 0), None).unwrap().kernel;
        let neighbours = [5_u8, 6].map(|byte| upload_bytes(&backend, &[byte; 65536]));
        let y = upload_bytes(&backend, &[0; 256]);
        let behind = [7_u8, 8].map(|byte| upload_bytes(&backend, &[byte; 65536]));
        for _ in 0..2 {
            backend.submit(&[dispatch(kernel, &[y], &[])], false).unwrap();
            let got = words(&backend, y, 64);
            assert!(got.iter().all(|&value| value <= 4 || value == 99), "{got:?}");
        }
        for (buffer, byte) in neighbours.into_iter().chain(behind).zip([5, 6, 7, 8]) {
            assert!(download_bytes(&backend, buffer, 65536).iter().all(|&got| got == byte), "buffer of {byte}");
        }
    }

    #[test]
    fn the_driver_gets_only_what_is_trusted_or_has_matrices() {
        let k = KernelBuilder::checked("double", Target::WEBGPU, 64);
        let x = k.buffer("x", Type::F32, Access::ReadWrite);
        x.store(k.global_index(), x.load(k.global_index()) * 2.0);
        let checked = k.finish().unwrap();
        let passed_on = |module: &Module, takes| matches!(Source::of(module, takes).unwrap(), Source::Spirv(_));
        assert!(!passed_on(&checked, true) && !passed_on(&checked, false));
        let trusted = Module { trusted: true, ..checked.clone() };
        assert!(passed_on(&trusted, true) && !passed_on(&trusted, false));
        let mut matrices = checked;
        matrices.requires.matrix_units.f16 = Some([16; 3]);
        assert!(passed_on(&matrices, true));
    }

    #[test]
    fn errors_of_naga_and_of_wgpu_name_the_kernel() {
        let backend = open();
        let mut unreadable = add_kernel(&backend, 0.0);
        unreadable.code = Code::Spirv(unreadable.spirv().unwrap()[..20].to_vec());
        // This contradicts the SPIR-V: wgpu finds that the kernel writes binding 2, which the layout says is only read.
        let mut contradictory = add_kernel(&backend, 0.0);
        contradictory.bindings[2] = Access::Read;
        for module in [unreadable, contradictory] {
            // A trusted kernel may go to the driver unseen.
            let module = Module { trusted: false, ..module };
            let error = backend.compile(&module, None).unwrap_err();
            assert!(matches!(&error, Error::Kernel { kernel, .. } if *kernel == module.name), "{error}");
        }
        // Neither error lingers.
        compile_add(&backend);
    }
}
