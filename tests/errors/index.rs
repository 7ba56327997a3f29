//! Errors of indexes, scatter, chunks, rearrangement and random numbers.

use crate::panics::{Arguments, Visit, tensors};
use crate::{device, error_of, floats, open, zeros};
use marquetry::{DType, Device, Error, Result, Tensor};

type Scatter = fn(Tensor, &Tensor, &Tensor, i32) -> Result<Tensor>;

const SCATTERS: [(&str, Scatter); 4] = [
    ("scatter", |x, indexes, src, axis| x.scatter(indexes, src, axis)),
    ("scatter_add", |x, indexes, src, axis| x.scatter_add(indexes, src, axis)),
    ("scatter_max", |x, indexes, src, axis| x.scatter_max(indexes, src, axis)),
    ("index_add", |x, indexes, src, axis| x.index_add(indexes, src, axis)),
];

#[test]
fn indexes_that_do_not_fit() {
    let x = floats((2, 3));
    let indexes = zeros((2, 2), DType::U32);
    let longer = zeros((3, 2), DType::U32);
    assert_error!(
        x.gather(&longer, 1),
        Error::ShapeMismatch { .. },
        "gather",
        "[2, 3]",
        "[3, 2]",
        "only along the axis"
    );
    let flat = zeros(2, DType::U32);
    assert_error!(x.gather(&flat, 1), Error::ShapeMismatch { .. }, "gather", "[2, 3]", "[2]", "as many axes");
    assert_error!(x.take_along_dim(&flat, 1), Error::ShapeMismatch { .. }, "take_along_dim", "[2]", "as many axes");
    assert_error!(x.take_along_dim(&longer, 1), Error::ShapeMismatch { .. }, "take_along_dim", "equal or 1");
    assert_error!(x.gather(&indexes, 2), Error::AxisOutOfRange { .. }, "gather", "axis 2", "[2, 3]");
    assert_error!(x.take_along_dim(&indexes, -3), Error::AxisOutOfRange { .. }, "take_along_dim", "axis -3");
    assert_error!(x.gather(&floats((2, 2)), 1), Error::UnsupportedDType { .. }, "gather", "f32", "u32, i32 and i64");
    assert_error!(x.take_along_dim(&x, 1), Error::UnsupportedDType { .. }, "take_along_dim", "f32", "u32");
    assert_error!(x.one_hot(3), Error::UnsupportedDType { .. }, "one_hot", "f32", "u32");
    assert_error!(flat.one_hot(usize::MAX), Error::SizeOverflow { .. }, "one_hot", "[2, 18446744073709551615]");
    let empty = floats((2, 0));
    assert_error!(empty.gather(&indexes, 1), Error::InvalidArgument { .. }, "gather", "axis 1", "[2, 0]", "empty");
    let there = Tensor::zeros((2, 2), DType::U32, &open("webgpu")).unwrap();
    assert_error!(x.gather(&there, 1), Error::DeviceMismatch { .. }, "gather", "vulkan:0", "webgpu:0", "to_device");
    assert_error!(x.masked_select(&there), Error::DeviceMismatch { .. }, "masked_select", "vulkan:0", "webgpu:0");
    assert_error!(x.masked_select(&x), Error::UnsupportedDType { .. }, "masked_select", "f32", "mask");
    assert_error!(x.masked_select(&longer), Error::ShapeMismatch { .. }, "masked_select", "[2, 3]", "[3, 2]");
    let huge = floats(1).broadcast_to((1 << 20, 1 << 20)).unwrap();
    assert_error!(huge.nonzero(), Error::SizeOverflow { .. }, "nonzero", "[1048576, 1048576]");
}

#[test]
fn scatters_that_do_not_fit() {
    for (name, scatter) in SCATTERS {
        let x = floats((2, 3));
        let shape = if name == "index_add" { vec![2] } else { vec![2, 2] };
        let indexes = zeros(shape.as_slice(), DType::U32);
        let src = floats((2, 2));
        let call = |indexes: &Tensor, src: &Tensor, axis| scatter(x.clone(), indexes, src, axis);
        assert!(call(&indexes, &src, 1).is_ok());
        assert_error!(call(&indexes, &src, 2), Error::AxisOutOfRange { .. }, name, "axis 2", "[2, 3]");
        let floats_as_indexes = indexes.to_dtype(DType::F32).unwrap();
        assert_error!(call(&floats_as_indexes, &src, 1), Error::UnsupportedDType { .. }, name, "f32", "the indexes");
        let integers = zeros((2, 2), DType::I32);
        assert_error!(call(&indexes, &integers, 1), Error::DTypeMismatch { .. }, name, "f32", "i32");
        let there = Tensor::zeros((2, 2), DType::F32, &open("webgpu")).unwrap();
        assert_error!(call(&indexes, &there, 1), Error::DeviceMismatch { .. }, name, "vulkan:0", "webgpu:0");
        assert_error!(call(&indexes, &floats((2, 1)), 1), Error::ShapeMismatch { .. }, name, "[2, 1]");
        assert_error!(call(&indexes, &floats(2), 1), Error::ShapeMismatch { .. }, name, "[2]");
        if name == "index_add" {
            assert_error!(call(&zeros((2, 2), DType::U32), &src, 1), Error::RankMismatch { .. }, name, "indexes");
            assert_error!(
                call(&indexes, &floats((2, 5)), 1),
                Error::ShapeMismatch { .. },
                name,
                "one slice for each index"
            );
        } else {
            let longer = zeros((3, 2), DType::U32);
            let src = floats((3, 2));
            assert_error!(
                call(&longer, &src, 1),
                Error::ShapeMismatch { .. },
                name,
                "[2, 3]",
                "[3, 2]",
                "only along the axis"
            );
        }
    }
}

