//! Modules: OpenCL programs, and the signatures of their kernels.

use crate::Outcome;
use crate::binary::{self, words};
use crate::bitcode;
use crate::cache;
use crate::context::Context;
use crate::device::Device;
use crate::faults::settings;
use crate::ffi::*;
use crate::handles::{Handle, Life, Object};
use crate::opencl::{self, Program, c_string, opencl};
use crate::pointer::{Pointer, list};
use crate::spirv::{self, Signature};
use std::ffi::{CString, c_char};
use std::sync::Arc;

pub struct Module {
    life: Life,
    context: Arc<Context>,
    program: Program,
    /// The source of the module. Native binaries contain it too, because the signatures come from it.
    spirv: Vec<u32>,
    signatures: Vec<(Signature, CString)>,
}

impl Object for Module {
    const OWNS_OTHERS: bool = true;

    fn life(&self) -> &Life {
        &self.life
    }

    fn context(&self) -> &Context {
        &self.context
    }
}

impl Module {
    /// Returns the kernel of this name and its signature.
    pub fn kernel(&self, name: &str) -> Outcome<(opencl::Kernel, Signature)> {
        let found = self.signatures.iter().find(|(signature, _)| signature.name == name);
        let (signature, c_name) = found.ok_or(ResultCode::ERROR_INVALID_KERNEL_NAME)?;
        Ok((self.program.kernel(c_name)?, signature.clone()))
    }
}

pub struct BuildLog {
    life: Life,
    context: Arc<Context>,
    text: String,
}

impl Object for BuildLog {
    fn life(&self) -> &Life {
        &self.life
    }

    fn context(&self) -> &Context {
        &self.context
    }
}

/// Why a module was not built: the code, and the text of the log.
type BuildError = (ResultCode, String);

fn failure(message: impl Into<String>) -> BuildError {
    (ResultCode::ERROR_MODULE_BUILD_FAILURE, message.into())
}

pub fn module_create(
    context: ContextHandle,
    device: DeviceHandle,
    desc: Pointer<ModuleDesc>,
    module: Pointer<ModuleHandle>,
    build_log: Pointer<ModuleBuildLogHandle>,
) -> Outcome {
    let context = context.get()?;
    Device::get(device)?;
    let desc = desc.read()?;
    let built = build(&context, &desc);
    let text = match &built {
        Ok((_, log)) | Err((_, log)) => log.clone(),
    };
    if !build_log.is_null() {
        let log = BuildLog { life: Life::default(), context, text };
        build_log.write(ModuleBuildLogHandle::create(Arc::new(log)))?;
    }
    let (built, _) = built.map_err(|(code, _)| code)?;
    module.write(ModuleHandle::create(Arc::new(built)))
}

fn build(context: &Arc<Context>, desc: &ModuleDesc) -> Result<(Module, String), BuildError> {
    if settings().build_failure.is_due() {
        return Err(failure("error: build failure, as LEVEL_ZERO_TEST_BUILD_FAILURE_AT asks"));
    }
    let input = bytes(desc.input_module, desc.input_size).map_err(|code| (code, String::new()))?;
    let (spirv, program) = match desc.format {
        ModuleFormat::IL_SPIRV => (words(&input), None),
        ModuleFormat::NATIVE => {
            let (spirv, binary) = binary::unpack(&input)
                .ok_or_else(|| (ResultCode::ERROR_INVALID_NATIVE_BINARY, "no binary of this driver".to_string()))?;
            (spirv, Some(opencl().program_from_binary(binary).map_err(|code| (code, String::new()))?))
        }
        _ => return Err((ResultCode::ERROR_INVALID_ENUMERATION, "an unknown format".into())),
    };
    // Intel's runtime ends the process on some invalid modules, so it never gets unreadable ones.
    let parsed = spirv::read(&spirv).map_err(failure)?;
    let signatures = spirv::signatures(&parsed).map_err(failure)?;
    let options = options(desc)?;
    let (program, log) = match program {
        Some(program) => finish(program, &options)?,
        None if settings().optimize || !opencl().takes_spirv => compile(&spirv, &options)?,
        None => compile(&spirv::with_scalar_invocations(parsed), &options)?,
    };
    let signatures = signatures.into_iter().map(|signature| (signature.clone(), c_string(&signature.name))).collect();
    Ok((Module { life: Life::default(), context: context.clone(), program, spirv, signatures }, log))
}

