//! Chains of elementwise operations, which are deferred and fused, and use from many threads.

use super::{FLOATS, numbers, sample, shaped};
use crate::compare::{Expected, Sample, check, download};
use crate::compiles;
use crate::graphs::{self, Numbers};
use crate::layouts::Layout;
use crate::reference::functions::gelu;
use crate::reference::inputs::Domain;
use crate::reference::numbers::{ulp, wrap};
use crate::reference::{Axis, IxDyn, Slice, array, zip};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Device, Tensor};

fn pair(dtype: DType, layouts: [Layout; 2], domain: Domain, device: &Device) -> Outcome<[Sample; 2]> {
    let [a, b] = layouts;
    Ok([sample("chain a", a, dtype, domain, device)?, sample("chain b", b, dtype, domain, device)?])
}

/// `gelu(tanh(a * b + a))`, in one kernel or in several.
fn activation(dtype: DType, layouts: [Layout; 2], eval: bool, device: &Device) -> Outcome {
    let [a, b] = pair(dtype, layouts, Domain::Normal, device)?;
    let step = |tensor: Tensor| -> Outcome<Tensor> {
        if eval {
            tensor.realize()?;
        }
        Ok(tensor)
    };
    let product = step(a.tensor.mul(&b.tensor)?)?;
    let sum = step(product.add(&a.tensor)?)?;
    let tanh = step(sum.tanh()?)?;
    let values = zip(&a.values, &b.values, |a, b| gelu((a * b + a).tanh()));
    // The functions magnify the roundings of product and sum by at most 1.2, their slope. In a narrow dtype, each
    // operation may round once more.
    let rounding = ulp(1.0, dtype) / ulp(1.0, DType::F32);
    let scale = zip(&a.values, &b.values, |a, b| {
        let slope = 1.2 * (1.0 - (a * b + a).tanh().powi(2));
        (slope * ((a * b).abs() + (a * b + a).abs()) + 4.0) * rounding
    });
    check("fused", &tanh.gelu()?, &Expected::new(values, dtype).with_scale(scale))
}

/// Uses a pending tensor twice. The second use finds it computed.
fn used_twice(dtype: DType, device: &Device) -> Outcome {
    let [a, b] = pair(dtype, [Layout::Contiguous, Layout::Transposed], Domain::Small, device)?;
    let pending = a.tensor.add(&b.tensor)?;
    let (once, twice) = (pending.mul(&a.tensor)?, pending.sub(&b.tensor)?);
    let exact = |function: fn(f64, f64) -> f64| Expected::new(zip(&a.values, &b.values, function), dtype);
    let wrapped = |mut expected: Expected| {
        if !dtype.is_float() {
            expected.values.mapv_inplace(|x| wrap(x as i64, dtype));
        }
        expected
    };
    check("mul", &once, &wrapped(exact(|a, b| (a + b) * a)))?;
    check("sub", &twice, &wrapped(exact(|a, b| a + b - b)))?;
    check("add", &pending, &wrapped(exact(|a, b| a + b)))
}

/// Two branches of one pending tensor, which join again.
fn diamond(dtype: DType, device: &Device) -> Outcome {
    let [a, b] = pair(dtype, [Layout::Sliced, Layout::Contiguous], Domain::Small, device)?;
    let top = a.tensor.add(&b.tensor)?;
    let (left, right) = (top.mul(&a.tensor)?, top.add(&top)?);
    let bottom = left.add(&right)?.add(&top)?;
    let values = zip(&a.values, &b.values, |a, b| (a + b) * a + 3.0 * (a + b));
    let values = if dtype.is_float() { values } else { values.mapv(|x| wrap(x as i64, dtype)) };
    check("add", &bottom, &Expected::new(values, dtype))
}

/// Views a pending tensor before it is used.
fn viewed_while_pending(device: &Device) -> Outcome {
    let [a, b] = pair(DType::F32, [Layout::Contiguous, Layout::Contiguous], Domain::Small, device)?;
    let pending = a.tensor.mul(&b.tensor)?;
    let values = zip(&a.values, &b.values, |a, b| a * b);
    let turned = values.view().permuted_axes(vec![2, 0, 1]).to_owned();
    check("neg", &pending.permute([2, 0, 1])?.neg()?, &Expected::new(turned.mapv(|x| -x), DType::F32))?;
    // The transposed view of a square has the same shape.
    let square = (Tensor::arange(0f32, 25.0, device)?.reshape((5, 5))? * 2.0)?;
    let transposed = array(&[5, 5], (0..25).map(|i| f64::from(-2 * (i % 5 * 5 + i / 5))).collect());
    check("neg", &square.t()?.neg()?, &Expected::new(transposed, DType::F32))?;
    let row = values.index_axis(Axis(0), 1).to_owned();
    check(
        "add",
        &pending.narrow(0, 1, 1)?.squeeze(0)?.add(&pending)?,
        &Expected::new(zip(&row, &values, |a, b| a + b), DType::F32),
    )
}

