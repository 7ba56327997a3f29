//! [`DeviceFilter`]: finds devices that meet what an app needs.

use super::Device;
use crate::backend::info::{DeviceInfo, DeviceKind};
use crate::backend::registry;
use crate::base::backend_kind::BackendKind;
use crate::base::error::{Error, Result};
use crate::base::features::Features;
use std::cmp::Reverse;

/// What a device must be and have. A device passes if it meets all requirements.
///
/// ```
/// use marquetry::{Device, DeviceFilter, DeviceKind};
/// let filter = DeviceFilter::new().gpu().kind(DeviceKind::Cpu).min_memory(1 << 20);
/// for info in filter.list() {
///     println!("{info}");
/// }
/// let error = DeviceFilter::new().name("no such device").open().unwrap_err();
/// assert!(error.to_string().contains("no such device"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct DeviceFilter {
    backends: Vec<BackendKind>,
    kinds: Vec<DeviceKind>,
    name: Option<String>,
    features: Features,
    memory: u64,
    compute_units: u32,
    workgroup_invocations: u32,
    workgroup_memory: u32,
}

impl DeviceFilter {
    /// Returns a filter that every device passes.
    pub fn new() -> DeviceFilter {
        DeviceFilter::default()
    }

    /// Requires this backend, or one of several if called more than once.
    pub fn backend(mut self, backend: BackendKind) -> Self {
        self.backends.push(backend);
        self
    }

    /// Requires this kind, or one of several if called more than once.
    pub fn kind(mut self, kind: DeviceKind) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Requires a GPU: [discrete](DeviceKind::Discrete), [integrated](DeviceKind::Integrated) or
    /// [virtual](DeviceKind::Virtual).
    pub fn gpu(self) -> Self {
        self.kind(DeviceKind::Discrete).kind(DeviceKind::Integrated).kind(DeviceKind::Virtual)
    }

    /// Requires that the device's name contains this text, in upper or lower case.
    pub fn name(mut self, part: impl Into<String>) -> Self {
        self.name = Some(part.into());
        self
    }

    /// Requires at least these features.
    ///
    /// ```
    /// # use marquetry::{DeviceFilter, Features};
    /// let mut needed = Features::default();
    /// needed.f16 = true;
    /// assert!(DeviceFilter::new().features(needed).list().iter().all(|info| info.features.f16));
    /// ```
    pub fn features(mut self, features: Features) -> Self {
        self.features = features;
        self
    }

    /// Requires at least this many bytes of memory. WebGPU does not report its memory, so its devices do not pass.
    pub fn min_memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Requires at least this many compute units. Devices that do not report theirs do not pass.
    pub fn min_compute_units(mut self, count: u32) -> Self {
        self.compute_units = count;
        self
    }

    /// Requires that a workgroup may have at least this many invocations.
    pub fn min_workgroup_invocations(mut self, count: u32) -> Self {
        self.workgroup_invocations = count;
        self
    }

    /// Requires that a workgroup may share at least this many bytes of memory.
    pub fn min_workgroup_memory(mut self, bytes: u32) -> Self {
        self.workgroup_memory = bytes;
        self
    }

    /// Returns whether a device passes.
    pub fn matches(&self, info: &DeviceInfo) -> bool {
        self.shortcoming(info).is_none()
    }

    /// Returns the first requirement that a device does not meet, as its shortcoming.
    fn shortcoming(&self, info: &DeviceInfo) -> Option<String> {
        let of = |names: Vec<String>| format!("is no {} device", names.join(" or "));
        if !self.backends.is_empty() && !self.backends.contains(&info.backend) {
            return Some(of(self.backends.iter().map(ToString::to_string).collect()));
        }
        if !self.kinds.is_empty() && !self.kinds.contains(&info.kind) {
            return Some(of(self.kinds.iter().map(ToString::to_string).collect()));
        }
        if let Some(part) = &self.name
            && !info.name.to_lowercase().contains(&part.to_lowercase())
        {
            return Some(format!("has no `{part}` in its name"));
        }
        if let Some(missing) = self.features.missing_from(&info.features) {
            return Some(format!("lacks {missing}"));
        }
        let numbers = [
            ("bytes of memory", self.memory, info.memory),
            ("compute units", self.compute_units.into(), info.compute_units.unwrap_or(0).into()),
            (
                "invocations per workgroup",
                self.workgroup_invocations.into(),
                info.limits.max_workgroup_invocations.into(),
            ),
            ("bytes of workgroup memory", self.workgroup_memory.into(), info.limits.max_workgroup_memory.into()),
        ];
        let short = numbers.into_iter().find(|(_, wanted, there)| there < wanted);
        short.map(|(what, wanted, there)| format!("has {there} {what}, not {wanted}"))
    }

