//! Errors of convolutions, pooling and windows.

use crate::panics::{Arguments, Visit, tensors};
use crate::{error_of, floats, zeros};
use marquetry::{ConvConfig, DType, Device, Error, PoolConfig, Tensor};

#[test]
fn convolutions_that_do_not_fit() {
    let (x, weight, config) = (floats((1, 4, 5, 6)), floats((8, 4, 3, 3)), ConvConfig::default());
    let conv = |weight: &Tensor, config: &ConvConfig| x.conv2d(weight, None, config);
    assert_error!(
        floats((5, 6)).conv2d(&weight, None, &config),
        Error::RankMismatch { .. },
        "conv2d",
        "4 (or 3",
        "[5, 6]"
    );
    assert_error!(
        conv(&floats((8, 4, 3)), &config),
        Error::RankMismatch { .. },
        "conv2d",
        "4 (the weight)",
        "[8, 4, 3]"
    );
    let other = floats((8, 3, 3, 3));
    assert_error!(conv(&other, &config), Error::ShapeMismatch { .. }, "[1, 4, 5, 6]", "[8, 3, 3, 3]", "C_in / groups");
    assert_error!(
        x.conv_transpose2d(&weight, None, &config),
        Error::ShapeMismatch { .. },
        "conv_transpose2d",
        "[1, 4, 5, 6]",
        "[8, 4, 3, 3]",
        "C_out / groups"
    );
    assert_error!(conv(&weight, &config.clone().groups(3)), Error::InvalidArgument { .. }, "3 groups", "4", "8");
    assert_error!(conv(&weight, &config.clone().groups(0)), Error::InvalidArgument { .. }, "0 groups");
    let bias = floats(7);
    assert_error!(x.conv2d(&weight, Some(&bias), &config), Error::ShapeMismatch { .. }, "[8, 4, 3, 3]", "[7]", "bias");
    assert_error!(conv(&weight, &config.clone().stride(0)), Error::InvalidArgument { .. }, "conv2d", "stride of 0");
    assert_error!(conv(&weight, &config.clone().dilation([1, 0])), Error::InvalidArgument { .. }, "dilation of 0");
    assert_error!(conv(&floats((8, 4, 0, 3)), &config), Error::InvalidArgument { .. }, "kernel of 0");
    assert_error!(
        conv(&weight, &config.clone().stride([1, 1, 1])),
        Error::InvalidArgument { .. },
        "stride has 3 values",
        "2"
    );
    assert_error!(
        conv(&weight, &config.clone().dilation(3).padding([(0, 1), (1, 1)])),
        Error::InvalidArgument { .. },
        "kernel of 3 with dilation 3 reaches over 7",
        "length 5",
        "(0, 1)",
        "has 6",
        "pad more"
    );
    assert_error!(conv(&weight, &config.clone().padding(usize::MAX)), Error::InvalidArgument { .. }, "go beyond");
    assert_error!(conv(&weight, &config.clone().dilation(1 << 40)), Error::InvalidArgument { .. }, "go beyond");
    assert_error!(conv(&weight, &config.clone().output_padding(1)), Error::InvalidArgument { .. }, "output_padding");
}

#[test]
fn transposed_convolutions_that_do_not_fit() {
    let (x, weight, config) = (floats((1, 8, 5)), floats((8, 4, 3)), ConvConfig::default());
    let conv = |config: ConvConfig| x.conv_transpose1d(&weight, None, &config);
    assert_error!(
        conv(config.clone().output_padding(2).stride(2)),
        Error::InvalidArgument { .. },
        "output_padding of 2",
        "stride (2)"
    );
    assert_error!(conv(config.clone().padding(4)), Error::InvalidArgument { .. }, "(4, 4)", "7 elements", "pad less");
    let nothing = floats((1, 8, 0)).conv_transpose1d(&weight, None, &config);
    assert_error!(nothing, Error::InvalidArgument { .. }, "conv_transpose1d", "length 0");
}

#[test]
fn dtypes_of_convolutions_and_pools() {
    let (x, weight, config) = (floats((1, 4, 5)), zeros((8, 4, 3), DType::F16), ConvConfig::default());
    assert_error!(x.conv1d(&weight, None, &config), Error::DTypeMismatch { .. }, "conv1d", "f32", "f16");
    let bias = zeros(8, DType::I32);
    assert_error!(x.conv1d(&floats((8, 4, 3)), Some(&bias), &config), Error::DTypeMismatch { .. }, "f32", "i32");
    let truths = zeros((1, 4, 5), DType::Bool);
    let weight = zeros((8, 4, 3), DType::Bool);
    assert_error!(truths.conv1d(&weight, None, &config), Error::UnsupportedDType { .. }, "conv1d", "bool", "numbers");
    let bytes = zeros((1, 4, 5), DType::U8);
    let (weight, bias) = (zeros((8, 4, 3), DType::U8), zeros(8, DType::U8));
    // The bias must have the wide dtype of the sum.
    assert_error!(bytes.conv1d(&weight, Some(&bias), &config), Error::DTypeMismatch { .. }, "conv1d", "u32", "u8");
    let pool = PoolConfig::new(2);
    assert_error!(
        bytes.avg_pool1d(&pool),
        Error::UnsupportedDType { .. },
        "avg_pool1d",
        "u8",
        "f32, f16, bf16 and f64"
    );
    assert_error!(
        bytes.lp_pool1d(2.0, &pool),
        Error::UnsupportedDType { .. },
        "lp_pool1d",
        "u8",
        "f32, f16, bf16 and f64"
    );
    assert_error!(bytes.adaptive_avg_pool1d(2), Error::UnsupportedDType { .. }, "adaptive_avg_pool1d", "u8");
}

