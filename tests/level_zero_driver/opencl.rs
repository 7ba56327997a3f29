//! The OpenCL device that does the work: a processor, opened at run time.

use crate::ffi::ResultCode;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;
use std::{mem, ptr};

type Id = *mut c_void;
type Status = i32;

/// `CL_SUCCESS`
const SUCCESS: Status = 0;
/// `CL_DEVICE_TYPE_CPU`
const CPU: u64 = 1 << 1;

/// Declares the functions of OpenCL that the driver calls, and the table that holds them.
macro_rules! functions {
    ($($name:ident($($ty:ty),*) -> $result:ty;)*) => {
        #[allow(non_snake_case, reason = "the names of OpenCL")]
        struct Functions {
            $($name: unsafe extern "C" fn($($ty),*) -> $result,)*
        }

        #[allow(non_snake_case, reason = "the names of OpenCL")]
        impl Functions {
            fn load(library: &Library) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: OpenCL's header declares the function like this.
                    let $name = unsafe { *library.get(concat!(stringify!($name), "\0").as_bytes())? };
                )*
                Ok(Self { $($name),* })
            }
        }
    };
}

functions! {
    clGetPlatformIDs(u32, *mut Id, *mut u32) -> Status;
    clGetDeviceIDs(Id, u64, u32, *mut Id, *mut u32) -> Status;
    clGetDeviceInfo(Id, u32, usize, *mut c_void, *mut usize) -> Status;
    clGetExtensionFunctionAddressForPlatform(Id, *const c_char) -> *mut c_void;
    clCreateContext(*const isize, u32, *const Id, *const c_void, *mut c_void, *mut Status) -> Id;
    clCreateCommandQueueWithProperties(Id, Id, *const u64, *mut Status) -> Id;
    clReleaseCommandQueue(Id) -> Status;
    clCreateProgramWithIL(Id, *const c_void, usize, *mut Status) -> Id;
    clCreateProgramWithBinary(Id, u32, *const Id, *const usize, *const *const u8, *mut Status, *mut Status) -> Id;
    clBuildProgram(Id, u32, *const Id, *const c_char, *const c_void, *mut c_void) -> Status;
    clGetProgramBuildInfo(Id, Id, u32, usize, *mut c_void, *mut usize) -> Status;
    clGetProgramInfo(Id, u32, usize, *mut c_void, *mut usize) -> Status;
    clReleaseProgram(Id) -> Status;
    clCreateKernel(Id, *const c_char, *mut Status) -> Id;
    clReleaseKernel(Id) -> Status;
    clSetKernelArg(Id, u32, usize, *const c_void) -> Status;
    clSetKernelArgSVMPointer(Id, u32, *const c_void) -> Status;
    clGetKernelWorkGroupInfo(Id, Id, u32, usize, *mut c_void, *mut usize) -> Status;
    clGetKernelSubGroupInfo(Id, Id, u32, usize, *const c_void, usize, *mut c_void, *mut usize) -> Status;
    clEnqueueNDRangeKernel(Id, Id, u32, *const usize, *const usize, *const usize, u32, *const Id, *mut Id) -> Status;
    clFinish(Id) -> Status;
}

/// `clSetKernelArgMemPointerINTEL`, which has the same parameters as the SVM function.
type SetPointer = unsafe extern "C" fn(Id, u32, *const c_void) -> Status;

/// A query of a device (`CL_DEVICE_*`).
#[derive(Clone, Copy)]
pub enum DeviceQuery {
    MaxComputeUnits = 0x1002,
    MaxWorkGroupSize = 0x1004,
    MaxWorkItemSizes = 0x1005,
    MaxClockFrequency = 0x100c,
    MaxMemAllocSize = 0x1010,
    MaxParameterSize = 0x1017,
    GlobalMemCacheSize = 0x101e,
    GlobalMemSize = 0x101f,
    LocalMemSize = 0x1023,
    Name = 0x102b,
    DriverVersion = 0x102d,
    Extensions = 0x1030,
    IlVersion = 0x105b,
    /// From `cl_intel_required_subgroup_size`.
    SubGroupSizes = 0x4108,
}