    /// Returns the devices that pass, the best first, in the order in which [`Device::best`] tries them.
    pub fn list(&self) -> Vec<DeviceInfo> {
        let mut devices = Device::list();
        devices.retain(|info| self.matches(info));
        sort_best_first(&mut devices);
        devices
    }

    /// Opens the best device that passes.
    ///
    /// # Errors
    /// [`Error::NoDevice`] with what each device lacks. [`Error::Environment`] if a variable has a value that is not
    /// understood.
    pub fn open(&self) -> Result<Device> {
        let mut devices = Device::list();
        sort_best_first(&mut devices);
        let mut reasons = Vec::new();
        for info in devices {
            match self.shortcoming(&info) {
                Some(reason) => reasons.push(format!("{} ({}) {reason}", info.id(), info.name)),
                None => match info.id().parse() {
                    Ok(device) => return Ok(device),
                    Err(error) => reasons.push(Error::to_string(&error)),
                },
            }
        }
        if reasons.is_empty() {
            return Device::best();
        }
        Err(Error::NoDevice { reasons: reasons.join("; ") })
    }
}

/// Sorts discrete GPUs before integrated, virtual and software ones, then by the registry's preference, then by the
/// number of compute units, largest first.
pub(super) fn sort_best_first(devices: &mut [DeviceInfo]) {
    devices
        .sort_by_key(|info| (info.kind, registry::preference(info.backend), Reverse(info.compute_units), info.index));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_demand_tells_a_device_that_does_not_meet_it() {
        let arc = DeviceInfo::sample(BackendKind::LevelZero, DeviceKind::Discrete, Some(512));
        let filter = DeviceFilter::new;
        let meets = [
            filter(),
            filter().gpu().min_memory(16 << 30).min_compute_units(512),
            filter().kind(DeviceKind::Cpu).kind(DeviceKind::Discrete),
            filter().backend(BackendKind::LevelZero).name("a770"),
            filter().features(Features { f16: true, ..Features::default() }),
            filter().min_workgroup_invocations(1024).min_workgroup_memory(65_536),
        ];
        assert!(meets.iter().all(|filter| filter.matches(&arc)));
        let fails = [
            (filter().kind(DeviceKind::Integrated).kind(DeviceKind::Cpu), "is no integrated GPU or CPU device"),
            (filter().backend(BackendKind::Vulkan), "is no vulkan device"),
            (filter().name("UHD"), "has no `UHD` in its name"),
            (filter().features(Features { subgroups: true, ..Features::default() }), "lacks subgroup operations"),
            (
                filter().features(Features { integer_dot_products: true, ..Features::default() }),
                "lacks integer dot products",
            ),
            (filter().min_memory(17 << 30), "has 17179869184 bytes of memory, not 18253611008"),
            (filter().min_compute_units(513), "has 512 compute units, not 513"),
            (filter().min_workgroup_invocations(2048), "has 1024 invocations per workgroup, not 2048"),
            (filter().min_workgroup_memory(65_537), "has 65536 bytes of workgroup memory, not 65537"),
        ];
        for (filter, reason) in fails {
            assert_eq!(filter.shortcoming(&arc).as_deref(), Some(reason));
        }
        let silent = DeviceInfo::sample(BackendKind::Vulkan, DeviceKind::Discrete, None);
        assert!(!filter().min_compute_units(1).matches(&silent));
    }

    #[test]
    fn the_best_comes_first() {
        let kinds = [
            (BackendKind::Vulkan, DeviceKind::Cpu, Some(64)),
            (BackendKind::LevelZero, DeviceKind::Discrete, Some(128)),
            (BackendKind::LevelZero, DeviceKind::Discrete, Some(512)),
            (BackendKind::Vulkan, DeviceKind::Integrated, None),
            (BackendKind::WebGpu, DeviceKind::Discrete, None),
        ];
        let mut devices = kinds.map(|(backend, kind, units)| DeviceInfo::sample(backend, kind, units));
        sort_best_first(&mut devices);
        let order = devices.map(|info| (info.backend, info.kind, info.compute_units));
        assert_eq!(order, [kinds[2], kinds[1], kinds[4], kinds[3], kinds[0]]);
    }
}
