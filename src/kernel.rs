//! [`Kernel`]: a kernel of the app, launched on tensors.

#[cfg(has_webgpu)]
use crate::backend::info::DeviceKind;
use crate::base::error::{Error, Result};
use crate::base::features::MatrixUnits;
use crate::base::shape::Shape;
use crate::base::shape::checked_elements;
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::dump;
use crate::engine::kernel_cache;
use crate::engine::pool::Buffer;
use crate::lazy::allocate;
use crate::shader::{
    Access, Code, Dialect, KernelBuilder, Module, Signature, Slot, SlotKind, Target, footprint, spirv,
};
use crate::tensor::Tensor;
use std::fmt;
use std::sync::Arc;

/// A kernel of the app's own, compiled for a device.
///
/// It is written in the kernel language ([`build`](Self::build)), which all devices run, or brought as SPIR-V
/// ([`from_spirv`](Self::from_spirv)) or WGSL ([`from_wgsl`](Self::from_wgsl)). Compile it once and launch it as often as
/// you like, from any thread; cloning is cheap. What is compiled stays with the device until that is closed.
///
/// ```
/// use marquetry::shader::{Access, Type};
/// use marquetry::{Argument, Device, Kernel, Tensor};
///
/// let device = Device::best()?;
/// let kernel = Kernel::build("scale", &device, 64, |k| {
///     let x = k.buffer("x", Type::F32, Access::Read);
///     let y = k.buffer("y", Type::F32, Access::Write);
///     let factor = k.named_parameter("factor", Type::F32);
///     let i = k.global_index();
///     y.store(i, x.load(i) * factor);
/// })?;
///
/// let x = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
/// let groups = x.elem_count().div_ceil(64);
/// let [y] = kernel.launch(groups, [Argument::from(&x), Argument::output((2, 2)), 10.0.into()])?;
/// assert_eq!(y.to_vec::<f32>()?, [10.0, 20.0, 30.0, 40.0]);
///
/// // What does not fit is told before anything runs.
/// let error = kernel.launch::<1>(groups, [Argument::from(&x), Argument::output((2, 2)), 10i32.into()]).unwrap_err();
/// assert_eq!(error.to_string(), "kernel `scale`, argument `factor`: it takes f32 number, got i32 number");
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Clone)]
pub struct Kernel(Arc<Inner>);

struct Inner {
    device: Device,
    compiled: kernel_cache::Kernel,
    signature: Signature,
    workgroup: [u32; 3],
    /// Whether it is of [`KernelBuilder::checked`]: it counts workgroups in one dimension, and wants the last index of
    /// each buffer.
    checked: bool,
    /// For each argument the bytes that its buffer has at least.
    least_bytes: Vec<u64>,
    /// The bytes that a buffer has at most.
    most_bytes: u64,
}

/// What a kernel is launched on: a tensor, the shape of a tensor that the kernel is to write, or a number.
///
/// Tensors are values: whatever the kernel writes to is a new tensor, or a copy of the one given.
///
/// ```
/// # use marquetry::{Argument, Device, Tensor};
/// # let device = Device::best()?;
/// let x = Tensor::new([1f32, 2.0], &device)?;
/// let arguments = [Argument::from(&x), Argument::output((2, 3)), 0.5f32.into(), 7u32.into()];
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Argument(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Tensor(Tensor),
    Output(Shape),
    Scalar(Word),
}

impl Argument {
    /// A tensor of this shape that is made for the kernel to write. What the kernel leaves out is undefined.
    pub fn output(shape: impl Into<Shape>) -> Self {
        Argument(Kind::Output(shape.into()))
    }
}

impl From<Tensor> for Argument {
    fn from(tensor: Tensor) -> Self {
        Argument(Kind::Tensor(tensor))
    }
}

impl From<&Tensor> for Argument {
    fn from(tensor: &Tensor) -> Self {
        tensor.clone().into()
    }
}

macro_rules! argument_from_number {
    ($($number:ty),+) => {$(
        impl From<$number> for Argument {
            fn from(number: $number) -> Self {
                Argument(Kind::Scalar(Word::new(number)))
            }
        }
    )+};
}

