//! Errors of reductions, scans and sorting.

use crate::panics::{Arguments, Visit, tensors};
use crate::{error_of, floats, zeros};
use marquetry::{DType, Device, Error};

#[test]
fn axes_that_are_not_there() {
    let x = floats((2, 3));
    assert_error!(x.prod(2), Error::AxisOutOfRange { .. }, "prod", "axis 2", "[2, 3]");
    assert_error!(x.var_with([0, 5], 0), Error::AxisOutOfRange { .. }, "var_with", "axis 5", "[2, 3]");
    assert_error!(x.norm_l2_keepdim(-3), Error::AxisOutOfRange { .. }, "norm_l2_keepdim", "axis -3", "[2, 3]");
    assert_error!(x.any([1, -1]), Error::DuplicateAxis { .. }, "any", "axis -1", "twice");
    assert_error!(x.cumsum(2), Error::AxisOutOfRange { .. }, "cumsum", "axis 2", "[2, 3]");
    assert_error!(x.cummin(-3), Error::AxisOutOfRange { .. }, "cummin", "axis -3", "[2, 3]");
    assert_error!(x.sort(2, false), Error::AxisOutOfRange { .. }, "sort", "axis 2", "[2, 3]");
    assert_error!(x.argsort(-3, true), Error::AxisOutOfRange { .. }, "argsort", "axis -3", "[2, 3]");
    assert_error!(x.topk(1, 4, true), Error::AxisOutOfRange { .. }, "topk", "axis 4", "[2, 3]");
    let scalar = floats(());
    assert_error!(
        scalar.cumprod(0),
        Error::AxisOutOfRange { .. },
        "cumprod",
        "axis 0",
        "[]",
        "a scalar, which has no axes"
    );
    assert_error!(scalar.sort(0, false), Error::AxisOutOfRange { .. }, "sort", "axis 0", "[]");
}

#[test]
fn integers_where_floats_are_wanted() {
    let x = zeros((2, 3), DType::I32);
    for (name, result) in [
        ("var", x.var(0)),
        ("std_with_keepdim", x.std_with_keepdim(0, 1)),
        ("mean_all", x.mean_all()),
        ("logsumexp", x.logsumexp(1)),
        ("norm_l1", x.norm_l1(1)),
        ("norm_l2_all", x.norm_l2_all()),
    ] {
        assert_error!(result, Error::UnsupportedDType { .. }, name, "i32", "f32", "to_dtype");
    }
}

#[test]
fn nothing_to_choose_from() {
    let empty = floats((2, 0));
    assert_error!(empty.argmin(1), Error::InvalidArgument { .. }, "argmin", "no element to choose", "[1]", "[2, 0]");
    assert_error!(empty.argmin_all(), Error::InvalidArgument { .. }, "argmin_all", "no element to choose");
    assert_eq!(empty.argmin(0).unwrap().elem_count(), 0);
    assert_eq!(empty.sort(1, false).unwrap().0.dims(), [2, 0]);
}

#[test]
fn more_than_an_axis_has() {
    let x = floats((2, 3));
    assert_error!(
        x.topk(4, 1, true),
        Error::InvalidArgument { .. },
        "topk",
        "k = 4",
        "axis 1",
        "[2, 3]",
        "k is at most 3"
    );
    assert_error!(x.topk(usize::MAX, 0, true), Error::InvalidArgument { .. }, "topk", usize::MAX, "axis 0");
    assert_eq!(x.topk(0, 1, false).unwrap().1.dims(), [2, 0]);
}

pub fn calls(arguments: &Arguments, device: &Device, visit: Visit) {
    let Arguments { axis: (a, _), size: (i, j, _), number: (x, _), .. } = *arguments;
    let [t, ..] = tensors(arguments, device);
    let axes = || arguments.axes.clone();
    let descending = x > 0.0;
    visit! { visit:
        prod: t.prod(axes());
        prod_keepdim: t.prod_keepdim(axes());
        prod_all: t.prod_all();
        argmin: t.argmin(axes());
        argmin_keepdim: t.argmin_keepdim(axes());
        argmin_all: t.argmin_all();
        any: t.any(axes());
        any_keepdim: t.any_keepdim(axes());
        any_all: t.any_all();
        all: t.all(axes());
        all_keepdim: t.all_keepdim(axes());
        all_all: t.all_all();
        var: t.var(axes());
        var_keepdim: t.var_keepdim(axes());
        var_all: t.var_all();
        var_with: t.var_with(axes(), i);
        var_with_keepdim: t.var_with_keepdim(axes(), i);
        var_with_all: t.var_with_all(j);
        std: t.std(axes());
        std_keepdim: t.std_keepdim(axes());
        std_all: t.std_all();
        std_with: t.std_with(axes(), j);
        std_with_keepdim: t.std_with_keepdim(axes(), j);
        std_with_all: t.std_with_all(i);
        logsumexp: t.logsumexp(axes());
        logsumexp_keepdim: t.logsumexp_keepdim(axes());
        logsumexp_all: t.logsumexp_all();
        norm_l1: t.norm_l1(axes());
        norm_l1_keepdim: t.norm_l1_keepdim(axes());
        norm_l1_all: t.norm_l1_all();
        norm_l2: t.norm_l2(axes());
        norm_l2_keepdim: t.norm_l2_keepdim(axes());
        norm_l2_all: t.norm_l2_all();
        cumsum: t.cumsum(a);
        cumprod: t.cumprod(a);
        cummax: t.cummax(a);
        cummin: t.cummin(a);
        sort: t.sort(a, descending).map(|(values, _)| values);
        sort_places: t.sort(a, descending).map(|(_, places)| places);
        argsort: t.argsort(a, descending);
        topk: t.topk(i, a, descending).map(|(values, _)| values);
        topk_places: t.topk(j, a, descending).map(|(_, places)| places);
    }
}