/// A chain longer than the largest expression, with more inputs than a kernel may have.
fn long_chain(dtype: DType, device: &Device) -> Outcome {
    let mut inputs = Vec::new();
    for i in 0..10 {
        inputs.push(sample(&format!("chain {i}"), Layout::ALL[3 + i % 2], dtype, Domain::Small, device)?);
    }
    let (mut tensor, mut values) = (inputs[0].tensor.clone(), inputs[0].values.clone());
    for step in 0..100 {
        let input = &inputs[step % 10];
        (tensor, values) = if step % 2 == 0 {
            (tensor.add(&input.tensor)?, zip(&values, &input.values, |a, b| a + b))
        } else {
            (tensor.sub(&input.tensor)?, zip(&values, &input.values, |a, b| a - b))
        };
    }
    check("add", &tensor, &Expected::new(values, dtype))
}

/// Doubles a tensor by adding it to itself. The expression must not grow with the number of paths.
fn doubling(device: &Device) -> Outcome {
    let mut x = Tensor::new([1u32, 3], device)?;
    for _ in 0..40 {
        x = x.add(&x)?;
    }
    check("add", &x, &Expected::new(array(&[2], vec![0.0, 0.0]), DType::U32))
}

/// Numbers and constants need no buffers.
fn constants(device: &Device) -> Outcome {
    let zeros = Tensor::zeros((2, 3), DType::F32, device)?;
    let x = ((zeros + 2.0)? * Tensor::full(3f32, 3, device)?)?;
    let x = x.sub(&Tensor::new([[1f32], [2.0]], device)?)?;
    check("sub", &x, &Expected::new(array(&[2, 3], vec![5.0, 5.0, 5.0, 4.0, 4.0, 4.0]), DType::F32))
}

/// A comparison, a selection and a conversion in one chain.
fn mixed_dtypes(device: &Device) -> Outcome {
    let [a, b] = pair(DType::F32, [Layout::Contiguous, Layout::Transposed], Domain::Special, device)?;
    let larger = a.tensor.gt(&b.tensor)?.where_cond(&a.tensor, &b.tensor)?;
    let bytes = larger.to_dtype(DType::F16)?.to_dtype(DType::U8)?;
    let values = zip(&a.values, &b.values, |a, b| {
        use crate::reference::numbers::cast;
        cast(cast(if a > b { a } else { b }, DType::F32, DType::F16), DType::F16, DType::U8)
    });
    check("to_dtype", &bytes, &Expected::new(values, DType::U8))
}

/// Bytes are computed in words. An overflow in the middle of a chain must be truncated there.
fn wrapping_bytes(device: &Device) -> Outcome {
    let [a, b] = pair(DType::U8, [Layout::Contiguous, Layout::Contiguous], Domain::Special, device)?;
    let average = (a.tensor.add(&b.tensor)? / 2.0)?;
    let values = zip(&a.values, &b.values, |a, b| (((a + b) as u32 & 0xff) / 2).into());
    check("div", &average, &Expected::new(values, DType::U8))
}

/// The same for signed bytes: the sign must be the sign of the truncated byte.
fn wrapping_signed_bytes(device: &Device) -> Outcome {
    let [a, b] = pair(DType::I8, [Layout::Contiguous, Layout::Contiguous], Domain::Special, device)?;
    let average = (a.tensor.add(&b.tensor)? / 2.0)?;
    let values = zip(&a.values, &b.values, |a, b| (((a + b) as i32 as i8) / 2).into());
    check("div", &average, &Expected::new(values, DType::I8))
}