argument_from_number!(f32, i32, u32);

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Tensor(tensor) => write!(f, "{} tensor of shape {}", tensor.dtype(), tensor.shape()),
            Kind::Output(shape) => write!(f, "the shape {shape} of a new tensor"),
            Kind::Scalar(word) => write!(f, "{} number", word.dtype),
        }
    }
}

/// How many workgroups a launch runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    /// So many in one dimension.
    Count(usize),
    /// So many in x, y and z.
    Grid([u32; 3]),
}

impl From<usize> for Groups {
    fn from(count: usize) -> Self {
        Groups::Count(count)
    }
}

impl From<[u32; 3]> for Groups {
    fn from(grid: [u32; 3]) -> Self {
        Groups::Grid(grid)
    }
}

impl Kernel {
    /// Compiles a kernel in the crate's own language: see [`shader`](crate::shader) and `docs/kernels.md`. Its signature
    /// is what `write` declares, in that order: buffers, whose elements or their lanes are of the tensor's dtype
    /// ([`packed_buffer`](KernelBuilder::packed_buffer) for narrow ones, `f16` among them on devices without it), and parameters.
    ///
    /// Such a kernel cannot reach beyond its buffers and arrays, whatever is written in it: a load beyond the end gives
    /// the last element, a store there is left out, and an atomic operation changes nothing. This costs one word of the
    /// parameter block per buffer. Local arrays start with zeros. Integers divided by 0 stay as they are, with remainder
    /// 0; bits are shifted by the count modulo 32. What remains with you: a loop that never ends, or a barrier that some
    /// invocations do not reach, may hang the device; where two invocations write one element, either may win.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the first mistake in the kernel, among them local arrays of more than 8,192 bytes and
    /// more than 60 branches and loops in each other, or with what the driver says; [`Error::Unsupported`] where the
    /// device lacks what the kernel requires, or is too small for it.
    pub fn build(name: &str, device: &Device, workgroup: u32, write: impl FnOnce(&KernelBuilder)) -> Result<Kernel> {
        let k = KernelBuilder::checked(name, Kernel::target(device), workgroup);
        write(&k);
        if k.has_matrices() && device.info().features.matrix_units == MatrixUnits::default() {
            let feature = format!("matrix units, which kernel `{name}` requires");
            return Err(Error::Unsupported { feature, device: device.to_string() });
        }
        let signature = k.signature();
        let module = k.finish()?;
        let least_bytes = vec![0; signature.slots().len()];
        Kernel::compile(device, module, signature, least_bytes, true)
    }

    /// Compiles a kernel in WGSL, for WebGPU devices. wgpu's checks at run time stay on, so that it cannot reach beyond
    /// its buffers.
    ///
    /// The signature's buffers are `var<storage, read>` or `var<storage, read_write>` in `@group(0)` from `@binding(0)`
    /// on. Its numbers are the members of a `var<uniform>` at the binding behind them.
    ///
    /// ```
    /// use marquetry::{Argument, DType, Device, Kernel, Signature, Tensor};
    ///
    /// let source = "
    ///     struct Parameters { factor: f32 }
    ///     @group(0) @binding(0) var<storage, read> x: array<f32>;
    ///     @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    ///     @group(0) @binding(2) var<uniform> parameters: Parameters;
    ///
    ///     @compute @workgroup_size(64)
    ///     fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    ///         if id.x < arrayLength(&x) { y[id.x] = x[id.x] * parameters.factor; }
    ///     }";
    /// let device: Device = "webgpu".parse()?;
    /// let signature = Signature::new("scale").input("x", DType::F32).output("y", DType::F32).scalar("factor", DType::F32);
    /// let kernel = Kernel::from_wgsl(&device, source, "scale", signature)?;
    ///
    /// let x = Tensor::new([1f32, 2.0, 3.0], &device)?;
    /// let [y] = kernel.launch([1, 1, 1], [Argument::from(&x), Argument::output(3), 2.0.into()])?;
    /// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] on devices that are not reached through WebGPU, and where the entry point takes more
    /// workgroup memory or invocations than the device has; [`Error::Kernel`] with what is wrong with the text, for
    /// an entry point that is no compute shader, for private and local arrays of more than 8,192 bytes, and where
    /// operators, brackets or blocks nest too deep (`docs/kernels.md` has the limits); [`Error::Argument`] where the
    /// signature does not fit it.
    pub fn from_wgsl(device: &Device, source: &str, entry_point: &str, signature: Signature) -> Result<Kernel> {
        if !Kernel::target(device).wgsl {
            let feature = format!(
                "WGSL, in which kernel `{}` is given; bring SPIR-V for it (`Kernel::from_spirv`)",
                signature.kernel()
            );
            return Err(Error::Unsupported { feature, device: device.to_string() });
        }
        let (workgroup, workgroup_memory, least_bytes) = check_interface(device, source, entry_point, &signature)?;
        let mut module = brought(device, &signature, Code::Wgsl(source.into()), entry_point, workgroup)?;
        module.workgroup_memory = workgroup_memory;
        Kernel::compile(device, module, signature, least_bytes, false)
    }

