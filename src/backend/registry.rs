//! The table of backends: what the rest of the crate needs to list and open their devices.

use super::contract::Backend;
use super::info::DeviceInfo;
use crate::base::backend_kind::BackendKind;
use crate::base::error::{Error, Result};
use std::fmt::Display;
use std::pin::Pin;

/// A backend, as the rest of the crate knows it.
struct Entry {
    kind: BackendKind,
    /// The Cargo feature that compiles it in.
    feature: &'static str,
    /// Whether the target can have a driver for it.
    on_target: bool,
    /// Its rank in [`Device::best`](crate::Device::best). Of two devices of the same kind, the lower rank wins.
    preference: u8,
    /// What to install if it finds no driver.
    install: &'static str,
    /// `None` if it is not compiled in.
    functions: Option<Functions>,
}

/// The functions that list and open a backend's devices.
struct Functions {
    /// Describes the devices that can be opened. A device's index is its position.
    list: fn() -> Answer<Vec<DeviceInfo>>,
    /// Opens a device by its index.
    open: fn(usize) -> Answer<Box<dyn Backend>>,
}

/// What a driver answers: at once, except in a browser.
type Answer<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Takes the functions `list` and `open` from a backend's folder, if the condition compiles it in.
macro_rules! functions {
    ($condition:ident, $folder:ident) => {{
        #[cfg($condition)]
        {
            use super::$folder::{list, open};
            Some(Functions { list: || Box::pin(list()), open: |index| Box::pin(open(index)) })
        }
        #[cfg(not($condition))]
        {
            None
        }
    }};
}

/// The backends, in the order of [`BackendKind::ALL`].
static ENTRIES: [Entry; BackendKind::ALL.len()] = [
    Entry {
        kind: BackendKind::Vulkan,
        feature: "vulkan",
        on_target: cfg!(vulkan_target),
        preference: 0,
        install: if cfg!(target_vendor = "apple") {
            "install MoltenVK, for instance with the Vulkan SDK (https://vulkan.lunarg.com)"
        } else if cfg!(windows) {
            "install the GPU vendor's driver"
        } else {
            "install the packages libvulkan1 and mesa-vulkan-drivers, or the GPU vendor's driver"
        },
        functions: functions!(has_vulkan, vulkan),
    },
    Entry {
        kind: BackendKind::WebGpu,
        feature: "webgpu",
        on_target: true,
        // It offers less than the others.
        preference: 2,
        install: if cfg!(not(native)) {
            "use a browser with WebGPU, on a page served by https or from localhost"
        } else if cfg!(target_os = "linux") {
            "install the GPU's Vulkan driver, or Mesa's software driver: `apt-get install libvulkan1 \
             mesa-vulkan-drivers`"
        } else if cfg!(windows) {
            "update the GPU's driver to one with Direct3D 12 or Vulkan"
        } else if cfg!(target_vendor = "apple") {
            "a GPU that Metal supports is needed"
        } else {
            "a GPU driver with Vulkan is needed"
        },
        functions: functions!(has_webgpu, webgpu),
    },
    Entry {
        kind: BackendKind::LevelZero,
        feature: "level-zero",
        on_target: cfg!(level_zero_target),
        preference: 1,
        install: if cfg!(windows) {
            "install Intel's graphics driver, which brings the loader"
        } else {
            "install the loader (`apt-get install libze1`) and the GPU's driver (`libze-intel-gpu1`; in Debian 12 \
             `intel-opencl-icd`)"
        },
        functions: functions!(has_level_zero, level_zero),
    },
];

fn entry(kind: BackendKind) -> &'static Entry {
    &ENTRIES[kind as usize]
}

impl Entry {
    /// Returns the functions, or why there are none.
    fn functions(&self) -> Result<&Functions> {
        self.functions.as_ref().ok_or_else(|| {
            let reason = if self.on_target {
                format!("marquetry was built without the feature `{}`", self.feature)
            } else {
                format!("the target {} cannot have it", env!("TARGET"))
            };
            unavailable(self.kind, reason)
        })
    }
}

/// Describes the devices of a backend that can be opened. A device's index is its position.
pub(crate) async fn list(kind: BackendKind) -> Result<Vec<DeviceInfo>> {
    (entry(kind).functions()?.list)().await
}

/// Opens a device by its index.
pub(crate) async fn open(kind: BackendKind, index: usize) -> Result<Box<dyn Backend>> {
    (entry(kind).functions()?.open)(index).await
}

/// Returns the rank of a backend among the others. The lowest is the best.
pub(crate) fn preference(kind: BackendKind) -> u8 {
    entry(kind).preference
}

/// Returns the backends that are compiled in.
#[cfg(test)]
pub(crate) fn compiled_in() -> impl Iterator<Item = BackendKind> {
    ENTRIES.iter().filter(|entry| entry.functions.is_some()).map(|entry| entry.kind)
}

/// Returns the error for a backend that cannot be used.
pub(crate) fn unavailable(backend: BackendKind, reason: impl Display) -> Error {
    Error::BackendUnavailable { backend, reason: reason.to_string() }
}

/// Returns the error for a backend that finds no working driver. It says what to install.
pub(crate) fn no_driver(backend: BackendKind, problem: impl Display) -> Error {
    unavailable(backend, format_args!("{problem}; {}", entry(backend).install))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_backend_has_its_entry() {
        for kind in BackendKind::ALL {
            assert_eq!(entry(kind).kind, kind);
        }
    }

    #[test]
    fn a_backend_that_is_not_there_says_why() {
        let absent = Entry { functions: None, on_target: true, ..ENTRIES[0] };
        let reason = |entry: &Entry| entry.functions().err().unwrap().to_string();
        assert_eq!(reason(&absent), "vulkan is not available: marquetry was built without the feature `vulkan`");
        let elsewhere = reason(&Entry { on_target: false, ..absent });
        assert_eq!(elsewhere, concat!("vulkan is not available: the target ", env!("TARGET"), " cannot have it"));
    }
}
