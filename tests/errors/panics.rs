//! No method panics, whatever its arguments are, and errors have the name of the method.

use half::{bf16, f16};
use marquetry::{DType, Device, Element, Error, MemoryKind, Result, Shape, Tensor};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::device;

/// Returns sizes, some of which are never valid.
fn any_size() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0..6usize, 1 => Just(usize::MAX), 1 => Just(isize::MAX as usize), 1 => Just(1 << 32), 1 => any::<usize>()]
}

fn any_axis() -> impl Strategy<Value = isize> {
    prop_oneof![8 => -5..5isize, 1 => Just(isize::MIN), 1 => Just(isize::MAX), 1 => any::<isize>()]
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![4 => -300.0..300.0f64, 4 => (-5..260i32).prop_map(f64::from), 1 => any::<f64>(), 1 => Just(f64::NAN)]
}

fn any_dtype() -> impl Strategy<Value = DType> {
    prop::sample::select(&DType::ALL[..])
}

/// The arguments for all methods.
#[derive(Debug, Clone)]
pub struct Arguments {
    /// Shapes of real tensors, which are therefore small.
    pub shapes: [Vec<usize>; 3],
    pub dtypes: [DType; 3],
    pub transposed: bool,
    /// Any shape, even an invalid one.
    pub shape: Vec<usize>,
    pub axes: Vec<isize>,
    pub axis: (isize, isize),
    pub size: (usize, usize, usize),
    pub number: (f64, f64),
    /// The method whose result is computed. The others are only called.
    pub computed: Index,
}

fn arguments() -> impl Strategy<Value = Arguments> {
    let small = || prop::collection::vec(prop_oneof![1 => Just(0usize), 6 => 1..4usize], 0..4);
    let shapes = prop_oneof![
        [small(), small(), small()],
        // Random shapes rarely match, so some cases use the same shape.
        small().prop_map(|shape| [shape.clone(), shape.clone(), shape]),
        // With an axis of length 0, the other axes may have any length.
        (prop::collection::vec(any_size(), 0..3), 0..3usize).prop_map(|(mut shape, place)| {
            shape.insert(place.min(shape.len()), 0);
            [shape.clone(), shape.clone(), shape]
        }),
    ];
    let dtypes = prop_oneof![
        [any_dtype(), any_dtype(), any_dtype()],
        any_dtype().prop_map(|dtype| [dtype; 3]),
        any_dtype().prop_map(|dtype| [DType::Bool, dtype, dtype]),
    ];
    let axes = prop::collection::vec(any_axis(), 0..4);
    let numbers =
        (any_axis(), any_axis(), any_size(), any_size(), any_size(), any_number(), any_number(), any::<Index>());
    (shapes, dtypes, any::<bool>(), prop::collection::vec(any_size(), 0..4), axes, numbers).prop_map(
        |(shapes, dtypes, transposed, shape, axes, (a, b, i, j, k, x, y, computed))| Arguments {
            shapes,
            dtypes,
            transposed,
            shape,
            axes,
            axis: (a, b),
            size: (i, j, k),
            number: (x, y),
            computed,
        },
    )
}

