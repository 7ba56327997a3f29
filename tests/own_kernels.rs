//! Kernels from applications: their results, their bounds checks and their error messages.

use half::f16;
use marquetry::shader::{Access, KernelBuilder, MatrixLayout, MatrixType, Scalar, Type, Value, Var};
use marquetry::{Argument, BackendKind, DType, Device, Error, Kernel, Result, Signature, Tensor};
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All device strings. A new backend adds one.
const DEVICES: [&str; 3] = ["vulkan", "webgpu", "level-zero"];

/// The devices of this run: all of them, unless `MARQUETRY_TEST_DEVICES` names some.
fn selected() -> Vec<&'static str> {
    let wanted = std::env::var("MARQUETRY_TEST_DEVICES").unwrap_or_else(|_| DEVICES.join(","));
    let selected: Vec<_> =
        DEVICES.into_iter().filter(|device| wanted.split(',').any(|name| name.trim() == *device)).collect();
    assert!(!selected.is_empty(), "MARQUETRY_TEST_DEVICES={wanted}: the devices are {DEVICES:?}");
    selected
}

fn open(name: &str) -> Device {
    name.parse().unwrap_or_else(|error| panic!("{error}\nrun `make setup`"))
}

/// Runs one test at a time, so that the devices' counters belong to it alone.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn on_each_device(test: impl Fn(&Device) -> Result<()>) {
    let _turn = alone();
    for name in selected() {
        test(&open(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

fn vulkan() -> Device {
    open("vulkan")
}

fn text_of<T: Debug>(result: Result<T>) -> String {
    match result {
        Ok(value) => panic!("expected an error, got {value:?}"),
        Err(error) => error.to_string(),
    }
}

/// Marks a value that a kernel computes and does not use.
fn unused<T>(_: T) {}

/// Asserts that a call fails with this kind of error and exactly this text.
macro_rules! assert_error {
    ($call:expr, $kind:pat, $text:expr $(,)?) => {{
        let result = $call;
        assert!(matches!(result, Err($kind)), "{} gave {result:?}", stringify!($call));
        assert_eq!(text_of(result), $text);
    }};
}

/// y = factor x, in groups of 64.
fn scale(device: &Device) -> Result<Kernel> {
    Kernel::build("scale", device, 64, |k| {
        let x = k.buffer("x", Type::F32, Access::Read);
        let y = k.buffer("y", Type::F32, Access::Write);
        let factor = k.named_parameter("factor", Type::F32);
        let i = k.global_index();
        y.store(i, x.load(i) * factor);
    })
}

#[test]
fn any_layout_is_read_in_row_major_order() {
    on_each_device(|device| {
        let kernel = scale(device)?;
        let x = Tensor::arange(0f32, 12.0, device)?.reshape((3, 4))?;
        let run = |x: &Tensor| -> Result<Vec<f32>> {
            let [y] = kernel.launch(1, [x.into(), Argument::output(x.shape().clone()), 2.0.into()])?;
            assert_eq!((y.shape(), y.dtype()), (x.shape(), DType::F32));
            y.to_vec()
        };
        assert_eq!(run(&x)?, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0]);
        assert_eq!(run(&x.t()?)?, [0.0, 8.0, 16.0, 2.0, 10.0, 18.0, 4.0, 12.0, 20.0, 6.0, 14.0, 22.0]);
        assert_eq!(run(&x.narrow(0, 1, 1)?)?, [8.0, 10.0, 12.0, 14.0]);
        assert_eq!(run(&x.slice(1, 1.., 2)?)?, [2.0, 6.0, 10.0, 14.0, 18.0, 22.0]);
        assert_eq!(run(&x.narrow(1, 3, 1)?.broadcast_to((3, 2))?)?, [6.0, 6.0, 14.0, 14.0, 22.0, 22.0]);
        // An expression that is not computed yet.
        assert_eq!(run(&(x.narrow(0, 0, 1)? + 1.0)?)?, [2.0, 4.0, 6.0, 8.0]);
        Ok(())
    });
}

#[test]
fn arguments_come_in_the_order_of_the_declarations() {
    on_each_device(|device| {
        let kernel = Kernel::build("mixed", device, 4, |k| {
            let a = k.parameter(Type::U32);
            let x = k.buffer("x", Type::I32, Access::Read);
            let b = k.parameter(Type::I32);
            let y = k.buffer("y", Type::I32, Access::Write);
            let z = k.buffer("z", Type::F32, Access::Write);
            let c = k.parameter(Type::F32);
            let i = k.global_index();
            y.store(i, x.load(i) * b + a.convert(Scalar::I32));
            z.store(i, c);
        })?;
        let signature = "mixed(#1: u32 number, x: i32 tensor, #3: i32 number, y: new i32 tensor, \
                         z: new f32 tensor, #6: f32 number)";
        assert_eq!(kernel.signature().to_string(), signature);
        let x = Tensor::new([1i32, -2, 3], device)?;
        let arguments =
            [7u32.into(), x.into(), (-10i32).into(), Argument::output(3), Argument::output(2), 0.5f32.into()];
        let [y, z] = kernel.launch(1, arguments)?;
        assert_eq!(y.to_vec::<i32>()?, [-3, 27, -23]);
        assert_eq!(z.to_vec::<f32>()?, [0.5, 0.5]);
        Ok(())
    });
}

#[test]
fn narrow_dtypes_are_packed_and_vectors_cover_the_rest() {
    on_each_device(|device| {
        // Bytes plus 1, four in a word.
        let kernel = Kernel::build("bytes", device, 8, |k| {
            let x = k.packed_buffer("x", DType::U8, Access::Read);
            let y = k.packed_buffer("y", DType::U8, Access::Write);
            let i = k.global_index();
            y.store(i, x.load(i) + 0x0101_0101_u32);
        })?;
        let x: Vec<u8> = (0..30).collect();
        let [y] = kernel.launch(1, [Tensor::new(&x, device)?.into(), Argument::output(30)])?;
        assert_eq!(y.to_vec::<u8>()?, (1..31).collect::<Vec<u8>>());

        // Bytes above 1 read as `true` on the host, never as invalid `bool`s.
        let kernel = Kernel::build("truths", device, 1, |k| {
            k.packed_buffer("y", DType::Bool, Access::Write).store(0, 0xff01_0200_u32);
        })?;
        let [y] = kernel.launch(1, [Argument::output(4)])?;
        assert_eq!(y.to_vec::<bool>()?, [false, true, true, true]);

        // 64-bit numbers, with the checks of such kernels: a shift count is taken modulo 64.
        let kernel = Kernel::build("wide", device, 8, |k| {
            let x = k.buffer("x", Type::I64, Access::Read);
            let y = k.buffer("y", Type::F64, Access::Write);
            let i = k.global_index();
            let shifted = (x.load(i) << 97) + (1i64 << 40);
            y.store(i, (shifted / x.load(i)).convert(Scalar::F64) * 0.5);
        })?;
        let x = [3i64, -7, 0, 1 << 20];
        let [y] = kernel.launch(1, [Tensor::new(x, device)?.into(), Argument::output(4)])?;
        let expected = x.map(|x| ((x << 33) + (1 << 40)) / if x == 0 { 1 } else { x }).map(|x| x as f64 * 0.5);
        assert_eq!(y.to_vec::<f64>()?, expected);

        // Doubles halves, two per word.
        let kernel = Kernel::build("halves", device, 8, |k| {
            let x = k.packed_buffer("x", DType::F16, Access::Read);
            let y = k.packed_buffer("y", DType::F16, Access::Write);
            let i = k.global_index();
            let [low, high] = x.load(i).unpack_f16();
            y.store(i, k.pack_f16(low * 2.0, high * 2.0));
        })?;
        let x = [0.5, -1.25, 3.0].map(f16::from_f32);
        let [y] = kernel.launch(1, [Tensor::new(x, device)?.into(), Argument::output(3)])?;
        assert_eq!(y.to_vec::<f16>()?, [1.0, -2.5, 6.0].map(f16::from_f32));

        // Four floats at a time. The last vector is not full.
        let kernel = Kernel::build("quads", device, 8, |k| {
            let x = k.buffer("x", Type::vec4(Scalar::F32), Access::Read);
            let y = k.buffer("y", Type::vec4(Scalar::F32), Access::Write);
            let i = k.global_index();
            y.store(i, x.load(i) + 0.5);
        })?;
        let [y] = kernel.launch(1, [Tensor::arange(0f32, 10.0, device)?.into(), Argument::output(10)])?;
        assert_eq!(y.to_vec::<f32>()?, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5]);
        Ok(())
    });
}

#[test]
fn halves_where_the_device_has_them() {
    on_each_device(|device| {
        let kernel = Kernel::build("add half", device, 8, |k| {
            let x = k.buffer("x", Type::F16, Access::Read);
            let y = k.buffer("y", Type::vec2(Scalar::F16), Access::ReadWrite);
            let i = k.global_index();
            y.store(i, y.load(i) + x.load(i));
        });
        if !device.info().features.f16 {
            let message =
                format!("{device} does not support 16-bit floats in kernels, which kernel `add half` requires");
            assert_error!(kernel, Error::Unsupported { .. }, message);
            return Ok(());
        }
        let x = Tensor::new([1.0, 2.0].map(f16::from_f32), device)?;
        let y = Tensor::new([0.5, 0.25, -1.0].map(f16::from_f32), device)?;
        let [y] = kernel?.launch(1, [x.into(), y.into()])?;
        assert_eq!(y.to_vec::<f16>()?, [1.5, 1.25, 1.0].map(f16::from_f32));
        Ok(())
    });
}

#[test]
fn tensors_are_values() {
    on_each_device(|device| {
        let kernel = Kernel::build("add index", device, 4, |k| {
            let x = k.buffer("x", Type::U32, Access::ReadWrite);
            let i = k.global_index();
            x.store(i, x.load(i) + i);
        })?;
        let x = Tensor::new([[10u32, 20], [30, 40]], device)?;
        let (same, view) = (x.clone(), x.narrow(0, 0, 1)?);
        let [y] = kernel.launch(1, [Argument::from(&x)])?;
        let [z] = kernel.launch(1, [Argument::from(x.t()?)])?;
        let [again] = kernel.launch(1, [Argument::from(&y)])?;
        assert_eq!(y.to_vec::<u32>()?, [10, 21, 32, 43]);
        assert_eq!((z.dims(), z.to_vec::<u32>()?), (&[2, 2][..], vec![10, 31, 22, 43]));
        assert_eq!(again.to_vec::<u32>()?, [10, 22, 34, 46]);
        assert_eq!(x.to_vec::<u32>()?, [10, 20, 30, 40]);
        assert_eq!(same.to_vec::<u32>()?, [10, 20, 30, 40]);
        assert_eq!(view.to_vec::<u32>()?, [10, 20]);
        // An input that is not computed yet works too.
        let zeros = Tensor::zeros(4, DType::U32, device)?;
        for _ in 0..2 {
            let [counted] = kernel.launch(1, [Argument::from(&zeros)])?;
            assert_eq!(counted.to_vec::<u32>()?, [0, 1, 2, 3]);
        }
        assert_eq!(zeros.to_vec::<u32>()?, [0; 4]);
        // The kernel's output is an ordinary tensor.
        assert_eq!((&y + &y)?.sum(0)?.to_vec::<u32>()?, [84, 128]);

        // A tensor may be passed twice, and one launch may read and write it.
        let kernel = Kernel::build("add", device, 4, |k| {
            let a = k.buffer("a", Type::U32, Access::Read);
            let b = k.buffer("b", Type::U32, Access::ReadWrite);
            let i = k.global_index();
            b.store(i, a.load(i) + b.load(i));
        })?;
        let [sum] = kernel.launch(1, [Argument::from(&x), Argument::from(&x)])?;
        assert_eq!(sum.to_vec::<u32>()?, [20, 40, 60, 80]);
        assert_eq!(x.to_vec::<u32>()?, [10, 20, 30, 40]);
        Ok(())
    });
}

/// Indices for a buffer of five elements: inside, just behind it, far behind it, and one for which 4 i wraps.
const INDICES: [u32; 8] = [0, 4, 5, 8, 64, 100_000, 0x4000_0001, u32::MAX];

#[test]
fn nothing_beyond_a_buffer_is_reached() {
    on_each_device(|device| {
        // Neighbours in memory, if the driver places buffers of the same size side by side.
        let before: Vec<Tensor> = (0..8).map(|_| Tensor::new([7u32; 64], device)).collect::<Result<_>>()?;
        let x = Tensor::new([1u32, 2, 3, 4, 5], device)?;
        let after: Vec<Tensor> = (0..8).map(|_| Tensor::new([8u32; 64], device)).collect::<Result<_>>()?;
        let indices = Tensor::new(INDICES, device)?;

        let load = Kernel::build("load", device, 8, |k| {
            let at = k.buffer("at", Type::U32, Access::Read);
            let x = k.buffer("x", Type::U32, Access::Read);
            let y = k.buffer("y", Type::U32, Access::Write);
            let i = k.global_index();
            y.store(i, x.load(at.load(i)));
        })?;
        let [y] = load.launch(1, [(&indices).into(), (&x).into(), Argument::output(8)])?;
        assert_eq!(y.to_vec::<u32>()?, [1, 5, 5, 5, 5, 5, 5, 5]);

        let store = Kernel::build("store", device, 8, |k| {
            let at = k.buffer("at", Type::U32, Access::Read);
            let x = k.buffer("x", Type::U32, Access::ReadWrite);
            let i = k.global_index();
            x.store(at.load(i), i + 100);
        })?;
        let [y] = store.launch(1, [(&indices).into(), (&x).into()])?;
        assert_eq!(y.to_vec::<u32>()?, [100, 2, 3, 4, 101]);

        // Writes to each of the next hundred thousand words.
        let sweep = Kernel::build("sweep", device, 64, |k| {
            let x = k.buffer("x", Type::U32, Access::ReadWrite);
            x.store(k.global_index() + 5, 99);
        })?;
        let [y] = sweep.launch(1600, [Argument::from(&x)])?;
        assert_eq!(y.to_vec::<u32>()?, [1, 2, 3, 4, 5]);

        for tensor in before {
            assert_eq!(tensor.to_vec::<u32>()?, [7; 64]);
        }
        for tensor in after {
            assert_eq!(tensor.to_vec::<u32>()?, [8; 64]);
        }
        assert_eq!(x.to_vec::<u32>()?, [1, 2, 3, 4, 5]);
        Ok(())
    });
}

#[test]
fn lanes_beyond_a_buffer_are_those_of_its_last_vector() {
    on_each_device(|device| {
        let kernel = Kernel::build("lanes", device, 4, |k| {
            let x = k.buffer("x", Type::vec4(Scalar::U32), Access::Read);
            let y = k.buffer("y", Type::U32, Access::Write);
            let i = k.global_index();
            y.store(i, x.load_lane(i * 5));
        })?;
        let x = Tensor::arange(0u32, 8, device)?;
        let [y] = kernel.launch(1, [x.into(), Argument::output(4)])?;
        // Lanes 0, 5, 10 and 15.
        assert_eq!(y.to_vec::<u32>()?, [0, 5, 6, 7]);
        Ok(())
    });
}

type Atomic = fn(&KernelBuilder, marquetry::shader::Array<'_>);

#[test]
fn atomics_beyond_a_buffer_change_nothing() {
    on_each_device(|device| {
        let atomics: [(&str, Atomic, [u32; 5]); 5] = [
            ("add", |k, x| unused(x.atomic_add(k.global_index() * 2, 10)), [11, 2, 13, 4, 15]),
            ("max", |k, x| unused(x.atomic_max(k.global_index() * 2, 9)), [9, 2, 9, 4, 9]),
            ("min", |k, x| unused(x.atomic_min(k.global_index() * 2, 0)), [0, 2, 0, 4, 0]),
            ("exchange", |k, x| unused(x.atomic_exchange(k.global_index() * 2, 9)), [9, 2, 9, 4, 9]),
            // Only the last element equals the compared value.
            (
                "compare_exchange",
                |k, x| unused(x.atomic_compare_exchange(k.global_index() + 1, 5, 77)),
                [1, 2, 3, 4, 77],
            ),
        ];
        let x = Tensor::new([1u32, 2, 3, 4, 5], device)?;
        for (name, atomic, expected) in atomics {
            let kernel = Kernel::build(name, device, 64, |k| atomic(k, k.buffer("x", Type::U32, Access::ReadWrite)))?;
            let [y] = kernel.launch(20, [Argument::from(&x)])?;
            assert_eq!(y.to_vec::<u32>()?, expected, "{name}");
        }
        // All indices are out of range. The returned values are stored.
        let kernel = Kernel::build("beyond", device, 1, |k| {
            let x = k.buffer("x", Type::U32, Access::ReadWrite);
            let y = k.buffer("y", Type::U32, Access::Write);
            y.store(0, x.atomic_add(5, 10));
            y.store(1, x.atomic_max(6, 1000));
            y.store(2, x.atomic_min(u32::MAX, 0));
            y.store(3, x.atomic_compare_exchange(5, 5, 77));
            y.store(4, x.atomic_exchange(7, 77));
        })?;
        let [x, y] = kernel.launch(1, [Argument::from(&x), Argument::output(5)])?;
        assert_eq!(x.to_vec::<u32>()?, [1, 2, 3, 4, 5]);
        assert_eq!(y.to_vec::<u32>()?, [5; 5]);
        Ok(())
    });
}

#[test]
fn nothing_beyond_an_array_is_reached() {
    on_each_device(|device| {
        let kernel = Kernel::build("arrays", device, 8, |k| {
            let at = k.buffer("at", Type::U32, Access::Read);
            let y = k.buffer("y", Type::U32, Access::Write);
            let shared = k.workgroup_array(Type::U32, 5);
            let counts = k.workgroup_array(Type::U32, 1);
            let own = k.local_array(Type::U32, 5);
            let i = k.local_index();
            k.when(i.lt(5), || shared.store(i, i + 1));
            k.when(i.eq(0), || counts.store(0, 0));
            k.barrier();
            let index = at.load(i);
            // Only index 4 writes element 4. No index writes the elements behind it.
            k.when(i.ge(1), || shared.store(index, index + 10));
            counts.atomic_add(index, 1);
            k.for_range(0, 5, |j| own.store(j, j + 20));
            own.store(index, 30);
            k.barrier();
            y.store(i, shared.load(index));
            y.store(i + 8, own.load(index));
            y.store(i + 16, own.load(4));
            y.store(24, counts.load(0));
        })?;
        let indices = Tensor::new(INDICES, device)?;
        let [y] = kernel.launch(1, [indices.into(), Argument::output(25)])?;
        let y = y.to_vec::<u32>()?;
        assert_eq!(y[..8], [1, 14, 14, 14, 14, 14, 14, 14]);
        assert_eq!(y[8..16], [30, 30, 24, 24, 24, 24, 24, 24]);
        assert_eq!(y[16..24], [24, 30, 24, 24, 24, 24, 24, 24]);
        assert_eq!(y[24], 1);
        Ok(())
    });
}

#[test]
fn local_arrays_start_with_zeros() {
    on_each_device(|device| {
        let kernel = Kernel::build("zeros", device, 1, |k| {
            let y = k.buffer("y", Type::U32, Access::Write);
            let own = k.local_array(Type::U32, 16);
            own.store(3, 7);
            k.for_range(0, 16, |i| y.store(i, own.load(i)));
        })?;
        let [y] = kernel.launch(1, [Argument::output(16)])?;
        let mut expected = [0; 16];
        expected[3] = 7;
        assert_eq!(y.to_vec::<u32>()?, expected);
        Ok(())
    });
}

#[test]
fn division_and_shifts_are_defined() {
    on_each_device(|device| {
        let kernel = Kernel::build("division", device, 4, |k| {
            let x = k.buffer("x", Type::I32, Access::Read);
            let y = k.buffer("y", Type::I32, Access::Read);
            let out = k.buffer("out", Type::I32, Access::Write);
            let i = k.global_index();
            let (a, b) = (x.load(i), y.load(i));
            let (c, d) = (a.bitcast(Type::U32), b.bitcast(Type::U32));
            let results = [a / b, a % b, (c / d).bitcast(Type::I32), (c % d).bitcast(Type::I32)];
            let shifted = [a << b, a >> b, (c >> d).bitcast(Type::I32)];
            for (row, result) in (0u32..).zip(results.into_iter().chain(shifted)) {
                out.store(i + row * 4, result);
            }
        })?;
        let x = Tensor::new([7i32, i32::MIN, -9, -8], device)?;
        let y = Tensor::new([0i32, -1, 2, 33], device)?;
        let [out] = kernel.launch(1, [x.into(), y.into(), Argument::output((7, 4))])?;
        let unsigned = |x: i32, y: i32| (x as u32 / y as u32) as i32;
        let remainder = |x: i32, y: i32| (x as u32 % y as u32) as i32;
        let out = out.to_vec::<i32>()?;
        assert_eq!(out[..4], [7, i32::MIN, -4, 0]);
        assert_eq!(out[4..8], [0, 0, -1, -8]);
        assert_eq!(out[8..12], [7, unsigned(i32::MIN, -1), unsigned(-9, 2), unsigned(-8, 33)]);
        assert_eq!(out[12..16], [0, remainder(i32::MIN, -1), remainder(-9, 2), remainder(-8, 33)]);
        // Shifted by 0, 31, 2 and 1.
        assert_eq!(out[16..20], [7, 0, -36, -16]);
        assert_eq!(out[20..24], [7, -1, -3, -4]);
        assert_eq!(out[24..28], [7, 1, ((-9i32) as u32 >> 2) as i32, ((-8i32) as u32 >> 1) as i32]);
        Ok(())
    });
}

#[test]
fn dot_products_of_bytes_are_exact_and_wrap() {
    // Every pair of these words, which include the extremes.
    let words = [0x8080_8080, 0x7f7f_7f7f, 0xffff_ffff, 0, 0x0102_0304, 0x80ff_7f01, 0xdead_beef, 0x1234_cafe_u32];
    let pairs: Vec<[u32; 2]> = words.iter().flat_map(|&x| words.map(|y| [x, y])).collect();
    let bytes = |[x, y]: [u32; 2]| x.to_le_bytes().into_iter().zip(y.to_le_bytes());
    let signed = |pair: [u32; 2]| bytes(pair).map(|(x, y)| i64::from(x as i8) * i64::from(y as i8)).sum::<i64>();
    let unsigned = |pair: [u32; 2]| bytes(pair).map(|(x, y)| i64::from(x) * i64::from(y)).sum::<i64>();
    assert_eq!((signed([words[0]; 2]), unsigned([words[2]; 2])), (4 * 128 * 128, 4 * 255 * 255));
    on_each_device(|device| {
        let count = pairs.len();
        let kernel = Kernel::build("dot", device, count as u32, |k| {
            let x = k.buffer("x", Type::vec2(Scalar::U32), Access::Read);
            let first = k.named_parameter("first", Type::U32);
            let y = k.buffer("signed", Type::vec2(Scalar::I32), Access::Write);
            let z = k.buffer("unsigned", Type::U32, Access::Write);
            let i = k.local_index();
            let [a, b] = [0, 1].map(|lane| x.load(i).lane(lane));
            // Vectors are multiplied lane by lane, here with the lanes in both orders.
            let first_signed = first.bitcast(Type::I32).splat(2);
            y.store(i, x.load(i).dot_i8(k.vector(&[b, a]), first_signed));
            z.store(i, a.dot_u8(b, first));
        })?;
        let x = Tensor::new(pairs.concat(), device)?;
        for first in [0u32, 1 << 31, i32::MAX as u32, u32::MAX, 12345] {
            let arguments = [Argument::from(&x), first.into(), Argument::output((count, 2)), Argument::output(count)];
            let [y, z] = kernel.launch(1, arguments)?;
            let wrapped = |dot: i64| (dot + i64::from(first)) as u32;
            let expected: Vec<u32> = pairs.iter().map(|&pair| wrapped(signed(pair))).collect();
            let found = y.to_vec::<i32>()?;
            for (lane, name) in ["x y", "y x"].into_iter().enumerate() {
                let found: Vec<u32> = found.iter().skip(lane).step_by(2).map(|&sum| sum as u32).collect();
                assert_eq!(found, expected, "{device}: {first} + {name}");
            }
            let expected: Vec<u32> = pairs.iter().map(|&pair| wrapped(unsigned(pair))).collect();
            assert_eq!(z.to_vec::<u32>()?, expected, "{device}: {first} + x y without signs");
        }
        Ok(())
    });
}

/// `y = x w` by one subgroup, for matrices of unit size. `x` and `y` start at offsets in steps of 16 bytes.
fn unit_product(device: &Device, dtype: DType, size: [u32; 3]) -> Result<Kernel> {
    let ([_, n, k], bytes) = (size, dtype.size_in_bytes() as u32);
    let [a, b, c] = MatrixType::of_units(dtype, size);
    Kernel::build("product", device, 32, |kernel| {
        kernel.use_matrices();
        let x = kernel.matrix_buffer("x", dtype, Access::Read);
        let w = kernel.matrix_buffer("w", dtype, Access::Read);
        let y = kernel.matrix_buffer("y", c.dtype, Access::ReadWrite);
        let [from, stride, to] = ["from", "stride", "to"].map(|name| kernel.named_parameter(name, Type::U32));
        let x = x.load_matrix(from, stride, MatrixLayout::Rows, a);
        // Through workgroup memory, as in most kernels.
        let tile = kernel.workgroup_array(Type::vec4(Scalar::U32), k * n * bytes / 16);
        let vectors = k * n * bytes / 16;
        for first in (0..vectors).step_by(32) {
            let place = kernel.local_index() + first;
            kernel.when(place.lt(vectors), || tile.store(place, w.load(place)));
        }
        kernel.barrier();
        let w = tile.load_matrix(0, n * bytes / 16, MatrixLayout::Rows, b);
        let sum = kernel.zero_matrix(c);
        sum.set(x.multiply_add(w, sum.get()));
        y.store_matrix(to, n / 4, MatrixLayout::Rows, sum.get());
    })
}

#[test]
fn matrices_are_multiplied_where_there_are_units() {
    on_each_device(|device| {
        let units = device.info().features.matrix_units;
        for (dtype, size) in
            [(DType::F16, units.f16), (DType::BF16, units.bf16), (DType::I8, units.i8), (DType::U8, units.u8)]
        {
            let Some(size) = size else {
                assert_error!(
                    unit_product(device, dtype, [16; 3]),
                    Error::Unsupported { .. },
                    format!("{device} does not support matrix units, which kernel `product` requires")
                );
                continue;
            };
            let [m, n, k] = size.map(|length| length as usize);
            let kernel = unit_product(device, dtype, size)?;
            let line = (k * dtype.size_in_bytes() / 16) as u32;
            let numbers = |count: usize, step: usize| (0..count).map(|i| (i * step % 7) as f32).collect::<Vec<_>>();
            let (x, w) = (numbers(m * k, 3), numbers(k * n, 5));
            let [tx, tw] = [(&x, (m, k)), (&w, (k, n))].map(|(numbers, shape)| -> Result<Tensor> {
                Tensor::new(numbers.clone(), device)?.reshape(shape)?.to_dtype(dtype)
            });
            let (tx, tw) = (tx?, tw?);
            let before = Tensor::full(7f32, (m, n), device)?.to_dtype(sum_dtype(dtype))?;
            let run = |from: u32, stride: u32, to: u32| -> Result<Vec<f32>> {
                let arguments =
                    [Argument::from(&tx), (&tw).into(), (&before).into(), from.into(), stride.into(), to.into()];
                let [y] = kernel.launch(1, arguments)?;
                y.to_dtype(DType::F32)?.to_vec()
            };
            let product = |i: usize, j: usize| (0..k).map(|p| x[i * k + p] * w[p * n + j]).sum::<f32>();
            let expected: Vec<f32> = (0..m * n).map(|at| product(at / n, at % n)).collect();
            assert_eq!(run(0, line, 0)?, expected, "{device}: {dtype}");
            // Matrices that are partly out of bounds load as zeros and are not stored.
            for (from, stride) in [(line * (m as u32 - 1) + 1, line), (1 << 30, line), (0, 2 * line), (0, u32::MAX)] {
                assert_eq!(run(from, stride, 0)?, vec![0.0; m * n], "{device}: {dtype} from {from} by {stride}");
            }
            for to in [(m * n / 4) as u32, u32::MAX] {
                assert_eq!(run(0, line, to)?, vec![7.0; m * n], "{device}: {dtype} to {to}");
            }
        }
        Ok(())
    });
}

/// The dtype of sums of products of a narrow dtype.
fn sum_dtype(dtype: DType) -> DType {
    match dtype {
        DType::I8 => DType::I32,
        DType::U8 => DType::U32,
        _ => DType::F32,
    }
}

#[test]
fn any_number_of_workgroups() {
    on_each_device(|device| {
        let kernel = Kernel::build("count", device, 8, |k| {
            let y = k.buffer("y", Type::U32, Access::Write);
            let i = k.global_index();
            y.store(i, i);
        })?;
        let elements = 8 * 70_000 - 3;
        let [y] = kernel.launch(70_000, [Argument::output(elements)])?;
        let y = y.to_vec::<u32>()?;
        assert!((0..).zip(&y).all(|(i, &value)| i == value));
        assert_eq!(y.len(), elements);

        // Without workgroups nothing runs. An empty tensor has nothing to check.
        let before = device.stats().launches;
        let [y] = kernel.launch(0, [Argument::output(4)])?;
        assert_eq!((y.dims(), device.stats().launches), (&[4][..], before));
        let [y] = kernel.launch(1, [Argument::output((0, 3))])?;
        assert!(y.to_vec::<u32>()?.is_empty());
        let [y] = scale(device)?.launch(1, [y.to_dtype(DType::F32)?.into(), Argument::output(2), 3.0.into()])?;
        assert_eq!(y.dims(), [2]);
        Ok(())
    });
}

#[test]
fn a_kernel_is_shared_by_threads() {
    on_each_device(|device| {
        let kernel = scale(device)?;
        let compiles = device.stats().compiles;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let kernel = kernel.clone();
                scope.spawn(move || {
                    let x = Tensor::new([1f32, 2.0], kernel.device()).unwrap();
                    for i in 0..50 {
                        let factor = (thread * 100 + i) as f32;
                        let arguments = [Argument::from(&x), Argument::output(2), factor.into()];
                        let [y] = kernel.launch(1, arguments).unwrap();
                        assert_eq!(y.to_vec::<f32>().unwrap(), [factor, 2.0 * factor]);
                    }
                });
            }
        });
        assert!(device.stats().compiles >= compiles);
        Ok(())
    });
}