#[test]
fn parts_that_do_not_fit() {
    let x = floats((2, 3));
    assert_error!(
        x.split(0, 1),
        Error::InvalidArgument { .. },
        "split",
        "length 0",
        "axis 1",
        "[2, 3]",
        "give 1 or more"
    );
    assert_error!(
        x.split([1, 1], 1),
        Error::InvalidArgument { .. },
        "split",
        "[1, 1]",
        "axis 1",
        "[2, 3]",
        "add up to 3"
    );
    assert_error!(x.split([usize::MAX, 4], 1), Error::InvalidArgument { .. }, "split", "axis 1");
    assert_error!(x.split(1, 2), Error::AxisOutOfRange { .. }, "split", "axis 2");
    assert_error!(x.chunk(0, 0), Error::InvalidArgument { .. }, "chunk", "0 parts", "give 1 or more");
    assert_error!(x.chunk(2, -3), Error::AxisOutOfRange { .. }, "chunk", "axis -3");
    assert_error!(
        x.repeat(2),
        Error::InvalidArgument { .. },
        "repeat",
        "1 counts",
        "[2, 3]",
        "2 axes; give one for each"
    );
    assert_error!(x.repeat((usize::MAX, 2)), Error::SizeOverflow { .. }, "repeat");
    assert_error!(x.tile((1 << 20, 1 << 20)).and_then(|x| x.realize()), Error::SizeOverflow { .. }, "limit of 4294");
    assert_error!(x.roll(&[1], [0, 1]), Error::InvalidArgument { .. }, "roll", "1 shifts", "2 axes", "one for each");
    assert_error!(x.roll(&[1, 1], [0, -2]), Error::DuplicateAxis { .. }, "roll", "axis -2");
    assert_error!(x.flip([0, 2]), Error::AxisOutOfRange { .. }, "flip", "axis 2", "[2, 3]");
    let vector = floats(3);
    assert_error!(vector.tril(0), Error::RankMismatch { .. }, "tril", "2 or more", "[3]");
    assert_error!(vector.triu(0), Error::RankMismatch { .. }, "triu", "2 or more", "[3]");
    assert_error!(floats((1, 2, 3)).diag(0), Error::RankMismatch { .. }, "diag", "1 or 2", "[1, 2, 3]");
    assert_error!(x.diag(4), Error::InvalidArgument { .. }, "diag", "diagonal 4", "[2, 3]", "from -2 to 3");
    assert_error!(x.diag(-3), Error::InvalidArgument { .. }, "diag", "diagonal -3", "[2, 3]");
    assert_error!(vector.diag(isize::MIN), Error::SizeOverflow { .. }, "diag: ", "limit of 4294");
    let eye = Tensor::eye(1 << 20, DType::F32, &device());
    assert_error!(eye, Error::SizeOverflow { .. }, "eye", "[1048576, 1048576]");
    assert_error!(x.slice(1, .., 0), Error::InvalidArgument { .. }, "slice", "step of 0");
    assert_error!(x.slice(1, 1..4, -1), Error::RangeOutOfBounds { .. }, "slice", "1..4", "axis 1");
}

