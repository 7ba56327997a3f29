//! Errors of resizing.

use crate::panics::{Arguments, Visit, tensors};
use crate::{error_of, floats, zeros};
use marquetry::{CoordinateMode, DType, Device, Error, NearestRounding, ResizeConfig, ResizeMode};

#[test]
fn axes_that_cannot_be_resized() {
    let x = floats((2, 3));
    let linear = ResizeConfig::LINEAR;
    assert_error!(x.resize((1, 2, 3), linear), Error::InvalidArgument { .. }, "resize", "3 axes", "[2, 3]");
    assert_error!(x.resize((), linear), Error::InvalidArgument { .. }, "resize", "0 axes", "one to 3");
    assert_error!(floats([1; 5]).resize([2; 4], linear), Error::InvalidArgument { .. }, "4 axes", "one to 3");
    assert_error!(floats([1; 5]).resize([2; 3], ResizeConfig::CUBIC), Error::InvalidArgument { .. }, "3 axes", "to 2");
    assert_error!(x.resize((1 << 16, 1 << 16), linear), Error::SizeOverflow { .. }, "resize", "[65536, 65536]");
    assert_error!(x.resize((usize::MAX, 2), linear), Error::SizeOverflow { .. }, "resize");
    let empty = floats((2, 0));
    assert_error!(empty.resize((2, 4), linear), Error::InvalidArgument { .. }, "axis 1 is empty", "make 4 of");
    let bytes = zeros((2, 3), DType::U8);
    assert_error!(bytes.resize(5, linear), Error::UnsupportedDType { .. }, "resize", "u8", "f32");
    assert_error!(bytes.upsample_bilinear2d(5, 5, true), Error::UnsupportedDType { .. }, "upsample_bilinear2d", "u8");
    let cubic = ResizeConfig { mode: ResizeMode::Cubic(f64::NAN), ..ResizeConfig::CUBIC };
    assert_error!(x.resize(5, cubic), Error::InvalidArgument { .. }, "coefficient NaN", "not finite");
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300] {
        let resized = x.resize_by(&[1.0, scale], linear);
        assert_error!(resized, Error::InvalidArgument { .. }, "resize_by", scale, "no factor");
    }
    assert_error!(x.resize_by(&[1e18], linear), Error::SizeOverflow { .. }, "resize_by");
    assert_error!(x.resize_by(&[], linear), Error::InvalidArgument { .. }, "resize_by", "0 axes");
    assert_error!(x.upsample_nearest1d(usize::MAX), Error::SizeOverflow { .. }, "upsample_nearest1d");
    assert_error!(floats(3).upsample_nearest2d(1, 1), Error::InvalidArgument { .. }, "upsample_nearest2d", "[3]");
    assert_error!(floats(3).interpolate2d(1, 1), Error::InvalidArgument { .. }, "interpolate2d", "[3]");
    assert_error!(floats(()).interpolate1d(1), Error::InvalidArgument { .. }, "interpolate1d", "[]");
    // A view of a single byte.
    let long = zeros(1, DType::U8).broadcast_to((1 << 30) + 3).unwrap();
    assert_error!(
        long.resize(7, ResizeConfig::NEAREST),
        Error::InvalidArgument { .. },
        "from 1073741827 to 7",
        "too many"
    );
}

pub fn calls(arguments: &Arguments, device: &Device, visit: Visit) {
    let Arguments { axis: (a, _), size: (i, j, k), number: (x, y), .. } = *arguments;
    let [t, ..] = tensors(arguments, device);
    let coordinates = [
        CoordinateMode::HalfPixel,
        CoordinateMode::PytorchHalfPixel,
        CoordinateMode::AlignCorners,
        CoordinateMode::Asymmetric,
    ][i % 4];
    let rounding =
        [NearestRounding::Floor, NearestRounding::Ceil, NearestRounding::PreferFloor, NearestRounding::PreferCeil]
            [j % 4];
    let nearest = ResizeConfig { mode: ResizeMode::Nearest(rounding), coordinates };
    let cubic = ResizeConfig { mode: ResizeMode::Cubic(x), coordinates };
    visit! { visit:
        resize: t.resize(arguments.shape.as_slice(), ResizeConfig { coordinates, ..ResizeConfig::LINEAR });
        resize_nearest: t.resize((j, k), nearest);
        resize_cubic: t.resize(i, cubic);
        resize_by: t.resize_by(&[x, y], ResizeConfig { coordinates, ..ResizeConfig::LINEAR });
        resize_by_nearest: t.resize_by(&[a as f64], nearest);
        upsample_nearest1d: t.upsample_nearest1d(i);
        upsample_nearest2d: t.upsample_nearest2d(i, j);
        interpolate1d: t.interpolate1d(k);
        interpolate2d: t.interpolate2d(j, k);
        upsample_bilinear2d: t.upsample_bilinear2d(j, k, true);
    }
}