    /// Compiles a kernel in SPIR-V, in the form that the device takes ([`target`](Self::target)). `workgroup` are the
    /// invocations per workgroup in x, y and z.
    ///
    /// For Vulkan, the signature's buffers are storage buffers in set 0 from binding 0 on, and its numbers are push
    /// constants. For WebGPU, which gets the kernel translated by naga, the numbers are in a uniform buffer at the
    /// binding behind the last buffer. For Level Zero, the entry point has the buffers as pointers to global memory, then
    /// the numbers, as arguments.
    ///
    /// ```
    /// # use marquetry::{Argument, DType, Device, Kernel, Signature, Tensor};
    /// # use marquetry::shader::{Access, KernelBuilder, Type};
    /// # let device = Device::best()?;
    /// // Words from anywhere: here the kernel language makes them.
    /// let k = KernelBuilder::new("double", Kernel::target(&device), 64);
    /// let (x, y) = (k.buffer("x", Type::F32, Access::Read), k.buffer("y", Type::F32, Access::Write));
    /// let count = k.parameter(Type::U32);
    /// let i = k.global_index();
    /// k.when(i.lt(count), || y.store(i, x.load(i) * 2.0));
    /// let module = k.finish()?;
    ///
    /// let signature = Signature::new("double").input("x", DType::F32).output("y", DType::F32).scalar("count", DType::U32);
    /// // SAFETY: the kernel keeps within its buffers for every count up to their length.
    /// let kernel = unsafe { Kernel::from_spirv(&device, module.spirv()?, "main", [64, 1, 1], signature)? };
    /// let x = Tensor::new([1f32, 2.0, 3.0], &device)?;
    /// let [y] = kernel.launch([1, 1, 1], [Argument::from(&x), Argument::output(3), 3u32.into()])?;
    /// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Kernel`] where the words are not SPIR-V or have no such compute entry point, for private and local
    /// arrays of more than 8,192 bytes, or with what the driver says; [`Error::Unsupported`] where the device lacks
    /// what the kernel requires, workgroup memory and invocations among it; on WebGPU as
    /// [`from_wgsl`](Self::from_wgsl).
    ///
    /// # Safety
    /// Drivers take SPIR-V on trust. It must be valid (`spirv-val` tells), use only what the device supports, and bind
    /// what the signature says. In every launch it must keep within its buffers, which are as long as the tensors,
    /// rounded up to 32 bytes, write to none that the signature calls an input, and end.
    pub unsafe fn from_spirv(
        device: &Device,
        words: &[u32],
        entry_point: &str,
        workgroup: [u32; 3],
        signature: Signature,
    ) -> Result<Kernel> {
        let refuse = |message| Error::Kernel { kernel: signature.kernel().into(), message };
        let entry = spirv::entry_point(words, entry_point, Kernel::target(device).dialect).map_err(refuse)?;
        if let Some(size) = entry.local_size.filter(|size| *size != workgroup) {
            return Err(refuse(format!("its workgroups are {size:?}, not {workgroup:?}")));
        }
        let mut module = brought(device, &signature, Code::Spirv(words.into()), entry_point, workgroup)?;
        module.requires = entry.requires;
        let footprint = footprint::of_spirv(words, entry.function).map_err(refuse)?;
        module.workgroup_memory = footprint.check(signature.kernel())?;
        let least_bytes = if Kernel::target(device).wgsl {
            check_translated(device, &module, &signature)?
        } else {
            vec![0; signature.slots().len()]
        };
        Kernel::compile(device, module, signature, least_bytes, false)
    }

