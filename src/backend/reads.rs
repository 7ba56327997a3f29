//! Reads that wait for their batch.

use crate::backend::contract::{ReadCallback, Ticket};
use crate::base::error::{Error, Result};
use parking_lot::{Condvar, Mutex};

/// The most bytes that are copied in as few loads as possible.
const FEW: usize = 16;

/// Copies bytes that a device has written. If they are a few words, each is loaded once: across the bus that takes
/// 1.5 us, and a copy of any length loads four bytes twice.
pub(super) fn copy(from: &[u8], to: &mut [u8]) {
    fn copy_array<const LENGTH: usize>(from: &[u8], to: &mut [u8]) {
        if let (Some(from), Some(to)) = (from.first_chunk::<LENGTH>(), to.first_chunk_mut::<LENGTH>()) {
            *to = *from;
        }
    }
    debug_assert_eq!(from.len(), to.len());
    match from.len() {
        4 => copy_array::<4>(from, to),
        8 => copy_array::<8>(from, to),
        12 => copy_array::<12>(from, to),
        FEW => copy_array::<FEW>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// A pending read.
struct Read<View> {
    view: View,
    after: Ticket,
    done: ReadCallback,
}

/// The reads that have not been answered yet. No lock is held while a callback runs, so a callback may use the backend.
/// But it must not wait for a batch. A backend finds the bytes of a buffer by a `View`.
pub(crate) struct Reads<View> {
    state: Mutex<State<View>>,
    /// Notified when a callback has returned.
    returned: Condvar,
}

struct State<View> {
    pending: Vec<Read<View>>,
    /// The batches of the reads whose callbacks are running.
    running: Vec<Ticket>,
}

/// A callback that is running, until dropped.
struct Running<'a, View> {
    reads: &'a Reads<View>,
    after: Ticket,
}

impl<View> Reads<View> {
    /// Creates an empty list.
    pub fn new() -> Self {
        let state = State { pending: Vec::new(), running: Vec::new() };
        Reads { state: Mutex::new(state), returned: Condvar::new() }
    }

    /// Adds a read.
    pub fn add(&self, view: View, after: Ticket, done: ReadCallback) {
        self.state.lock().pending.push(Read { view, after, done });
    }

    /// Answers the reads that are due, in the order of the requests. `bytes` returns the bytes of a view. It only gets
    /// views of reads whose batches have completed. By the contract, the caller keeps their buffers until the reads are
    /// answered.
    pub fn run(&self, completed: Ticket, bytes: impl for<'a> Fn(&'a View) -> Result<&'a [u8]>) {
        for (read, _running) in self.take_due(completed) {
            let mut few = [0; FEW];
            (read.done)(bytes(&read.view).map(|bytes| match few.get_mut(..bytes.len()) {
                Some(few) => {
                    copy(bytes, few);
                    &*few
                }
                None => bytes,
            }));
        }
    }

    fn take_due(&self, completed: Ticket) -> Vec<(Read<View>, Running<'_, View>)> {
        let mut state = self.state.lock();
        let due: Vec<_> = state.pending.extract_if(.., |read| read.after <= completed).collect();
        state.running.extend(due.iter().map(|read| read.after));
        let running = |read: Read<View>| {
            let after = read.after;
            (read, Running { reads: self, after })
        };
        due.into_iter().map(running).collect()
    }

    /// Blocks until other threads have returned from the callbacks up to a batch. Whoever waited for the batch may rely
    /// on them.
    pub fn join(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        self.returned.wait_while(&mut state, |state| state.running.iter().any(|after| *after <= ticket));
    }

    /// Answers every read with an error.
    pub fn fail(&self, error: &Error) {
        let all = std::mem::take(&mut self.state.lock().pending);
        all.into_iter().for_each(|read| (read.done)(Err(error.clone())));
    }
}

impl<View> Drop for Running<'_, View> {
    fn drop(&mut self) {
        let running = &mut self.reads.state.lock().running;
        if let Some(index) = running.iter().position(|after| *after == self.after) {
            running.swap_remove(index);
        }
        self.reads.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_bytes_are_copied() {
        for length in 0..=40 {
            let (from, mut to) = ((1..=length).collect::<Vec<u8>>(), vec![0; length.into()]);
            super::copy(&from, &mut to);
            assert_eq!(from, to);
        }
    }
}
