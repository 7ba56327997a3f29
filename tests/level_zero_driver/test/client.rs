//! A small, strict Level Zero application. Every call must succeed unless its result is examined.

use crate::ffi::*;
use libloading::Library;
use marquetry::shader::{Access, KernelBuilder, Module, Target, Type};
use std::ffi::{c_char, c_void};
use std::{env, ptr, slice};

/// The variable that names the library to open: the loader, or the driver itself.
pub const LIBRARY: &str = "LEVEL_ZERO_TEST_LIBRARY";

macro_rules! api {
    (
        required { $($symbol:ident => $name:ident($($parameter:ident: $ty:ty),*);)* }
        optional { $($newer:ident => $newer_name:ident($($newer_parameter:ident: $newer_ty:ty),*);)* }
    ) => {
        /// The functions of the interface. All are loaded, to notice missing ones.
        #[allow(dead_code, reason = "the scenarios do not call every function")]
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($ty),*) -> ResultCode,)*
            $(pub $newer_name: Option<unsafe extern "C" fn($($newer_ty),*) -> ResultCode>,)*
            _library: Library,
        }

        impl Api {
            fn load(library: Library) -> Self {
                fn find<T: Copy>(library: &Library, symbol: &str) -> Option<T> {
                    // SAFETY: `tests/level_zero_abi.rs` compares the declarations with the header.
                    unsafe { library.get(symbol.as_bytes()) }.ok().map(|function| *function)
                }
                Self {
                    $($name: find(&library, stringify!($symbol)).expect(stringify!($symbol)),)*
                    $($newer_name: find(&library, stringify!($newer)),)*
                    _library: library,
                }
            }
        }
    };
}
for_each_function!(api);

/// Calls a function and returns its result code.
macro_rules! call {
    ($client:expr, $name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the scenarios pass valid pointers, except to test how the driver handles bad ones.
        unsafe { ($client.api.$name)($($argument),*) }
    };
}

/// Calls a function that must succeed.
macro_rules! ok {
    ($client:expr, $name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(call!($client, $name($($argument),*)), ResultCode::SUCCESS, stringify!($name))
    };
}

/// Calls a function that must succeed, and returns the value of its last parameter.
macro_rules! get {
    ($client:expr, $name:ident($($argument:expr),* $(,)?), $initial:expr) => {{
        let mut value = $initial;
        ok!($client, $name($($argument,)* &mut value));
        value
    }};
}

pub(crate) use {call, get, ok};

/// No events.
pub const NONE: (EventHandle, u32, *mut EventHandle) = (EventHandle::NULL, 0, ptr::null_mut());

pub struct Client {
    pub api: Api,
    pub driver: DriverHandle,
    pub device: DeviceHandle,
    pub context: ContextHandle,
}

impl Client {
    /// Opens the library, the first device and a context.
    pub fn open() -> Self {
        let mut client = Self::open_driver();
        client.device = client.devices()[0];
        client.context = client.new_context();
        client
    }

    pub fn open_driver() -> Self {
        let library = env::var(LIBRARY).expect("the name of the library");
        // SAFETY: the loader or the driver; loading them has no other effects.
        let library = unsafe { Library::new(&library) }.unwrap_or_else(|error| panic!("{error}: run `make setup`"));
        let api = Api::load(library);
        let nothing = (DriverHandle::NULL, DeviceHandle::NULL, ContextHandle::NULL);
        let mut client = Self { api, driver: nothing.0, device: nothing.1, context: nothing.2 };
        ok!(client, init(InitFlags::default()));
        let mut count = 1;
        let mut driver = DriverHandle::NULL;
        ok!(client, driver_get(&mut count, &mut driver));
        assert_eq!(count, 1, "drivers");
        client.driver = driver;
        client
    }

    pub fn devices(&self) -> Vec<DeviceHandle> {
        let mut count = 0;
        ok!(self, device_get(self.driver, &mut count, ptr::null_mut()));
        let mut devices = vec![DeviceHandle::NULL; count as usize];
        ok!(self, device_get(self.driver, &mut count, devices.as_mut_ptr()));
        devices
    }

    pub fn new_context(&self) -> ContextHandle {
        get!(self, context_create(self.driver, &ContextDesc::default()), ContextHandle::NULL)
    }

    pub fn close(self) {
        ok!(self, context_destroy(self.context));
    }

    pub fn device_memory(&self, bytes: usize) -> *mut c_void {
        let desc = DeviceMemAllocDesc::default();
        get!(self, mem_alloc_device(self.context, &desc, bytes, 64, self.device), ptr::null_mut())
    }

