//! Errors of padding and pixel shuffling.

use crate::panics::{Arguments, Visit, tensors};
use crate::{error_of, floats, zeros};
use marquetry::{DType, Device, Error, PadMode};

#[test]
fn borders_that_cannot_be() {
    let x = floats((2, 3));
    let pad = |amounts: &[(isize, isize)], mode| x.pad(amounts, mode);
    let zero = PadMode::Constant(0.into());
    assert_error!(pad(&[(1, 1); 3], zero), Error::InvalidArgument { .. }, "pad", "3 pairs", "[2, 3]", "2 axes");
    assert_error!(pad(&[(-2, -2)], zero), Error::InvalidArgument { .. }, "axis 1", "length 3", "cropped by 2 and 2");
    assert_error!(pad(&[(isize::MIN, 0)], zero), Error::InvalidArgument { .. }, "axis 1", "cropped by");
    assert_error!(pad(&[(isize::MAX, 1)], zero), Error::SizeOverflow { .. }, "pad", "more elements");
    assert_error!(pad(&[(1 << 31, 1 << 31)], zero), Error::SizeOverflow { .. }, "pad");
    let reflect = PadMode::Reflect;
    assert_error!(pad(&[(0, 3)], reflect), Error::InvalidArgument { .. }, "0 and 3", "axis 1", "reflection is shorter");
    assert_error!(pad(&[(2, 0), (0, 0)], reflect), Error::InvalidArgument { .. }, "2 and 0", "axis 0 of length 2");
    // The reflection must not show cropped elements.
    assert_error!(pad(&[(-1, 2)], reflect), Error::InvalidArgument { .. }, "0 and 2", "axis 1 of length 2");
    assert_error!(pad(&[(4, 0)], PadMode::Circular), Error::InvalidArgument { .. }, "no longer than the axis");
    let empty = floats((2, 0));
    assert_error!(empty.pad(&[(1, 0)], PadMode::Replicate), Error::InvalidArgument { .. }, "no element to repeat");
    assert_error!(empty.pad_with_same(1, 0, 1), Error::InvalidArgument { .. }, "pad_with_same", "no element to repeat");
    assert_error!(x.pad_with_zeros(2, 1, 1), Error::AxisOutOfRange { .. }, "pad_with_zeros", "axis 2");
    assert_error!(x.pad_with_same(-3, 1, 1), Error::AxisOutOfRange { .. }, "pad_with_same", "axis -3");
    assert_error!(x.pad_with_zeros(0, usize::MAX, 1), Error::SizeOverflow { .. }, "pad_with_zeros");
    let bytes = zeros(3, DType::U8);
    let minus = bytes.pad(&[(1, 1)], PadMode::Constant((-1).into()));
    assert_error!(
        minus,
        Error::InvalidArgument { .. },
        "pad",
        "-1",
        "u8 holds whole numbers from 0 to 255",
        "to_dtype"
    );
}

#[test]
fn blocks_of_pixels_that_do_not_fit() {
    let x = floats((6, 4, 3));
    assert_error!(floats((4, 3)).pixel_shuffle(2), Error::RankMismatch { .. }, "pixel_shuffle", "3 or more", "[4, 3]");
    assert_error!(floats(3).pixel_unshuffle(2), Error::RankMismatch { .. }, "pixel_unshuffle", "3 or more", "[3]");
    assert_error!(
        x.pixel_shuffle(2),
        Error::InvalidArgument { .. },
        "pixel_shuffle",
        "6 channels",
        "square of the factor 2"
    );
    assert_error!(x.pixel_shuffle(0), Error::InvalidArgument { .. }, "pixel_shuffle", "factor 0");
    assert_error!(x.pixel_shuffle(usize::MAX), Error::InvalidArgument { .. }, "pixel_shuffle", "6 channels");
    assert_error!(x.pixel_unshuffle(2), Error::InvalidArgument { .. }, "pixel_unshuffle", "4 x 3 pixels", "2 x 2");
    assert_error!(x.pixel_unshuffle(0), Error::InvalidArgument { .. }, "pixel_unshuffle", "0 x 0");
    let long = floats((0, 1 << 40, 1 << 40));
    assert_error!(long.pixel_unshuffle(1 << 40), Error::SizeOverflow { .. }, "pixel_unshuffle");
}

pub fn calls(arguments: &Arguments, device: &Device, visit: Visit) {
    let Arguments { axis: (a, b), size: (i, j, k), number: (x, _), .. } = *arguments;
    let [t, ..] = tensors(arguments, device);
    visit! { visit:
        pad: t.pad(&[(a, b), (b, i as isize)], PadMode::Constant(x.into()));
        pad_reflect: t.pad(&[(a, b)], PadMode::Reflect);
        pad_replicate: t.pad(&[(j as isize, b), (b, a)], PadMode::Replicate);
        pad_circular: t.pad(&[(a, k as isize)], PadMode::Circular);
        pad_with_zeros: t.pad_with_zeros(a, i, j);
        pad_with_same: t.pad_with_same(a, i, j);
        pixel_shuffle: t.pixel_shuffle(i);
        pixel_unshuffle: t.pixel_unshuffle(i);
    }
}