#[test]
fn arguments_that_do_not_fit() {
    on_each_device(|device| {
        let kernel = scale(device)?;
        let x = Tensor::new([1f32, 2.0], device)?;
        let (input, output) = (Argument::from(&x), Argument::output(2));
        let before = (device.stats().launches, device.memory_stats().in_use);
        let signature = "scale(x: f32 tensor, y: new f32 tensor, factor: f32 number)";
        assert_error!(
            kernel.launch::<1>(1, [input.clone(), output.clone()]),
            Error::Argument { .. },
            format!("kernel `scale`, argument `factor`: it is missing: {signature}")
        );
        assert_error!(
            kernel.launch::<1>(1, []),
            Error::Argument { .. },
            format!("kernel `scale`, argument `x`: it is missing: {signature}")
        );
        assert_error!(
            kernel.launch::<1>(1, [input.clone(), output.clone(), 2.0.into(), 3.0.into()]),
            Error::Argument { .. },
            format!("kernel `scale`, argument `#4`: it is one too many: {signature}")
        );
        assert_error!(
            kernel.launch::<1>(1, [1.0.into(), output.clone(), 2.0.into()]),
            Error::Argument { .. },
            "kernel `scale`, argument `x`: it takes f32 tensor, got f32 number"
        );
        assert_error!(
            kernel.launch::<1>(1, [output.clone(), output.clone(), 2.0.into()]),
            Error::Argument { .. },
            "kernel `scale`, argument `x`: it takes f32 tensor, got the shape [2] of a new tensor"
        );
        assert_error!(
            kernel.launch::<1>(1, [input.clone(), input.clone(), 2.0.into()]),
            Error::Argument { .. },
            "kernel `scale`, argument `y`: it takes new f32 tensor (give its shape: `Argument::output`), \
             got f32 tensor of shape [2]"
        );
        assert_error!(
            kernel.launch::<1>(1, [input.clone(), output.clone(), input.clone()]),
            Error::Argument { .. },
            "kernel `scale`, argument `factor`: it takes f32 number, got f32 tensor of shape [2]"
        );
        assert_error!(
            kernel.launch::<1>(1, [input.clone(), output.clone(), 2u32.into()]),
            Error::Argument { .. },
            "kernel `scale`, argument `factor`: it takes f32 number, got u32 number"
        );
        let whole = x.to_dtype(DType::I32)?;
        assert_error!(
            kernel.launch::<1>(1, [whole.into(), output.clone(), 2.0.into()]),
            Error::Argument { .. },
            "kernel `scale`, argument `x`: it takes f32, got i32; convert it with `to_dtype`"
        );
        assert_error!(
            kernel.launch::<1>(1, [input.clone(), Argument::output((1 << 20, 1 << 20)), 2.0.into()]),
            Error::Argument { .. },
            "kernel `scale`, argument `y`: shape [1048576, 1048576] has more elements than a kernel can count"
        );
        assert_error!(
            kernel.launch::<2>(1, [input.clone(), output.clone(), 2.0.into()]),
            Error::Kernel { .. },
            format!("kernel `scale`: it writes 1 tensors, not 2: {signature}")
        );
        assert_error!(
            kernel.launch::<1>([1, 1, 1], [input.clone(), output.clone(), 2.0.into()]),
            Error::Kernel { .. },
            "kernel `scale`: its workgroups are counted in one dimension: give their number"
        );
        let limit = device.info().limits.max_groups as usize;
        assert_error!(
            kernel.launch::<1>(limit * limit + 1, [input, output, 2.0.into()]),
            Error::Unsupported { .. },
            format!("{device} does not support a dispatch of {} workgroups (kernel `scale`)", limit * limit + 1)
        );
        assert_eq!((device.stats().launches, device.memory_stats().in_use), before, "nothing has been done");
        Ok(())
    });
}

