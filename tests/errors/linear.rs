//! Errors of products, einsum, normalisations and strided views.

use crate::panics::{Arguments, Visit, tensors};
use crate::{device, error_of, floats, open, zeros};
use marquetry::{DType, Device, Error, Gemm, GemmStridedBatched, MatrixBatch, Tensor};

/// Matrices of 2 x 3, 3 x 4 and 2 x 4, contiguous.
fn call() -> GemmStridedBatched {
    GemmStridedBatched::new([2, 4, 3]).batch(2)
}

#[test]
fn products() {
    let (x, y) = (floats((2, 3)), floats((4, 3)));
    let product = Gemm::default();
    assert_error!(x.gemm(&y, None, product), Error::ShapeMismatch { .. }, "gemm", "[2, 3]", "[4, 3]", "last but one");
    let sum = product.trans_b(true).beta(0.5);
    assert_error!(x.gemm(&y, None, sum), Error::InvalidArgument { .. }, "gemm", "0.5", "no c", "give c");
    assert_error!(x.gemm(&y, Some(&floats(3)), sum), Error::ShapeMismatch { .. }, "gemm", "[3]", "[2, 4]");
    assert_error!(x.gemm(&floats(3), None, product), Error::RankMismatch { .. }, "gemm", "2 or more", "[3]");
    let halves = zeros((2, 4), DType::F16);
    assert_error!(x.gemm(&y, Some(&halves), sum), Error::DTypeMismatch { .. }, "gemm", "f32", "f16");
    let integers = zeros((2, 2), DType::I32);
    let half = product.alpha(0.5);
    assert_error!(integers.gemm(&integers, None, half), Error::InvalidArgument { .. }, "gemm", "0.5", "i32");
    let uneven = Tensor::gemm_batched(&[&x], &[&y, &y], &[], product);
    assert_error!(
        uneven,
        Error::InvalidArgument { .. },
        "gemm_batched",
        "1 matrices a",
        "2 matrices b",
        "as many of each"
    );
    let bytes = zeros((2, 2), DType::U8);
    assert_error!(bytes.gemm(&bytes, None, product), Error::UnsupportedDType { .. }, "gemm", "u8", "i32");
    assert_error!(bytes.linear(&bytes, None), Error::UnsupportedDType { .. }, "linear", "u8", "i32");
    assert_error!(integers.matmul_f32(&integers), Error::UnsupportedDType { .. }, "matmul_f32", "i32", "bf16");
    assert_error!(x.matmul_f32(&y), Error::ShapeMismatch { .. }, "matmul_f32", "[2, 3]", "[4, 3]", "last but one");
    assert_error!(x.matmul_f32(&halves), Error::DTypeMismatch { .. }, "matmul_f32", "f32", "f16");
    assert_error!(floats(()).matmul_f32(&y), Error::RankMismatch { .. }, "matmul_f32", "1 or more", "[]");
    let elsewhere = Tensor::zeros((4, 3), DType::F32, &open("webgpu")).unwrap();
    assert_error!(x.linear(&elsewhere, None), Error::DeviceMismatch { .. }, "linear", "vulkan:0", "webgpu:0");
    assert_error!(
        x.linear(&floats((4, 2)), None),
        Error::ShapeMismatch { .. },
        "linear",
        "[2, 3]",
        "[4, 2]",
        "[out, in]"
    );
    assert_error!(
        x.linear(&y, Some(&floats(3))),
        Error::ShapeMismatch { .. },
        "linear",
        "[4, 3]",
        "[3]",
        "the bias [out]"
    );
    assert_error!(x.linear(&floats(3), None), Error::RankMismatch { .. }, "linear", "2 (the weight", "[3]");
    assert_error!(floats(()).linear(&y, None), Error::RankMismatch { .. }, "linear", "1 or more", "[]");
    assert_error!(floats(2).dot(&floats(3)), Error::ShapeMismatch { .. }, "dot", "[2]", "[3]", "equal");
    assert_error!(x.dot(&x), Error::RankMismatch { .. }, "dot", "1 (a vector)", "[2, 3]");
    assert_error!(zeros(3, DType::U8).dot(&zeros(3, DType::U8)), Error::UnsupportedDType { .. }, "dot", "u8");
    assert_error!(floats(2).outer(&x), Error::RankMismatch { .. }, "outer", "1 (a vector)", "[2, 3]");
    assert_error!(floats(2).outer(&zeros(2, DType::I32)), Error::DTypeMismatch { .. }, "outer", "f32", "i32");
}

