//! Errors of grid samples.

use crate::panics::{Arguments, Visit, tensors};
use crate::{error_of, floats, open, zeros};
use marquetry::{DType, Device, Error, GridSampleConfig, GridSampleMode, GridSamplePadding, Tensor};

#[test]
fn grids_that_do_not_fit() {
    let (x, grid) = (floats((2, 3, 4, 5)), floats((2, 6, 7, 2)));
    let config = GridSampleConfig::default();
    let sample = |x: &Tensor, grid: &Tensor| x.grid_sample(grid, config);
    assert_error!(
        sample(&floats((3, 4, 5)), &grid),
        Error::RankMismatch { .. },
        "grid_sample",
        "the images",
        "[3, 4, 5]"
    );
    assert_error!(sample(&x, &floats((6, 7, 2))), Error::RankMismatch { .. }, "grid_sample", "the grid", "[6, 7, 2]");
    let batch = sample(&x, &floats((1, 6, 7, 2)));
    assert_error!(batch, Error::ShapeMismatch { .. }, "grid_sample", "[2, 3, 4, 5]", "[1, 6, 7, 2]", "must be equal");
    let triples = sample(&x, &floats((2, 6, 7, 3)));
    assert_error!(triples, Error::ShapeMismatch { .. }, "grid_sample", "[2, 6, 7, 3]", "last one 2");
    let bytes = zeros((2, 3, 4, 5), DType::U8);
    assert_error!(sample(&bytes, &grid), Error::UnsupportedDType { .. }, "grid_sample", "u8", "f32");
    let integers = zeros((2, 6, 7, 2), DType::I32);
    assert_error!(sample(&x, &integers), Error::UnsupportedDType { .. }, "grid_sample", "i32", "f32");
    let empty = sample(&floats((2, 3, 0, 5)), &grid);
    assert_error!(empty, Error::InvalidArgument { .. }, "grid_sample", "images of 0 x 5");
    let long = floats((1, 1, 1, 1)).broadcast_to((2, 3, 1, (1 << 24) + 1)).unwrap();
    assert_error!(sample(&long, &grid), Error::InvalidArgument { .. }, "1 x 16777217", "2^24");
    let other = Tensor::zeros((2, 6, 7, 2), DType::F32, &open("webgpu")).unwrap();
    assert_error!(sample(&x, &other), Error::DeviceMismatch { .. }, "grid_sample", "vulkan:0", "webgpu:0");
}

pub fn calls(arguments: &Arguments, device: &Device, visit: Visit) {
    let (i, j, _) = arguments.size;
    let [t, u, _] = tensors(arguments, device);
    let config = GridSampleConfig {
        mode: [GridSampleMode::Nearest, GridSampleMode::Bilinear, GridSampleMode::Bicubic][i % 3],
        padding: [GridSamplePadding::Zeros, GridSamplePadding::Border, GridSamplePadding::Reflection][j % 3],
        align_corners: arguments.transposed,
    };
    let axis = |t: &Tensor| t.unsqueeze(0);
    visit! { visit:
        grid_sample: t.grid_sample(&u, config);
        grid_sample_of_four_axes: axis(&t)?.grid_sample(&axis(&u)?, config);
        grid_sample_of_pairs: axis(&t)?.grid_sample(&t.narrow(-1, 0, 2)?.unsqueeze(0)?, config);
    }
}