#[test]
fn a_tensor_on_another_device() {
    let _turn = alone();
    let (here, there) = (open(DEVICES[0]), open(DEVICES[1]));
    let kernel = scale(&here).unwrap();
    let x = Tensor::new([1f32], &there).unwrap();
    assert_error!(
        kernel.launch::<1>(1, [x.into(), Argument::output(1), 2.0.into()]),
        Error::Argument { .. },
        format!("kernel `scale`, argument `x`: it is on {there}, the kernel on {here}; move it with `to_device`")
    );
}

/// Builds a kernel that contains a mistake.
fn build(write: impl FnOnce(&KernelBuilder)) -> Result<Kernel> {
    Kernel::build("wrong", &vulkan(), 64, write)
}

#[test]
fn mistakes_in_a_kernel() {
    let _turn = alone();
    const OUTSIDE: &str = "kernel `wrong`: a value is used outside of the branch or loop in which it was computed; \
                           keep it in a variable (`var`)";
    let smuggle = |use_it: for<'k> fn(&'k KernelBuilder, Value<'k>)| {
        build(|k| {
            let mut inside = None;
            k.when(k.global_index().lt(3), || inside = Some(k.local_index() + 1));
            use_it(k, inside.unwrap());
        })
    };
    assert_error!(smuggle(|_, value| unused(value + 1)), Error::Kernel { .. }, OUTSIDE);
    assert_error!(
        smuggle(|k, value| k.buffer("y", Type::U32, Access::Write).store(0, value)),
        Error::Kernel { .. },
        OUTSIDE
    );
    let mut inside = None;
    let after_loop = build(|k| {
        let y = k.buffer("y", Type::U32, Access::Write);
        let condition = k.var(k.bool(true));
        k.for_range(0, 3, |i| condition.set(i.lt(2)));
        inside = Some(0);
        let mut last = k.bool(false);
        k.for_range(0, 3, |i| last = i.lt(2));
        k.when(last, || y.store(0, 1));
    });
    assert_error!(after_loop, Error::Kernel { .. }, OUTSIDE);
    assert_eq!(inside, Some(0));

    assert_error!(
        build(|k| k.buffer("x", Type::U32, Access::Read).store(0, 1)),
        Error::Kernel { .. },
        "kernel `wrong`: a buffer that is declared `Access::Read` is written"
    );
    assert_error!(
        build(|k| unused(k.buffer("x", Type::U32, Access::Read).atomic_add(0, 1))),
        Error::Kernel { .. },
        "kernel `wrong`: a buffer that is declared `Access::Read` is written"
    );
    assert_error!(
        build(|k| std::mem::forget(k.when(k.bool(true), || ()))),
        Error::Kernel { .. },
        "kernel `wrong`: a branch has not ended: drop what `when` returns"
    );
    let other = KernelBuilder::new("other", marquetry::shader::Target::VULKAN, 64);
    assert_error!(
        build(|k| unused(k.local_index() + other.u32(1))),
        Error::Kernel { .. },
        "kernel `wrong`: a value of another kernel is used"
    );
    assert_error!(
        build(|k| unused(k.workgroup_array(Type::F32, 0))),
        Error::Kernel { .. },
        "kernel `wrong`: an array has at least one element"
    );
    assert_error!(
        build(|k| unused(k.local_array(Type::F32, 1 << 30))),
        Error::Kernel { .. },
        "kernel `wrong`: local arrays of 4294967295 bytes; 8192 are possible"
    );
    assert_error!(
        build(|k| unused(k.buffer("x", Type { scalar: Scalar::F32, lanes: 3 }, Access::Read))),
        Error::Kernel { .. },
        "kernel `wrong`: vec3<f32>: a vector has 2 or 4 lanes"
    );
    assert_error!(
        build(|k| unused(k.packed_buffer("x", DType::F32, Access::Read))),
        Error::Kernel { .. },
        "kernel `wrong`: buffer `x`: f32 is not packed, declare it with `buffer`"
    );
    assert_error!(
        build(|k| unused(k.u32(4).sqrt())),
        Error::Kernel { .. },
        "kernel `wrong`: Sqrt takes floats of one type, not u32"
    );
    assert_error!(
        Kernel::build("none", &vulkan(), 0, |_| ()),
        Error::Kernel { .. },
        "kernel `none`: workgroups of [0, 1, 1] invocations"
    );
    let most = vulkan().info().limits.max_workgroup_invocations;
    assert_error!(
        Kernel::build("large", &vulkan(), most + 1, |_| ()),
        Error::Unsupported { .. },
        format!(
            "{} does not support {} invocations per workgroup, which kernel `large` needs (limit {most})",
            vulkan(),
            most + 1
        )
    );
}

