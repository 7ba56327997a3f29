//! What a dispatch binds: its buffers, and its parameters in the arena.

use super::buffer::BufferMap;
use super::guard::{GuardedDevice, describe, driver_error};
use super::kernel::WebGpuKernel;
use crate::backend::contract::{BufferId, KernelId};
use crate::base::error::Result;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU64;
use std::sync::Arc;

/// The most bind groups that are kept. If there are more, buffers do not recur.
const MAX_GROUPS: usize = 4096;

/// The parameter arena and the bind groups of a device.
///
/// Making a bind group costs ten times as much as all else that a dispatch takes on the host. Programs run the same
/// kernels on the same buffers over and over, so groups are kept. The parameters differ from run to run, so they are
/// bound at a dynamic offset.
pub(super) struct Bindings {
    gpu: Arc<GuardedDevice>,
    block_alignment: u64,
    /// The parameter blocks of a batch. One buffer is enough for all batches: after a batch has run, wgpu copies the
    /// blocks of the next one into it on the device.
    arena: Option<wgpu::Buffer>,
    groups: HashMap<(KernelId, BufferIds), wgpu::BindGroup>,
}

type BufferIds = SmallVec<[BufferId; 6]>;

impl Bindings {
    pub fn new(gpu: Arc<GuardedDevice>) -> Bindings {
        let block_alignment = u64::from(gpu.device.limits().min_uniform_buffer_offset_alignment).max(16);
        Bindings { gpu, block_alignment, arena: None, groups: HashMap::new() }
    }

    /// Returns the bytes from a parameter block to the next one.
    pub fn stride(&self, words: usize) -> u64 {
        (4 * words as u64).next_multiple_of(self.block_alignment)
    }

    /// Returns an arena for `bytes` bytes of parameters.
    pub fn arena(&mut self, bytes: u64) -> Result<wgpu::Buffer> {
        if let Some(arena) = self.arena.as_ref().filter(|arena| arena.size() >= bytes) {
            return Ok(arena.clone());
        }
        let descriptor = wgpu::BufferDescriptor {
            label: Some("parameters"),
            size: bytes.next_power_of_two().max(1 << 16),
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        let refuse = |error| driver_error("Device::create_buffer", describe(&error));
        let arena = self.gpu.catch(|| self.gpu.device.create_buffer(&descriptor), refuse)?;
        self.groups.clear();
        Ok(self.arena.insert(arena).clone())
    }

    /// Returns the bind group of a kernel with these buffers. The arena that was asked for last holds the parameters.
    pub fn group(
        &mut self,
        id: KernelId,
        kernel: &WebGpuKernel,
        ids: &[BufferId],
        buffers: &BufferMap,
    ) -> Result<&wgpu::BindGroup> {
        let key = (id, BufferIds::from_slice(ids));
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&key) {
            self.groups.clear();
        }
        match self.groups.entry(key) {
            Entry::Occupied(group) => Ok(group.into_mut()),
            Entry::Vacant(place) => {
                let group = create_group(&self.gpu.device, kernel, ids, buffers, self.arena.as_ref())?;
                Ok(place.insert(group))
            }
        }
    }

    /// Forgets the bind groups that name a buffer, because they keep its memory.
    pub fn forget_buffer(&mut self, id: BufferId) {
        self.groups.retain(|(_, ids), _| !ids.contains(&id));
    }

    /// Forgets all bind groups, in case one is not valid.
    pub fn forget_all(&mut self) {
        self.groups.clear();
    }
}

fn create_group(
    device: &wgpu::Device,
    kernel: &WebGpuKernel,
    ids: &[BufferId],
    buffers: &BufferMap,
    arena: Option<&wgpu::Buffer>,
) -> Result<wgpu::BindGroup> {
    let mut entries: SmallVec<[wgpu::BindGroupEntry<'_>; 8]> = SmallVec::new();
    for (binding, &id) in (0..).zip(ids) {
        entries.push(wgpu::BindGroupEntry { binding, resource: buffers.find(id, "submit")?.as_entire_binding() });
    }
    let block_bytes = NonZeroU64::new((4 * kernel.uniform_words() as u64).next_multiple_of(16));
    if let (Some(buffer), Some(size)) = (arena, block_bytes) {
        let block = wgpu::BufferBinding { buffer, offset: 0, size: Some(size) };
        let binding = ids.len() as u32;
        entries.push(wgpu::BindGroupEntry { binding, resource: wgpu::BindingResource::Buffer(block) });
    }
    Ok(device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some(kernel.name()),
        layout: kernel.group_layout(),
        entries: &entries,
    }))
}

#[cfg(test)]
#[cfg(device_tests)]
mod tests {
    use super::super::tests::open;
    use super::*;
    use crate::backend::contract_tests::{allocate, compile_add};

    #[test]
    fn groups_are_kept_until_a_buffer_of_theirs_is_freed() {
        let backend = open();
        compile_add(&backend);
        let ids = allocate(&backend, 16);
        let (buffers, kernels) = (backend.buffers.lock(), backend.kernels.lock());
        let mut bindings = Bindings::new(Arc::clone(&backend.gpu));
        bindings.arena(100).unwrap();
        let bind = |bindings: &mut Bindings, kernel, ids: [BufferId; 3]| {
            bindings.group(KernelId(kernel), &kernels[0], &ids, &buffers).unwrap();
            bindings.groups.len()
        };
        let [a, b, c, d] = ids;
        assert_eq!(bind(&mut bindings, 0, [a, b, c]), 1);
        assert_eq!(bind(&mut bindings, 0, [a, b, c]), 1);
        assert_eq!(bind(&mut bindings, 0, [a, b, d]), 2);
        assert_eq!(bind(&mut bindings, 1, [a, b, d]), 3);
        bindings.forget_buffer(d);
        assert_eq!(bind(&mut bindings, 0, [a, b, c]), 1);
        // Groups name the arena, so they go with it.
        bindings.arena(1 << 16).unwrap();
        assert_eq!(bindings.groups.len(), 1);
        bindings.arena((1 << 16) + 1).unwrap();
        assert_eq!(bindings.groups.len(), 0);
        // Their number is bounded.
        for kernel in 0..=MAX_GROUPS as u64 {
            assert!(bind(&mut bindings, kernel, [a, b, c]) <= MAX_GROUPS);
        }
        assert_eq!(bindings.groups.len(), 1);
    }
}
