//! Compiled kernels.

use super::device::Device;
use super::ffi::*;
use crate::backend::contract::{Compiled, KernelId, check_fits};
use crate::backend::explicit;
use crate::backend::rules::Signature;
use crate::base::error::{Error, Result};
use crate::shader::Module;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::Arc;

/// The compiled kernels of a device. They live as long as it does.
pub(super) struct Kernels {
    kernels: RwLock<Vec<LevelZeroKernel>>,
    device: Arc<Device>,
}

/// A compiled kernel.
pub(super) struct LevelZeroKernel {
    name: String,
    bindings: usize,
    parameter_words: usize,
    /// The driver's kernel, which keeps its arguments from call to call. So a launch locks it from the first argument
    /// until the launch has been appended.
    handle: Mutex<KernelHandle>,
    /// Destroyed after the kernel.
    program: Program,
    device: Arc<Device>,
}

/// A compiled SPIR-V module.
struct Program {
    handle: ModuleHandle,
    device: Arc<Device>,
}

impl Kernels {
    /// Creates an empty list.
    pub fn new(device: Arc<Device>) -> Kernels {
        Kernels { kernels: RwLock::default(), device }
    }

    /// Returns the kernels by number, to look up many at once.
    pub fn all(&self) -> RwLockReadGuard<'_, Vec<LevelZeroKernel>> {
        self.kernels.read()
    }

    /// Builds a kernel from a binary. `None` if the driver does not take the binary.
    fn build_kept(&self, module: &Module, binary: &[u8]) -> Result<Option<LevelZeroKernel>> {
        match self.build(module, ModuleFormat::NATIVE, binary) {
            Ok(kernel) => Ok(Some(kernel)),
            Err(error @ Error::DeviceLost { .. }) => Err(error),
            Err(error) => {
                log::debug!("a kept binary is of no use: {error}");
                Ok(None)
            }
        }
    }

    fn build(&self, module: &Module, format: ModuleFormat, code: &[u8]) -> Result<LevelZeroKernel> {
        let flags = CString::new(build_flags(module)).unwrap_or_default();
        let program = Program::build(&self.device, &module.name, format, code, &flags)?;
        LevelZeroKernel::new(program, module)
    }
}

impl explicit::Kernels for Kernels {
    fn binary_key(&self, module: &Module) -> Option<String> {
        Some(format!("{}{}", self.device.adapter.identity, build_flags(module)))
    }

    /// Makes a kernel ready: from its binary if the driver takes that, else from its SPIR-V. Several threads can do so
    /// at once.
    fn compile(&self, module: &Module, binary: Option<&[u8]>) -> Result<Compiled> {
        check_fits(module, &self.device.adapter.info)?;
        let code = bytemuck::cast_slice(module.spirv()?);
        let kept = binary.map_or(Ok(None), |binary| self.build_kept(module, binary))?;
        let reused = kept.is_some();
        let kernel = kept.map_or_else(|| self.build(module, ModuleFormat::IL_SPIRV, code), Ok)?;
        let binary = if reused { None } else { kernel.program.binary() };
        let mut kernels = self.kernels.write();
        kernels.push(kernel);
        Ok(Compiled { kernel: KernelId(kernels.len() as u64 - 1), binary, reused })
    }
}

/// Returns the options of the compiler for a kernel.
fn build_flags(module: &Module) -> String {
    let options = [
        (module.large_buffers, " -ze-opt-greater-than-4GB-buffer-required"),
        (module.large_registers, " -ze-opt-large-register-file"),
    ];
    options.iter().filter(|(set, _)| *set).map(|(_, option)| *option).collect()
}

/// Returns the error for a kernel that the driver does not take.
fn refusal(device: &Device, kernel: &str, call: &'static str, code: ResultCode, log: &str) -> Error {
    match device.error(call, code) {
        Error::Driver { call, message, .. } => {
            let separator = if log.is_empty() { "" } else { "\n" };
            Error::Kernel { kernel: kernel.into(), message: format!("{call} failed: {message}{separator}{log}") }
        }
        error => error,
    }
}

