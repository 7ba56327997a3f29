//! The devices that the suite runs on.

use marquetry::Device;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// All device strings. A new backend adds one.
const ALL: [&str; 3] = ["vulkan", "webgpu", "level-zero"];

type Opened = Arc<OnceLock<Result<Device, String>>>;

/// The open devices. Opening one takes a while, and other devices need not wait for it.
static OPEN: Mutex<Option<HashMap<&'static str, Opened>>> = Mutex::new(None);

/// The devices of this run: all of them, unless `MARQUETRY_TEST_DEVICES` names some.
pub fn selected() -> Vec<&'static str> {
    let Ok(wanted) = std::env::var("MARQUETRY_TEST_DEVICES") else { return ALL.to_vec() };
    let known = |name: &str| {
        let known = ALL.into_iter().find(|device| *device == name);
        known.unwrap_or_else(|| panic!("MARQUETRY_TEST_DEVICES names `{name}`; the devices are {ALL:?}"))
    };
    wanted.split(',').map(str::trim).filter(|name| !name.is_empty()).map(known).collect()
}

/// True if this run tests all devices.
pub fn are_all_selected() -> bool {
    selected() == ALL
}

/// True if the Level Zero test driver runs on PoCL, which lacks some features.
pub fn on_pocl() -> bool {
    std::env::var("LEVEL_ZERO_RUNTIME").as_deref() == Ok("pocl")
}

/// Returns the device of this name, which is opened only once.
pub fn open(name: &'static str) -> Result<Device, String> {
    let opened = OPEN.lock().unwrap().get_or_insert_default().entry(name).or_default().clone();
    let device = opened.get_or_init(|| name.parse::<Device>().map_err(|error| format!("{error}\nrun `make setup`")));
    device.clone()
}

/// Opens all devices of this run. A device that cannot be opened fails the trials that need it.
pub fn open_all() {
    for device in selected() {
        _ = open(device);
    }
}

/// Debian's validation layer of Vulkan (1.3.239) looks devices up without a lock. It may crash if another thread opens
/// or closes one meanwhile.
static IN_USE: RwLock<()> = RwLock::new(());

/// Does a trial's work. If it opens devices, no other trial works meanwhile.
pub fn work<T>(opens_devices: bool, work: impl FnOnce() -> T) -> T {
    let (_alone, _together);
    if opens_devices {
        _alone = IN_USE.write().unwrap_or_else(PoisonError::into_inner);
    } else {
        _together = IN_USE.read().unwrap_or_else(PoisonError::into_inner);
    }
    work()
}

/// Closes all devices, so that validation layers can report leaks.
pub fn close() {
    OPEN.lock().unwrap().take();
}