/// Gets every method that makes a tensor, with its name.
pub type Visit<'a> = &'a mut dyn FnMut(&'static str, &dyn Fn() -> Result<Tensor>);

/// Visits every method that makes a tensor.
pub fn each_call(arguments: &Arguments, device: &Device, visit: Visit) {
    basic(arguments, device, visit);
    crate::reduce::calls(arguments, device, visit);
    crate::conv::calls(arguments, device, visit);
    crate::grid_sample::calls(arguments, device, visit);
    crate::pad::calls(arguments, device, visit);
    crate::resize::calls(arguments, device, visit);
    crate::linear::calls(arguments, device, visit);
    crate::attention::calls(arguments, device, visit);
    crate::index::calls(arguments, device, visit);
    crate::quantized::calls(arguments, device, visit);
}

/// Three tensors of these shapes and dtypes.
pub fn tensors(arguments: &Arguments, device: &Device) -> [Tensor; 3] {
    let tensor = |n: usize| -> Tensor {
        let tensor = Tensor::ones(arguments.shapes[n].as_slice(), arguments.dtypes[n], device).unwrap();
        if arguments.transposed && tensor.rank() > 1 { tensor.t().unwrap() } else { tensor }
    };
    [tensor(0), tensor(1), tensor(2)]
}

/// Creation, elementwise functions, reductions, views, and other methods without a file of their own.
fn basic(arguments: &Arguments, device: &Device, visit: Visit) {
    let Arguments { axis: (a, b), size: (i, j, k), number: (x, y), .. } = *arguments;
    let [t, u, v] = tensors(arguments, device);
    let (shape, axes) = (|| arguments.shape.clone(), || arguments.axes.clone());
    let huge = || t.broadcast_to([&[i, j][..], t.dims()].concat());
    visit! { visit:
        zeros: Tensor::zeros(shape(), t.dtype(), device);
        ones: Tensor::ones(shape(), t.dtype(), device);
        full: Tensor::full(x as f32, shape(), device);
        zeros_like: t.zeros_like();
        ones_like: t.ones_like();
        full_like: t.full_like(x);
        full_like_integer: t.full_like(a as i64);
        rand_like: t.rand_like(x, y);
        randn_like: t.randn_like(x, y);
        new: Tensor::new(vec![vec![x as f32; i % 3], vec![y as f32; j % 3]], device);
        from_slice: Tensor::from_slice(&[1u8, 2, 3, 4, 5, 6], shape(), device);
        from_vec: Tensor::from_vec(vec![1i32; 4], shape(), device);
        from_raw_buffer: Tensor::from_raw_buffer(&[1; 8], t.dtype(), shape(), device);
        arange_f32: Tensor::arange(x as f32, y as f32, device);
        arange_u8: Tensor::arange(x as u8, y as u8, device);
        arange_i32: Tensor::arange(a as i32, b as i32, device);
        arange_step_f16: Tensor::arange_step(f16::from_f64(x), f16::from_f64(y), f16::from_f64(x), device);
        arange_step_i64: Tensor::arange_step(a as i64, b as i64, i as i64, device);
        arange_f64: Tensor::arange(x, y, device);
        full_i64: Tensor::full(k as i64, shape(), device);
        rand_f64: Tensor::rand(x, y, small(shape())?, device);
        arange_step_u32: Tensor::arange_step(i as u32, j as u32, k as u32, device);
        arange_step_i32: Tensor::arange_step(i as i32, j as i32, a as i32, device);
        rand: Tensor::rand(x as f32, y as f32, small(shape())?, device);
        randn: Tensor::randn(f16::from_f64(x), f16::from_f64(y), small(shape())?, device);
        rand_integers: Tensor::rand(i as u32, j as u32, shape(), device);
        from_slice_in: Tensor::from_slice_in(&[1i32, 2, 3, 4], shape(), MemoryKind::Host, device);
        to_memory: huge()?.to_memory(MemoryKind::Shared);
        slice_assign: t.clone().slice_assign((i..j, k..), &u);
        slice_assign_all: huge()?.slice_assign(.., &u);
        neg: t.neg();
        abs: t.abs();
        sign: t.sign();
        sqr: t.sqr();
        relu: t.relu();
        floor: t.floor();
        ceil: t.ceil();
        round: t.round();
        trunc: t.trunc();
        sqrt: t.sqrt();
        rsqrt: t.rsqrt();
        recip: t.recip();
        exp: t.exp();
        log: t.log();
        sin: t.sin();
        cos: t.cos();
        tanh: t.tanh();
        erf: t.erf();
        sigmoid: t.sigmoid();
        silu: t.silu();
        gelu: t.gelu();
        gelu_tanh: t.gelu_tanh();
        exp2: t.exp2();
        expm1: t.expm1();
        log2: t.log2();
        log1p: t.log1p();
        tan: t.tan();
        asin: t.asin();
        acos: t.acos();
        atan: t.atan();
        sinh: t.sinh();
        cosh: t.cosh();
        asinh: t.asinh();
        acosh: t.acosh();
        atanh: t.atanh();
        relu6: t.relu6();
        mish: t.mish();
        softplus: t.softplus();
        softsign: t.softsign();
        hardsigmoid: t.hardsigmoid();
        hardswish: t.hardswish();
        selu: t.selu();
        is_nan: t.is_nan();
        is_inf: t.is_inf();
        is_finite: t.is_finite();
        logical_not: t.logical_not();
        bitwise_not: t.bitwise_not();
        add: t.add(&u);
        sub: t.sub(&u);
        mul: t.mul(&u);
        div: t.div(&u);
        maximum: t.maximum(&u);
        minimum: t.minimum(&u);
        eq: t.eq(&u);
        ne: t.ne(&u);
        lt: t.lt(&u);
        le: t.le(&u);
        gt: t.gt(&u);
        ge: t.ge(&u);
        pow: t.pow(&u);
        rem: t.rem(&u);
        fmod: t.fmod(&u);
        atan2: t.atan2(&u);
        bitwise_and: t.bitwise_and(&u);
        bitwise_or: t.bitwise_or(&u);
        bitwise_xor: t.bitwise_xor(&u);
        shl: t.shl(&u);
        shr: t.shr(&u);
        logical_and: t.logical_and(&u);
        logical_or: t.logical_or(&u);
        logical_xor: t.logical_xor(&u);
        lt_number: t.lt(x);
        fmod_number: t.fmod(y);
        pow_number: t.pow(a as i32);
        shl_number: t.shl(b as i32);
        logical_or_number: t.logical_or(x);
        rem_number: x % &t;
        bitwise_and_number: &t & (a as i64);
        shr_number: (b as i64) >> &t;
        bitwise_not_operator: !&t;
        hardtanh: t.hardtanh();
        prelu: t.prelu(&u);
        lerp: t.lerp(&u, &v);
        lerp_number: t.lerp(&u, x);
        masked_fill: t.masked_fill(&u, &v);
        masked_fill_number: t.masked_fill(&u, x);
        powf: t.powf(x);
        leaky_relu: t.leaky_relu(x);
        elu: t.elu(x);
        celu: t.celu(x);
        where_cond: t.where_cond(&u, &v);
        affine: t.affine(x, y);
        clamp: t.clamp(x, y);
        add_number: &t + x;
        sub_number: x - &t;
        mul_number: &t * y;
        div_number: y / &t;
        to_dtype: t.to_dtype(u.dtype());
        sum: t.sum(axes());
        sum_keepdim: t.sum_keepdim(axes());
        sum_all: t.sum_all();
        mean: t.mean(axes());
        mean_keepdim: t.mean_keepdim(axes());
        mean_all: t.mean_all();
        min: t.min(axes());
        min_keepdim: t.min_keepdim(axes());
        min_all: t.min_all();
        max: t.max(axes());
        max_keepdim: t.max_keepdim(axes());
        max_all: t.max_all();
        argmax: t.argmax(axes());
        argmax_keepdim: t.argmax_keepdim(axes());
        argmax_all: t.argmax_all();
        matmul: t.matmul(&u);
        softmax: t.softmax(a);
        layer_norm: t.layer_norm(&u, &v, x);
        layer_norm_last: t.layer_norm(&t.narrow(0, 0, 1)?.squeeze(0)?, &t.narrow(0, 0, 1)?.squeeze(0)?, x);
        index_select: t.index_select(&u, a);
        index_select_any: t.index_select(&Tensor::new([a as i32, b as i32, 0], device)?, b);
        embedding: t.embedding(&u);
        cat: Tensor::cat(&[&t, &u, &v, &t], a);
        cat_none: Tensor::cat::<Tensor>(&[], a);
        stack: Tensor::stack(&[&t, &u], a);
        reshape: t.reshape(shape());
        flatten: t.flatten(a, b);
        flatten_all: t.flatten_all();
        transpose: t.transpose(a, b);
        t: t.t();
        permute: t.permute(axes());
        narrow: t.narrow(a, i, j);
        slice: t.slice(a, i..j, k as isize);
        slice_inclusive: t.slice(b, i..=j, k as isize);
        slice_open: t.slice(a, ..j, k as isize);
        slice_excluded: t.slice(a, (std::ops::Bound::Excluded(i), std::ops::Bound::Unbounded), k as isize);
        i: t.i(a);
        i_of_ranges: t.i((i..j, k..));
        i_of_both: t.i((a, ..j, b));
        i_huge: huge()?.i((i, .., a));
        broadcast_to: t.broadcast_to(shape());
        broadcast_huge: huge();
        slice_huge: huge()?.slice(a, k.., i as isize);
        flatten_huge: huge()?.flatten(0, 1);
        add_huge: huge()?.add(&t);
        transpose_huge: huge()?.transpose(0, -1);
        squeeze: t.squeeze(a);
        unsqueeze: t.unsqueeze(a);
        contiguous: t.contiguous();
        to_device: t.to_device(device);
    }
}

/// Keeps random shapes small, because random tensors are allocated immediately.
fn small(shape: Vec<usize>) -> Result<Vec<usize>> {
    let count = Shape::from(shape.as_slice()).elem_count();
    Ok(if count.is_some_and(|n| (1 << 16..1 << 32).contains(&n)) { vec![3] } else { shape })
}

/// Calls everything that reads a tensor.
fn look_at(tensor: &Tensor, arguments: &Arguments) {
    fn read<T: Element>(tensor: &Tensor) -> usize {
        tensor.to_vec::<T>().map_or(0, |elements| elements.len())
    }
    let _ = (tensor.dim(arguments.axis.0), tensor.to_scalar::<f32>(), tensor.strides(), tensor.is_contiguous());
    let _ = (tensor.to_string(), format!("{tensor:?}"), tensor.realize());
    let _ = (tensor.to_vec1::<f32>(), tensor.to_vec2::<f32>(), tensor.to_vec3::<f32>());
    // Of other dtypes than the tensor's, an error; of views beyond all memory too.
    let _ = read::<u8>(tensor) + read::<u32>(tensor) + read::<i32>(tensor) + read::<f16>(tensor) + read::<f32>(tensor);
    let _ =
        read::<bool>(tensor) + read::<i8>(tensor) + read::<bf16>(tensor) + read::<i64>(tensor) + read::<f64>(tensor);
}

/// The number of parts. They have random sequences of their own, and run and compile kernels in parallel.
const PARTS: u32 = 8;

macro_rules! parts {
    ($($name:ident: $part:expr;)*) => {
        mod nothing_panics {
            $(#[test]
            fn $name() {
                super::nothing_panics($part);
            })*
        }
    };
}

parts! { part_0: 0; part_1: 1; part_2: 2; part_3: 3; part_4: 4; part_5: 5; part_6: 6; part_7: 7; }

/// True if an error names the called method, and not another method that it uses. `name` may continue after the
/// method's name.
fn is_named_after(error: &Error, name: &str) -> bool {
    // These make the arguments.
    const VIEWS: [&str; 3] = ["broadcast_to", "narrow", "slice"];
    let begins = |op: &str| name.strip_prefix(op).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    error.op().is_none_or(|op| begins(op) || VIEWS.contains(&op))
}

fn nothing_panics(part: u8) {
    let device = device();
    let full = std::env::var("MARQUETRY_TEST_TIER").is_ok_and(|tier| tier == "full");
    let cases = if full { 30_000 } else { 1_500 } / PARTS;
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[part; 32]));
    let mut calls = 0;
    let any = arguments().new_tree(&mut runner).unwrap().current();
    each_call(&any, &device, &mut |_, _| calls += 1);
    let result = runner.run(&arguments(), |arguments| {
        let (mut place, mut panicked, mut wrong) = (0, None, None);
        let computed = arguments.computed.index(calls);
        each_call(&arguments, &device, &mut |name, call| {
            place += 1;
            let outcome = catch_unwind(AssertUnwindSafe(|| match call() {
                // Some megabytes at most, or more than can exist.
                Ok(tensor) if place - 1 == computed && !(1 << 18..1 << 32).contains(&tensor.elem_count()) => {
                    look_at(&tensor, &arguments);
                }
                // No call may make the device fail, neither this call nor a later one.
                Err(error @ Error::DeviceLost { .. }) => panic!("{error}"),
                Err(error) if !is_named_after(&error, name) => wrong = wrong.take().or(Some((name, error))),
                _ => {}
            }));
            panicked = panicked.or(outcome.err().map(|_| name));
        });
        prop_assert!(place == calls && panicked.is_none(), "{panicked:?} panicked");
        prop_assert!(wrong.is_none(), "an error of another name: {wrong:?}");
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, arguments)) => panic!("{reason}\n{arguments:#?}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}
