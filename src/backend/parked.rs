//! Devices of a driver between two openings.

use super::fork::process;
use parking_lot::Mutex;

/// Devices that are open in the driver and that nobody uses, kept for whoever opens them next.
///
/// They are kept because destroying one is not safe everywhere. NVIDIA's driver (580.159) deadlocks if a thread that has
/// called it ends while another thread destroys a device: the second holds a lock of the driver and waits for one of the
/// driver's own threads to end, that one waits for the clean-up of the first, and the clean-up waits for the lock. An
/// app cannot see to it that none of its threads ends meanwhile. What is left of a device without buffers and kernels is
/// small, and the next opening is quicker.
pub(super) struct Parked<K, D>(Mutex<Vec<Entry<K, D>>>);

struct Entry<K, D> {
    key: K,
    /// A driver's device is of no use in a child of this process.
    process: u32,
    device: D,
}

impl<K: PartialEq, D> Parked<K, D> {
    /// None yet.
    pub const fn new() -> Self {
        Parked(Mutex::new(Vec::new()))
    }

    /// Keeps a device that works and that nothing uses any more. `key` says which one it is.
    pub fn put(&self, key: K, device: D) {
        self.0.lock().push(Entry { key, process: process(), device });
    }

    /// Takes a device out that was put in by this process under the same key.
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
