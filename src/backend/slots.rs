//! Things named by a number.

/// Holds values and names them by numbers. Finding one is an index and a comparison, because every dispatch looks up
/// each of its buffers; a number is never given out twice, so that a stale one finds nothing.
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    vacant: Vec<u32>,
}

/// A place for a value, and how many values were in it before.
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// None yet.
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

    /// The value of that number.
    pub fn get(&self, number: u64) -> Option<&T> {
        self.slots.get(number as u32 as usize).filter(|slot| slot.generation == (number >> 32) as u32)?.value.as_ref()
    }

    /// Takes out the value of that number.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let slot =
            self.slots.get_mut(number as u32 as usize).filter(|slot| slot.generation == (number >> 32) as u32)?;
        let value = slot.value.take()?;
        // A slot whose generations are used up is left empty for good.
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