    /// Allocates host memory that holds these values.
    pub fn host_memory<T: Copy>(&self, values: &[T]) -> &'static mut [T] {
        let (desc, bytes) = (HostMemAllocDesc::default(), size_of_val(values));
        let memory = get!(self, mem_alloc_host(self.context, &desc, bytes, 64), ptr::null_mut());
        // SAFETY: the allocation has that size. The scenarios do not use it after they free it.
        let memory = unsafe { slice::from_raw_parts_mut(memory.cast::<T>(), values.len()) };
        memory.copy_from_slice(values);
        memory
    }

    pub fn free(&self, memory: *mut c_void) {
        ok!(self, mem_free(self.context, memory));
    }

    pub fn queue(&self, ordinal: u32) -> CommandQueueHandle {
        let desc = CommandQueueDesc { ordinal, mode: CommandQueueMode::ASYNCHRONOUS, ..Default::default() };
        get!(self, command_queue_create(self.context, self.device, &desc), CommandQueueHandle::NULL)
    }

    pub fn list(&self, ordinal: u32) -> CommandListHandle {
        let desc = CommandListDesc { command_queue_group_ordinal: ordinal, ..Default::default() };
        get!(self, command_list_create(self.context, self.device, &desc), CommandListHandle::NULL)
    }

    pub fn immediate_list(&self, mode: CommandQueueMode, flags: CommandQueueFlags) -> CommandListHandle {
        let desc = CommandQueueDesc { mode, flags, ..Default::default() };
        get!(self, command_list_create_immediate(self.context, self.device, &desc), CommandListHandle::NULL)
    }

    pub fn event_pool(&self, flags: EventPoolFlags) -> EventPoolHandle {
        let desc = EventPoolDesc { flags, count: 4, ..Default::default() };
        let mut device = self.device;
        get!(self, event_pool_create(self.context, &desc, 1, &mut device), EventPoolHandle::NULL)
    }

    pub fn event(&self, pool: EventPoolHandle, index: u32) -> EventHandle {
        get!(self, event_create(pool, &EventDesc { index, ..Default::default() }), EventHandle::NULL)
    }

    pub fn try_module(&self, format: ModuleFormat, bytes: &[u8]) -> (ResultCode, ModuleHandle, String) {
        let desc =
            ModuleDesc { format, input_size: bytes.len(), input_module: bytes.as_ptr(), ..ModuleDesc::default() };
        let (mut module, mut log) = (ModuleHandle::NULL, ModuleBuildLogHandle::NULL);
        let code = call!(self, module_create(self.context, self.device, &desc, &mut module, &mut log));
        let mut size = 0;
        ok!(self, module_build_log_get_string(log, &mut size, ptr::null_mut()));
        let mut text = vec![0u8; size];
        ok!(self, module_build_log_get_string(log, &mut size, text.as_mut_ptr().cast()));
        ok!(self, module_build_log_destroy(log));
        (code, module, String::from_utf8_lossy(&text).into_owned())
    }

    pub fn module(&self, kernel: &Module) -> ModuleHandle {
        let (code, module, log) = self.try_module(ModuleFormat::IL_SPIRV, &spirv_bytes(kernel));
        assert_eq!(code, ResultCode::SUCCESS, "{log}");
        module
    }

    pub fn kernel(&self, module: ModuleHandle, group: u32) -> KernelHandle {
        let desc = KernelDesc { kernel_name: c"main".as_ptr(), ..KernelDesc::default() };
        let kernel = get!(self, kernel_create(module, &desc), KernelHandle::NULL);
        ok!(self, kernel_set_group_size(kernel, group, 1, 1));
        kernel
    }

    pub fn set<T>(&self, kernel: KernelHandle, index: u32, value: &T) -> ResultCode {
        call!(self, kernel_set_argument_value(kernel, index, size_of::<T>(), ptr::from_ref(value).cast()))
    }

    pub fn copy<T>(&self, list: CommandListHandle, dst: *mut c_void, src: *const c_void, elements: usize) {
        let bytes = elements * size_of::<T>();
        ok!(self, command_list_append_memory_copy(list, dst, src, bytes, NONE.0, NONE.1, NONE.2));
    }

    pub fn barrier(&self, list: CommandListHandle) {
        ok!(self, command_list_append_barrier(list, NONE.0, NONE.1, NONE.2));
    }

    pub fn launch(&self, list: CommandListHandle, kernel: KernelHandle, groups: u32, signal: EventHandle) {
        let groups = GroupCount { group_count_x: groups, group_count_y: 1, group_count_z: 1 };
        ok!(self, command_list_append_launch_kernel(list, kernel, &groups, signal, 0, ptr::null_mut()));
    }

    /// Closes a list, runs it and waits until it completes.
    pub fn run(&self, queue: CommandQueueHandle, list: CommandListHandle) {
        ok!(self, command_list_close(list));
        self.execute(queue, list, FenceHandle::NULL);
        ok!(self, command_queue_synchronize(queue, u64::MAX));
    }

    pub fn execute(&self, queue: CommandQueueHandle, mut list: CommandListHandle, fence: FenceHandle) {
        ok!(self, command_queue_execute_command_lists(queue, 1, &mut list, fence));
    }
}

/// Returns the SPIR-V of a kernel as bytes.
pub fn spirv_bytes(kernel: &Module) -> Vec<u8> {
    kernel.spirv().expect("kernels are generated as SPIR-V").iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `c[i] = factor * (a[i] + b[i])` for `i < length`. Arguments: a, b, c, length, factor.
pub fn add_kernel() -> Module {
    let k = KernelBuilder::new("add", Target::LEVEL_ZERO, 64);
    let (length, factor) = (k.parameter(Type::U32), k.parameter(Type::F32));
    let a = k.buffer("a", Type::F32, Access::Read);
    let b = k.buffer("b", Type::F32, Access::Read);
    let c = k.buffer("c", Type::F32, Access::Write);
    let i = k.global_index();
    k.when(i.lt(length), || c.store(i, factor * (a.load(i) + b.load(i))));
    k.finish().expect("a valid kernel")
}

/// Stores the subgroup size of each invocation.
pub fn subgroup_kernel() -> Module {
    let k = KernelBuilder::new("subgroup", Target::LEVEL_ZERO, 128);
    let counts = k.buffer("counts", Type::U32, Access::Write);
    counts.store(k.global_index(), k.u32(1).subgroup_sum());
    k.finish().expect("a valid kernel")
}
