//! Replaces four Vulkan functions that wgpu calls. wgpu does not know a queue without graphics, kernels whose buffers
//! the driver need not check, nor buffers that the host reads without wgpu. And it makes each submission wait for the
//! one before by a semaphore.

use ash::vk;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::thread::LocalKey;
use std::{mem, ptr};
use wgpu::hal::vulkan::InstanceShared;

/// The loader's functions. They find the driver by their first argument, for any instance.
struct Loader {
    barrier: vk::PFN_vkCmdPipelineBarrier,
    create_pipelines: vk::PFN_vkCreateComputePipelines,
    submit: vk::PFN_vkQueueSubmit,
    end: vk::PFN_vkEndCommandBuffer,
    /// Keeps the loader in memory.
    _entry: ash::Entry,
}

static LOADER: OnceLock<Loader> = OnceLock::new();

thread_local! {
    /// Whether the pipelines that this thread creates are of trusted kernels.
    static UNCHECKED: Cell<bool> = const { Cell::new(false) };
    /// Whether the host is going to see what the commands write that this thread records.
    static VISIBLE: Cell<bool> = const { Cell::new(false) };
}

/// Makes the pipelines that `create` creates run without bounds checks, if the device can choose.
pub(super) fn unchecked<T>(create: impl FnOnce() -> T) -> T {
    with(&UNCHECKED, create)
}

/// Makes the host see what the commands write that `record` records.
pub(super) fn visible_to_host<T>(record: impl FnOnce() -> T) -> T {
    with(&VISIBLE, record)
}

