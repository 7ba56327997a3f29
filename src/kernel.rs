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

/// A kernel of the app, compiled for a device.
///
/// It is written in the kernel language ([`build`](Self::build)), which all devices run, or given as SPIR-V
/// ([`from_spirv`](Self::from_spirv)) or WGSL ([`from_wgsl`](Self::from_wgsl)). Compile it once and launch it as often
/// as you like, from any thread. Cloning is cheap. Compiled code stays with the device until the device is closed.
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
/// // An argument that does not fit is an error before anything runs.
/// let error = kernel.launch::<1>(groups, [Argument::from(&x), Argument::output((2, 2)), 10i32.into()]).unwrap_err();
/// assert_eq!(error.to_string(), "kernel `scale`, argument `factor`: it takes f32 number, got i32 number");
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Clone)]
pub struct Kernel(Arc<Inner>);

struct Inner {
    device: Device,
    compiled: kernel_cache::CompiledKernel,
    signature: Signature,
    workgroup: [u32; 3],
    /// Whether it comes from [`KernelBuilder::checked`]. Such a kernel counts workgroups in one dimension, and takes
    /// the last index of each buffer.
    checked: bool,
    /// For each argument, the least bytes of its buffer.
    least_bytes: Vec<u64>,
    /// The most bytes of a buffer.
    most_bytes: u64,
}

/// An argument of a launch: a tensor, the shape of a tensor that the kernel is to write, or a number.
///
/// Tensors are values: whatever the kernel writes to is a new tensor, or a copy of the given one.
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
    /// A new tensor of this shape for the kernel to write. Elements that the kernel does not write are undefined.
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