    fn compile(
        device: &Device,
        mut module: Module,
        signature: Signature,
        least_bytes: Vec<u64>,
        checked: bool,
    ) -> Result<Kernel> {
        if module.workgroup.contains(&0) {
            let message = format!("workgroups of {:?} invocations", module.workgroup);
            return Err(Error::Kernel { kernel: module.name, message });
        }
        let (limits, target) = (&device.info().limits, Kernel::target(device));
        // It is compiled once, before it is known how large its buffers are.
        module.large_buffers = target.dialect == Dialect::OpenCl && limits.max_buffer_bytes > limits.max_binding_bytes;
        let most_bytes = if module.large_buffers { limits.max_buffer_bytes } else { limits.max_binding_bytes };
        dump::write_own(&module, target)?;
        let compiled = device.runtime().compile(&module)?;
        let (device, workgroup) = (device.clone(), module.workgroup);
        Ok(Kernel(Arc::new(Inner { device, compiled, signature, workgroup, checked, least_bytes, most_bytes })))
    }

    /// The form in which a device takes SPIR-V.
    pub fn target(device: &Device) -> Target {
        device.runtime().target_of_apps()
    }

    /// What the kernel takes.
    pub fn signature(&self) -> &Signature {
        &self.0.signature
    }

    /// The device that it was compiled for.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Invocations per workgroup in x, y and z.
    pub fn workgroup(&self) -> [u32; 3] {
        self.0.workgroup
    }

    /// Runs the kernel, and returns the tensors that it writes, in the order of the signature. Like every operation this
    /// does not wait for the device.
    ///
    /// An input is handed over in row-major order without gaps; views of another layout are copied first. So is a tensor
    /// that the kernel reads and writes: the copy is what is returned. A tensor that is only written is made with the
    /// shape of its [`Argument::output`]; what the kernel does not write of it is undefined. No two arguments share
    /// memory that is written.
    ///
    /// `groups` is the number of workgroups. Kernels of [`build`](Self::build) take a plain number of any size, and there
    /// may run a few more: see [`group_index`](KernelBuilder::group_index). The others get `[x, y, z]` as it is, or a
    /// number as `[n, 1, 1]`.
    ///
    /// # Errors
    /// [`Error::Argument`] where an argument is missing or too many, is of another kind, dtype or device than the
    /// signature says, or too small for the type that the kernel binds it as; [`Error::Kernel`] where `N` is not the
    /// number of tensors that it writes; [`Error::Unsupported`] for more workgroups than the device can run;
    /// [`Error::OutOfMemory`].
    pub fn launch<const N: usize>(
        &self,
        groups: impl Into<Groups>,
        arguments: impl IntoIterator<Item = Argument>,
    ) -> Result<[Tensor; N]> {
        let written = self.signature().bindings().filter(|access| access.writes()).count();
        let wrong = || self.mistake(format!("it writes {written} tensors, not {N}: {}", self.signature()));
        if written != N {
            return Err(wrong());
        }
        self.launch_to_vec(groups, arguments)?.try_into().map_err(|_| wrong())
    }