/// A query of a compiled kernel (`CL_KERNEL_*`).
#[derive(Clone, Copy)]
pub enum KernelQuery {
    /// `COMPILE_WORK_GROUP_SIZE`
    RequiredGroup = 0x11b1,
    /// `LOCAL_MEM_SIZE`
    LocalMemory = 0x11b2,
    /// `PRIVATE_MEM_SIZE`
    PrivateMemory = 0x11b4,
    /// `SPILL_MEM_SIZE_INTEL`, from `cl_intel_required_subgroup_size`.
    SpilledMemory = 0x4109,
}

/// The OpenCL implementation, with a device and a context.
pub struct OpenCl {
    functions: Functions,
    _library: Library,
    device: Id,
    context: Id,
    set_pointer: SetPointer,
    /// True if the device compiles SPIR-V itself. If not, it takes LLVM bitcode (`cl_khr_spir`).
    pub takes_spirv: bool,
    pub extensions: String,
}

// SAFETY: OpenCL's functions may be called from any thread, except those that set a kernel's arguments. `Kernel`
// requires exclusive access for these.
unsafe impl Send for OpenCl {}
// SAFETY: as above.
unsafe impl Sync for OpenCl {}

/// Opens the device at the first call, and returns it.
///
/// # Errors
/// A message that names the missing part.
pub fn open() -> Result<&'static OpenCl, &'static str> {
    static OPEN: OnceLock<Result<OpenCl, String>> = OnceLock::new();
    OPEN.get_or_init(OpenCl::open).as_ref().map_err(String::as_str)
}

/// Returns the device, in calls that are only valid after `zeInit` has opened it.
pub fn opencl() -> &'static OpenCl {
    open().expect("zeInit succeeded")
}

fn check(status: Status) -> Result<(), ResultCode> {
    match status {
        SUCCESS => Ok(()),
        // CL_OUT_OF_HOST_MEMORY
        -6 => Err(ResultCode::ERROR_OUT_OF_HOST_MEMORY),
        // CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES
        -4 | -5 => Err(ResultCode::ERROR_OUT_OF_DEVICE_MEMORY),
        // CL_INVALID_BINARY
        -42 => Err(ResultCode::ERROR_INVALID_NATIVE_BINARY),
        // CL_INVALID_KERNEL_NAME
        -46 => Err(ResultCode::ERROR_INVALID_KERNEL_NAME),
        // CL_INVALID_ARG_INDEX
        -49 => Err(ResultCode::ERROR_INVALID_KERNEL_ARGUMENT_INDEX),
        // CL_INVALID_ARG_SIZE
        -51 => Err(ResultCode::ERROR_INVALID_KERNEL_ARGUMENT_SIZE),
        // CL_INVALID_WORK_GROUP_SIZE, CL_INVALID_WORK_ITEM_SIZE
        -54 | -55 => Err(ResultCode::ERROR_INVALID_GROUP_SIZE_DIMENSION),
        other => {
            eprintln!("level zero test driver: OpenCL error {other}");
            Err(ResultCode::ERROR_UNKNOWN)
        }
    }
}

/// Reads something of unknown length. `ask` gets a size and a buffer, and tells the needed size.
fn read_bytes(ask: impl Fn(usize, *mut c_void, *mut usize) -> Status) -> Option<Vec<u8>> {
    let mut size = 0;
    if ask(0, ptr::null_mut(), &mut size) != SUCCESS {
        return None;
    }
    let mut bytes = vec![0u8; size];
    (ask(size, bytes.as_mut_ptr().cast(), ptr::null_mut()) == SUCCESS).then_some(bytes)
}

fn text(bytes: Option<Vec<u8>>) -> String {
    let bytes = bytes.unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_string()
}

fn words(bytes: Option<Vec<u8>>) -> Vec<usize> {
    let bytes = bytes.unwrap_or_default();
    let word = |chunk: &[u8]| usize::from_ne_bytes(chunk.try_into().expect("chunks have the size of a word"));
    match bytes.len() {
        // A `cl_uint`.
        4 => vec![u32::from_ne_bytes(bytes.try_into().expect("4 bytes")) as usize],
        _ => bytes.chunks_exact(size_of::<usize>()).map(word).collect(),
    }
}