/// Application kernels are compiled before the sizes of their buffers are known, so they use no buffer addresses.
#[test]
fn what_cannot_be_bound() {
    let device = vulkan();
    let kernel = Kernel::build("fill", &device, 64, |k| {
        let y = k.buffer("y", Type::F32, Access::Write);
        y.store(k.global_index(), k.f32(1.0));
    });
    let most = device.info().limits.max_binding_bytes;
    let elements = (most / 4 + 64) as usize;
    assert_error!(
        kernel.unwrap().launch::<1>(1, [Argument::output(elements)]),
        Error::Argument { .. },
        format!(
            "kernel `fill`, argument `y`: shape [{elements}] of f32 takes {} bytes; the device binds a kernel to {most} at \
             most",
            4 * elements
        )
    );
}

/// The kernel `y = factor x` as SPIR-V for a device, for `count` elements. Its entry point is `double`.
fn spirv(device: &Device) -> Vec<u32> {
    let k = KernelBuilder::new("scale", Kernel::target(device), 64);
    let x = k.buffer("x", Type::F32, Access::Read);
    let y = k.buffer("y", Type::F32, Access::Write);
    let (count, factor) = (k.parameter(Type::U32), k.parameter(Type::F32));
    let i = k.global_index();
    k.when(i.lt(count), || y.store(i, x.load(i) * factor));
    let mut words = k.finish().unwrap().spirv().unwrap().to_vec();
    // The new name takes two words, as the old one does.
    let main = words.windows(2).position(|pair| pair == [u32::from_le_bytes(*b"main"), 0]).unwrap();
    words[main] = u32::from_le_bytes(*b"doub");
    words[main + 1] = u32::from_le_bytes(*b"le\0\0");
    words
}