#[test]
fn pools_that_do_not_fit() {
    let x = floats((1, 4, 5, 6));
    let max = |config: PoolConfig| x.max_pool2d(&config);
    assert_error!(
        x.max_pool1d(&PoolConfig::new(2)),
        Error::RankMismatch { .. },
        "max_pool1d",
        "3 (or 2",
        "[1, 4, 5, 6]"
    );
    assert_error!(max(PoolConfig::new([2, 0])), Error::InvalidArgument { .. }, "max_pool2d", "kernel of 0");
    assert_error!(max(PoolConfig::new(2).stride(0)), Error::InvalidArgument { .. }, "stride of 0");
    assert_error!(max(PoolConfig::new([1, 2, 3])), Error::InvalidArgument { .. }, "kernel has 3 values");
    assert_error!(max(PoolConfig::new(6)), Error::InvalidArgument { .. }, "kernel of 6", "length 5", "pad more");
    assert_error!(
        max(PoolConfig::new(2).padding(2)),
        Error::InvalidArgument { .. },
        "(2, 2)",
        "2 elements that a window spans",
        "pad less"
    );
    let dilated = PoolConfig::new(2).dilation(2);
    assert_error!(
        x.avg_pool2d(&dilated),
        Error::InvalidArgument { .. },
        "avg_pool2d",
        "dilation of 2",
        "only max pooling"
    );
    assert_error!(x.lp_pool2d(0.0, &PoolConfig::new(2)), Error::InvalidArgument { .. }, "p = 0", "positive");
    let empty = floats((1, 4, 0, 6));
    assert_error!(empty.max_pool2d(&PoolConfig::new(1)), Error::InvalidArgument { .. }, "[1, 4, 0, 6]", "no elements");
    assert_error!(empty.adaptive_max_pool2d(1), Error::InvalidArgument { .. }, "[1, 4, 0, 6]");
    assert_error!(x.adaptive_avg_pool2d(1 << 40), Error::InvalidArgument { .. }, "too many");
    assert_error!(x.adaptive_avg_pool2d([1, 2, 3]), Error::InvalidArgument { .. }, "3 values");
    assert_error!(floats((3, 4)).global_avg_pool(), Error::RankMismatch { .. }, "global_avg_pool", "3 or more");
    assert_error!(floats((3, 4)).global_max_pool(), Error::RankMismatch { .. }, "global_max_pool", "3 or more");
    assert_error!(
        x.unfold(1, 5, 1),
        Error::InvalidArgument { .. },
        "unfold",
        "5 elements",
        "axis 1",
        "[1, 4, 5, 6]",
        "4 at most"
    );
    assert_error!(x.unfold(1, 2, 0), Error::InvalidArgument { .. }, "unfold", "step of 0");
    assert_error!(x.unfold(4, 1, 1), Error::AxisOutOfRange { .. }, "unfold", "4");
}

/// Every method of this family.
pub fn calls(arguments: &Arguments, device: &Device, visit: Visit) {
    let Arguments { axis: (a, _), size: (i, j, k), number: (x, _), .. } = *arguments;
    let [t, u, v] = tensors(arguments, device);
    // Usually of a rank with spatial axes.
    let image = || t.unsqueeze(0)?.unsqueeze(0);
    let kernel = || u.unsqueeze(0)?.unsqueeze(0);
    let config =
        || ConvConfig::default().stride([i, j]).padding([(i, j), (j, k)]).dilation(k).groups(j).output_padding(k);
    let plain = || ConvConfig::default().padding(k % 4);
    let pool = || PoolConfig::new([i, j]).padding([(j, k), (k, i)]).stride(k).dilation(i).ceil_mode(i > j);
    let simple = || PoolConfig::new(i).padding(j).ceil_mode(k > 2).count_include_pad(k > 1);
    visit! { visit:
        conv1d: image()?.conv1d(&kernel()?, None, &plain());
        conv2d: image()?.conv2d(&kernel()?, None, &plain());
        conv2d_any: image()?.conv2d(&kernel()?, Some(&v), &config());
        conv3d: image()?.conv3d(&kernel()?, None, &plain());
        conv_transpose1d: image()?.conv_transpose1d(&kernel()?, None, &plain().stride(j));
        conv_transpose2d: image()?.conv_transpose2d(&kernel()?, None, &config());
        conv_transpose2d_strided: image()?.conv_transpose2d(&kernel()?, None, &ConvConfig::default().stride(i));
        conv_transpose3d: image()?.conv_transpose3d(&kernel()?, Some(&v), &plain());
        max_pool1d: t.max_pool1d(&simple());
        max_pool2d: image()?.max_pool2d(&pool());
        max_pool3d: image()?.max_pool3d(&simple());
        avg_pool1d: t.avg_pool1d(&simple());
        avg_pool2d: image()?.avg_pool2d(&simple());
        avg_pool3d: image()?.avg_pool3d(&simple());
        lp_pool1d: t.lp_pool1d(x, &simple());
        lp_pool2d: image()?.lp_pool2d(x, &simple());
        lp_pool3d: image()?.lp_pool3d(x, &simple());
        adaptive_avg_pool1d: t.adaptive_avg_pool1d(i);
        adaptive_avg_pool2d: image()?.adaptive_avg_pool2d([i, j]);
        adaptive_avg_pool3d: image()?.adaptive_avg_pool3d(i);
        adaptive_max_pool1d: t.adaptive_max_pool1d(i);
        adaptive_max_pool2d: image()?.adaptive_max_pool2d([i, j]);
        adaptive_max_pool3d: image()?.adaptive_max_pool3d(i);
        global_avg_pool: image()?.global_avg_pool();
        global_max_pool: image()?.global_max_pool();
        unfold: t.unfold(a, i, j);
    }
}
