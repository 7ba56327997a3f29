//! The scenarios that child processes run.

use crate::client::{Client, NONE, add_kernel, call, get, ok, spirv_bytes, subgroup_kernel};
use crate::ffi::*;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::time::{Duration, Instant};

pub fn run(name: &str) {
    let scenario: fn() = match name {
        "add_vectors" => add_vectors,
        "describe" => describe,
        "subgroups" => subgroups,
        "copy_and_fill" => copy_and_fill,
        "events" => events,
        "immediate" => immediate,
        "native_binary" => native_binary,
        "in_order" => in_order,
        "older_version" => older_version,
        "missing_barrier" => missing_barrier,
        "missing_barrier_between_lists" => missing_barrier_between_lists,
        "overrun" => overrun,
        "small_overrun" => small_overrun,
        "host_touch" => host_touch,
        "host_touch_after" => || host_touch_of_a_page(0, true),
        "host_touch_beside" => || host_touch_of_a_page(1, false),
        "copy_out_of_bounds" => copy_out_of_bounds,
        "use_after_destroy" => use_after_destroy,
        "freed_while_pending" => freed_while_pending,
        "leaks" => leaks,
        "no_devices" => no_devices,
        "two_devices" => two_devices,
        "discrete" => discrete,
        "out_of_memory" => out_of_memory,
        "build_failure" => build_failure,
        "lost_device" => lost_device,
        "slow_device" => slow_device,
        _ => panic!("no scenario {name}"),
    };
    scenario();
}

/// An addition of two vectors, ready to record.
struct Addition {
    client: Client,
    queue: CommandQueueHandle,
    module: ModuleHandle,
    kernel: KernelHandle,
    inputs: [*mut c_void; 2],
    output: *mut c_void,
    host: [&'static mut [f32]; 3],
}

/// The number of elements. They fill one page, so a guard page follows the last element.
const LENGTH: usize = 1024;
const GROUPS: u32 = LENGTH as u32 / 64;

impl Addition {
    fn new() -> Self {
        let client = Client::open();
        let module = client.module(&add_kernel());
        let kernel = client.kernel(module, 64);
        let inputs = [client.device_memory(LENGTH * 4), client.device_memory(LENGTH * 4)];
        let output = client.device_memory(LENGTH * 4);
        let numbers = |scale: f32| -> Vec<f32> { (0..LENGTH).map(|i| i as f32 * scale).collect() };
        let host =
            [client.host_memory(&numbers(1.0)), client.host_memory(&numbers(0.5)), client.host_memory(&numbers(0.0))];
        let this = Self { queue: client.queue(0), client, module, kernel, inputs, output, host };
        this.set_arguments(LENGTH as u32, 2.0);
        this
    }

    fn set_arguments(&self, length: u32, factor: f32) {
        let pointers = [self.inputs[0], self.inputs[1], self.output];
        for (index, pointer) in pointers.iter().enumerate() {
            assert_eq!(self.client.set(self.kernel, index as u32, pointer), ResultCode::SUCCESS);
        }
        assert_eq!(self.client.set(self.kernel, 3, &length), ResultCode::SUCCESS);
        assert_eq!(self.client.set(self.kernel, 4, &factor), ResultCode::SUCCESS);
    }

    fn upload(&self, list: CommandListHandle) {
        for (device, host) in self.inputs.iter().zip(&self.host) {
            self.client.copy::<f32>(list, *device, host.as_ptr().cast(), LENGTH);
        }
    }

    fn launch(&self, list: CommandListHandle) {
        self.client.launch(list, self.kernel, GROUPS, EventHandle::NULL);
    }

    fn download(&self, list: CommandListHandle) {
        self.client.copy::<f32>(list, self.host[2].as_ptr().cast_mut().cast(), self.output, LENGTH);
    }

    /// True if the host's output is `2 * (i + i / 2)` for every `i`.
    fn is_right(&self) -> bool {
        self.host[2].iter().enumerate().all(|(i, &sum)| sum == 3.0 * i as f32)
    }

