//! Copies of boxes of bytes.

use super::guard::driver_error;
use crate::device::backend::Region;
use crate::error::Result;

/// Records a copy, row by row: wgpu has no other one between buffers.
pub(super) fn copy_region(
    encoder: &mut wgpu::CommandEncoder,
    src: &wgpu::Buffer,
    dst: &wgpu::Buffer,
    region: &Region,
) -> Result<()> {
    let checked = check_alignment(region).and_then(|()| region.check(src.size(), dst.size()));
    checked.map_err(|message| driver_error("submit", message))?;
    for row in region.rows() {
        encoder.copy_buffer_to_buffer(src, row.src, dst, row.dst, row.bytes);
    }
    Ok(())
}

/// Fails unless every number of bytes in a region is a multiple of what wgpu copies.
fn check_alignment(region: &Region) -> Result<(), String> {
    let &Region { extent: [bytes, ..], src, dst } = region;
    let numbers = [bytes, src.offset, src.row, src.slice, dst.offset, dst.row, dst.slice];
    match numbers.into_iter().find(|number| number % wgpu::COPY_BUFFER_ALIGNMENT != 0) {
        Some(number) => Err(format!("{number} is not a multiple of {} in {region:?}", wgpu::COPY_BUFFER_ALIGNMENT)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{copy_region, download_bytes, open, upload_bytes};
    use super::*;
    use crate::device::backend::{Backend, Pitch};

    fn pitch(offset: u64, row: u64, slice: u64) -> Pitch {
        Pitch { offset, row, slice }
    }

    /// Numbers that look random, always the same ones.
    struct Random(u64);

    impl Random {
        /// A multiple of 4 below `4 * end`.
        fn bytes(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end * 4
        }
    }

    /// A place for a box, with gaps between its rows and slices or without.
    fn place(random: &mut Random, [row, rows, _]: [u64; 3], strided: bool) -> Pitch {
        let mut gap = || if strided { 4 + random.bytes(6) } else { 0 };
        let row = row + gap();
        pitch(gap(), row, row * rows + gap())
    }

    /// What a copy makes of `dst`, byte by byte.
    fn copied(src: &[u8], mut dst: Vec<u8>, Region { extent, src: from, dst: to }: &Region) -> Vec<u8> {
        for z in 0..extent[2] {
            for y in 0..extent[1] {
                for x in 0..extent[0] {
                    let at = |pitch: &Pitch| (pitch.offset + z * pitch.slice + y * pitch.row + x) as usize;
                    dst[at(to)] = src[at(from)];
                }
            }
        }
        dst
    }

    #[test]
    fn boxes_are_copied_and_nothing_else() {
        let backend = open();
        let mut random = Random(1);
        let bytes = 16384;
        let source: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        let src = upload_bytes(&backend, &source);
        for (src_strided, dst_strided) in [(false, false), (false, true), (true, false), (true, true)] {
            for _ in 0..20 {
                let extent = [4 + random.bytes(20), 1 + random.bytes(6) / 4, 1 + random.bytes(5) / 4];
                let from = place(&mut random, extent, src_strided);
                let region = Region { extent, src: from, dst: place(&mut random, extent, dst_strided) };
                let dst = upload_bytes(&backend, &[255; 16384]);
                backend.submit(&[copy_region(src, dst, region)], false).unwrap();
                let expected = copied(&source, vec![255; 16384], &region);
                assert!(download_bytes(&backend, dst, bytes) == expected, "{region:?}");
                backend.free(dst);
            }
        }
    }

    #[test]
    fn bad_regions_are_errors_and_leave_the_device_working() {
        let backend = open();
        let (src, dst) = (upload_bytes(&backend, &[1; 64]), upload_bytes(&backend, &[2; 32]));
        let region = |extent, src, dst| Region { extent, src, dst };
        let (dense, far) = (pitch(0, 8, 16), pitch(u64::MAX - 3, 8, 16));
        let refused = [
            (region([6, 1, 1], dense, dense), "multiple of 4"),
            (region([8, 1, 1], dense, pitch(2, 8, 8)), "multiple of 4"),
            (region([8, 2, 1], pitch(0, 9, 16), dense), "multiple of 4"),
            (region([8, 2, 2], dense, pitch(0, 8, 17)), "multiple of 4"),
            (region([8, 0, 1], dense, dense), "nothing"),
            (region([64, 1, 1], dense, dense), "destination"),
            (region([8, 2, 2], dense, pitch(4, 8, 16)), "destination"),
            (region([8, 2, 2], pitch(36, 8, 16), dense), "source"),
            (region([8, 1, 1], far, dense), "beyond"),
            (region([8, 2, 1], dense, pitch(0, u64::MAX - 3, 8)), "beyond"),
            (region([8, 2, 1], dense, pitch(0, 4, 8)), "overlap"),
        ];
        for (region, expected) in refused {
            let error = backend.submit(&[copy_region(src, dst, region)], false).unwrap_err().to_string();
            assert!(error.contains(expected), "{region:?}: {error}");
        }
        backend.submit(&[copy_region(src, dst, Region::linear(16))], false).unwrap();
        assert_eq!(download_bytes(&backend, dst, 32), [[1; 16], [2; 16]].concat());
    }
}