/// The number of workgroups of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    /// This many in one dimension.
    Count(usize),
    /// This many in x, y and z.
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
    /// Compiles a kernel in the crate's own language: see [`shader`](crate::shader) and `docs/kernels.md`. Its
    /// signature is what `write` declares, in that order: buffers and parameters. The elements of a buffer, or their
    /// lanes, have the tensor's dtype. Narrow dtypes use [`packed_buffer`](KernelBuilder::packed_buffer), and so does
    /// `f16` on devices without it.
    ///
    /// Such a kernel cannot reach beyond its buffers and arrays, whatever is written in it. A load beyond the end gives
    /// the last element, a store there is left out, and an atomic operation changes nothing. This costs one word of the
    /// parameter block per buffer. Local arrays start with zeros. Integers divided by 0 stay as they are, with
    /// remainder 0. Bits are shifted by the count modulo the number of bits.
    ///
    /// The rest is up to you. A loop that never ends, or a barrier that some invocations do not reach, may hang the
    /// device. If two invocations write one element, either may win.
    ///
    /// # Errors
    /// - [`Error::Kernel`] with the first mistake in the kernel, or with what the driver says. Local arrays of more
    ///   than 8,192 bytes are mistakes, and so are branches and loops that nest more than 60 deep.
    /// - [`Error::Unsupported`] if the device lacks what the kernel requires, or is too small for it.
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

    /// Compiles a kernel in WGSL, for WebGPU devices. wgpu's checks at run time stay on, so the kernel cannot reach
    /// beyond its buffers.
    ///
    /// The signature's buffers are `var<storage, read>` or `var<storage, read_write>` in `@group(0)` from `@binding(0)`
    /// on. Its numbers are the members of a `var<uniform>` at the binding behind the buffers.
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
    /// - [`Error::Unsupported`] if the device is not reached through WebGPU, or if the entry point takes more workgroup
    ///   memory or invocations than the device has.
    /// - [`Error::Kernel`] with what is wrong with the text: for example, the entry point is no compute shader. Private
    ///   and local arrays may have at most 8,192 bytes. Operators, brackets and blocks must not nest too deep
    ///   (`docs/kernels.md` has the limits).
    /// - [`Error::Argument`] if the signature does not fit the entry point.
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

    /// Compiles a kernel in SPIR-V, in the form that the device takes ([`target`](Self::target)). `workgroup` is the
    /// number of invocations per workgroup in x, y and z.
    ///
    /// For Vulkan, the signature's buffers are storage buffers in set 0 from binding 0 on, and its numbers are push
    /// constants. For WebGPU, naga translates the kernel, and the numbers are in a uniform buffer at the binding behind
    /// the last buffer. For Level Zero, the entry point's arguments are the buffers, as pointers to global memory, and
    /// then the numbers.
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
    /// - [`Error::Kernel`] if the words are not SPIR-V or have no such compute entry point, or with what the driver
    ///   says. Private and local arrays may have at most 8,192 bytes.
    /// - [`Error::Unsupported`] if the device lacks what the kernel requires, such as workgroup memory or invocations.
    /// - On WebGPU, also the errors of [`from_wgsl`](Self::from_wgsl).
    ///
    /// # Safety
    /// Drivers trust SPIR-V. It must be valid (`spirv-val` tells), use only what the device supports, and bind what the
    /// signature says. In every launch it must end, keep within its buffers, and write to none that the signature calls
    /// an input. A buffer is as long as its tensor, rounded up to 32 bytes.
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
        // The kernel is compiled once, before the sizes of its buffers are known.
        module.large_buffers = target.dialect == Dialect::OpenCl && limits.max_buffer_bytes > limits.max_binding_bytes;
        let most_bytes = if module.large_buffers { limits.max_buffer_bytes } else { limits.max_binding_bytes };
        dump::write_own(&module, target)?;
        let compiled = device.runtime().compile(&module)?;
        let (device, workgroup) = (device.clone(), module.workgroup);
        Ok(Kernel(Arc::new(Inner { device, compiled, signature, workgroup, checked, least_bytes, most_bytes })))
    }

    /// Returns the form in which a device takes SPIR-V.
    pub fn target(device: &Device) -> Target {
        device.runtime().target_of_apps()
    }

    /// Returns what the kernel takes.
    pub fn signature(&self) -> &Signature {
        &self.0.signature
    }

    /// Returns the device that the kernel was compiled for.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the invocations per workgroup in x, y and z.
    pub fn workgroup(&self) -> [u32; 3] {
        self.0.workgroup
    }

    /// Runs the kernel. Returns the tensors that it writes, in the order of the signature. Like every operation, this
    /// does not wait for the device.
    ///
    /// The kernel gets an input in row-major order without gaps; a view of another layout is copied first. A tensor
    /// that the kernel reads and writes is copied too, and the copy is returned. A tensor that is only written is new
    /// and has the shape of its [`Argument::output`]; elements that the kernel does not write are undefined. No two
    /// arguments share memory that is written.
    ///
    /// `groups` is the number of workgroups. Kernels of [`build`](Self::build) take a plain number, and up to
    /// 4,095 more may run: see [`group_index`](KernelBuilder::group_index). All other kernels get `[x, y, z]` as it is,
    /// or a number as `[n, 1, 1]`.
    ///
    /// # Errors
    /// - [`Error::Argument`] if an argument is missing or one too many, or if its kind, dtype or device does not fit
    ///   the signature. Also if it is too large for the device, or too small for the type that the kernel binds.
    /// - [`Error::Kernel`] if `N` is not the number of tensors that the kernel writes, or if a kernel of
    ///   [`build`](Self::build) gets `[x, y, z]`.
    /// - [`Error::Unsupported`] for more workgroups than the device can run.
    /// - [`Error::OutOfMemory`].
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

    /// The same if the number of tensors that the kernel writes is not known when the app is compiled.
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
            let buffers: Vec<&Buffer> = bound.buffers.iter().collect();
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

    /// Prepares a checked argument for the dispatch.
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
            // A buffer has room for at least one element, even if its tensor is empty.
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
    buffers: Vec<Buffer>,
    words: Vec<u32>,
    written: Vec<Tensor>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} on {})", self.signature(), self.device().id())
    }
}

/// Returns the module of a kernel that an app brings as SPIR-V or WGSL.
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
        prefers_bindings: false,
        large_buffers: false,
        addresses: false,
    })
}

/// Compares WGSL with a signature. Returns the size of its workgroups, the bytes of their memory, and for each argument
/// the least bytes of its buffer.
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

/// The same for SPIR-V that naga translates.
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

// Without the feature, no device takes such a kernel.
#[cfg(not(has_webgpu))]
fn check_interface(_: &Device, _: &str, _: &str, signature: &Signature) -> Result<([u32; 3], u32, Vec<u64>)> {
    Ok(([1; 3], 0, vec![0; signature.slots().len()]))
}

#[cfg(not(has_webgpu))]
fn check_translated(_: &Device, _: &Module, signature: &Signature) -> Result<Vec<u64>> {
    Ok(vec![0; signature.slots().len()])
}