fn scale_signature() -> Signature {
    Signature::new("scale")
        .input("x", DType::F32)
        .output("y", DType::F32)
        .scalar("count", DType::U32)
        .scalar("factor", DType::F32)
}

fn bring(device: &Device, words: &[u32], entry_point: &str, workgroup: [u32; 3]) -> Result<Kernel> {
    // SAFETY: the words come from `spirv` above, or are refused before a driver gets them. The kernel guards its
    // accesses with `count`, and every launch passes the length of its tensors.
    unsafe { Kernel::from_spirv(device, words, entry_point, workgroup, scale_signature()) }
}

#[test]
fn spirv_runs_on_each_device() {
    on_each_device(|device| {
        let kernel = bring(device, &spirv(device), "double", [64, 1, 1])?;
        assert_eq!(kernel.workgroup(), [64, 1, 1]);
        let x: Vec<f32> = (0..100u8).map(f32::from).collect();
        let x = Tensor::new(&x, device)?.reshape((10, 10))?;
        let arguments = [Argument::from(x.t()?), Argument::output((10, 10)), 100u32.into(), 0.5.into()];
        let [y] = kernel.launch([2, 1, 1], arguments.clone())?;
        let expected: Vec<f32> = (0..100).map(|i| ((i % 10 * 10 + i / 10) as f32) / 2.0).collect();
        assert_eq!(y.to_vec::<f32>()?, expected);
        let [y] = kernel.launch(2, arguments.clone())?;
        assert_eq!(y.to_vec::<f32>()?, expected);

        let limit = device.info().limits.max_groups;
        if limit == u32::MAX {
            return Ok(()); // no number of workgroups is too large
        }
        assert_error!(
            kernel.launch::<1>([1, limit + 1, 1], arguments),
            Error::Unsupported { .. },
            format!(
                "{device} does not support a dispatch of {} workgroups in y (kernel `scale`, limit {limit})",
                limit + 1
            )
        );
        Ok(())
    });
}