impl OpenCl {
    fn open() -> Result<Self, String> {
        // SAFETY: the system's OpenCL loader; loading it has no other effects.
        let library = unsafe { Library::new("libOpenCL.so.1") }.map_err(|error| error.to_string())?;
        let functions = Functions::load(&library).map_err(|error| error.to_string())?;
        let (platform, device, takes_spirv) = functions.find_device().ok_or("no OpenCL processor takes SPIR-V")?;
        let mut status = SUCCESS;
        // SAFETY: one device, no properties, no callback.
        let context =
            unsafe { (functions.clCreateContext)(ptr::null(), 1, &device, ptr::null(), ptr::null_mut(), &mut status) };
        check(status).map_err(|_| "OpenCL made no context")?;
        let extensions = text(functions.device_info(device, DeviceQuery::Extensions));
        let set_pointer = functions.pointer_setter(platform);
        Ok(Self { functions, _library: library, device, context, set_pointer, takes_spirv, extensions })
    }

    pub fn text(&self, query: DeviceQuery) -> String {
        text(self.functions.device_info(self.device, query))
    }

    pub fn numbers(&self, query: DeviceQuery) -> Vec<usize> {
        words(self.functions.device_info(self.device, query))
    }

    pub fn number(&self, query: DeviceQuery) -> u64 {
        self.numbers(query).first().map_or(0, |&number| number as u64)
    }

    pub fn has(&self, extension: &str) -> bool {
        self.extensions.split_whitespace().any(|name| name == extension)
    }

    /// Makes a program from SPIR-V, without building it.
    pub fn program_from_spirv(&'static self, spirv: &[u8]) -> Result<Program, ResultCode> {
        let mut status = SUCCESS;
        let create = self.functions.clCreateProgramWithIL;
        // SAFETY: the bytes are copied.
        let id = unsafe { create(self.context, spirv.as_ptr().cast(), spirv.len(), &mut status) };
        check(status).map(|()| Program { opencl: self, id })
    }

    /// Makes a program from the result of [`Program::binary`] or from LLVM bitcode, without building it.
    pub fn program_from_binary(&'static self, binary: &[u8]) -> Result<Program, ResultCode> {
        let (mut status, mut of_binary) = (SUCCESS, SUCCESS);
        let create = self.functions.clCreateProgramWithBinary;
        let (length, bytes) = (binary.len(), binary.as_ptr());
        // SAFETY: one device, one length, one pointer; the bytes are copied.
        let id = unsafe { create(self.context, 1, &self.device, &length, &bytes, &mut of_binary, &mut status) };
        check(status).map(|()| Program { opencl: self, id })
    }
}

impl Functions {
    /// Returns the first processor that compiles SPIR-V, else the first that takes LLVM bitcode. Also returns its
    /// platform, and true if it compiles SPIR-V.
    fn find_device(&self) -> Option<(Id, Id, bool)> {
        let devices = self.processors();
        let takes_spirv = |device| text(self.device_info(device, DeviceQuery::IlVersion)).contains("SPIR-V");
        let takes_bitcode = |device| text(self.device_info(device, DeviceQuery::Extensions)).contains("cl_khr_spir");
        let find = |accept: &dyn Fn(Id) -> bool| devices.iter().copied().find(|&(_, device)| accept(device));
        find(&takes_spirv)
            .map(|(platform, device)| (platform, device, true))
            .or_else(|| find(&takes_bitcode).map(|(platform, device)| (platform, device, false)))
    }

    /// Returns the processors of all platforms, with their platforms.
    fn processors(&self) -> Vec<(Id, Id)> {
        let mut platforms = [ptr::null_mut(); 16];
        let mut count = 0;
        // SAFETY: there is room for 16 platforms.
        let status = unsafe { (self.clGetPlatformIDs)(16, platforms.as_mut_ptr(), &mut count) };
        let found = if status == SUCCESS { &platforms[..count.min(16) as usize] } else { &[] };
        let first_processor = |&platform: &Id| {
            let mut device = ptr::null_mut();
            // SAFETY: a valid platform, and room for one device.
            let status = unsafe { (self.clGetDeviceIDs)(platform, CPU, 1, &mut device, ptr::null_mut()) };
            (status == SUCCESS).then_some((platform, device))
        };
        found.iter().filter_map(first_processor).collect()
    }