/// Sets a mark of this thread while `work` runs.
fn with<T>(mark: &'static LocalKey<Cell<bool>>, work: impl FnOnce() -> T) -> T {
    /// wgpu may panic meanwhile.
    struct Reset(&'static LocalKey<Cell<bool>>);
    impl Drop for Reset {
        fn drop(&mut self) {
            self.0.set(false);
        }
    }
    let _reset = Reset(mark);
    mark.set(true);
    work()
}

/// Returns the device with four functions replaced. `choosable` says whether robustness can be chosen for each
/// pipeline.
pub(super) fn install(instance: &InstanceShared, device: ash::Device, choosable: bool) -> ash::Device {
    let raw = instance.raw_instance();
    let (global, own) = (instance.entry().static_fn().get_instance_proc_addr, raw.fp_v1_0().get_device_proc_addr);
    LOADER.get_or_init(|| {
        // SAFETY: the instance is alive.
        let find = |name: &CStr| unsafe { global(raw.handle(), name.as_ptr()) };
        let functions = device.fp_v1_0();
        // SAFETY: these are the types of the functions of those names.
        unsafe {
            Loader {
                barrier: find(c"vkCmdPipelineBarrier").map_or(functions.cmd_pipeline_barrier, |it| mem::transmute(it)),
                create_pipelines: find(c"vkCreateComputePipelines")
                    .map_or(functions.create_compute_pipelines, |it| mem::transmute(it)),
                submit: find(c"vkQueueSubmit").map_or(functions.queue_submit, |it| mem::transmute(it)),
                end: find(c"vkEndCommandBuffer").map_or(functions.end_command_buffer, |it| mem::transmute(it)),
                _entry: instance.entry().clone(),
            }
        }
    });
    let load = |name: &CStr| match name {
        _ if name == c"vkCmdPipelineBarrier" => compute_barrier as vk::PFN_vkCmdPipelineBarrier as *const c_void,
        _ if choosable && name == c"vkCreateComputePipelines" => {
            create_pipelines as vk::PFN_vkCreateComputePipelines as *const c_void
        }
        _ if name == c"vkQueueSubmit" => submit as vk::PFN_vkQueueSubmit as *const c_void,
        _ if name == c"vkEndCommandBuffer" => end as vk::PFN_vkEndCommandBuffer as *const c_void,
        // SAFETY: the device is alive.
        _ => unsafe { own(device.handle(), name.as_ptr()) }.map_or(ptr::null(), |found| found as *const c_void),
    };
    // SAFETY: the functions are the device's own, except four, which call them through the loader.
    unsafe { ash::Device::load_with(load, device.handle()) }
}

/// wgpu's barriers name every stage that runs shaders. A queue without graphics has only one of them.
unsafe extern "system" fn compute_barrier(
    commands: vk::CommandBuffer,
    before: vk::PipelineStageFlags,
    after: vk::PipelineStageFlags,
    dependencies: vk::DependencyFlags,
    memory_count: u32,
    memory: *const vk::MemoryBarrier<'_>,
    buffer_count: u32,
    buffers: *const vk::BufferMemoryBarrier<'_>,
    image_count: u32,
    images: *const vk::ImageMemoryBarrier<'_>,
) {
    let Some(loader) = LOADER.get() else { return };
    let graphics = vk::PipelineStageFlags::VERTEX_SHADER | vk::PipelineStageFlags::FRAGMENT_SHADER;
    let [before, after] = [before, after].map(|stages| stages & !graphics);
    // SAFETY: as the caller promises. Its commands use no graphics stages.
    unsafe {
        (loader.barrier)(
            commands,
            before,
            after,
            dependencies,
            memory_count,
            memory,
            buffer_count,
            buffers,
            image_count,
            images,
        );
    }
}

/// Trusted kernels keep within their buffers by themselves, but wgpu makes the driver check all kernels.
unsafe extern "system" fn create_pipelines(
    device: vk::Device,
    cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> vk::Result {
    let Some(loader) = LOADER.get() else { return vk::Result::ERROR_UNKNOWN };
    let disabled = vk::PipelineRobustnessBufferBehaviorEXT::DISABLED;
    let mut unchecked =
        vk::PipelineRobustnessCreateInfoEXT::default().storage_buffers(disabled).uniform_buffers(disabled);
    // SAFETY: as the caller promises, there are `count` of them.
    let mut infos = unsafe { std::slice::from_raw_parts(infos, count as usize) }.to_vec();
    if let ([info], true) = (&mut *infos, UNCHECKED.get()) {
        unchecked.p_next = info.p_next;
        info.p_next = ptr::from_ref(&unchecked).cast();
    }
    // SAFETY: as the caller promises. The device has the extension of the added structure, which outlives the call.
    unsafe { (loader.create_pipelines)(device, cache, count, infos.as_ptr(), allocator, pipelines) }
}

/// Each submission of wgpu waits for a binary semaphore of the one before. On one queue this is not needed: barriers
/// order all commands before and after them, whatever their submissions, and wgpu places them. But Mesa's software
/// driver waits for semaphores within the call, so a submission would wait for all work before. Nothing else that the
/// crate does with wgpu takes binary semaphores.
unsafe extern "system" fn submit(
    queue: vk::Queue,
    count: u32,
    infos: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    /// What wgpu gives in place of a binary semaphore's value.
    const NO_VALUE: u64 = !0;
    let Some(loader) = LOADER.get() else { return vk::Result::ERROR_UNKNOWN };
    // SAFETY: as the caller promises, there are `count` of them.
    let info = if count == 1 { unsafe { infos.as_ref() } } else { None };
    let values = info.and_then(|info| {
        // SAFETY: every structure of a chain begins with its type.
        let kind = unsafe { info.p_next.cast::<vk::StructureType>().as_ref() };
        let is_timeline = kind == Some(&vk::StructureType::TIMELINE_SEMAPHORE_SUBMIT_INFO);
        // SAFETY: it has this type.
        let values = is_timeline.then(|| unsafe { *info.p_next.cast::<vk::TimelineSemaphoreSubmitInfo<'_>>() })?;
        let signals = info.signal_semaphore_count;
        let is_ours = values.wait_semaphore_value_count == 0 && values.signal_semaphore_value_count == signals;
        (is_ours && signals > 0).then_some((info, values))
    });
    let Some((info, mut values)) = values else {
        // SAFETY: as the caller promises.
        return unsafe { (loader.submit)(queue, count, infos, fence) };
    };
    let signals = info.signal_semaphore_count as usize;
    // SAFETY: there are as many semaphores as values.
    let (semaphores, numbers) = unsafe {
        let numbers = std::slice::from_raw_parts(values.p_signal_semaphore_values, signals);
        (std::slice::from_raw_parts(info.p_signal_semaphores, signals), numbers)
    };
    let timelines = semaphores.iter().zip(numbers).filter(|(_, number)| **number != NO_VALUE);
    let (semaphores, numbers): (Vec<vk::Semaphore>, Vec<u64>) = timelines.unzip();
    values = values.signal_semaphore_values(&numbers);
    let mut info = vk::SubmitInfo { wait_semaphore_count: 0, ..*info }.signal_semaphores(&semaphores);
    info.p_next = ptr::from_ref(&values).cast();
    // SAFETY: as the caller promises. The lists outlive the call.
    unsafe { (loader.submit)(queue, 1, &info, fence) }
}

#[cfg(test)]
thread_local! {
    /// The barriers for the host that this thread has recorded.
    pub(super) static HOST_BARRIERS: Cell<u32> = const { Cell::new(0) };
}

/// Each command buffer of a batch ends with a barrier for the host, if the host reads what the batch writes.
unsafe extern "system" fn end(commands: vk::CommandBuffer) -> vk::Result {
    let Some(loader) = LOADER.get() else { return vk::Result::ERROR_UNKNOWN };
    if VISIBLE.get() {
        #[cfg(test)]
        HOST_BARRIERS.set(HOST_BARRIERS.get() + 1);
        let (kernels, copies) = (vk::PipelineStageFlags::COMPUTE_SHADER, vk::PipelineStageFlags::TRANSFER);
        let memory = vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ);
        let (host, flags) = (vk::PipelineStageFlags::HOST, vk::DependencyFlags::empty());
        // SAFETY: the commands are being recorded, outside of any render pass.
        unsafe {
            (loader.barrier)(commands, kernels | copies, host, flags, 1, &memory, 0, ptr::null(), 0, ptr::null());
        }
    }
    // SAFETY: as the caller promises.
    unsafe { (loader.end)(commands) }
}
