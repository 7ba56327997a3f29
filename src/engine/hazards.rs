//! [`Hazards`]: finds hazards, by the buffers that commands have used since the last barrier.

use crate::backend::contract::BufferId;
use crate::shader::Access;

/// The slots at first, a power of two.
const SLOTS: usize = 64;

/// The buffers that commands have used since the last barrier, and whether they have written them.
///
/// Every command is looked up here, and in a chain every command has a barrier. So this is a table with open
/// addressing whose slots are never cleared: those from before the last barrier are free.
pub(super) struct Hazards {
    /// A power of two of them. At most half of them are taken.
    slots: Box<[Slot]>,
    taken: usize,
    /// Counts the barriers, from 1 on.
    barriers: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    buffer: BufferId,
    /// The number of the last barrier before the use. 0 in a slot that was never taken.
    barrier: u64,
    written: bool,
}

/// A slot that was never taken.
const FREE: Slot = Slot { buffer: BufferId(0), barrier: 0, written: false };

impl Default for Hazards {
    fn default() -> Hazards {
        Hazards { slots: [FREE; SLOTS].into(), taken: 0, barriers: 1 }
    }
}

impl Hazards {
    /// Whether a command that uses a buffer so needs a barrier: one that touches a buffer that was written, or writes
    /// one that was read.
    #[inline]
    pub fn needs_barrier(&self, buffer: BufferId, access: Access) -> bool {
        let slot = &self.slots[self.find(buffer)];
        slot.barrier == self.barriers && (slot.written || access.writes())
    }

    /// Notes that a command uses a buffer.
    #[inline]
    pub fn note(&mut self, buffer: BufferId, access: Access) {
        let place = self.find(buffer);
        let slot = &mut self.slots[place];
        if slot.barrier == self.barriers {
            slot.written |= access.writes();
            return;
        }
        *slot = Slot { buffer, barrier: self.barriers, written: access.writes() };
        self.taken += 1;
        if 2 * self.taken > self.slots.len() {
            self.grow();
        }
    }

    /// Notes that a barrier, or the end of a batch, follows all commands.
    #[inline]
    pub fn clear(&mut self) {
        self.barriers += 1;
        self.taken = 0;
    }

    /// Returns the slot of a buffer, or the one that it would take.
    #[inline]
    fn find(&self, buffer: BufferId) -> usize {
        let mask = self.slots.len() - 1;
        // The product's highest bits depend on all bits of the name.
        let hash = buffer.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - self.slots.len().ilog2());
        let mut place = hash as usize;
        while self.slots[place].barrier == self.barriers && self.slots[place].buffer != buffer {
            place = (place + 1) & mask;
        }
        place
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![FREE; 2 * self.slots.len()].into();
        for slot in std::mem::replace(&mut self.slots, larger) {
            if slot.barrier == self.barriers {
                let place = self.find(slot.buffer);
                self.slots[place] = slot;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A map tells what is expected. There are so many buffers that slots collide and the table grows.
    #[test]
    fn hazards_are_those_of_a_map() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut hazards, mut used) = (Hazards::default(), HashMap::new());
        let (mut needed, mut most) = ([0; 2], 0);
        for _ in 0..100_000 {
            let number = random.u64(..1000);
            let buffer = BufferId(if number.is_multiple_of(2) { number } else { number << 32 | 5 });
            let access = [Access::Read, Access::Write, Access::ReadWrite][random.usize(..3)];
            let expected = used.get(&buffer).is_some_and(|&written| written || access.writes());
            let needs = hazards.needs_barrier(buffer, access);
            assert_eq!(needs, expected, "after {} buffers", used.len());
            needed[usize::from(needs)] += 1;
            // Most barriers are left out, so that many buffers come together.
            if needs && random.u8(..200) == 0 {
                hazards.clear();
                used.clear();
            }
            hazards.note(buffer, access);
            *used.entry(buffer).or_insert(false) |= access.writes();
            most = most.max(used.len());
        }
        assert!(most > SLOTS && needed.iter().all(|&times| times > 1000), "{most} buffers, {needed:?} barriers");
    }
}