    fn device_info(&self, device: Id, query: DeviceQuery) -> Option<Vec<u8>> {
        // SAFETY: a valid device, and a buffer of the size told.
        read_bytes(|size, buffer, needed| unsafe { (self.clGetDeviceInfo)(device, query as u32, size, buffer, needed) })
    }

    /// Returns the function that sets kernel arguments to pointers into memory that OpenCL has not allocated. Intel's
    /// runtime checks the pointers of `clSetKernelArgSVMPointer`, but an extension of it takes any pointer.
    fn pointer_setter(&self, platform: Id) -> SetPointer {
        let name = c"clSetKernelArgMemPointerINTEL";
        // SAFETY: a valid platform and name.
        let extension = unsafe { (self.clGetExtensionFunctionAddressForPlatform)(platform, name.as_ptr()) };
        if extension.is_null() {
            return self.clSetKernelArgSVMPointer;
        }
        // SAFETY: the extension's specification gives this function this type.
        unsafe { mem::transmute::<*mut c_void, SetPointer>(extension) }
    }
}

/// An OpenCL program.
pub struct Program {
    opencl: &'static OpenCl,
    id: Id,
}

// SAFETY: OpenCL's objects may be used from any thread.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: a valid program, used by nobody else.
        unsafe { (self.opencl.functions.clReleaseProgram)(self.id) };
    }
}

impl Program {
    /// Compiles the program. The compiler's messages are returned in both cases.
    pub fn build(&self, options: &CStr) -> (Result<(), ResultCode>, String) {
        let functions = &self.opencl.functions;
        let device = self.opencl.device;
        // SAFETY: a valid program and device. Without a callback, the call returns when the program is built.
        let status =
            unsafe { (functions.clBuildProgram)(self.id, 1, &device, options.as_ptr(), ptr::null(), ptr::null_mut()) };
        /// `CL_PROGRAM_BUILD_LOG`
        const BUILD_LOG: u32 = 0x1183;
        // SAFETY: as above, and a buffer of the size told.
        let log = read_bytes(|size, buffer, needed| unsafe {
            (functions.clGetProgramBuildInfo)(self.id, device, BUILD_LOG, size, buffer, needed)
        });
        let result = if status == SUCCESS { Ok(()) } else { Err(ResultCode::ERROR_MODULE_BUILD_FAILURE) };
        (result, text(log))
    }

    /// Returns the compiled program.
    pub fn binary(&self) -> Option<Vec<u8>> {
        /// `CL_PROGRAM_BINARY_SIZES` and `CL_PROGRAM_BINARIES`
        const SIZES: u32 = 0x1165;
        const BINARIES: u32 = 0x1166;
        let info = self.opencl.functions.clGetProgramInfo;
        // SAFETY: a valid program, and a buffer of the size told.
        let sizes = words(read_bytes(|size, buffer, needed| unsafe { info(self.id, SIZES, size, buffer, needed) }));
        let mut binary = vec![0u8; *sizes.first()?];
        let mut target = binary.as_mut_ptr();
        let targets: *mut *mut u8 = &mut target;
        // SAFETY: a list of one pointer, to a buffer of the binary's size.
        let status = unsafe { info(self.id, BINARIES, size_of::<*mut u8>(), targets.cast(), ptr::null_mut()) };
        (status == SUCCESS).then_some(binary)
    }

    pub fn kernel(&self, name: &CStr) -> Result<Kernel, ResultCode> {
        let mut status = SUCCESS;
        // SAFETY: a built program and a name.
        let id = unsafe { (self.opencl.functions.clCreateKernel)(self.id, name.as_ptr(), &mut status) };
        check(status).map(|()| Kernel { opencl: self.opencl, id })
    }
}

/// An OpenCL kernel. Its arguments are part of its state, so launching it takes `&mut`.
pub struct Kernel {
    opencl: &'static OpenCl,
    id: Id,
}

