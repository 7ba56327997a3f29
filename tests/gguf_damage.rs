//! Damaged GGUF files: no damage makes the reader panic, or take much more memory than the file has bytes.
//!
//! The test is alone in its program, because it counts the memory of the program.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod gguf_file;

use gguf_file::sample;
use marquetry::io::Gguf;
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What is done to a file.
#[derive(Debug, Clone)]
enum Damage {
    /// Other bytes at a place.
    Bytes(prop::sample::Index, Vec<u8>),
    /// Another number of 64 bits at a place.
    Number(prop::sample::Index, u64),
    /// Only the beginning is left.
    Cut(prop::sample::Index),
    /// A part is left out.
    Remove(prop::sample::Index, usize),
    /// A part is there twice.
    Repeat(prop::sample::Index, usize),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let within = |place: &prop::sample::Index, length: usize| {
            let start = place.index(bytes.len());
            start..(start + length).min(bytes.len())
        };
        match self {
            Damage::Bytes(place, new) => {
                let range = within(place, new.len());
                let length = range.len();
                bytes[range].copy_from_slice(&new[..length]);
            }
            Damage::Number(place, new) => {
                let range = within(place, 8);
                let length = range.len();
                bytes[range].copy_from_slice(&new.to_le_bytes()[..length]);
            }
            Damage::Cut(place) => bytes.truncate(place.index(bytes.len())),
            Damage::Remove(place, length) => drop(bytes.drain(within(place, *length))),
            Damage::Repeat(place, length) => {
                let range = within(place, *length);
                let part = bytes[range.clone()].to_vec();
                bytes.splice(range.start..range.start, part);
            }
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = any::<prop::sample::Index>;
    // Numbers that are counts, lengths and types in the format, and those that overflow.
    let number = prop_oneof![
        0u64..64,
        any::<u64>(),
        Just(u64::MAX),
        Just(1 << 32),
        Just(1 << 61),
        (0u32..64).prop_map(|shift| 1u64 << shift),
    ];
    prop_oneof![
        (place(), prop::collection::vec(any::<u8>(), 1..8)).prop_map(|(place, bytes)| Damage::Bytes(place, bytes)),
        (place(), number).prop_map(|(place, number)| Damage::Number(place, number)),
        place().prop_map(Damage::Cut),
        (place(), 1usize..32).prop_map(|(place, length)| Damage::Remove(place, length)),
        (place(), 1usize..64).prop_map(|(place, length)| Damage::Repeat(place, length)),
    ]
}

/// Damaged files of both versions, headers before random bytes, and random bytes.
fn files() -> impl Strategy<Value = Vec<u8>> {
    let damaged = (prop::collection::vec(damage(), 0..5), 2u32..4).prop_map(|(damages, version)| {
        let mut bytes = gguf_file::File { version, ..sample() }.bytes();
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        bytes
    });
    let headed = (0u64..40, 0u64..40, prop::collection::vec(0u8..16, 0..2000)).prop_map(|(tensors, entries, rest)| {
        [&b"GGUF"[..], &3u32.to_le_bytes(), &tensors.to_le_bytes(), &entries.to_le_bytes(), &rest].concat()
    });
    prop_oneof![6 => damaged, 2 => headed, 1 => prop::collection::vec(any::<u8>(), 0..300)]
}

/// Opens a file, and asks for all that its header says. Returns whether the file is sound.
fn is_sound(bytes: Vec<u8>) -> bool {
    let Ok(file) = Gguf::from_bytes(bytes) else { return false };
    for name in file.names() {
        let info = file.info(name).unwrap();
        assert!(info.shape.elem_count().is_some());
    }
    for key in file.metadata().keys() {
        let field = file.get(key).unwrap();
        let _ = (field.as_u32(), field.as_i64(), field.as_f32(), field.as_str(), field.as_integers());
        let _ = field.as_floats();
    }
    true
}

/// Asserts that opening takes no more than a few times the memory of the file.
fn opens_within_bounds(bytes: Vec<u8>) -> bool {
    let length = bytes.len();
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let sound = is_sound(bytes);
    let taken = MEMORY.peak_usage().saturating_sub(before);
    assert!(taken <= 16 * length + (64 << 10), "{taken} bytes for a file of {length}");
    sound
}

#[test]
fn no_damage_panics_or_takes_much_memory() {
    assert!(opens_within_bounds(sample().bytes()));
    large_files();
    let cases = if std::env::var("MARQUETRY_TEST_TIER").is_ok_and(|tier| tier == "full") { 200_000 } else { 10_000 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let sound = Cell::new(0);
    let checked = TestRunner::new(config).run(&files(), |bytes| {
        sound.set(sound.get() + u32::from(opens_within_bounds(bytes)));
        Ok(())
    });
    checked.unwrap_or_else(|failure| panic!("{failure}"));
    let sound = sound.get();
    assert!(sound > cases / 50, "only {sound} of {cases} files were sound");
}

/// Large files of small items, which take the most memory beside their bytes.
fn large_files() {
    use gguf_file::{File, Value, string, tensor};
    let count = 50_000u64;
    let empty = || std::iter::repeat_n(0u8, 8 * count as usize);
    let array =
        |kind: u32, elements: Vec<u8>| Value(9, [&kind.to_le_bytes()[..], &count.to_le_bytes(), &elements].concat());
    let nested = array(9, [[0u8; 12]; 50_000].concat());
    let chain = [9u32, 9, 9].map(|kind| [&kind.to_le_bytes()[..], &1u64.to_le_bytes()].concat()).concat();
    let mut files = vec![
        File::default().with("strings", array(8, empty().collect())),
        File::default().with("bytes", array(0, vec![1; count as usize])),
        File::default().with("nested", nested.clone()),
        File::default().with("chain", Value(9, [&chain[..], &nested.1[..]].concat())),
        // More strings than there are.
        File::default().with("strings", array(8, [empty().collect(), vec![255; 8 * 50_000]].concat())),
    ];
    let mut entries = File::default();
    let mut tensors = File::default();
    for number in 0..20_000u32 {
        let name = String::from_utf8(number.to_string().into_bytes()).unwrap();
        tensors.tensors.push(tensor(&name, &[], 24, vec![]));
        tensors.tensors.last_mut().unwrap().offset = Some(0);
        entries.metadata.push((name, Value(0, vec![0])));
    }
    files.extend([entries, tensors]);
    let names = string(&"\u{1}".repeat(500_000));
    files.push(File::default().with(&"\u{1}".repeat(500_000), Value(77, names)));
    for file in files {
        opens_within_bounds(file.bytes());
    }
}