#[test]
fn calls_over_flat_buffers() {
    let run = |call: GemmStridedBatched| Tensor::gemm_strided_batched(&floats(12), &floats(24), floats(16), call);
    assert!(run(call()).is_ok());
    let op = "gemm_strided_batched";
    let narrow = call().a(MatrixBatch::new(2).stride(6));
    assert_error!(run(narrow), Error::InvalidArgument { .. }, op, "leading dimension 2", "3 elements");
    let beyond = call().b(MatrixBatch::new(4).stride(12).offset(1));
    assert_error!(
        run(beyond),
        Error::InvalidArgument { .. },
        op,
        "[2, 3, 4]",
        "[12, 4, 1]",
        "from 1 to 24",
        "24 elements"
    );
    let overlapping = call().c(MatrixBatch::new(4).stride(7));
    assert_error!(run(overlapping), Error::InvalidArgument { .. }, op, "2 x 4", "overlap");
    let endless = call().a(MatrixBatch::new(3).stride(usize::MAX));
    assert_error!(run(endless), Error::InvalidArgument { .. }, op, "12 elements");
    let many = call().batch(usize::MAX);
    assert_error!(run(many), Error::SizeOverflow { .. }, op);
    let halves = Tensor::gemm_strided_batched(&floats(12), &floats(24), zeros(16, DType::F16), call());
    assert_error!(halves, Error::DTypeMismatch { .. }, op, "f32", "f16");
}

#[test]
fn subscripts() {
    let (x, y) = (floats((2, 3)), floats((4, 3)));
    let of = |subscripts: &str| error_of(Tensor::einsum(subscripts, &[&x, &y])).to_string();
    assert!(
        of("ij,jk->ik")
            .contains("`j` has the lengths 3 and 4; the subscripts are `ij,jk->ik`, the shapes [2, 3], [4, 3]")
    );
    assert!(of("ij").contains("1 operands are named, but 2 are given"));
    assert!(of("ijk,kj").contains("`ijk` names 3 axes of an operand of 2"));
    assert!(of("i,kj").contains("`i` names 1 axes of an operand of 2"));
    assert!(of("ij,kj->il").contains("`l` is in no operand"));
    assert!(of("ij,kj->ii").contains("`i` is twice in the output"));
    assert!(of("ij,k1").contains("`1` in `k1`"));
    assert!(of("ij,k.j").contains("`.` in `k.j`"));
    assert!(of("ii,kj").contains("`i` has the lengths 2 and 3"));
    assert!(of("...j,...j").contains("an axis of `...` has the lengths 2 and 4"));
    assert!(of("ij,kj->i->k").contains("`-`"));
    assert_error!(Tensor::einsum::<Tensor>("", &[]), Error::InvalidArgument { .. }, "einsum", "0 are given");
    let integers = zeros((2, 3), DType::I32);
    assert_error!(Tensor::einsum("ij,ij", &[&x, &integers]), Error::DTypeMismatch { .. }, "einsum", "f32", "i32");
    let bytes = zeros((2, 3), DType::U8);
    assert_error!(Tensor::einsum("ij,ij", &[&bytes, &bytes]), Error::UnsupportedDType { .. }, "einsum", "u8");
}

#[test]
fn normalisations() {
    let x = floats((2, 6, 5));
    let (vector, short) = (floats(6), floats(5));
    assert_error!(x.log_softmax(3), Error::AxisOutOfRange { .. }, "log_softmax", "axis 3", "[2, 6, 5]");
    assert_error!(x.l2_normalize(-4, 1e-12), Error::AxisOutOfRange { .. }, "l2_normalize", "axis -4");
    assert_error!(x.rms_norm(&vector, 0.1), Error::ShapeMismatch { .. }, "rms_norm", "[2, 6, 5]", "[6]", "last axes");
    assert_error!(
        x.group_norm(4, None, None, 0.1),
        Error::InvalidArgument { .. },
        "group_norm",
        "6 channels",
        "4 groups",
        "must divide"
    );
    assert_error!(x.group_norm(0, None, None, 0.1), Error::InvalidArgument { .. }, "group_norm", "0 groups");
    let weighted = x.group_norm(2, &vector, &short, 0.1);
    assert_error!(weighted, Error::ShapeMismatch { .. }, "group_norm", "[2, 6, 5]", "[5]", "per channel");
    let halves = zeros(6, DType::F16);
    assert_error!(x.instance_norm(&halves, None, 0.1), Error::DTypeMismatch { .. }, "instance_norm", "f32", "f16");
    assert_error!(
        vector.instance_norm(None, None, 0.1),
        Error::RankMismatch { .. },
        "instance_norm",
        "2 or more",
        "[6]"
    );
    let normed = x.batch_norm(&vector, &short, None, None, 0.1);
    assert_error!(normed, Error::ShapeMismatch { .. }, "batch_norm", "[2, 6, 5]", "[5]", "per channel");
    let normed = vector.batch_norm(&vector, &vector, None, None, 0.1);
    assert_error!(normed, Error::RankMismatch { .. }, "batch_norm", "2 or more", "[6]");
    let elsewhere = Tensor::zeros(6, DType::F32, &open("webgpu")).unwrap();
    let normed = x.batch_norm(&vector, &vector, None, &elsewhere, 0.1);
    assert_error!(normed, Error::DeviceMismatch { .. }, "batch_norm", "vulkan:0", "webgpu:0");
    let integers = zeros((2, 6), DType::I32);
    assert_error!(
        integers.log_softmax(0),
        Error::UnsupportedDType { .. },
        "log_softmax",
        "i32",
        "f32, f16, bf16 and f64"
    );
    assert_error!(integers.l2_normalize(0, 0.1), Error::UnsupportedDType { .. }, "l2_normalize", "i32");
    assert_error!(integers.rms_norm(&vector, 0.1), Error::UnsupportedDType { .. }, "rms_norm", "i32");
    assert_error!(integers.group_norm(2, None, None, 0.1), Error::UnsupportedDType { .. }, "group_norm", "i32");
    let normed = integers.batch_norm(&vector, &vector, None, None, 0.1);
    assert_error!(normed, Error::UnsupportedDType { .. }, "batch_norm", "i32");
}

