//! Values with numbers as names.

/// Holds values and names them by numbers. Each dispatch looks up each of its buffers, so a lookup is only an index and
/// a comparison. A number is never given out twice, so a stale one finds nothing.
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    vacant: Vec<u32>,
}

/// A place for a value. The generation counts the values that were in it before.
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// Creates an empty container.
    pub const fn new() -> Self {
        Slots { slots: Vec::new(), vacant: Vec::new() }
    }

    /// Stores a value and returns its number: the generation above the index.
    pub fn insert(&mut self, value: T) -> u64 {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// Returns the value with a number.
    pub fn get(&self, number: u64) -> Option<&T> {
        self.slots.get(number as u32 as usize).filter(|slot| slot.generation == (number >> 32) as u32)?.value.as_ref()
    }

    /// Takes out the value with a number.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let slot =
            self.slots.get_mut(number as u32 as usize).filter(|slot| slot.generation == (number >> 32) as u32)?;
        let value = slot.value.take()?;
        // If a slot has used up its generations, it stays empty.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.vacant.push(number as u32);
        }
        Some(value)
    }

    /// Takes out all values.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.vacant.clear();
        self.slots.drain(..).filter_map(|slot| slot.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_finds_its_value_and_no_later_one() {
        let mut slots = Slots::new();
        let (a, b) = (slots.insert('a'), slots.insert('b'));
        assert_eq!((slots.get(a), slots.get(b)), (Some(&'a'), Some(&'b')));
        assert_eq!(slots.remove(a), Some('a'));
        let c = slots.insert('c');
        assert_ne!(a, c);
        assert_eq!((slots.get(a), slots.get(c)), (None, Some(&'c')));
        assert_eq!(slots.remove(a), None);
        assert_eq!(slots.get(99), None);
        let mut rest: Vec<_> = slots.drain().collect();
        rest.sort_unstable();
        assert_eq!(rest, ['b', 'c']);
    }
}
