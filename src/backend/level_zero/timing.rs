//! When the steps of a batch ran, converted from the device's clock to the host's.

use super::adapter::Clock;
use super::device::Device;
use super::event::{Event, StepEvents};
use crate::base::clock;
use crate::base::error::Result;
use std::ops::Range;

/// The same moment on two clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Nanoseconds of [`clock::now`].
    host: u64,
    /// Ticks of the device.
    device: u64,
}

/// A batch that is being timed.
pub(super) struct Timing {
    /// A moment shortly before the batch, so that the device's clock does not wrap in between.
    pub since: Moment,
    /// The events that the commands of each step signal.
    pub steps: Vec<StepEvents>,
}

impl Moment {
    /// Reads both clocks. Of several attempts, the one that took the least time is the most exact.
    pub fn now(device: &Device) -> Result<Moment> {
        let first = Moment::look(device)?;
        let others = [Moment::look(device)?, Moment::look(device)?];
        let (_, moment) = others.into_iter().fold(first, |best, other| if other.0 < best.0 { other } else { best });
        Ok(moment)
    }

    /// Reads both clocks, and returns how long it took.
    fn look(device: &Device) -> Result<(u64, Moment)> {
        let (mut on_host, mut on_device) = (0, 0);
        let before = clock::now();
        // SAFETY: the device is alive, and the numbers outlive the call.
        let code =
            unsafe { (device.api.device_get_global_timestamps)(device.adapter.device, &mut on_host, &mut on_device) };
        let took = clock::now() - before;
        device.check("zeDeviceGetGlobalTimestamps", code)?;
        Ok((took, Moment { host: before + took / 2, device: on_device }))
    }
}

impl Clock {
    /// Converts ticks of the device to nanoseconds of [`clock::now`]. They must be less than half a turn from the
    /// moment.
    fn to_host(self, ticks: u64, moment: Moment) -> u64 {
        let unused = 64 - self.bits;
        // Shifted there and back, the highest bit that counts becomes the sign.
        let distance = (ticks.wrapping_sub(moment.device) << unused) as i64 >> unused;
        let nanoseconds = i128::from(distance) * 1_000_000_000 / i128::from(self.frequency);
        u64::try_from(i128::from(moment.host) + nanoseconds).unwrap_or(0)
    }
}

impl Timing {
    /// Returns when each step ran. The batch has completed.
    pub fn ranges(&self, clock: Clock) -> Result<Vec<Range<u64>>> {
        self.steps.iter().map(|events| self.range(events, clock)).collect()
    }

    /// Returns the time from the start of a step's first command to the end of its last one. Empty if it has none.
    fn range(&self, events: &[Event], clock: Clock) -> Result<Range<u64>> {
        let mut range: Option<Range<u64>> = None;
        for event in events {
            let (start, end) = event.ticks()?;
            let (start, end) = (clock.to_host(start, self.since), clock.to_host(end, self.since));
            let known = range.unwrap_or(start..end);
            range = Some(known.start.min(start)..known.end.max(end).max(start));
        }
        Ok(range.unwrap_or(self.since.host..self.since.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_counted_from_a_moment_in_both_directions_and_across_a_wrap() {
        // 12.5 MHz: 80 ns per tick.
        let clock = Clock { frequency: 12_500_000, bits: 32 };
        let moment = Moment { host: 1_000_000, device: 0xffff_fff0 };
        assert_eq!(clock.to_host(0xffff_fff5, moment), 1_000_400);
        assert_eq!(clock.to_host(0x4, moment), 1_000_000 + 20 * 80);
        assert_eq!(clock.to_host(0xffff_ffe0, moment), 1_000_000 - 16 * 80);
        // The device's own clock may have more bits than a kernel's timestamps.
        let wide = Moment { device: 0x77_ffff_fff0, ..moment };
        assert_eq!(clock.to_host(0x4, wide), 1_000_000 + 20 * 80);
        // Two minutes later.
        let later = 0xffff_fff0u32.wrapping_add(120 * 12_500_000);
        assert_eq!(clock.to_host(later.into(), moment), 120_001_000_000);
        let full = Clock { frequency: 1_000_000_000, bits: 64 };
        assert_eq!(full.to_host(u64::MAX, Moment { host: 5, device: 3 }), 1);
        assert_eq!(full.to_host(0, Moment { host: 5, device: 30 }), 0, "before the host's clock began");
    }
}