#[test]
fn spirv_that_is_refused() {
    on_each_device(|device| {
        let words = spirv(device);
        assert_error!(
            bring(device, &words, "main", [64, 1, 1]),
            Error::Kernel { .. },
            "kernel `scale`: no entry point `main`; there is `double`"
        );
        assert_error!(
            bring(device, &words, "double", [32, 2, 1]),
            Error::Kernel { .. },
            "kernel `scale`: its workgroups are [64, 1, 1], not [32, 2, 1]"
        );
        assert_error!(
            bring(device, &words[1..], "double", [64, 1, 1]),
            Error::Kernel { .. },
            "kernel `scale`: not SPIR-V: the first word is not 0x07230203"
        );
        assert_error!(
            bring(device, &words[..5], "double", [64, 1, 1]),
            Error::Kernel { .. },
            "kernel `scale`: no entry point `double`; there is none"
        );
        Ok(())
    });
}

const WGSL: &str = "
    struct Parameters { count: u32, factor: f32 }
    @group(0) @binding(0) var<storage, read> x: array<f32>;
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    @group(0) @binding(2) var<uniform> parameters: Parameters;

    @compute @workgroup_size(8, 8)
    fn scale(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
        let i = id.x + 8 * groups.x * id.y;
        if i < parameters.count { y[i] = x[i] * parameters.factor; }
    }

    @compute @workgroup_size(1)
    fn beyond() {
        // No such element exists, whatever `count` is.
        y[parameters.count * 1000000] = x[parameters.count * 3];
        y[0] = 7.0;
    }";

#[test]
fn wgsl_runs_on_webgpu() -> Result<()> {
    let _turn = alone();
    let device = open("webgpu");
    let kernel = Kernel::from_wgsl(&device, WGSL, "scale", scale_signature())?;
    assert_eq!(kernel.workgroup(), [8, 8, 1]);
    let x: Vec<f32> = (0..200u8).map(f32::from).collect();
    let x = Tensor::new(&x, &device)?;
    let [y] = kernel.launch([2, 2, 1], [Argument::from(&x), Argument::output(200), 200u32.into(), 3.0.into()])?;
    let expected: Vec<f32> = (0..200u16).map(|i| f32::from(3 * i)).collect();
    assert_eq!(y.to_vec::<f32>()?, expected);

    let neighbours: Vec<Tensor> = (0..4).map(|_| Tensor::new([9f32; 64], &device)).collect::<Result<_>>()?;
    let kernel = Kernel::from_wgsl(&device, WGSL, "beyond", scale_signature())?;
    let [y] = kernel.launch([1, 1, 1], [Argument::from(&x), Argument::output(1), 200u32.into(), 0.0.into()])?;
    assert_eq!(y.to_vec::<f32>()?, [7.0]);
    for tensor in neighbours {
        assert_eq!(tensor.to_vec::<f32>()?, [9.0; 64]);
    }
    Ok(())
}

#[test]
fn wgsl_is_for_webgpu() {
    let _turn = alone();
    let device = vulkan();
    assert_error!(
        Kernel::from_wgsl(&device, WGSL, "scale", scale_signature()),
        Error::Unsupported { .. },
        format!(
            "{device} does not support WGSL, in which kernel `scale` is given; bring SPIR-V for it (`Kernel::from_spirv`)"
        )
    );
}

#[test]
fn wgsl_that_does_not_fit_its_signature() -> Result<()> {
    let _turn = alone();
    let device = open("webgpu");
    let compile = |text: &str, signature| Kernel::from_wgsl(&device, text, "scale", signature);
    assert_error!(
        Kernel::from_wgsl(&device, WGSL, "double", scale_signature()),
        Error::Kernel { .. },
        "kernel `scale`: no entry point `double`; there is `scale`, `beyond`"
    );
    let message = text_of(compile("fn scale(", scale_signature()));
    assert!(message.starts_with("kernel `scale`: error: expected identifier"), "{message}");
    let message = text_of(compile(&WGSL.replace("= x[i] *", "= x *"), scale_signature()));
    assert!(message.starts_with("kernel `scale`: ") && message.contains("x * parameters.factor"), "{message}");
    let writes_x = Signature::new("scale").in_out("x", DType::F32).output("y", DType::F32).scalar("count", DType::U32);
    assert_error!(
        compile(WGSL, writes_x.scalar("factor", DType::F32)),
        Error::Argument { .. },
        "kernel `scale`, argument `x`: the signature wants it to be a `var<storage, read_write>` at binding 0"
    );
    let reads_y = Signature::new("scale").input("x", DType::F32).input("y", DType::F32).scalar("count", DType::U32);
    assert_error!(
        compile(WGSL, reads_y),
        Error::Argument { .. },
        "kernel `scale`, argument `y`: the signature wants it to be a `var<storage, read>` at binding 1"
    );
    let place = "does not fit the signature, which has";
    assert_error!(
        compile(WGSL, Signature::new("scale").input("x", DType::F32).output("y", DType::F32)),
        Error::Kernel { .. },
        format!(
            "kernel `scale`: binding 2 (a variable of 8 bytes) {place} 2 buffers from binding 0 on and behind them a \
             uniform block of 0 words"
        )
    );
    assert_error!(
        compile(&WGSL.replace("factor: f32", "factor: f32, more: array<vec4<f32>, 4>"), scale_signature()),
        Error::Kernel { .. },
        format!(
            "kernel `scale`: binding 2 (a variable of 80 bytes) {place} 2 buffers from binding 0 on and behind them a \
             uniform block of 2 words"
        )
    );
    let halves = Signature::new("scale").input("x", DType::F32).output("y", DType::F32).scalar("count", DType::F16);
    assert_error!(
        compile(WGSL, halves.scalar("factor", DType::F32)),
        Error::Argument { .. },
        "kernel `scale`, argument `count`: it is an f16 number; a kernel takes f32, i32 and u32"
    );

    // With a fixed length, the tensor must have that length.
    let kernel = compile(&WGSL.replace("x: array<f32>", "x: array<f32, 100>"), scale_signature())?;
    let run = |elements: usize| {
        let x = Tensor::ones(elements, DType::F32, &device)?;
        kernel.launch::<1>([1, 1, 1], [x.into(), Argument::output(2), 2u32.into(), 5.0.into()])
    };
    assert_error!(
        run(96),
        Error::Argument { .. },
        "kernel `scale`, argument `x`: shape [96] of f32 is too small; the kernel binds 400 bytes"
    );
    let [y] = run(100)?;
    assert_eq!(y.to_vec::<f32>()?, [5.0, 5.0]);
    Ok(())
}

