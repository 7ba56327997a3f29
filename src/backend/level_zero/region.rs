//! Boxes of bytes that the driver can copy, with 32-bit numbers.

use crate::backend::contract::{Pitch, Region};
use smallvec::{SmallVec, smallvec};

/// A box of several rows spans fewer bytes than this, so all its numbers have 32 bits.
pub(super) const LIMIT: u64 = 1 << 32;

/// Divides a region into single rows, or into boxes that one command copies.
pub(super) fn commands(region: &Region, limit: u64) -> SmallVec<[Region; 1]> {
    let region = region.merged();
    if is_row(&region) || is_box(&region, limit) {
        return smallvec![region];
    }
    let [_, rows, slices] = region.extent;
    let mut commands = SmallVec::new();
    for slice in 0..slices {
        let mut row = 0;
        while row < rows {
            let count = rows_at_once(&region, limit).min(rows - row);
            commands.push(part(&region, slice, row, count).merged());
            row += count;
        }
    }
    commands
}

/// Returns whether it is one row, which a plain copy moves.
pub(super) fn is_row(region: &Region) -> bool {
    region.extent[1..] == [1, 1]
}

/// Returns whether one command copies it.
fn is_box(region: &Region, limit: u64) -> bool {
    let [_, rows, slices] = region.extent;
    [&region.src, &region.dst].iter().all(|pitch| {
        let slice = pitch.row.checked_mul(rows);
        // The pitch of the only slice is not used.
        let all = match slices {
            1 => slice,
            _ => slice.filter(|bytes| pitch.slice >= *bytes).and_then(|_| pitch.slice.checked_mul(slices)),
        };
        all.is_some_and(|bytes| bytes < limit)
    })
}

/// Returns how many rows of a slice one command copies.
fn rows_at_once(region: &Region, limit: u64) -> u64 {
    ((limit - 1) / region.src.row.max(region.dst.row)).max(1)
}

/// Returns some rows of one slice.
fn part(region: &Region, slice: u64, row: u64, count: u64) -> Region {
    let at = |pitch: &Pitch| Pitch { offset: pitch.offset + slice * pitch.slice + row * pitch.row, ..*pitch };
    Region { extent: [region.extent[0], count, 1], src: at(&region.src), dst: at(&region.dst) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Returns which byte of the source each byte of the destination comes from.
    fn moves(regions: &[Region]) -> BTreeMap<u64, u64> {
        let mut moves = BTreeMap::new();
        for Region { extent: [width, rows, slices], src, dst } in regions {
            for (slice, row, byte) in
                (0..*slices).flat_map(|z| (0..*rows).flat_map(move |y| (0..*width).map(move |x| (z, y, x))))
            {
                let place = |pitch: &Pitch| pitch.offset + slice * pitch.slice + row * pitch.row + byte;
                assert_eq!(moves.insert(place(dst), place(src)), None, "{regions:?} write a byte twice");
            }
        }
        moves
    }

    fn pitch(extent: [u64; 3]) -> impl Strategy<Value = Pitch> {
        let [width, rows, _] = extent;
        (0..4u64, 0..4u64, 0..4u64).prop_map(move |(offset, row, slice)| {
            let row = width + if row == 3 { 11 } else { 0 };
            Pitch { offset, row, slice: row * rows + if slice == 3 { 5 } else { 0 } }
        })
    }

    fn region() -> impl Strategy<Value = Region> {
        [1..6u64, 1..6, 1..6].prop_flat_map(|extent| {
            (pitch(extent), pitch(extent)).prop_map(move |(src, dst)| Region { extent, src, dst })
        })
    }

    proptest! {
        #[test]
        fn commands_move_what_the_region_moves_within_the_limit(region in region(), limit in 2..400u64) {
            let commands = commands(&region, limit);
            prop_assert_eq!(moves(&commands), moves(&[region]));
            for command in commands {
                let [_, rows, slices] = command.extent;
                for pitch in [command.src, command.dst] {
                    let span = if slices > 1 { slices * pitch.slice } else { rows * pitch.row };
                    prop_assert!(is_row(&command) || span < limit);
                }
            }
        }
    }

    #[test]
    fn what_lies_in_one_piece_is_one_row() {
        let pitch = |offset| Pitch { offset, row: 8, slice: 24 };
        let whole = |offset| Pitch { offset, row: 24, slice: 24 };
        let region = Region { extent: [8, 3, 5], src: pitch(3), dst: pitch(0) };
        assert_eq!(commands(&region, 10)[..], [Region { extent: [120, 1, 1], src: whole(3), dst: whole(0) }]);
        let apart = Region { dst: Pitch { offset: 0, row: 9, slice: 30 }, ..region };
        assert_eq!(commands(&apart, 1000)[..], [apart]);
        assert_eq!(commands(&apart, 100).len(), 5);
        assert_eq!(commands(&apart, 10).len(), 15);
    }
}
