//! The types of memory of a Vulkan driver, and which buffers are in which. If wgpu runs on Vulkan, the WebGPU backend
//! asks too.

use super::contract::MemoryUse;
use super::info::MemoryKind;
use ash::vk;
use std::cmp::Reverse;

/// Chooses the memory type for a buffer, among the types whose bits are set in `allowed`.
pub(super) fn choose_type(
    properties: &vk::PhysicalDeviceMemoryProperties,
    allowed: u32,
    memory: MemoryUse,
) -> Option<usize> {
    let types = properties.memory_types_as_slice().iter().enumerate();
    types
        .filter(|(index, _)| allowed & (1 << index) != 0)
        .filter_map(|(index, kind)| {
            let heap_size = properties.memory_heaps.get(kind.heap_index as usize)?.size;
            Some((rank(kind.property_flags, heap_size, memory)?, Reverse(index)))
        })
        .max()
        .map(|(_, Reverse(index))| index)
}

/// Whether `Shared` buffers are in the heap of `Device` ones, not in a small window of it.
pub(super) fn shares_device_memory(properties: &vk::PhysicalDeviceMemoryProperties) -> bool {
    let heap = |kind| {
        let index = choose_type(properties, !0, MemoryUse::Kernels(kind))?;
        Some(properties.memory_types[index].heap_index)
    };
    heap(MemoryKind::Shared).is_some_and(|shared| heap(MemoryKind::Device) == Some(shared))
}

/// Returns how well a memory type suits, or `None` if it does not. Drivers list the fastest of equally good types
/// first.
fn rank(flags: vk::MemoryPropertyFlags, heap_size: u64, memory: MemoryUse) -> Option<[u64; 3]> {
    let local = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    let visible = vk::MemoryPropertyFlags::HOST_VISIBLE;
    let coherent = vk::MemoryPropertyFlags::HOST_COHERENT;
    let cached = vk::MemoryPropertyFlags::HOST_CACHED;
    // Types with other properties have special purposes, and most of them need a feature to be enabled.
    if !(local | visible | coherent | cached).contains(flags) {
        return None;
    }
    let has = |flag| u64::from(flags.contains(flag));
    let lacks = |flag| u64::from(!flags.contains(flag));
    let needed = if memory == MemoryUse::Kernels(MemoryKind::Device) { local } else { visible };
    flags.contains(needed).then(|| match memory {
        MemoryUse::Kernels(MemoryKind::Device) => [heap_size, lacks(visible), 0],
        // If the host cannot reach the device's own memory, `Shared` is the host's memory.
        MemoryUse::Kernels(MemoryKind::Shared) => [has(local), has(cached), has(coherent)],
        MemoryUse::Kernels(MemoryKind::Host) => [lacks(local), has(cached), has(coherent)],
        // The host writes its own memory faster than the device's across the bus.
        MemoryUse::Upload => [lacks(local), has(coherent), has(cached)],
        // The host reads uncached memory at a hundredth of the speed.
        MemoryUse::Readback => [has(cached), has(coherent), lacks(local)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vk::MemoryPropertyFlags as Flags;

    fn properties(heaps: &[u64], types: &[(Flags, u32)]) -> vk::PhysicalDeviceMemoryProperties {
        let mut properties = vk::PhysicalDeviceMemoryProperties {
            memory_heap_count: heaps.len() as u32,
            memory_type_count: types.len() as u32,
            ..Default::default()
        };
        for (heap, size) in properties.memory_heaps.iter_mut().zip(heaps) {
            heap.size = *size;
        }
        for (kind, (flags, heap)) in properties.memory_types.iter_mut().zip(types) {
            (kind.property_flags, kind.heap_index) = (*flags, *heap);
        }
        properties
    }

    /// Returns the types for device, shared and host memory, for uploads and for readback.
    fn choices(properties: &vk::PhysicalDeviceMemoryProperties, allowed: u32) -> [Option<usize>; 5] {
        let [device, shared, host] = [MemoryKind::Device, MemoryKind::Shared, MemoryKind::Host].map(MemoryUse::Kernels);
        [device, shared, host, MemoryUse::Upload, MemoryUse::Readback].map(|m| choose_type(properties, allowed, m))
    }

    #[test]
    fn a_discrete_gpu_keeps_staging_in_the_hosts_memory() {
        let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
        let discrete = properties(
            &[8 << 30, 32 << 30, 256 << 20],
            &[
                (Flags::DEVICE_LOCAL | Flags::DEVICE_COHERENT_AMD, 0),
                (Flags::DEVICE_LOCAL, 0),
                (host, 1),
                (host | Flags::DEVICE_LOCAL, 2),
                (host | Flags::HOST_CACHED, 1),
            ],
        );
        assert_eq!(choices(&discrete, !0), [Some(1), Some(3), Some(4), Some(4), Some(4)]);
        assert_eq!(choices(&discrete, 0b10111), [Some(1), Some(4), Some(4), Some(4), Some(4)]);
        assert_eq!(choices(&discrete, 0b1000), [Some(3); 5]);
        assert_eq!(choices(&discrete, 0b0001), [None; 5]);
        assert!(!shares_device_memory(&discrete), "the host reaches 256 MiB of 8 GiB");
        let resizable =
            properties(&[140 << 30, 32 << 30], &[(Flags::DEVICE_LOCAL, 0), (host, 1), (host | Flags::DEVICE_LOCAL, 0)]);
        assert!(shares_device_memory(&resizable));
        assert!(!shares_device_memory(&properties(&[8 << 30, 32 << 30], &[(Flags::DEVICE_LOCAL, 0), (host, 1)])));
    }

    #[test]
    fn memory_that_the_host_reads_is_cached_even_if_it_is_not_coherent() {
        let shared = Flags::DEVICE_LOCAL | Flags::HOST_VISIBLE;
        let mobile = properties(&[4 << 30], &[(shared | Flags::HOST_COHERENT, 0), (shared | Flags::HOST_CACHED, 0)]);
        assert_eq!(choices(&mobile, !0), [Some(0), Some(1), Some(1), Some(0), Some(1)]);
    }
}