/// Runs a function on a thread with a stack of 2 MiB, as threads of applications have.
fn on_small_stack(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn_scoped(scope, work).unwrap();
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Builds a kernel in which each step is the only operand of the next step.
fn long_expression(device: &Device, steps: u32) -> Result<Kernel> {
    Kernel::build("long", device, 8, |k| {
        let x = k.buffer("x", Type::U32, Access::Read);
        let y = k.buffer("y", Type::U32, Access::Write);
        let i = k.global_index();
        let mut value = x.load(i);
        for step in 0..steps {
            value = match step % 5 {
                0 => value + step,
                1 => !value,
                2 => value ^ step.wrapping_mul(0x9e37_79b9),
                3 => value - 7,
                _ => value * 5,
            };
        }
        y.store(i, value);
    })
}

#[test]
fn expressions_of_any_length() {
    on_each_device(|device| {
        let x = [0u32, 1, 0x8000_0000, u32::MAX];
        for steps in [99, 2000] {
            let expected = x.map(|x| {
                (0..steps).fold(x, |value, step| match step % 5 {
                    0 => value.wrapping_add(step),
                    1 => !value,
                    2 => value ^ step.wrapping_mul(0x9e37_79b9),
                    3 => value.wrapping_sub(7),
                    _ => value.wrapping_mul(5),
                })
            });
            on_small_stack(|| {
                let kernel = long_expression(device, steps).unwrap();
                let arguments = [Argument::from(&Tensor::new(x, device).unwrap()), Argument::output(4)];
                let [y] = kernel.launch(1, arguments).unwrap();
                assert_eq!(y.to_vec::<u32>().unwrap(), expected, "{steps} steps on {device}");
            });
        }
        Ok(())
    });
}

/// y = how many of `depth` conditions hold. Each condition is evaluated only if the previous one holds.
fn nested(device: &Device, depth: u32, is_loop: bool) -> Result<Kernel> {
    fn within<'k>(k: &'k KernelBuilder, n: Value<'k>, count: Var<'k>, to: [u32; 2], is_loop: bool) {
        let [level, depth] = to;
        if level == depth {
            return;
        }
        let body = || {
            count.set(count.get() + 1);
            within(k, n, count, [level + 1, depth], is_loop);
        };
        match is_loop {
            // One iteration, or none.
            true => k.for_range(0, n.gt(level).select(k.u32(1), k.u32(0)), |_| body()),
            false => drop(k.when(n.gt(level), body)),
        }
    }
    Kernel::build("nested", device, 8, |k| {
        let y = k.buffer("y", Type::U32, Access::Write);
        let n = k.parameter(Type::U32);
        let count = k.var(k.u32(0));
        within(k, n, count, [0, depth], is_loop);
        y.store(0, count.get());
    })
}

#[test]
fn branches_and_loops_in_each_other() {
    on_each_device(|device| {
        for is_loop in [false, true] {
            let kernel = nested(device, 60, is_loop)?;
            for n in [0u32, 33, 60] {
                let [y] = kernel.launch(1, [Argument::output(1), n.into()])?;
                assert_eq!(y.to_vec::<u32>()?, [n], "loops: {is_loop}");
            }
            for depth in [61, 500] {
                assert_error!(
                    nested(device, depth, is_loop),
                    Error::Kernel { .. },
                    "kernel `nested`: branches and loops nest deeper than 60; move the inner ones out, or keep \
                     conditions in variables"
                );
            }
        }
        Ok(())
    });
}

/// A WebGPU kernel that stores 7 to y[0] inside `depth` nested selections.
fn nested_spirv(depth: usize) -> Vec<u32> {
    use rspirv::binary::Assemble;
    use rspirv::dr::{Builder, Operand};
    use rspirv::spirv::*;
    let mut b = Builder::new();
    b.set_version(1, 3);
    b.capability(Capability::Shader);
    b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
    let (void, bool, u32) = (b.type_void(), b.type_bool(), b.type_int(32, 0));
    let [zero, seven] = [0, 7].map(|number| b.constant_bit32(u32, number));
    let array = b.type_runtime_array(u32);
    b.decorate(array, Decoration::ArrayStride, [Operand::LiteralBit32(4)]);
    let block = b.type_struct([array]);
    b.decorate(block, Decoration::Block, []);
    b.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    let pointer = b.type_pointer(None, StorageClass::StorageBuffer, block);
    let y = b.variable(pointer, None, StorageClass::StorageBuffer, None);
    b.decorate(y, Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
    b.decorate(y, Decoration::Binding, [Operand::LiteralBit32(0)]);
    let element = b.type_pointer(None, StorageClass::StorageBuffer, u32);
    let signature = b.type_function(void, []);
    let main = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
    b.begin_block(None).unwrap();
    let place = b.access_chain(element, None, y, [zero, zero]).unwrap();
    let first = b.load(u32, None, place, None, []).unwrap();
    let is_other = b.i_not_equal(bool, None, first, seven).unwrap();
    let mut merges = Vec::new();
    for _ in 0..depth {
        let (inside, merge) = (b.id(), b.id());
        b.selection_merge(merge, SelectionControl::NONE).unwrap();
        b.branch_conditional(is_other, inside, merge, []).unwrap();
        b.begin_block(Some(inside)).unwrap();
        merges.push(merge);
    }
    b.store(place, seven, None, []).unwrap();
    for merge in merges.into_iter().rev() {
        b.branch(merge).unwrap();
        b.begin_block(Some(merge)).unwrap();
    }
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::GLCompute, main, "main", []);
    b.execution_mode(main, ExecutionMode::LocalSize, [1, 1, 1]);
    b.module().assemble()
}

#[test]
fn spirv_that_nests_deep_is_refused_on_webgpu() -> Result<()> {
    let _turn = alone();
    let device = open("webgpu");
    let bring = |depth| {
        let signature = Signature::new("nested").in_out("y", DType::U32);
        // SAFETY: the kernel stores to the first element of its buffer, which exists.
        unsafe { Kernel::from_spirv(&device, &nested_spirv(depth), "main", [1, 1, 1], signature) }
    };
    let [y] = bring(64)?.launch(1, [Argument::from(Tensor::new([3u32], &device)?)])?;
    assert_eq!(y.to_vec::<u32>()?, [7]);
    for depth in [65, 20_000] {
        assert_error!(
            bring(depth),
            Error::Kernel { .. },
            format!(
                "kernel `nested`: branches and loops nest {depth} deep; the device takes 64, where a loop counts twice"
            )
        );
    }
    Ok(())
}

/// A WGSL kernel with one buffer.
fn wgsl(device: &Device, declarations: &str, body: &str) -> Result<Kernel> {
    let text = format!(
        "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
         {declarations}
         @compute @workgroup_size(1) fn run() {{ {body} }}"
    );
    Kernel::from_wgsl(device, &text, "run", Signature::new("brought").in_out("y", DType::U32))
}

