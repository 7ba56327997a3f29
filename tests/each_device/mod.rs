//! Tests on each device. They run in turn, because the counters and the memory of a device belong to one at a time.

use marquetry::Device;
use std::sync::{Mutex, PoisonError};

pub fn open(name: &str) -> Device {
    name.parse().unwrap_or_else(|error| panic!("`make setup` installs what is missing: {error}"))
}

pub fn run(name: &str, test: fn(&Device)) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    test(&open(&name.replace('_', "-")));
}

/// Expands to a test for each device: `on_each_device! { name other_name }`.
macro_rules! on_each_device {
    ($($test:ident)*) => {
        on_each_device!(@device vulkan: $($test)*);
        on_each_device!(@device webgpu: $($test)*);
        on_each_device!(@device level_zero: $($test)*);
    };
    (@device $device:ident: $($test:ident)*) => {
        mod $device {
            $(
                #[test]
                fn $test() {
                    crate::each_device::run(stringify!($device), super::$test);
                }
            )*
        }
    };
}