impl Program {
    fn build(device: &Arc<Device>, kernel: &str, format: ModuleFormat, code: &[u8], flags: &CStr) -> Result<Program> {
        let desc = ModuleDesc {
            format,
            input_size: code.len(),
            input_module: code.as_ptr(),
            build_flags: flags.as_ptr(),
            ..Default::default()
        };
        let (mut handle, mut log) = (ModuleHandle::NULL, ModuleBuildLogHandle::NULL);
        // SAFETY: context and device belong together, and the structures outlive the call. The code is SPIR-V for the
        // features of this device, or what this driver made of such SPIR-V.
        let code =
            unsafe { (device.api.module_create)(device.context, device.adapter.device, &desc, &mut handle, &mut log) };
        let log = take_log(device, log);
        if code != ResultCode::SUCCESS {
            return Err(refusal(device, kernel, "zeModuleCreate", code, &log));
        }
        if !log.is_empty() {
            log::debug!("kernel `{kernel}`: {log}");
        }
        Ok(Program { handle, device: device.clone() })
    }

    /// Returns the machine code, to keep it.
    fn binary(&self) -> Option<Vec<u8>> {
        let get = self.device.api.module_get_native_binary;
        let mut size = 0;
        // SAFETY: here and below, the module is alive, and there is room for that many bytes.
        let code = unsafe { get(self.handle, &mut size, ptr::null_mut()) };
        let mut binary = vec![0; size];
        let code = match code {
            // SAFETY: see above; the vector has that many bytes.
            ResultCode::SUCCESS => unsafe { get(self.handle, &mut size, binary.as_mut_ptr()) },
            failure => failure,
        };
        binary.truncate(size);
        if code != ResultCode::SUCCESS {
            log::debug!("zeModuleGetNativeBinary failed: {code}");
        }
        (code == ResultCode::SUCCESS && !binary.is_empty()).then_some(binary)
    }
}

/// Reads the compiler's log, and destroys it.
fn take_log(device: &Device, log: ModuleBuildLogHandle) -> String {
    if log.is_null() {
        return String::new();
    }
    let get = device.api.module_build_log_get_string;
    let mut size = 0;
    // SAFETY: here and below, the log is alive, and there is room for that many characters.
    device.log_failure("zeModuleBuildLogGetString", unsafe { get(log, &mut size, ptr::null_mut()) });
    let mut text = vec![0u8; size];
    if size > 0 {
        // SAFETY: see above.
        device.log_failure("zeModuleBuildLogGetString", unsafe { get(log, &mut size, text.as_mut_ptr().cast()) });
    }
    // SAFETY: nobody else has the log.
    device.log_failure("zeModuleBuildLogDestroy", unsafe { (device.api.module_build_log_destroy)(log) });
    String::from_utf8_lossy(&text).trim_end_matches('\0').trim().to_string()
}

/// A placeholder for a parameter word.
static ZERO: u32 = 0;

impl LevelZeroKernel {
    fn new(program: Program, module: &Module) -> Result<LevelZeroKernel> {
        let device = program.device.clone();
        let complain = |message| Error::Kernel { kernel: module.name.clone(), message };
        let entry_point = CString::new(module.entry_point.as_str())
            .map_err(|_| complain(format!("{:?} is no name of an entry point", module.entry_point)))?;
        let desc = KernelDesc { kernel_name: entry_point.as_ptr(), ..Default::default() };
        let mut handle = KernelHandle::NULL;
        // SAFETY: the module is alive, and the structures outlive the call.
        let code = unsafe { (device.api.kernel_create)(program.handle, &desc, &mut handle) };
        if code != ResultCode::SUCCESS {
            return Err(refusal(&device, &module.name, "zeKernelCreate", code, ""));
        }
        // From here on, dropping the kernel destroys it.
        let kernel = LevelZeroKernel {
            name: module.name.clone(),
            bindings: module.bindings.len(),
            parameter_words: module.parameter_words,
            handle: Mutex::new(handle),
            program,
            device,
        };
        kernel.check_arguments()?;
        let ([x, y, z], api) = (module.workgroup, kernel.device.api);
        // SAFETY: the kernel is alive.
        let code = unsafe { (api.kernel_set_group_size)(handle, x, y, z) };
        if code != ResultCode::SUCCESS {
            return Err(refusal(&kernel.device, &module.name, "zeKernelSetGroupSize", code, ""));
        }
        Ok(kernel)
    }