/// Every thread computes its own chains and shares two tensors with all others. One of the two is pending.
fn many_threads(device: &Device) -> Outcome {
    let shared = Tensor::arange(0f32, 1000.0, device)?;
    let pending = (&shared * 2.0)?;
    let work = |thread: usize| -> Outcome {
        for round in 0..12 {
            let number = (thread * 100 + round) as f64;
            let own = Tensor::full(number as f32, 1000, device)?;
            let x = pending.add(&own)?.reshape((10, 100))?;
            let sums = download(&x.sum(1)?)?;
            let exact = (0..10).map(|row| 2.0 * f64::from(row * 10_000 + 4950) + 100.0 * number);
            let exact = array(&[10], exact.collect());
            if sums != exact {
                return Err(format!("thread {thread}, round {round}: expected {exact}, got {sums}").into());
            }
            let product = x.t()?.matmul(&Tensor::ones((10, 2), DType::F32, device)?)?;
            let exact = (0..100).flat_map(|c| [2.0 * f64::from(c * 10 + 4500) + 10.0 * number; 2]);
            check("matmul", &product, &Expected::new(array(&[100, 2], exact.collect()), DType::F32))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

/// Inputs with four neighbours that are read at once, or are all the same, mixed with other inputs.
fn fours(dtype: DType, device: &Device) -> Outcome {
    let x = shaped("fours x", &[3, 5, 8], Layout::Contiguous, dtype, Domain::Small, device)?;
    let row = shaped("fours row", &[8], Layout::Contiguous, dtype, Domain::Small, device)?;
    let column = shaped("fours column", &[5, 1], Layout::Contiguous, dtype, Domain::Small, device)?;
    let turned = shaped("fours turned", &[5, 3, 8], Layout::Contiguous, dtype, Domain::Small, device)?;
    let turned =
        Sample { tensor: turned.tensor.transpose(0, 1)?, values: turned.values.permuted_axes(IxDyn(&[1, 0, 2])) };
    let cut = shaped("fours cut", &[3, 5, 16], Layout::Contiguous, dtype, Domain::Small, device)?;
    for start in [4, 5] {
        let cut_values = cut.values.slice_axis(Axis(2), Slice::from(start..start + 8)).to_owned();
        let others = [&row, &column, &turned, &Sample { tensor: cut.tensor.narrow(2, start, 8)?, values: cut_values }];
        for a in others {
            let sum = zip(&x.values, &a.values, |x, a| wrap_sum(x + a, dtype));
            check("add", &x.tensor.add(&a.tensor)?, &Expected::new(sum, dtype))?;
            for b in others.iter().filter(|_| dtype == DType::F32) {
                let sum = zip(&zip(&x.values, &a.values, |x, a| x + a), &b.values, |x, b| wrap_sum(x + b, dtype));
                check("add", &a.tensor.add(&x.tensor)?.add(&b.tensor)?, &Expected::new(sum, dtype))?;
            }
        }
    }
    Ok(())
}

/// Wraps a sum of whole numbers. Floats of every dtype add these exactly.
fn wrap_sum(sum: f64, dtype: DType) -> f64 {
    if dtype.is_float() { sum } else { wrap(sum as i64, dtype) }
}

pub fn add(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Odd, Sliced, Transposed};
    for dtype in FLOATS {
        for layouts in [[Contiguous, Contiguous], [Transposed, Contiguous], [Sliced, Broadcast], [Odd, Odd]] {
            let name = format!("{}_{}", layouts[0].name(), layouts[1].name());
            suite.add("fused", format!("{dtype}::one_kernel_{name}"), move |device| {
                activation(dtype, layouts, false, device)
            });
            suite.add("fused", format!("{dtype}::step_by_step_{name}"), move |device| {
                activation(dtype, layouts, true, device)
            });
        }
    }
    for dtype in numbers() {
        suite.add("fused", format!("{dtype}::used_twice"), move |device| used_twice(dtype, device));
        suite.add("fused", format!("{dtype}::fours"), move |device| fours(dtype, device));
        suite.add("fused", format!("{dtype}::diamond"), move |device| diamond(dtype, device));
    }
    for dtype in [DType::F32, DType::F16, DType::I32] {
        suite.add("fused", format!("{dtype}::long_chain"), move |device| long_chain(dtype, device));
    }
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I8] {
        let run = move |device: &Device| graphs::try_random(Numbers::Whole, dtype, device);
        suite.add("fused", format!("{dtype}::random_graphs"), run);
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let run = move |device: &Device| graphs::try_random(Numbers::Real, dtype, device);
        suite.add("fused", format!("{dtype}::random_graphs_of_reals"), run);
    }
    suite.add("fused", "f32::compiled_for_many_shapes", compiles::try_sizes);
    suite.add("fused", "f32::viewed_while_pending", viewed_while_pending);
    suite.add("fused", "u32::doubling", doubling);
    suite.add("fused", "f32::constants", constants);
    suite.add("fused", "f32::mixed_dtypes", mixed_dtypes);
    suite.add("fused", "u8::wrapping", wrapping_bytes);
    suite.add("fused", "i8::wrapping", wrapping_signed_bytes);
    suite.add("threads", "f32::many", many_threads);
}