    /// The same where the number of tensors that the kernel writes is not known when the app is compiled.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn launch_to_vec(
        &self,
        groups: impl Into<Groups>,
        arguments: impl IntoIterator<Item = Argument>,
    ) -> Result<Vec<Tensor>> {
        let arguments: Vec<Argument> = arguments.into_iter().collect();
        self.check(&arguments)?;
        let groups = self.grid(groups.into())?;
        let mut bound = Bound::default();
        for (slot, argument) in self.signature().slots().iter().zip(arguments) {
            self.bind(slot, argument, &mut bound)?;
        }
        if !groups.contains(&0) {
            let buffers: Vec<&Buffer> = bound.buffers.iter().map(|buffer| &**buffer).collect();
            let name = || self.signature().kernel().to_string();
            self.device().runtime().dispatch(&self.0.compiled, &buffers, &bound.words, groups, name)?;
        }
        Ok(bound.written)
    }

    fn mistake(&self, message: String) -> Error {
        Error::Kernel { kernel: self.signature().kernel().into(), message }
    }

    fn refuse(&self, argument: &str, message: String) -> Error {
        Error::Argument { kernel: self.signature().kernel().into(), argument: argument.into(), message }
    }

    fn check(&self, arguments: &[Argument]) -> Result<()> {
        let slots = self.signature().slots();
        let all = || self.signature();
        if let Some(slot) = slots.get(arguments.len()) {
            return Err(self.refuse(&slot.name, format!("it is missing: {}", all())));
        }
        if arguments.len() > slots.len() {
            return Err(self.refuse(&format!("#{}", slots.len() + 1), format!("it is one too many: {}", all())));
        }
        for ((slot, argument), &least) in slots.iter().zip(arguments).zip(&self.0.least_bytes) {
            self.check_argument(slot, argument, least)?;
        }
        Ok(())
    }

    fn check_argument(&self, slot: &Slot, argument: &Argument, least_bytes: u64) -> Result<()> {
        let refuse = |message| Err(self.refuse(&slot.name, message));
        let (dtype, shape) = match (slot.kind, &argument.0) {
            (SlotKind::Scalar(dtype), Kind::Scalar(word)) if word.dtype == dtype => return Ok(()),
            (SlotKind::Buffer { access: Access::Write, dtype, .. }, Kind::Output(shape)) => (dtype, shape),
            (SlotKind::Buffer { access: Access::Read | Access::ReadWrite, dtype, .. }, Kind::Tensor(tensor)) => {
                if tensor.dtype() != dtype {
                    return refuse(format!("it takes {dtype}, got {}; convert it with `to_dtype`", tensor.dtype()));
                }
                if tensor.device() != self.device() {
                    let (here, there) = (self.device(), tensor.device());
                    return refuse(format!("it is on {there}, the kernel on {here}; move it with `to_device`"));
                }
                (dtype, tensor.shape())
            }
            _ => return Err(self.mismatch(slot, argument)),
        };
        let Ok(elements) = checked_elements(shape, "launch") else {
            return refuse(format!("shape {shape} has more elements than a kernel can count"));
        };
        let bytes = (elements as u64 * dtype.size_in_bytes() as u64).max(1).next_multiple_of(32);
        if bytes > self.0.most_bytes {
            return refuse(format!(
                "shape {shape} of {dtype} takes {bytes} bytes; the device binds a kernel to {} at most",
                self.0.most_bytes
            ));
        }
        if bytes < least_bytes {
            return refuse(format!("shape {shape} of {dtype} is too small; the kernel binds {least_bytes} bytes"));
        }
        Ok(())
    }

    fn mismatch(&self, slot: &Slot, argument: &Argument) -> Error {
        let hint = match slot.kind {
            SlotKind::Buffer { access: Access::Write, .. } => " (give its shape: `Argument::output`)",
            _ => "",
        };
        self.refuse(&slot.name, format!("it takes {}{hint}, got {argument}", slot.kind))
    }

    fn grid(&self, groups: Groups) -> Result<[u32; 3]> {
        let runtime = self.device().runtime();
        let grid = match groups {
            Groups::Count(count) if self.0.checked => {
                return runtime.fold(count, || self.signature().kernel().into());
            }
            Groups::Grid(_) if self.0.checked => {
                return Err(self.mistake("its workgroups are counted in one dimension: give their number".into()));
            }
            Groups::Count(count) => [u32::try_from(count).unwrap_or(u32::MAX), 1, 1],
            Groups::Grid(grid) => grid,
        };
        let limit = runtime.info().limits.max_groups;
        if let Some((axis, count)) = "xyz".chars().zip(grid).find(|(_, count)| *count > limit) {
            let kernel = self.signature().kernel();
            let feature = format!("a dispatch of {count} workgroups in {axis} (kernel `{kernel}`, limit {limit})");
            return Err(Error::Unsupported { feature, device: self.device().to_string() });
        }
        Ok(grid)
    }

    /// Gets an argument that has been checked ready for the dispatch.
    fn bind(&self, slot: &Slot, argument: Argument, bound: &mut Bound) -> Result<()> {
        let SlotKind::Buffer { dtype, access, element_bytes } = slot.kind else {
            let Kind::Scalar(word) = argument.0 else { return Err(self.mismatch(slot, &argument)) };
            bound.words.extend(word.words());
            return Ok(());
        };
        let tensor = match argument.0 {
            Kind::Tensor(tensor) if access == Access::Read => tensor,
            Kind::Tensor(tensor) => tensor.copied()?,
            Kind::Output(shape) => {
                let buffer = allocate(&shape, dtype, self.device(), "launch")?;
                Tensor::from_buffer(buffer, shape, dtype, self.device())
            }
            Kind::Scalar(_) => return Err(self.mismatch(slot, &argument)),
        };
        bound.buffers.push(tensor.row_major_buffer()?);
        if self.0.checked {
            let bytes = tensor.elem_count() as u64 * dtype.size_in_bytes() as u64;
            // A buffer has at least one element, though none of an empty tensor's.
            bound.words.push(bytes.div_ceil(element_bytes.into()).saturating_sub(1) as u32);
        }
        if access.writes() {
            bound.written.push(tensor);
        }
        Ok(())
    }
}