fn bytes(start: *const u8, length: usize) -> Outcome<Vec<u8>> {
    use crate::pointer::Argument;
    // SAFETY: the interface requires that the description points to that many bytes.
    unsafe { start.checked() }.read_all(length)
}

/// Returns the options for OpenCL. Level Zero's own options, `-ze-*`, have no meaning here.
fn options(desc: &ModuleDesc) -> Result<String, BuildError> {
    use crate::pointer::Argument;
    if desc.build_flags.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the interface requires that the description points to a string.
    let flags = unsafe { desc.build_flags.checked() }.text().map_err(|code| (code, String::new()))?;
    let unknown = flags.split_whitespace().find(|flag| !flag.starts_with("-cl-") && !flag.starts_with("-ze-"));
    match unknown {
        Some(flag) => Err(failure(format!("error: unknown build option {flag}"))),
        None => Ok(flags.split_whitespace().filter(|flag| flag.starts_with("-cl-")).collect::<Vec<_>>().join(" ")),
    }
}

/// Compiles a module, or loads an earlier result from the cache.
fn compile(spirv: &[u32], options: &str) -> Result<(Program, String), BuildError> {
    let cached = cache::load(spirv, options).and_then(|binary| opencl().program_from_binary(&binary).ok());
    if let Some(built) = cached.and_then(|program| finish(program, options).ok()) {
        return Ok(built);
    }
    let (program, log) = if opencl().takes_spirv {
        let bytes: Vec<u8> = spirv.iter().flat_map(|word| word.to_le_bytes()).collect();
        finish(opencl().program_from_spirv(&bytes).map_err(|code| (code, String::new()))?, options)?
    } else {
        let bitcode = bitcode::translate(spirv).map_err(failure)?;
        let program = opencl().program_from_binary(&bitcode).map_err(|code| (code, String::new()))?;
        finish(program, &format!("{options} -x spir"))?
    };
    if let Some(binary) = program.binary() {
        cache::store(spirv, options, &binary);
    }
    Ok((program, log))
}

fn finish(program: Program, options: &str) -> Result<(Program, String), BuildError> {
    let (result, log) = program.build(&c_string(options));
    match result {
        Ok(()) => Ok((program, log)),
        Err(code) => Err((code, log)),
    }
}

pub fn module_destroy(module: ModuleHandle) -> Outcome {
    module.remove().map(drop)
}

pub fn module_get_native_binary(module: ModuleHandle, size: Pointer<usize>, binary: Pointer<u8>) -> Outcome {
    let module = module.get()?;
    let compiled = module.program.binary().ok_or(ResultCode::ERROR_UNKNOWN)?;
    let packed = binary::pack(&module.spirv, &compiled);
    if !binary.is_null() {
        if size.read()? < packed.len() {
            return Err(ResultCode::ERROR_INVALID_SIZE);
        }
        binary.write_all(&packed)?;
    }
    size.write(packed.len())
}

pub fn module_get_kernel_names(module: ModuleHandle, count: Pointer<u32>, names: Pointer<*const c_char>) -> Outcome {
    let module = module.get()?;
    let available: Vec<_> = module.signatures.iter().map(|(_, name)| name.as_ptr()).collect();
    list(count, names, &available)
}

pub fn module_build_log_destroy(build_log: ModuleBuildLogHandle) -> Outcome {
    build_log.remove().map(drop)
}

pub fn module_build_log_get_string(
    build_log: ModuleBuildLogHandle,
    size: Pointer<usize>,
    text: Pointer<c_char>,
) -> Outcome {
    let log = build_log.get()?;
    let bytes: Vec<c_char> = log.text.bytes().chain([0]).map(|byte| byte as c_char).collect();
    if !text.is_null() {
        if size.read()? < bytes.len() {
            return Err(ResultCode::ERROR_INVALID_SIZE);
        }
        text.write_all(&bytes)?;
    }
    size.write(bytes.len())
}
