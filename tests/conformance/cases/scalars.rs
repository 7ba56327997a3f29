//! Number arguments beside tensors stay exact. Compared with Rust's arithmetic, because doubles would lose digits.

use super::wide::compare;
use crate::suite::{Outcome, Suite};
use half::{bf16, f16};
use marquetry::{DType, Device, Element, Error, Number, PadMode, Result, Tensor, TensorOrScalar};

/// Whole numbers, most of them at the ends of some type.
const WHOLE: [i128; 20] = [
    0,
    1,
    -1,
    7,
    i8::MIN as i128,
    i8::MAX as i128 + 1,
    u8::MAX as i128,
    u8::MAX as i128 + 1,
    i32::MIN as i128 - 1,
    i32::MIN as i128,
    i32::MAX as i128,
    1 << 31,
    u32::MAX as i128,
    1 << 32,
    (1 << 53) + 1,
    -(1 << 53) - 1,
    i64::MIN as i128,
    i64::MAX as i128 - 1,
    i64::MAX as i128,
    u64::MAX as i128,
];

/// A number as arguments of every type that holds it.
fn arguments(number: i128) -> Vec<Number> {
    macro_rules! those {
        ($($ty:ty),+) => { [$(<$ty>::try_from(number).ok().map(Number::from)),+] };
    }
    let of_integers = those!(u8, i8, u32, i32, u64, i64).into_iter().flatten();
    // Also a float, if one equals the number.
    let of_floats = [number as f64].into_iter().filter(|&x| x.abs() < 2f64.powi(53)).map(Number::from);
    of_integers.chain(of_floats).collect()
}

type WithNumber<T> = (&'static str, fn(&Tensor, TensorOrScalar<'static>) -> Result<Tensor>, fn(T, T) -> T);