#[test]
fn what_cannot_be_drawn() {
    let (x, integers, device) = (floats((2, 3)), zeros((2, 3), DType::U32), device());
    assert_error!(Tensor::rand_int(3u32, 3, 2, &device), Error::InvalidArgument { .. }, "rand_int", "from 3", "3");
    let wide = Tensor::rand_int(i64::MAX, i64::MIN, 2, &device);
    assert_error!(wide, Error::InvalidArgument { .. }, "rand_int", i64::MAX, i64::MIN);
    assert_error!(
        Tensor::rand_int(0f32, 3.0, 2, &device),
        Error::UnsupportedDType { .. },
        "rand_int",
        "f32",
        "and i64"
    );
    assert_error!(Tensor::gumbel(0u32, 1, 2, &device), Error::UnsupportedDType { .. }, "gumbel", "u32", "f16");
    assert_error!(integers.bernoulli(), Error::UnsupportedDType { .. }, "bernoulli", "u32", "f32");
    assert_error!(integers.multinomial(1, true), Error::UnsupportedDType { .. }, "multinomial", "u32", "f32");
    assert_error!(integers.gumbel_top_k(1, 1.0), Error::UnsupportedDType { .. }, "gumbel_top_k", "u32");
    assert_error!(integers.sample_top_k(1, 1.0), Error::UnsupportedDType { .. }, "sample_top_k", "u32");
    assert_error!(floats(()).multinomial(1, true), Error::RankMismatch { .. }, "multinomial", "1 or more", "[]");
    assert_error!(floats(()).sample_top_k(1, 1.0), Error::RankMismatch { .. }, "sample_top_k", "1 or more", "[]");
    assert_error!(
        x.multinomial(4, false),
        Error::InvalidArgument { .. },
        "multinomial",
        "4 samples",
        "3 places",
        "at most as many"
    );
    assert_error!(
        floats((2, 0)).multinomial(1, true),
        Error::InvalidArgument { .. },
        "multinomial",
        "[2, 0]",
        "not be empty"
    );
    assert_error!(
        x.gumbel_top_k(4, 1.0),
        Error::InvalidArgument { .. },
        "gumbel_top_k",
        "k = 4",
        "3 places",
        "k is at most 3"
    );
    assert_error!(
        x.sample_top_k(0, 1.0),
        Error::InvalidArgument { .. },
        "sample_top_k",
        "k = 0",
        "3 places",
        "1 or more"
    );
    assert_error!(floats((2, 0)).sample_top_k(3, 1.0), Error::InvalidArgument { .. }, "sample_top_k", "[2, 0]");
    for temperature in [-1.0, f64::NAN, f64::INFINITY] {
        assert_error!(x.gumbel_top_k(1, temperature), Error::InvalidArgument { .. }, "gumbel_top_k", temperature);
        assert_error!(x.sample_top_k(2, temperature), Error::InvalidArgument { .. }, "sample_top_k", temperature);
    }
    // One random number for each sample and weight.
    let many = x.multinomial(1 << 31, true);
    assert_error!(many, Error::SizeOverflow { .. }, "multinomial", "[2, 2147483648");
}

pub fn calls(arguments: &Arguments, device: &Device, visit: Visit) {
    let Arguments { axis: (a, b), size: (i, j, k), number: (x, y), .. } = *arguments;
    let [t, u, v] = tensors(arguments, device);
    let axes = || arguments.axes.clone();
    let part = |parts: Result<Vec<Tensor>>| parts.map(|mut parts| parts.swap_remove(parts.len() / 2));
    let few = |n: usize| n.min(9);
    let huge = || t.broadcast_to([&[i, j][..], t.dims()].concat());
    let shape = || arguments.shape.clone();
    visit! { visit:
        gather: t.gather(&u, a);
        take_along_dim: t.take_along_dim(&u, b);
        gather_huge: huge()?.gather(&u, a);
        one_hot: t.one_hot(i);
        scatter: t.clone().scatter(&u, &v, a);
        scatter_add: t.clone().scatter_add(&u, &v, a);
        scatter_max: t.clone().scatter_max(&u, &v, a);
        scatter_self: u.clone().scatter(&t, &u, a);
        index_add: t.clone().index_add(&u, &v, a);
        index_add_huge: huge()?.index_add(&u, &huge()?, a);
        nonzero: t.nonzero();
        masked_select: t.masked_select(&u);
        split: part(t.split(i, a));
        split_sizes: part(t.split([i, j], b));
        chunk: part(t.chunk(i, a));
        repeat: t.repeat(shape());
        tile: t.tile([i, k]);
        roll: t.roll(&[a, b], axes());
        roll_one: t.roll(&[b], a);
        flip: t.flip(axes());
        flip_huge: huge()?.flip(a)?.slice(b, .., a);
        tril: t.tril(a);
        triu: t.triu(b);
        diag: t.diag(a);
        eye: Tensor::eye(i, t.dtype(), device);
        slice_back: t.slice(a, i..j, b);
        rand_int: Tensor::rand_int(a as i32, b as i32, few(i), device);
        rand_int_i64: Tensor::rand_int(a as i64, b as i64, few(i), device);
        gumbel: Tensor::gumbel(x as f32, y as f32, few(j), device);
        bernoulli: t.bernoulli();
        multinomial: t.multinomial(few(i), true);
        multinomial_without: t.multinomial(j, false);
        gumbel_top_k: t.gumbel_top_k(i, x);
        sample_top_k: t.sample_top_k(j, y);
    }
}
