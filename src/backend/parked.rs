//! Devices of a driver between two openings.

use super::fork::process;
use parking_lot::Mutex;

/// Devices that are open in the driver and not in use, kept for the next opening.
///
/// They are kept because destroying a device is not safe everywhere. NVIDIA's driver (580.159) deadlocks if a thread
/// that has called it ends while another thread destroys a device:
///
/// - The second thread holds a lock of the driver, and waits for one of the driver's own threads to end.
/// - The driver's thread waits for the clean-up of the first thread.
/// - The clean-up waits for the lock.
///
/// An app cannot ensure that none of its threads ends meanwhile. A device without buffers and kernels is small, and
/// keeping it makes the next opening quicker.
pub(super) struct Parked<K, D>(Mutex<Vec<Entry<K, D>>>);

struct Entry<K, D> {
    key: K,
    /// A child of this process cannot use the device.
    process: u32,
    device: D,
}

impl<K: PartialEq, D> Parked<K, D> {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Parked(Mutex::new(Vec::new()))
    }

    /// Keeps a device that works and is not in use. `key` says which one it is.
    pub fn put(&self, key: K, device: D) {
        self.0.lock().push(Entry { key, process: process(), device });
    }

    /// Takes out a device that this process put in under the same key.
    pub fn take(&self, key: &K) -> Option<D> {
        let here = process();
        let mut entries = self.0.lock();
        let place = entries.iter().position(|entry| entry.key == *key && entry.process == here)?;
        Some(entries.swap_remove(place).device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_handed_out_once_and_under_its_own_key() {
        let parked = Parked::new();
        parked.put(1, 'a');
        parked.put(2, 'b');
        parked.put(1, 'c');
        assert_eq!(parked.take(&3), None);
        assert_eq!(parked.take(&2), Some('b'));
        assert_eq!(parked.take(&2), None);
        let mut both = [parked.take(&1), parked.take(&1)];
        both.sort();
        assert_eq!((both, parked.take(&1)), ([Some('a'), Some('c')], None));
    }
}