// SAFETY: OpenCL's objects may be used from any thread.
unsafe impl Send for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: a valid kernel, used by nobody else.
        unsafe { (self.opencl.functions.clReleaseKernel)(self.id) };
    }
}

/// A kernel argument of a launch.
#[derive(Clone)]
pub enum Value {
    Bytes(Vec<u8>),
    /// An address in memory that the device may access.
    Memory(usize),
    /// A size in bytes of memory per workgroup.
    Local(usize),
}

impl Kernel {
    pub fn numbers(&self, query: KernelQuery) -> Vec<usize> {
        let info = self.opencl.functions.clGetKernelWorkGroupInfo;
        // SAFETY: a valid kernel and device, and a buffer of the size told.
        words(read_bytes(|size, buffer, needed| unsafe {
            info(self.id, self.opencl.device, query as u32, size, buffer, needed)
        }))
    }

    /// Returns the largest subgroup size in workgroups of this size, if the implementation tells it.
    pub fn subgroup_size(&self, group: [usize; 3]) -> Option<usize> {
        /// `CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE`
        const MAX_SIZE: u32 = 0x2033;
        let info = self.opencl.functions.clGetKernelSubGroupInfo;
        let mut size = 0usize;
        let answer: *mut usize = &mut size;
        // SAFETY: a valid kernel and device, a size of three dimensions, and room for the answer.
        let status = unsafe {
            let input = group.as_ptr().cast();
            let (input_size, size) = (size_of_val(&group), size_of::<usize>());
            info(self.id, self.opencl.device, MAX_SIZE, input_size, input, size, answer.cast(), ptr::null_mut())
        };
        (status == SUCCESS).then_some(size)
    }

    fn set(&mut self, index: u32, value: &Value) -> Result<(), ResultCode> {
        let set = self.opencl.functions.clSetKernelArg;
        // SAFETY: a valid kernel, and bytes of the length told. The driver has checked the argument's type.
        check(unsafe {
            match value {
                Value::Bytes(bytes) => set(self.id, index, bytes.len(), bytes.as_ptr().cast()),
                Value::Local(bytes) => set(self.id, index, *bytes, ptr::null()),
                Value::Memory(address) => (self.opencl.set_pointer)(self.id, index, *address as *const c_void),
            }
        })
    }
}

/// An OpenCL queue.
pub struct Queue {
    opencl: &'static OpenCl,
    id: Id,
}

// SAFETY: OpenCL's objects may be used from any thread.
unsafe impl Send for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: a valid queue, used by nobody else.
        unsafe { (self.opencl.functions.clReleaseCommandQueue)(self.id) };
    }
}

impl Queue {
    pub fn new(opencl: &'static OpenCl) -> Result<Self, ResultCode> {
        let mut status = SUCCESS;
        let create = opencl.functions.clCreateCommandQueueWithProperties;
        // SAFETY: a valid context and device, no properties.
        let id = unsafe { create(opencl.context, opencl.device, ptr::null(), &mut status) };
        check(status).map(|()| Self { opencl, id })
    }

    /// Runs a kernel and waits until it completes.
    pub fn run(
        &self,
        kernel: &mut Kernel,
        values: &[Value],
        group: [usize; 3],
        groups: [usize; 3],
    ) -> Result<(), ResultCode> {
        for (index, value) in values.iter().enumerate() {
            kernel.set(index as u32, value)?;
        }
        let global = [0, 1, 2].map(|axis| group[axis] * groups[axis]);
        let functions = &self.opencl.functions;
        // SAFETY: valid objects; three dimensions, no events.
        check(unsafe {
            let (global, group) = (global.as_ptr(), group.as_ptr());
            let (none, no_event) = (ptr::null(), ptr::null_mut());
            (functions.clEnqueueNDRangeKernel)(self.id, kernel.id, 3, ptr::null(), global, group, 0, none, no_event)
        })?;
        // SAFETY: a valid queue.
        check(unsafe { (functions.clFinish)(self.id) })
    }
}

/// Makes a C string for OpenCL.
pub fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).expect("it has no NUL")
}