#[test]
fn views() {
    let x = floats((2, 3));
    assert_error!(x.diagonal(0, 0, 2), Error::AxisOutOfRange { .. }, "diagonal", "axis 2", "[2, 3]");
    assert_error!(x.diagonal(0, 1, -1), Error::DuplicateAxis { .. }, "diagonal", "axis -1");
    assert_error!(x.as_strided((2, 2), &[1], 0), Error::InvalidArgument { .. }, "as_strided", "1 strides", "2 axes");
    assert_error!(x.as_strided(3, &[2], 2), Error::InvalidArgument { .. }, "as_strided", "from 2 to 6", "6 elements");
    assert_error!(x.as_strided(3, &[-1], 1), Error::InvalidArgument { .. }, "as_strided", "from -1 to 1");
    assert_error!(x.as_strided((usize::MAX, 2), &[0, 0], 0), Error::SizeOverflow { .. }, "as_strided");
    // Elements are replaced in place if each has its own position. If positions are shared, the tensor is copied.
    let windows = Tensor::arange(0u32, 4, &device()).unwrap().as_strided((3, 2), &[1, 1], 0).unwrap();
    let replaced = windows.slice_assign(0..1, &zeros((1, 2), DType::U32)).unwrap();
    assert_eq!(replaced.to_vec::<u32>().unwrap(), [0, 0, 1, 2, 2, 3]);
}

pub fn calls(arguments: &Arguments, device: &Device, visit: Visit) {
    let Arguments { axis: (a, b), size: (i, j, k), number: (x, y), transposed, .. } = *arguments;
    let [t, u, v] = tensors(arguments, device);
    let config = Gemm::default().trans_a(transposed).trans_b(!transposed).alpha(x).beta(y);
    let place = MatrixBatch::new(i).stride(j).offset(k);
    let dense = GemmStridedBatched::new([j, k, i]).gemm(config).batch(i);
    let placed = dense.a(place).b(place).c(place);
    let small = GemmStridedBatched::new([i; 3]).gemm(config).a(place).b(place).c(place);
    visit! { visit:
        gemm: t.gemm(&u, Some(&v), config);
        gemm_none: t.gemm(&u, None, Gemm::default());
        gemm_batched: Ok(Tensor::gemm_batched(&[&t, &u], &[&u, &v], &[&v, &t], config)?.remove(0));
        gemm_strided_batched: Tensor::gemm_strided_batched(&t, &u, v.clone(), placed);
        gemm_strided_batched_small: Tensor::gemm_strided_batched(&t, &t, t.clone(), small);
        gemm_strided_batched_without_gaps: Tensor::gemm_strided_batched(&t, &u, v.clone(), dense);
        matmul_f32: t.matmul_f32(&u);
        linear: t.linear(&u, Some(&v));
        linear_no_bias: t.linear(&u, None);
        dot: t.dot(&u);
        outer: t.outer(&u);
        einsum: Tensor::einsum("ij,jk->ki", &[&t, &u]);
        einsum_diagonal: Tensor::einsum("ii", &[&t]);
        einsum_ellipsis: Tensor::einsum("...i,i...->...", &[&t, &u]);
        einsum_three: Tensor::einsum("ij,ij,j", &[&t, &u, &v]);
        einsum_sums: Tensor::einsum("...,...,...->", &[&t, &u, &v]);
        log_softmax: t.log_softmax(a);
        l2_normalize: t.l2_normalize(b, x);
        rms_norm: t.rms_norm(&u, x);
        rms_norm_all: t.rms_norm(&t, y);
        layer_norm_no_bias: t.layer_norm(&t, None, y);
        group_norm: t.group_norm(i, &u.flatten_all()?, None, x);
        group_norm_no_parameters: t.group_norm(j, None, None, x);
        instance_norm: t.instance_norm(None, &u.flatten_all()?, y);
        instance_norm_no_parameters: t.instance_norm(None, None, y);
        batch_norm: t.batch_norm(&u.flatten_all()?, &v.flatten_all()?, None, &u.flatten_all()?, x);
        diagonal: t.diagonal(a, a, b);
        diagonal_far: t.diagonal(b, 0, 1);
        as_strided: t.as_strided((i, j), &[a, b], k);
        as_strided_huge: t.broadcast_to([&[i, j][..], t.dims()].concat())?.as_strided(arguments.shape.clone(), &arguments.axes, k);
    }
}
