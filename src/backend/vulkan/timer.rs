//! Timestamps within a batch.

use super::device::Device;
use crate::base::error::Result;
use ash::vk;

/// The queries of a batch: places for timestamps, which later batches use again.
#[derive(Default)]
pub(super) struct Timer {
    pool: vk::QueryPool,
    capacity: u32,
    /// The number of timestamps in the recorded batch.
    used: u32,
}

impl Timer {
    /// Prepares `count` places, each to be used once. No commands in flight may use them.
    pub fn begin(&mut self, device: &Device, count: u32) -> Result<()> {
        self.used = 0;
        if count == 0 {
            return Ok(());
        }
        self.grow(device, count)?;
        // The host resets them, because a queue that only copies cannot.
        // SAFETY: the feature is enabled, the pool has that many places, and the device does not use them.
        unsafe { device.raw.reset_query_pool(self.pool, 0, count) };
        self.used = count;
        Ok(())
    }

    /// Records a timestamp, taken when all earlier commands have completed.
    pub fn write(&self, device: &Device, commands: vk::CommandBuffer, index: u32) {
        // SAFETY: the commands are being recorded; `begin` has reset this place.
        unsafe {
            device.raw.cmd_write_timestamp(commands, vk::PipelineStageFlags::BOTTOM_OF_PIPE, self.pool, index);
        }
    }

    /// Returns the timestamps, after the batch has completed.
    pub fn read(&self, device: &Device) -> Result<Vec<u64>> {
        let mut ticks = vec![0; self.used as usize];
        if !ticks.is_empty() {
            let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
            // SAFETY: the pool has that many places, and all of them were written by a batch that has completed.
            let read = unsafe { device.raw.get_query_pool_results(self.pool, 0, &mut ticks, flags) };
            device.check("vkGetQueryPoolResults", read)?;
        }
        Ok(ticks)
    }

    /// Replaces the pool by a larger one if needed.
    fn grow(&mut self, device: &Device, count: u32) -> Result<()> {
        if count <= self.capacity {
            return Ok(());
        }
        let capacity = count.next_power_of_two();
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(capacity);
        // SAFETY: the device is alive and has timestamps.
        let created = unsafe { device.raw.create_query_pool(&info, None) };
        let larger = device.check("vkCreateQueryPool", created)?;
        self.destroy(device);
        *self = Timer { pool: larger, capacity, used: 0 };
        Ok(())
    }

    /// Frees the queries, which the device must not be using.
    pub fn destroy(&mut self, device: &Device) {
        // SAFETY: no command that is being executed uses the pool, or it is null.
        unsafe { device.raw.destroy_query_pool(self.pool, None) };
        *self = Timer::default();
    }
}