#[test]
fn wgsl_that_nests_deep_is_refused() {
    let _turn = alone();
    let device = open("webgpu");
    on_small_stack(|| {
        let around = |n: usize, before: &str, inner: &str, behind: &str| before.repeat(n) + inner + &behind.repeat(n);
        for n in [300, 1100, 20_000] {
            let value = |text: String| wgsl(&device, "", &format!("y[0] = {text};"));
            let cases = [
                ("parentheses", value(around(n, "(", "y[1]", ")"))),
                ("calls", value(around(n, "min(1u, ", "y[1]", ")"))),
                ("indexes", value(around(n, "y[", "0", "]"))),
                ("blocks", wgsl(&device, "", &around(n, "{", "y[0] = 1u;", "}"))),
                ("branches", wgsl(&device, "", &around(n, "if y[1] > 2u {", "y[0] = 1u;", "}"))),
                ("types", wgsl(&device, &format!("var<private> z: {};", around(n, "array<", "u32", ", 1>")), "")),
                ("sums", value(around(n.max(1100), "", "y[1]", " + 1u"))),
                ("signs", value(around(n.max(1100), "~", "y[1]", ""))),
                ("elses", wgsl(&device, "", &around(n.max(1100), "", "if y[1] == 1u { }", " else if y[1] == 2u { }"))),
            ];
            for (sort, kernel) in cases {
                assert!(matches!(kernel, Err(Error::Kernel { .. })), "{n} {sort}: {kernel:?}");
                let message = text_of(kernel);
                let expected = ["nest deeper than", "nest; the device takes no more"];
                assert!(expected.iter().any(|expected| message.contains(expected)), "{n} {sort}: {message}");
            }
        }
        // Long code is not deep, and code of the greatest allowed depth runs.
        let sums = around(900, "", "y[1]", " + 1u");
        let elses = (0..64).map(|i| format!("if y[1] == {i}u {{ y[2] = {}u; }} else ", i + 1)).collect::<String>();
        let kernel = wgsl(&device, "", &format!("y[0] = {sums}; {elses} {{ }}")).unwrap();
        let [y] = kernel.launch(1, [Argument::from(Tensor::new([0u32, 63, 0], &device).unwrap())]).unwrap();
        assert_eq!(y.to_vec::<u32>().unwrap(), [963, 63, 64]);
    });
}

/// Returns the error for a kernel that uses too much of something.
fn too_much(device: &Device, kernel: &str, count: u64, what: &str, limit: u32) -> String {
    format!("{device} does not support {count} {what}, which kernel `{kernel}` needs (limit {limit})")
}

#[test]
fn wgsl_that_takes_too_much_memory() -> Result<()> {
    let _turn = alone();
    let device = open("webgpu");
    let most = device.info().limits.max_workgroup_memory;
    // Two variables, used through a function. The memory of another entry point does not count.
    let shared = |words: u32| {
        let declarations = format!(
            "var<workgroup> one: u32;
             var<workgroup> others: array<u32, {words}>;
             var<workgroup> elsewhere: array<u32, 100000000>;
             fn last() -> u32 {{ others[{words} - 1] = y[0]; one = 2u; return others[{words} - 1] * one; }}
             @compute @workgroup_size(1) fn other() {{ elsewhere[5] = 1u; }}"
        );
        wgsl(&device, &declarations, "y[0] = last();")
    };
    let run = |kernel: Kernel| -> Result<Vec<u32>> {
        let [y] = kernel.launch(1, [Argument::from(Tensor::new([21u32], &device)?)])?;
        y.to_vec()
    };
    assert_eq!(run(shared(most / 4 - 1)?)?, [42]);
    for words in [most / 4, 100_000_000] {
        let bytes = u64::from(words) * 4 + 4;
        let expected = too_much(&device, "brought", bytes, "bytes of workgroup memory", most);
        assert_error!(shared(words), Error::Unsupported { .. }, expected);
    }
    let overridden = wgsl(
        &device,
        "override length: u32 = 100000000; var<workgroup> all: array<vec4<u32>, length>;",
        "all[0] = vec4<u32>(1u); y[0] = all[0].x;",
    );
    let expected = too_much(&device, "brought", 1_600_000_000, "bytes of workgroup memory", most);
    assert_error!(overridden, Error::Unsupported { .. }, expected);

    // Private memory and the memory of functions count together.
    let local = |private: u32, local: u32, called: u32| {
        let declarations = format!(
            "var<private> p: array<u32, {private}>;
             fn last(i: u32) -> u32 {{ var a: array<u32, {called}>; a[i] = y[0]; return a[i]; }}"
        );
        let body = format!("var a: array<vec2<u32>, {local}>; p[0] = last(2u); a[1].y = p[0]; y[0] = a[1].y;");
        wgsl(&device, &declarations, &body)
    };
    assert_eq!(run(local(1024, 256, 512)?)?, [21]);
    for words in [[1025, 256, 512], [1024, 257, 512], [1024, 256, 513], [100_000_000; 3]] {
        let bytes = 4 * (u64::from(words[0]) + 2 * u64::from(words[1]) + u64::from(words[2]));
        assert_error!(
            local(words[0], words[1], words[2]),
            Error::Kernel { .. },
            format!("kernel `brought`: private and local arrays of {bytes} bytes; 8192 are possible")
        );
    }
    Ok(())
}

#[test]
fn spirv_that_takes_too_much_memory() {
    on_each_device(|device| {
        let bring = |shared: u32, local: u32, workgroup: u32| {
            let k = KernelBuilder::new("brought", Kernel::target(device), workgroup);
            let y = k.buffer("y", Type::U32, Access::ReadWrite);
            let (shared, local) = (k.workgroup_array(Type::U32, shared), k.local_array(Type::vec2(Scalar::U32), local));
            shared.store(2, y.load(0));
            local.store(1, shared.load(2).splat(2));
            y.store(0, local.load(1).lane(1) * 2);
            let words = k.finish()?.spirv()?.to_vec();
            let signature = Signature::new("brought").in_out("y", DType::U32);
            // SAFETY: the kernel stays within its arrays of at least three and two elements, and its buffer of one.
            unsafe { Kernel::from_spirv(device, &words, "main", [workgroup, 1, 1], signature) }
        };
        let limits = &device.info().limits;
        let most = limits.max_workgroup_memory;
        let [y] = bring(most / 4, 1024, 1)?.launch(1, [Argument::from(Tensor::new([21u32], device)?)])?;
        assert_eq!(y.to_vec::<u32>()?, [42]);
        for words in [most / 4 + 1, 100_000_000] {
            let expected = too_much(device, "brought", u64::from(words) * 4, "bytes of workgroup memory", most);
            assert_error!(bring(words, 1024, 1), Error::Unsupported { .. }, expected);
        }
        for vectors in [1025u32, 50_000_000] {
            assert_error!(
                bring(16, vectors, 1),
                Error::Kernel { .. },
                format!("kernel `brought`: private and local arrays of {} bytes; 8192 are possible", vectors * 8)
            );
        }
        let most = limits.max_workgroup_invocations;
        let expected = too_much(device, "brought", u64::from(most) + 1, "invocations per workgroup", most);
        assert_error!(bring(16, 16, most + 1), Error::Unsupported { .. }, expected);
        Ok(())
    });
}

#[test]
fn shaders_of_other_stages_are_refused() {
    on_each_device(|device| {
        let words = spirv(device);
        // The entry point's execution model is the word before its function and its name.
        let name =
            words.windows(2).position(|pair| pair == [u32::from_le_bytes(*b"doub"), u32::from_le_bytes(*b"le\0\0")]);
        let with_model = |model: u32| {
            let mut words = words.clone();
            words[name.unwrap() - 2] = model;
            bring(device, &words, "double", [64, 1, 1])
        };
        let (own, other) = if device.info().backend == BackendKind::LevelZero { (6, 5) } else { (5, 6) };
        assert!(with_model(own).is_ok());
        for (model, what) in [(0, "a vertex shader"), (4, "a fragment shader"), (3, "of execution model 3")] {
            assert_error!(
                with_model(model),
                Error::Kernel { .. },
                format!("kernel `scale`: entry point `double` is {what}; a kernel needs a compute entry point")
            );
        }
        let [vulkan, opencl] = [["a compute shader", "compute shaders"], ["a kernel", "kernels"]];
        let (found, wanted) = match other {
            5 => (format!("{} of Vulkan", vulkan[0]), format!("{} of OpenCL", opencl[1])),
            _ => (format!("{} of OpenCL", opencl[0]), format!("{} of Vulkan", vulkan[1])),
        };
        assert_error!(
            with_model(other),
            Error::Kernel { .. },
            format!(
                "kernel `scale`: entry point `double` is {found}; this device takes {wanted} (`Kernel::target` tells)"
            )
        );
        if device.info().backend != BackendKind::WebGpu {
            return Ok(());
        }
        for (text, what) in [
            ("@vertex fn run() -> @builtin(position) vec4<f32> { return vec4<f32>(); }", "a vertex shader"),
            ("@fragment fn run() { }", "a fragment shader"),
        ] {
            assert_error!(
                Kernel::from_wgsl(device, text, "run", Signature::new("brought")),
                Error::Kernel { .. },
                format!("kernel `brought`: entry point `run` is {what}; a kernel needs a compute entry point")
            );
        }
        Ok(())
    });
}
