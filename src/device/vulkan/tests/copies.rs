//! Copies of boxes, against a loop on the host.

use super::*;
use crate::device::backend::Pitch;
use proptest::prelude::*;

/// Rows and slices with nothing between them, or with a few bytes.
fn pitch([row, rows, _]: [u64; 3]) -> impl Strategy<Value = Pitch> {
    let gaps = prop_oneof![Just((0, 0)), (1u64..6, 0u64..8), Just((0, 5))];
    (0u64..9, gaps).prop_map(move |(offset, (gap, slice_gap))| Pitch {
        offset,
        row: row + gap,
        slice: rows * (row + gap) + slice_gap,
    })
}

fn region() -> impl Strategy<Value = Region> {
    let extent = [1u64..40, 1..6, 1..5];
    extent
        .prop_flat_map(|extent| (pitch(extent), pitch(extent)).prop_map(move |(src, dst)| Region { extent, src, dst }))
}

/// The bytes of a buffer in which the box lies just so, and which is not a multiple of 4 long.
fn room(pitch: &Pitch, [row, rows, slices]: [u64; 3]) -> usize {
    (pitch.offset + (slices - 1) * pitch.slice + (rows - 1) * pitch.row + row) as usize
}

fn box_step(src: BufferId, dst: BufferId, region: Region) -> Step {
    Step { command: Command::CopyRegion { src, dst, region }, barrier: false }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_box_arrives_byte_by_byte_and_nothing_else_changes(region in region()) {
        let backend = open();
        let source: Vec<u8> = (0..room(&region.src, region.extent)).map(|i| i as u8 | 1).collect();
        let mut expected = vec![0; room(&region.dst, region.extent) + 16];
        let [src, dst] = [&source, &expected].map(|data| upload_bytes(&backend, data));
        let [row, rows, slices] = region.extent;
        for (slice, y, x) in (0..slices).flat_map(|s| (0..rows).flat_map(move |y| (0..row).map(move |x| (s, y, x)))) {
            let place = |pitch: &Pitch| (pitch.offset + slice * pitch.slice + y * pitch.row + x) as usize;
            expected[place(&region.dst)] = source[place(&region.src)];
        }
        backend.submit(&[box_step(src, dst, region)], false).unwrap();
        prop_assert_eq!(download_bytes(&backend, dst, expected.len()), expected);
    }
}

#[test]
fn a_box_that_leaves_a_buffer_is_refused() {
    let backend = open();
    let [small, large] = [32, 1024].map(|bytes| backend.allocate(bytes, DEVICE).unwrap());
    let wide = Pitch { offset: 1, row: 8, slice: 64 };
    let good = Region { extent: [7, 4, 1], src: wide, dst: wide };
    backend.submit(&[box_step(small, large, good)], false).unwrap();
    let bad = [
        Region { extent: [8, 4, 1], ..good },
        Region { extent: [7, 4, 2], ..good },
        Region { extent: [7, 0, 1], ..good },
        Region { src: Pitch { offset: 2, ..wide }, ..good },
        Region { src: Pitch { offset: u64::MAX, ..wide }, ..good },
        Region { dst: Pitch { row: 6, ..wide }, ..good },
        Region { dst: Pitch { row: u64::MAX, ..wide }, ..good },
    ];
    for region in bad {
        let error = backend.submit(&[box_step(small, large, region)], false).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { op: "submit", .. }), "{region:?}: {error}");
    }
    assert!(backend.submit(&[box_step(large, large, good)], false).is_err());
}
