//! Converts the device's time to the host's.
//!
//! The two clocks run at slightly different speeds. So they are compared each time that timings are asked for.

use super::device::Device;
use crate::base::clock;
use crate::base::error::Result;
use ash::{ext, khr, vk};
use std::ops::Range;

/// How many times the clocks are compared. The attempt that took the least time is the best.
const ATTEMPTS: usize = 8;

/// Reads the device's clock, if the driver can do that without a batch.
pub(super) struct Clock {
    read: Option<vk::PFN_vkGetCalibratedTimestampsKHR>,
}

impl Clock {
    /// Creates the clock of a device.
    pub fn new(device: &Device) -> Clock {
        let (instance, raw) = (&device.instance.raw, &device.raw);
        let read = device.adapter.extensions.calibrated_timestamps.map(|name| {
            if name == khr::calibrated_timestamps::NAME {
                khr::calibrated_timestamps::Device::new(instance, raw).fp().get_calibrated_timestamps_khr
            } else {
                ext::calibrated_timestamps::Device::new(instance, raw).fp().get_calibrated_timestamps_ext
            }
        });
        Clock { read }
    }

    /// Returns the present moment. `None` if only a batch can read the clock.
    pub fn moment(&self, device: &Device) -> Option<Result<Moment>> {
        let read = self.read?;
        let attempt = || {
            let before = clock::now();
            let ticks = ticks(device, read)?;
            Ok((before..clock::now(), ticks))
        };
        let attempts: Result<Vec<_>> = (0..ATTEMPTS).map(|_| attempt()).collect();
        let best = attempts.map(|all| all.into_iter().min_by_key(|(span, _)| span.end - span.start));
        best.map(|best| best.map(|(span, ticks)| Moment::within(device, span, ticks))).transpose()
    }
}

/// Reads the device's clock.
fn ticks(device: &Device, read: vk::PFN_vkGetCalibratedTimestampsKHR) -> Result<u64> {
    let domain = vk::CalibratedTimestampInfoKHR::default().time_domain(vk::TimeDomainKHR::DEVICE);
    let (mut ticks, mut deviation) = (0, 0);
    // SAFETY: the function is of this device, which has that time domain, and fills in one number of each.
    let code = unsafe { read(device.raw.handle(), 1, &domain, &mut ticks, &mut deviation) };
    device.check("vkGetCalibratedTimestamps", code.result_with_success(ticks))
}

/// A moment as both clocks show it.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    /// What the device's clock shows.
    pub ticks: u64,
    /// Nanoseconds of [`clock::now`].
    pub host: u64,
    /// Nanoseconds per tick.
    period: f64,
    /// The number of low bits that count in a timestamp.
    bits: u32,
}

impl Moment {
    /// Returns the moment at which the device's clock showed `ticks`, somewhere in this span of the host's clock.
    pub fn within(device: &Device, span: Range<u64>, ticks: u64) -> Moment {
        let period = f64::from(device.adapter.base.limits.timestamp_period);
        Moment { ticks, host: span.start.midpoint(span.end), period, bits: device.adapter.timestamp_bits }
    }

    /// Returns the host's time for a timestamp. It must be less than half a turn of the device's clock from this
    /// moment.
    pub fn host_time(&self, ticks: u64) -> u64 {
        let unused = 64 - self.bits.clamp(1, 64);
        // Shifted to the high bits, the difference wraps like the clock, and has the sign of the distance.
        let difference = (ticks.wrapping_sub(self.ticks) << unused) as i64 >> unused;
        self.host.saturating_add_signed((difference as f64 * self.period).round() as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_before_and_after_a_moment_are_told() {
        let moment = Moment { ticks: 1000, host: 50_000, period: 2.5, bits: 64 };
        assert_eq!(moment.host_time(1000), 50_000);
        assert_eq!(moment.host_time(1004), 50_010);
        assert_eq!(moment.host_time(600), 49_000);
        assert_eq!(moment.host_time(0), 47_500);
        // Before the host's clock began.
        assert_eq!(Moment { host: 10, ..moment }.host_time(0), 0);
    }

    #[test]
    fn a_clock_that_has_wrapped_counts_on() {
        for bits in [32, 36, 63, 64] {
            let last = u64::MAX >> (64 - bits);
            let early = Moment { ticks: 4, host: 1000, period: 1.0, bits };
            assert_eq!(early.host_time(last), 995, "{bits}");
            let late = Moment { ticks: last, ..early };
            assert_eq!(late.host_time(4), 1005, "{bits}");
        }
    }
}