/// What a dispatch takes.
#[derive(Default)]
struct Bound {
    buffers: Vec<Arc<Buffer>>,
    words: Vec<u32>,
    written: Vec<Tensor>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} on {})", self.signature(), self.device().id())
    }
}

/// The module of a kernel that was brought.
fn brought(
    device: &Device,
    signature: &Signature,
    code: Code,
    entry_point: &str,
    workgroup: [u32; 3],
) -> Result<Module> {
    let words = signature.slots().iter().filter(|slot| !slot.is_buffer());
    if let Some(slot) = words.clone().find(|slot| !slot.is_word()) {
        let message = format!("it is an {}; a kernel takes f32, i32 and u32", slot.kind);
        return Err(Error::Argument { kernel: signature.kernel().into(), argument: slot.name.clone(), message });
    }
    Ok(Module {
        name: signature.kernel().into(),
        code,
        entry_point: entry_point.into(),
        bindings: signature.bindings().collect(),
        parameter_words: words.count(),
        parameters: Kernel::target(device).parameters,
        workgroup,
        workgroup_memory: 0,
        requires: Default::default(),
        trusted: false,
        large_registers: false,
        large_buffers: false,
        addresses: false,
    })
}

/// Compares WGSL with a signature. Returns the size of its workgroups, the bytes of their memory, and for each
/// argument the bytes that its buffer has at least.
#[cfg(has_webgpu)]
fn check_interface(
    device: &Device,
    source: &str,
    entry_point: &str,
    signature: &Signature,
) -> Result<([u32; 3], u32, Vec<u64>)> {
    let interface = crate::shader::interface::check(source, entry_point, signature, is_software(device))?;
    Ok((interface.workgroup, interface.footprint.check(signature.kernel())?, interface.least_bytes))
}

/// The same for SPIR-V that naga is to translate.
#[cfg(has_webgpu)]
fn check_translated(device: &Device, module: &Module, signature: &Signature) -> Result<Vec<u64>> {
    let refuse = |message| Error::Kernel { kernel: signature.kernel().into(), message };
    crate::shader::nesting::check_control_flow(module.spirv()?, is_software(device)).map_err(refuse)?;
    let source = crate::shader::wgsl::translate(module)?;
    Ok(check_interface(device, &source, &module.entry_point, signature)?.2)
}

#[cfg(has_webgpu)]
fn is_software(device: &Device) -> bool {
    device.info().kind == DeviceKind::Cpu
}

// Without the feature there is no device that it could be for.
#[cfg(not(has_webgpu))]
fn check_interface(_: &Device, _: &str, _: &str, signature: &Signature) -> Result<([u32; 3], u32, Vec<u64>)> {
    Ok(([1; 3], 0, vec![0; signature.slots().len()]))
}

#[cfg(not(has_webgpu))]
fn check_translated(_: &Device, _: &Module, signature: &Signature) -> Result<Vec<u64>> {
    Ok(vec![0; signature.slots().len()])
}
