//! The one device of a browser.

use marquetry::Device;
use std::cell::RefCell;

thread_local! {
    static DEVICE: RefCell<Option<Device>> = const { RefCell::new(None) };
}

pub fn set(device: Device) {
    DEVICE.set(Some(device));
}

pub fn selected() -> Vec<&'static str> {
    vec!["webgpu"]
}

/// Returns the device, which has been opened before.
pub fn open(_: &'static str) -> Result<Device, String> {
    DEVICE.with_borrow(|device| device.clone().ok_or_else(|| "no device has been opened".into()))
}