/// An operator with an `i64` argument.
type WithOperator<T> = (&'static str, fn(&Tensor, i64) -> Result<Tensor>, fn(T, T) -> T);

/// Fails unless a number outside a dtype is refused with an error that names the dtype's limits.
fn refused(what: &str, result: Result<Tensor>, number: i128, limits: [i128; 2]) -> Outcome {
    let text = format!("holds whole numbers from {} to {}, not {number};", limits[0], limits[1]);
    match result {
        Err(error @ Error::InvalidArgument { .. }) if error.to_string().contains(&text) => Ok(()),
        other => Err(format!("{what} of {number} should be refused with `{text}`: {other:?}").into()),
    }
}

macro_rules! exact {
    ($name:ident: $ty:ty) => {
        fn $name(device: &Device) -> Outcome {
            let limits = [<$ty>::MIN, <$ty>::MAX].map(i128::from);
            let elements: [$ty; 6] = [<$ty>::MIN, <$ty>::MIN + 1, 0, 3, <$ty>::MAX / 2 + 1, <$ty>::MAX];
            let x = Tensor::new(elements, device)?;
            let all = Tensor::full(true, 6, device)?;
            let methods: [WithNumber<$ty>; 4] = [
                ("maximum", |x, n| x.maximum(n), <$ty>::max),
                ("eq", |x, n| x.eq(n)?.to_dtype(x.dtype()), |a, b| (a == b).into()),
                ("lt", |x, n| x.lt(n)?.to_dtype(x.dtype()), |a, b| (a < b).into()),
                ("bitwise_or", |x, n| x.bitwise_or(n), |a, b| a | b),
            ];
            let operators: [WithOperator<$ty>; 7] = [
                ("+", |x, n| x + n, <$ty>::wrapping_add),
                ("-", |x, n| n - x, |a, b| b.wrapping_sub(a)),
                ("*", |x, n| x * n, <$ty>::wrapping_mul),
                ("/", |x, n| x / n, |a, b| if b == 0 { 0 } else { a.wrapping_div(b) }),
                ("&", |x, n| x & n, |a, b| a & b),
                ("^", |x, n| n ^ x, |a, b| a ^ b),
                ("|", |x, n| x | n, |a, b| a | b),
            ];
            for number in WHOLE {
                let held = <$ty>::try_from(number);
                for argument in arguments(number) {
                    let Ok(held) = held else {
                        // The error shows a float as a float.
                        if let Number::Integer(_) = argument {
                            refused("add", x.add(argument), number, limits)?;
                        }
                        if x.add(argument).is_ok() {
                            return Err(format!("{argument:?} was taken").into());
                        }
                        continue;
                    };
                    compare("add", &x.add(argument)?, &elements.map(|x| x.wrapping_add(held)))?;
                }
                let (Ok(held), argument) = (held, Number::Integer(number)) else { continue };
                // Each of these is a kernel, and each number is a launch, so test a telling few.
                if !(limits.contains(&number) || [7, (1 << 53) + 1].contains(&number)) {
                    continue;
                }
                for (name, call, exact) in methods.into_iter().filter(|_| size_of::<$ty>() > 1) {
                    compare(name, &call(&x, argument.into())?, &elements.map(|x| exact(x, held)))?;
                }
                if let Ok(operand) = i64::try_from(number) {
                    for (name, call, exact) in operators.into_iter().filter(|_| <$ty>::DTYPE != DType::I32) {
                        compare(name, &call(&x, operand)?, &elements.map(|x| exact(x, held)))?;
                    }
                }
                compare("clamp", &x.clamp(argument, <$ty>::MAX)?, &elements.map(|x| x.max(held)))?;
                compare("clamp", &x.clamp(<$ty>::MIN, argument)?, &elements.map(|x| x.min(held)))?;
                compare("masked_fill", &x.masked_fill(&all, argument)?, &[held; 6])?;
                compare("full", &Tensor::full(held, 2, device)?, &[held; 2])?;
                let padded = x.narrow(0, 3, 1)?.pad(&[(1, 0)], PadMode::Constant(argument))?;
                compare("pad", &padded, &[held, 3])?;
            }
            refused("clamp", x.clamp(0, u64::MAX), u64::MAX.into(), limits)?;
            refused("masked_fill", x.masked_fill(&all, u64::MAX), u64::MAX.into(), limits)?;
            refused("pad", x.pad(&[(1, 1)], PadMode::Constant(u64::MAX.into())), u64::MAX.into(), limits)
        }
    };
}

exact!(of_i64: i64);
exact!(of_i32: i32);
exact!(of_u32: u32);
exact!(of_i8: i8);
exact!(of_u8: u8);

/// Floats round once, to nearest, ties to even.
fn rounded(device: &Device) -> Outcome {
    fn all<T: Element>(numbers: &[(Number, T)], device: &Device) -> Outcome {
        numbers.iter().try_for_each(|&(number, rounded)| {
            let zero = Tensor::zeros(1, T::DTYPE, device)?;
            compare(&format!("{number} as {}", T::DTYPE), &zero.add(number)?, &[rounded])?;
            compare("masked_fill", &zero.masked_fill(&zero.eq(0)?, number)?, &[rounded])
        })
    }
    let whole = [i64::MAX, i64::MIN, (1 << 53) + 1, (1 << 24) + 1, (1 << 60) + (1 << 36) + 1, -7];
    let of = |number: i64| Number::from(number);
    all(&whole.map(|n| (of(n), n as f64)), device)?;
    all(&whole.map(|n| (of(n), n as f32)), device)?;
    all(&[(Number::from(u64::MAX), u64::MAX as f64), (0.1.into(), 0.1)], device)?;
    all(&[(Number::from(u64::MAX), u64::MAX as f32), (0.1.into(), 0.1), (1e300.into(), f32::INFINITY)], device)?;
    let half = f16::from_f32;
    let halves = [
        (of(2049), half(2048.0)),
        (of(2051), half(2052.0)),
        (of(65519), half(65504.0)),
        (of(65520), f16::INFINITY),
        (of(i64::MIN), f16::NEG_INFINITY),
        // Just above the middle of two numbers. Rounded to `f32`, it would be the middle itself.
        ((1.0 + 2f64.powi(-11) + 2f64.powi(-40)).into(), half(1.0 + 2f32.powi(-10))),
        ((1.0 + 2f64.powi(-11)).into(), half(1.0)),
        ((-1.0 - 2f64.powi(-11) - 2f64.powi(-40)).into(), half(-1.0 - 2f32.powi(-10))),
    ];
    all(&halves, device)?;
    let brief = bf16::from_f32;
    let briefs = [
        (of((1 << 60) + (1 << 52) + 1), brief(2f32.powi(60) + 2f32.powi(53))),
        (of((1 << 60) + (1 << 52)), brief(2f32.powi(60))),
        (of(-(1 << 60) - (1 << 52) - 1), brief(-(2f32.powi(60)) - 2f32.powi(53))),
        ((1.0 + 2f64.powi(-8) + 2f64.powi(-40)).into(), brief(1.0 + 2f32.powi(-7))),
        (1e300.into(), bf16::INFINITY),
    ];
    all(&briefs, device)
}

fn truths(device: &Device) -> Outcome {
    let x = Tensor::new([false, true], device)?;
    compare("eq", &x.eq(true)?, &[false, true])?;
    compare("&", &(&x & 1)?, &[false, true])?;
    compare("masked_fill", &x.masked_fill(&x, 0)?, &[false, false])?;
    refused("eq", x.eq(2), 2, [0, 1])
}

macro_rules! ranges {
    ($device:expr, $ty:ty: $($range:expr),+) => {
        for (start, end, step) in [$($range),+] {
            let [from, to, by] = [start, end, step].map(i128::from);
            let goes_on = |n: &i128| if by > 0 { *n < to } else { *n > to };
            let expected = std::iter::successors(Some(from), |n| Some(n + by)).take_while(goes_on);
            let expected: Vec<$ty> = expected.map(|n| n as $ty).collect();
            let what = format!("{start}..{end} by {step}");
            compare(&what, &Tensor::arange_step::<$ty>(start, end, step, $device)?, &expected)?;
        }
    };
}

/// Ranges are counted and computed exactly, up to the ends of each type.
fn ranges_of_i64(device: &Device) -> Outcome {
    const MIN: i64 = i64::MIN;
    const MAX: i64 = i64::MAX;
    const MANY: i64 = 1 << 53;
    ranges!(device, i64: (MIN, MAX, 1 << 62), (MAX, MIN, -(1 << 62)), (MAX, MIN, MIN), (MIN, MAX, MAX), (-1, MAX, MAX));
    // A double would lose the last 1 of the distance.
    ranges!(device, i64: (0, 3 * (1 << 60) + 1, 1 << 60), (0, MAX, MAX - 1), (MAX, 0, 1 - MAX), (MIN, 1, 1 << 62));
    ranges!(device, i64: (MANY - 1, MANY + 4, 1), (MANY + 1, MANY + 9, 4), (-MANY - 1, -MANY - 6, -1));
    ranges!(device, i64: (MAX - 3, MAX, 1), (MIN + 2, MIN, -1), (MIN, MIN, 1), (MAX, MIN, 1), (MIN, MAX, -1));
    compare("arange", &Tensor::arange(MAX - 2, MAX, device)?, &[MAX - 2, MAX - 1])?;
    match Tensor::arange(MIN, MAX, device) {
        Err(Error::SizeOverflow { op: "arange", .. }) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn ranges_of_fewer_bits(device: &Device) -> Outcome {
    const MIN: i32 = i32::MIN;
    const MAX: i32 = i32::MAX;
    ranges!(device, i32: (MIN, MAX, MAX), (MAX, MIN, MIN), (MAX, MIN, -MAX), (MIN, MAX, 1 << 30), (MAX - 2, MAX, 1));
    const LAST: u32 = u32::MAX;
    ranges!(device, u32: (0u32, LAST, LAST), (0, LAST, LAST - 1), (1, LAST, 1 << 31), (LAST, 0, 1));
    ranges!(device, i8: (-128i8, 127, 127), (127, -128, -128), (127, -128, -100), (-128, 127, 126));
    ranges!(device, u8: (0u8, 255, 254), (0, 255, 255), (1, 255, 127), (255, 0, 1));
    Ok(())
}

/// With a weight of 0 or 1, `lerp` returns an end exactly, bit by bit.
fn ends<T: Element>(number: fn(f32) -> T, device: &Device) -> Outcome {
    let numbers = [0.0, -0.0, 1.5, -2.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN].map(number);
    let largest = number(if T::DTYPE == DType::F16 { 65504.0 } else { f32::MAX });
    let numbers = [&numbers[..], &[largest]].concat();
    let n = numbers.len();
    let starts: Vec<T> = numbers.iter().flat_map(|&x| vec![x; n]).collect();
    let targets: Vec<T> = numbers.iter().cycle().take(n * n).copied().collect();
    let bits = |tensor: &Tensor| -> Result<Vec<String>> { Ok(written(&tensor.to_vec::<T>()?)) };
    // All NaN are equal, and zeros keep their sign.
    fn written<T: Element>(elements: &[T]) -> Vec<String> {
        elements.iter().map(|x| format!("{:?}", x.to_f64())).collect()
    }
    let (start, end) = (Tensor::new(&starts[..], device)?, Tensor::new(&targets[..], device)?);
    let weights = |x: f32| Tensor::full(number(x), n * n, device);
    let results = [
        (start.lerp(&end, 0)?, &starts),
        (start.lerp(&end, &weights(0.0)?)?, &starts),
        (start.lerp(&end, &weights(-0.0)?)?, &starts),
        (start.lerp(&end, 1)?, &targets),
        (start.lerp(&end, &weights(1.0)?)?, &targets),
    ];
    for (place, (result, expected)) in results.into_iter().enumerate() {
        let (got, expected) = (bits(&result)?, written(expected));
        if let Some(i) = (0..n * n).find(|&i| got[i] != expected[i]) {
            return Err(format!("{place}: from {:?} to {:?} gave {}", starts[i], targets[i], got[i]).into());
        }
    }
    // Between the ends, and without a weight, the formula applies.
    let (from, to) = (Tensor::new([number(1.0)], device)?, Tensor::new([number(f32::INFINITY)], device)?);
    let one = |weight: f32| -> Result<f64> { Ok(from.lerp(&to, weight)?.to_vec::<T>()?[0].to_f64()) };
    if one(0.25)? != f64::INFINITY
        || !one(0.5)?.is_nan()
        || !from.lerp(&from, f32::NAN)?.to_vec::<T>()?[0].to_f64().is_nan()
    {
        return Err("not the formula between the ends".into());
    }
    Ok(())
}

pub fn add(suite: &mut Suite) {
    suite.add("add", "i64::exact_numbers", of_i64);
    suite.add("add", "i32::exact_numbers", of_i32);
    suite.add("add", "u32::exact_numbers", of_u32);
    suite.add("add", "i8::exact_numbers", of_i8);
    suite.add("add", "u8::exact_numbers", of_u8);
    suite.add("add", "f32::rounded_numbers", rounded);
    suite.add("eq", "bool::exact_numbers", truths);
    suite.add("arange_step", "i64::to_the_ends", ranges_of_i64);
    suite.add("arange_step", "i32::to_the_ends", ranges_of_fewer_bits);
    suite.add("lerp", "f32::exact_ends", |device| ends(|x| x, device));
    suite.add("lerp", "f64::exact_ends", |device| ends(f64::from, device));
    suite.add("lerp", "f16::exact_ends", |device| ends(f16::from_f32, device));
    suite.add("lerp", "bf16::exact_ends", |device| ends(bf16::from_f32, device));
}