    /// Returns the arguments that a dispatch hands over.
    pub fn signature(&self) -> Signature<'_> {
        Signature { name: &self.name, bindings: self.bindings, parameter_words: self.parameter_words }
    }

    /// Checks that the code takes as many arguments as declared, and of the declared sizes.
    fn check_arguments(&self) -> Result<()> {
        let mut properties = KernelProperties::default();
        // SAFETY: the kernel is alive, and the structure outlives the call.
        let code = unsafe { (self.device.api.kernel_get_properties)(*self.handle.lock(), &mut properties) };
        self.device.check("zeKernelGetProperties", code)?;
        let Signature { name, bindings, parameter_words } = self.signature();
        let (expected, found) = (bindings + parameter_words, properties.num_kernel_args as usize);
        if found != expected {
            let declared = format!("{bindings} buffers and {parameter_words} parameter words are declared");
            let message = format!("its code takes {found} arguments, but {declared}");
            return Err(Error::Kernel { kernel: name.into(), message });
        }
        // Only the driver knows their sizes. At a launch it would be too late to ask.
        let handle = self.handle.lock();
        // Without a value, a pointer argument is null.
        let buffers = (0..bindings).map(|_| (size_of::<*const c_void>(), ptr::null()));
        let words = (0..parameter_words).map(|_| (size_of::<u32>(), (&raw const ZERO).cast()));
        for ((size, value), index) in buffers.chain(words).zip(0..) {
            // SAFETY: the kernel is alive and locked, and has an argument with that index; the value has that size.
            let code = unsafe { (self.device.api.kernel_set_argument_value)(*handle, index, size, value) };
            if code != ResultCode::SUCCESS {
                let message = format!("its code does not take {size} bytes as argument {index}: {code}");
                return Err(Error::Kernel { kernel: name.into(), message });
            }
        }
        Ok(())
    }

    /// Sets the arguments. The lock keeps other threads from setting them until the launch has been appended.
    pub fn with_arguments(&self, buffers: &[ptr::NonNull<u8>], words: &[u32]) -> Result<MutexGuard<'_, KernelHandle>> {
        let handle = self.handle.lock();
        let buffers = buffers.iter().map(|address| (size_of_val(address), (&raw const *address).cast()));
        let words = words.iter().map(|word| (size_of_val(word), (&raw const *word).cast()));
        for ((size, value), index) in buffers.chain(words).zip(0..) {
            // SAFETY: the kernel is alive and locked, and has an argument of that size with that index: the plan has
            // checked their number.
            let code = unsafe { (self.device.api.kernel_set_argument_value)(*handle, index, size, value) };
            self.device.check("zeKernelSetArgumentValue", code)?;
        }
        Ok(handle)
    }
}

impl Drop for LevelZeroKernel {
    fn drop(&mut self) {
        // SAFETY: kernels are dropped before they are launched, or when the device has done all its work.
        let code = unsafe { (self.device.api.kernel_destroy)(*self.handle.get_mut()) };
        self.device.log_failure("zeKernelDestroy", code);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the kernel that was created from it is gone.
        self.device.log_failure("zeModuleDestroy", unsafe { (self.device.api.module_destroy)(self.handle) });
    }
}
