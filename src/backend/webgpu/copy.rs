//! Copies of boxes of bytes.

use super::guard::driver_error;
use crate::backend::contract::Region;
use crate::base::error::Result;

/// Records a copy, row by row: wgpu has no other copy between buffers.
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
#[cfg(device_tests)]
mod tests {
    use super::super::tests::open;
    use super::*;
    use crate::backend::contract::{Backend, Pitch};
    use crate::backend::contract_tests::{copy_box, download_bytes, upload_bytes};

    #[test]
    fn numbers_that_are_not_a_multiple_of_4_are_refused() {
        let backend = open();
        let [src, dst] = [vec![1; 64], vec![2; 32]].map(|data| upload_bytes(&backend, &data));
        let pitch = |offset, row, slice| Pitch { offset, row, slice };
        let region = |extent, src, dst| Region { extent, src, dst };
        let dense = pitch(0, 8, 16);
        let refused = [
            region([6, 1, 1], dense, dense),
            region([8, 1, 1], pitch(1, 8, 8), dense),
            region([8, 1, 1], dense, pitch(2, 8, 8)),
            region([8, 2, 1], pitch(0, 9, 16), dense),
            region([8, 2, 1], dense, pitch(0, 9, 16)),
            region([8, 2, 2], pitch(0, 8, 17), dense),
            region([8, 2, 2], dense, pitch(0, 8, 17)),
        ];
        for region in refused {
            let error = backend.submit(&[copy_box(src, dst, region, false)], false).unwrap_err().to_string();
            assert!(error.contains("multiple of 4"), "{region:?}: {error}");
        }
        backend.submit(&[copy_box(src, dst, Region::linear(16), false)], false).unwrap();
        assert_eq!(download_bytes(&backend, dst, 32), [[1; 16], [2; 16]].concat());
    }
}