    fn close(self) {
        let Self { client, queue, module, kernel, inputs, output, host } = self;
        ok!(client, command_queue_destroy(queue));
        ok!(client, kernel_destroy(kernel));
        ok!(client, module_destroy(module));
        inputs.into_iter().chain([output]).for_each(|memory| client.free(memory));
        host.into_iter().for_each(|memory| client.free(memory.as_mut_ptr().cast()));
        client.close();
    }
}

fn add_vectors() {
    let addition = Addition::new();
    let (client, kernel) = (&addition.client, addition.kernel);
    assert_eq!(client.set(kernel, 9, &0u32), ResultCode::ERROR_INVALID_KERNEL_ARGUMENT_INDEX);
    assert_eq!(client.set(kernel, 3, &0u64), ResultCode::ERROR_INVALID_KERNEL_ARGUMENT_SIZE);
    assert_eq!(client.set(kernel, 0, &0u32), ResultCode::ERROR_INVALID_KERNEL_ARGUMENT_SIZE);
    let properties = get!(client, kernel_get_properties(kernel), KernelProperties::default());
    assert_eq!(properties.num_kernel_args, 5);
    assert_eq!((properties.required_group_size_x, properties.required_group_size_y), (64, 1));
    let code = call!(client, kernel_set_group_size(kernel, 32, 1, 1));
    assert_eq!(code, ResultCode::ERROR_INVALID_GROUP_SIZE_DIMENSION);

    let list = client.list(0);
    addition.upload(list);
    client.barrier(list);
    addition.launch(list);
    client.barrier(list);
    addition.download(list);
    // The launch has copied its arguments, so these changes must have no effect.
    addition.set_arguments(0, 0.0);
    ok!(client, command_list_close(list));

    let fence = get!(client, fence_create(addition.queue, &FenceDesc::default()), FenceHandle::NULL);
    for _ in 0..3 {
        assert_eq!(call!(client, fence_query_status(fence)), ResultCode::NOT_READY);
        client.execute(addition.queue, list, fence);
        ok!(client, fence_host_synchronize(fence, u64::MAX));
        ok!(client, fence_reset(fence));
        assert!(addition.is_right());
    }
    ok!(client, command_list_reset(list));
    ok!(client, command_list_destroy(list));
    ok!(client, fence_destroy(fence));
    addition.close();
}

fn describe() {
    let client = Client::open();
    let version = get!(client, driver_get_api_version(client.driver), ApiVersion::default());
    assert_eq!(version, ApiVersion::new(1, 4));
    let properties = get!(client, device_get_properties(client.device), DeviceProperties::default());
    // SAFETY: the driver ends the name with a NUL.
    let name = unsafe { CStr::from_ptr(properties.name.as_ptr()) }.to_string_lossy();
    assert!(name.ends_with("(Level Zero test driver)"), "{name}");
    assert_eq!(properties.kind, DeviceType::GPU);
    assert!(properties.flags.contains(DevicePropertyFlags::INTEGRATED));
    assert_eq!(properties.timer_resolution, 1);
    let newer = DeviceProperties { stype: StructureType::DEVICE_PROPERTIES_1_2, ..Default::default() };
    let newer = get!(client, device_get_properties(client.device), newer);
    assert_eq!(newer.timer_resolution, 1_000_000_000);
    let mut count = 2;
    let mut groups = [CommandQueueGroupProperties::default(); 2];
    ok!(client, device_get_command_queue_group_properties(client.device, &mut count, groups.as_mut_ptr()));
    assert!(groups[0].flags.contains(CommandQueueGroupPropertyFlags::COMPUTE));
    assert_eq!(groups[1].flags, CommandQueueGroupPropertyFlags::COPY);
    let compute = get!(client, device_get_compute_properties(client.device), DeviceComputeProperties::default());
    assert!(compute.max_total_group_size >= 256 && compute.max_shared_local_memory >= 32 << 10);
    let (mut host, mut device) = (0, 0);
    ok!(client, device_get_global_timestamps(client.device, &mut host, &mut device));
    assert!(host > 0 && host.abs_diff(device) < 1_000_000);
    let size = properties.max_mem_alloc_size as usize + 1;
    let allocate = |desc: &DeviceMemAllocDesc| {
        let mut memory = ptr::null_mut();
        (call!(client, mem_alloc_device(client.context, desc, size, 0, client.device, &mut memory)), memory)
    };
    let (code, _) = allocate(&DeviceMemAllocDesc::default());
    assert_eq!(code, ResultCode::ERROR_UNSUPPORTED_SIZE);
    let relaxed =
        RelaxedAllocationLimitsExpDesc { flags: RelaxedAllocationLimitsExpFlags::MAX_SIZE, ..Default::default() };
    let desc = DeviceMemAllocDesc { next: ptr::from_ref(&relaxed).cast(), ..Default::default() };
    let (code, memory) = allocate(&desc);
    assert_eq!(code, ResultCode::SUCCESS);
    let mut allocation = MemoryAllocationProperties::default();
    let mut owner = DeviceHandle::NULL;
    ok!(client, mem_get_alloc_properties(client.context, memory, &mut allocation, &mut owner));
    assert_eq!((allocation.kind, owner), (MemoryType::DEVICE, client.device));
    client.free(memory);
    client.close();
}

/// The subgroup sizes in a kernel must be among the sizes that the device reports.
fn subgroups() {
    let client = Client::open();
    let compute = get!(client, device_get_compute_properties(client.device), DeviceComputeProperties::default());
    let sizes = &compute.sub_group_sizes[..compute.num_sub_group_sizes as usize];
    let (code, module, log) = client.try_module(ModuleFormat::IL_SPIRV, &spirv_bytes(&subgroup_kernel()));
    assert_eq!(code == ResultCode::SUCCESS, !sizes.is_empty(), "{log}");
    if !sizes.is_empty() {
        let kernel = client.kernel(module, 128);
        let properties = get!(client, kernel_get_properties(kernel), KernelProperties::default());
        let (queue, list) = (client.queue(0), client.list(0));
        let counts = client.host_memory(&[0u32; 128]);
        let pointer: *mut u32 = counts.as_mut_ptr();
        assert_eq!(client.set(kernel, 0, &pointer), ResultCode::SUCCESS);
        client.launch(list, kernel, 1, EventHandle::NULL);
        client.run(queue, list);
        assert!(sizes.contains(&counts[0]), "{} is none of {sizes:?}", counts[0]);
        assert!(counts.iter().all(|&count| count == properties.max_subgroup_size), "{counts:?}");
        ok!(client, command_list_destroy(list));
        ok!(client, command_queue_destroy(queue));
        ok!(client, kernel_destroy(kernel));
        ok!(client, module_destroy(module));
        client.free(pointer.cast());
    }
    client.close();
}

fn copy_and_fill() {
    let client = Client::open();
    // The queue group that only copies.
    let (queue, list) = (client.queue(1), client.list(1));
    let image = client.device_memory(8 * 8 * 4);
    let patch = client.host_memory(&[1u32, 2, 3, 4, 5, 6]);
    let result = client.host_memory(&[0u32; 64]);
    let sevens = 7u32;
    let pattern = ptr::from_ref(&sevens).cast();
    ok!(client, command_list_append_memory_fill(list, image, pattern, 4, 256, NONE.0, NONE.1, NONE.2));
    client.barrier(list);
    // 3 columns and 2 rows, to column 2 and row 4.
    let to = CopyRegion { origin_x: 8, origin_y: 4, origin_z: 0, width: 12, height: 2, depth: 1 };
    let from = CopyRegion { origin_x: 0, origin_y: 0, ..to };
    let source = patch.as_ptr().cast();
    ok!(
        client,
        command_list_append_memory_copy_region(list, image, &to, 32, 0, source, &from, 12, 0, NONE.0, NONE.1, NONE.2)
    );
    client.barrier(list);
    client.copy::<u32>(list, result.as_mut_ptr().cast(), image, 64);
    let times = client.host_memory(&[0u64; 2]);
    ok!(client, command_list_append_write_global_timestamp(list, &mut times[0], NONE.0, NONE.1, NONE.2));
    client.barrier(list);
    ok!(client, command_list_append_write_global_timestamp(list, &mut times[1], NONE.0, NONE.1, NONE.2));
    client.run(queue, list);
    assert!(0 < times[0] && times[0] < times[1], "{times:?}");
    client.free(times.as_mut_ptr().cast());
    for (index, &value) in result.iter().enumerate() {
        let (x, y) = (index % 8, index / 8);
        let inside = (2..5).contains(&x) && (4..6).contains(&y);
        assert_eq!(value, if inside { (y - 4) as u32 * 3 + x as u32 - 1 } else { 7 }, "column {x}, row {y}");
    }
    ok!(client, command_list_destroy(list));
    ok!(client, command_queue_destroy(queue));
    client.free(image);
    client.free(patch.as_mut_ptr().cast());
    client.free(result.as_mut_ptr().cast());
    client.close();
}

fn events() {
    let addition = Addition::new();
    let client = &addition.client;
    let pool = client.event_pool(EventPoolFlags::HOST_VISIBLE | EventPoolFlags::KERNEL_TIMESTAMP);
    let [go, uploaded, computed] = [0, 1, 2].map(|index| client.event(pool, index));
    let list = client.list(0);
    ok!(client, command_list_append_wait_on_events(list, 1, &mut { go }));
    addition.upload(list);
    ok!(client, command_list_append_barrier(list, uploaded, 0, ptr::null_mut()));
    let groups = GroupCount { group_count_x: GROUPS, group_count_y: 1, group_count_z: 1 };
    // From here there are no barriers: events order the commands.
    ok!(client, command_list_append_launch_kernel(list, addition.kernel, &groups, computed, 1, &mut { uploaded }));
    let (dst, src) = (addition.host[2].as_ptr().cast_mut().cast(), addition.output);
    ok!(client, command_list_append_memory_copy(list, dst, src, LENGTH * 4, EventHandle::NULL, 1, &mut { computed }));
    ok!(client, command_list_close(list));

    let before = get!(client, device_get_global_timestamps(client.device, &mut 0), 0);
    client.execute(addition.queue, list, FenceHandle::NULL);
    assert_eq!(call!(client, command_queue_synchronize(addition.queue, 5_000_000)), ResultCode::NOT_READY);
    ok!(client, event_host_signal(go));
    ok!(client, event_host_synchronize(computed, u64::MAX));
    ok!(client, command_queue_synchronize(addition.queue, u64::MAX));
    assert!(addition.is_right());
    let times = get!(client, event_query_kernel_timestamp(computed), KernelTimestampResult::default()).global;
    let after = get!(client, device_get_global_timestamps(client.device, &mut 0), 0);
    assert!(before < times.kernel_start && times.kernel_start < times.kernel_end && times.kernel_end < after);
    ok!(client, event_host_reset(computed));
    assert_eq!(call!(client, event_query_status(computed)), ResultCode::NOT_READY);

    ok!(client, command_list_destroy(list));
    for event in [go, uploaded, computed] {
        ok!(client, event_destroy(event));
    }
    ok!(client, event_pool_destroy(pool));
    addition.close();
}

fn immediate() {
    let addition = Addition::new();
    let client = &addition.client;
    let list = client.immediate_list(CommandQueueMode::SYNCHRONOUS, CommandQueueFlags::default());
    addition.upload(list);
    addition.launch(list);
    addition.download(list);
    assert!(addition.is_right());
    ok!(client, command_list_destroy(list));

    addition.set_arguments(LENGTH as u32, -2.0);
    let pool = client.event_pool(EventPoolFlags::HOST_VISIBLE);
    let done = client.event(pool, 3);
    let list = client.immediate_list(CommandQueueMode::ASYNCHRONOUS, CommandQueueFlags::default());
    addition.launch(list);
    client.barrier(list);
    addition.download(list);
    ok!(client, command_list_append_barrier(list, done, 0, ptr::null_mut()));
    ok!(client, event_host_synchronize(done, u64::MAX));
    assert_eq!(addition.host[2][100], -300.0);
    ok!(client, event_destroy(done));
    ok!(client, event_pool_destroy(pool));
    ok!(client, command_list_destroy(list));
    addition.close();
}

fn native_binary() {
    let client = Client::open();
    let module = client.module(&add_kernel());
    let mut size = 0;
    ok!(client, module_get_native_binary(module, &mut size, ptr::null_mut()));
    let mut binary = vec![0; size];
    ok!(client, module_get_native_binary(module, &mut size, binary.as_mut_ptr()));
    ok!(client, module_destroy(module));

    let (code, module, log) = client.try_module(ModuleFormat::NATIVE, &binary);
    assert_eq!(code, ResultCode::SUCCESS, "{log}");
    let kernel = client.kernel(module, 64);
    assert_eq!(client.set(kernel, 4, &1f32), ResultCode::SUCCESS);
    ok!(client, kernel_destroy(kernel));
    ok!(client, module_destroy(module));
    binary[size / 2] ^= 1;
    assert_eq!(client.try_module(ModuleFormat::NATIVE, &binary).0, ResultCode::ERROR_INVALID_NATIVE_BINARY);
    client.close();
}

fn in_order() {
    let addition = Addition::new();
    let client = &addition.client;
    let init_drivers = client.api.init_drivers.expect("zeInitDrivers");
    let synchronize = client.api.command_list_host_synchronize.expect("zeCommandListHostSynchronize");
    let mut desc = InitDriverTypeDesc { flags: InitDriverTypeFlags::GPU, ..Default::default() };
    let mut count = 0;
    // SAFETY: valid pointers; a count of 0 asks for the number.
    assert_eq!(unsafe { init_drivers(&mut count, ptr::null_mut(), &mut desc) }, ResultCode::SUCCESS);
    assert_eq!(count, 1);
    let version = get!(client, driver_get_api_version(client.driver), ApiVersion::default());
    assert!(version >= ApiVersion::new(1, 10), "{version}");

    let list = client.immediate_list(CommandQueueMode::ASYNCHRONOUS, CommandQueueFlags::IN_ORDER);
    addition.upload(list);
    addition.launch(list);
    addition.download(list);
    // SAFETY: a valid list.
    assert_eq!(unsafe { synchronize(list, u64::MAX) }, ResultCode::SUCCESS);
    assert!(addition.is_right());
    ok!(client, command_list_destroy(list));
    addition.close();
}

fn older_version() {
    let client = Client::open();
    let version = get!(client, driver_get_api_version(client.driver), ApiVersion::default());
    assert_eq!(version, ApiVersion::new(1, 3));
    let desc = CommandQueueDesc { flags: CommandQueueFlags::IN_ORDER, ..Default::default() };
    let mut list = CommandListHandle::NULL;
    let code = call!(client, command_list_create_immediate(client.context, client.device, &desc, &mut list));
    assert_eq!(code, ResultCode::ERROR_INVALID_ENUMERATION);
    client.close();
}

fn missing_barrier() {
    let addition = Addition::new();
    let list = addition.client.list(0);
    addition.upload(list);
    addition.launch(list);
    addition.client.barrier(list);
    addition.download(list);
    addition.client.run(addition.queue, list);
    assert!(!addition.is_right(), "the kernel ran after the copies that it should have waited for");
    ok!(addition.client, command_list_destroy(list));
    addition.close();
}

fn missing_barrier_between_lists() {
    let addition = Addition::new();
    let client = &addition.client;
    let mut lists = [client.list(0), client.list(0)];
    addition.upload(lists[0]);
    addition.launch(lists[1]);
    client.barrier(lists[1]);
    addition.download(lists[1]);
    lists.iter().for_each(|&list| ok!(client, command_list_close(list)));
    let fence = FenceHandle::NULL;
    ok!(client, command_queue_execute_command_lists(addition.queue, 2, lists.as_mut_ptr(), fence));
    ok!(client, command_queue_synchronize(addition.queue, u64::MAX));
    assert!(!addition.is_right(), "the second list waited for the first one");
    lists.iter().for_each(|&list| ok!(client, command_list_destroy(list)));
    addition.close();
}

fn overrun() {
    let addition = Addition::new();
    addition.set_arguments(LENGTH as u32 + 64, 1.0);
    let list = addition.client.list(0);
    addition.client.launch(list, addition.kernel, GROUPS + 1, EventHandle::NULL);
    addition.client.run(addition.queue, list);
}

/// The kernel writes one element too many, into the padding of its buffer.
fn small_overrun() {
    let mut addition = Addition::new();
    let client = &addition.client;
    client.free(addition.output);
    addition.output = client.device_memory(LENGTH * 4 - 4);
    addition.set_arguments(LENGTH as u32, 1.0);
    let list = client.list(0);
    addition.launch(list);
    client.run(addition.queue, list);
    ok!(client, command_list_destroy(list));
    addition.close();
}

fn host_touch() {
    let client = Client::open();
    let memory = client.device_memory(64).cast::<u32>();
    // SAFETY: it is not: this is the mistake under test.
    let value = unsafe { memory.read_volatile() };
    println!("read {value}");
}

/// A command fills the first of two pages of device memory. The host touches a page, once the command is done or before
/// that.
fn host_touch_of_a_page(page: usize, done: bool) {
    const PAGE: usize = 4096;
    let client = Client::open();
    let (queue, list) = (client.queue(1), client.list(1));
    let memory = client.device_memory(2 * PAGE);
    let pattern = ptr::from_ref(&7u32).cast();
    ok!(client, command_list_append_memory_fill(list, memory, pattern, 4, PAGE, NONE.0, NONE.1, NONE.2));
    ok!(client, command_list_close(list));
    client.execute(queue, list, FenceHandle::NULL);
    if done {
        ok!(client, command_queue_synchronize(queue, u64::MAX));
    }
    // SAFETY: it is not: this is the mistake under test.
    let value = unsafe { memory.cast::<u8>().add(page * PAGE).read_volatile() };
    println!("read {value}");
}

fn copy_out_of_bounds() {
    let client = Client::open();
    let list = client.list(0);
    let (small, large) = (client.device_memory(60), client.device_memory(64));
    let code = call!(client, command_list_append_memory_copy(list, small, large, 64, NONE.0, NONE.1, NONE.2));
    assert_eq!(code, ResultCode::ERROR_INVALID_ARGUMENT);
    ok!(client, command_list_destroy(list));
    client.free(small);
    client.free(large);
    client.close();
}

fn use_after_destroy() {
    let client = Client::open();
    let (queue, list, memory) = (client.queue(0), client.list(0), client.device_memory(64));
    client.copy::<u8>(list, memory, [0u8; 64].as_ptr().cast(), 64);
    ok!(client, command_list_close(list));
    client.free(memory);
    assert_eq!(call!(client, mem_free(client.context, memory)), ResultCode::ERROR_INVALID_ARGUMENT);
    let code = call!(client, command_queue_execute_command_lists(queue, 1, &mut { list }, FenceHandle::NULL));
    assert_eq!(code, ResultCode::ERROR_INVALID_ARGUMENT);
    ok!(client, command_list_destroy(list));
    assert_eq!(call!(client, command_list_reset(list)), ResultCode::ERROR_INVALID_NULL_HANDLE);
    assert_eq!(call!(client, command_list_destroy(list)), ResultCode::ERROR_INVALID_NULL_HANDLE);
    ok!(client, command_queue_destroy(queue));
    client.close();
}

fn freed_while_pending() {
    let client = Client::open();
    let (queue, list, memory) = (client.queue(0), client.list(0), client.device_memory(64));
    let pattern = 0u8;
    let fill = ptr::from_ref(&pattern).cast();
    ok!(client, command_list_append_memory_fill(list, memory, fill, 1, 64, NONE.0, NONE.1, NONE.2));
    ok!(client, command_list_close(list));
    client.execute(queue, list, FenceHandle::NULL);
    client.free(memory);
    ok!(client, command_queue_synchronize(queue, u64::MAX));
    ok!(client, command_list_destroy(list));
    ok!(client, command_queue_destroy(queue));
    client.close();
}

fn leaks() {
    let client = Client::open();
    let module = client.module(&add_kernel());
    client.kernel(module, 64);
    client.device_memory(64);
    let pool = client.event_pool(EventPoolFlags::HOST_VISIBLE);
    let event = client.event(pool, 0);
    ok!(client, event_destroy(event));
}

fn no_devices() {
    assert!(Client::open_driver().devices().is_empty());
}

fn two_devices() {
    let client = Client::open();
    let devices = client.devices();
    assert_eq!(devices.len(), 2);
    let mut reaches = 1;
    ok!(client, device_can_access_peer(devices[0], devices[1], &mut reaches));
    assert_eq!(reaches, 0);
    client.close();
}

fn discrete() {
    let client = Client::open();
    let properties = get!(client, device_get_properties(client.device), DeviceProperties::default());
    assert!(!properties.flags.contains(DevicePropertyFlags::INTEGRATED));
    client.close();
}

fn out_of_memory() {
    let client = Client::open();
    let allocate = || {
        let (desc, mut memory) = (DeviceMemAllocDesc::default(), ptr::null_mut());
        (call!(client, mem_alloc_device(client.context, &desc, 64, 0, client.device, &mut memory)), memory)
    };
    let attempts = [allocate(), allocate(), allocate()];
    let codes = attempts.map(|(code, _)| code);
    assert_eq!(codes, [ResultCode::SUCCESS, ResultCode::ERROR_OUT_OF_DEVICE_MEMORY, ResultCode::SUCCESS]);
    client.free(attempts[0].1);
    client.free(attempts[2].1);
    client.close();
}

fn build_failure() {
    let client = Client::open();
    let bytes = spirv_bytes(&add_kernel());
    let module = client.module(&add_kernel());
    ok!(client, module_destroy(module));
    let (code, _, log) = client.try_module(ModuleFormat::IL_SPIRV, &bytes);
    assert_eq!(code, ResultCode::ERROR_MODULE_BUILD_FAILURE);
    assert!(log.contains("error"), "{log}");
    let module = client.module(&add_kernel());
    ok!(client, module_destroy(module));
    let (code, _, log) = client.try_module(ModuleFormat::IL_SPIRV, &bytes[..40]);
    assert_eq!(code, ResultCode::ERROR_MODULE_BUILD_FAILURE);
    assert!(!log.is_empty());
    client.close();
}

fn lost_device() {
    let mut addition = Addition::new();
    let client = &addition.client;
    let list = client.list(0);
    addition.upload(list);
    client.run(addition.queue, list);
    let code = call!(client, command_queue_execute_command_lists(addition.queue, 1, &mut { list }, FenceHandle::NULL));
    assert_eq!(code, ResultCode::ERROR_DEVICE_LOST);
    assert_eq!(call!(client, command_queue_synchronize(addition.queue, 0)), ResultCode::ERROR_DEVICE_LOST);
    assert_eq!(call!(client, context_get_status(client.context)), ResultCode::ERROR_DEVICE_LOST);
    let code = call!(client, mem_alloc_host(client.context, &HostMemAllocDesc::default(), 64, 0, &mut ptr::null_mut()));
    assert_eq!(code, ResultCode::ERROR_DEVICE_LOST);
    ok!(client, command_list_destroy(list));
    // A new context works. The lost one can still be destroyed.
    let lost = client.context;
    addition.client.context = addition.client.new_context();
    let client = &addition.client;
    let memory = client.device_memory(64);
    client.free(memory);
    ok!(client, context_destroy(client.context));
    addition.client.context = lost;
    addition.close();
}

fn slow_device() {
    let addition = Addition::new();
    let list = addition.client.list(0);
    addition.upload(list);
    let start = Instant::now();
    addition.client.run(addition.queue, list);
    assert!(start.elapsed() >= Duration::from_millis(50));
    ok!(addition.client, command_list_destroy(list));
    addition.close();
}
