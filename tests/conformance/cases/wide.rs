//! 64-bit numbers that doubles cannot distinguish. Compared with Rust's arithmetic instead of the reference.

use crate::compare::{Expected, check};
use crate::reference::array;
use crate::reference::numbers::round;
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Device, Element, PadMode, PoolConfig, ResizeConfig, Result, Tensor};

const NUMBERS: [i64; 16] = [
    0,
    1,
    -1,
    7,
    -13,
    i64::MIN,
    i64::MIN + 1,
    i64::MAX,
    i64::MAX - 1,
    (1 << 53) + 1,
    -(1 << 53) - 1,
    0x0123_4567_89ab_cdef,
    -0x0123_4567_89ab_cdef,
    1 << 32,
    (1 << 32) - 1,
    -(1 << 31) - 1,
];

pub fn compare<T: Element>(what: &str, tensor: &Tensor, expected: &[T]) -> Outcome {
    let got = tensor.to_vec::<T>()?;
    match got.iter().zip(expected).position(|(got, expected)| got != expected) {
        None if got.len() == expected.len() => Ok(()),
        Some(place) => Err(format!("{what} at {place}: expected {:?}, got {:?}", expected[place], got[place]).into()),
        None => Err(format!("{what}: {} elements, got {}", expected.len(), got.len()).into()),
    }
}

type Binary<T> = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, fn(i64, i64) -> T);

const ARITHMETIC: [Binary<i64>; 12] = [
    ("add", |a, b| a.add(b), i64::wrapping_add),
    ("sub", |a, b| a.sub(b), i64::wrapping_sub),
    ("mul", |a, b| a.mul(b), i64::wrapping_mul),
    ("div", |a, b| a.div(b), |a, b| if b == 0 { 0 } else { a.wrapping_div(b) }),
    (
        "rem",
        |a, b| a.rem(b),
        |a, b| match b {
            0 => a,
            _ if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) => a.wrapping_rem(b) + b,
            _ => a.wrapping_rem(b),
        },
    ),
    ("fmod", |a, b| a.fmod(b), |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
    ("maximum", |a, b| a.maximum(b), Ord::max),
    ("minimum", |a, b| a.minimum(b), Ord::min),
    ("bitwise_and", |a, b| a.bitwise_and(b), |a, b| a & b),
    ("bitwise_xor", |a, b| a.bitwise_xor(b), |a, b| a ^ b),
    ("shl", |a, b| a.shl(b), |a, b| if (0..64).contains(&b) { a << b } else { 0 }),
    ("shr", |a, b| a.shr(b), |a, b| a >> if (0..64).contains(&b) { b } else { 63 }),
];

const COMPARISONS: [Binary<bool>; 4] = [
    ("eq", |a, b| a.eq(b), |a, b| a == b),
    ("lt", |a, b| a.lt(b), |a, b| a < b),
    ("ge", |a, b| a.ge(b), |a, b| a >= b),
    ("logical_xor", |a, b| a.logical_xor(b), |a, b| (a != 0) != (b != 0)),
];

fn pairs<T: Element>((name, call, exact): &Binary<T>, device: &Device) -> Outcome {
    let numbers = Tensor::new(NUMBERS, device)?;
    let expected: Vec<T> = NUMBERS.iter().flat_map(|&a| NUMBERS.map(|b| exact(a, b))).collect();
    compare(name, &call(&numbers.unsqueeze(1)?, &numbers)?, &expected)
}

fn unary(device: &Device) -> Outcome {
    let x = Tensor::new(NUMBERS, device)?;
    compare("neg", &x.neg()?, &NUMBERS.map(i64::wrapping_neg))?;
    compare("abs", &x.abs()?, &NUMBERS.map(i64::wrapping_abs))?;
    compare("sign", &x.sign()?, &NUMBERS.map(i64::signum))?;
    compare("bitwise_not", &x.bitwise_not()?, &NUMBERS.map(|x| !x))?;
    compare("full", &Tensor::full(i64::MIN + 1, 3, device)?, &[i64::MIN + 1; 3])?;
    let (start, end) = (i64::MAX - 5, i64::MAX);
    compare("arange", &Tensor::arange(start, end, device)?, &(start..end).collect::<Vec<_>>())
}

fn moved(device: &Device) -> Outcome {
    let x = Tensor::new(NUMBERS, device)?.reshape((4, 4))?;
    let transposed: Vec<i64> = (0..16).map(|i| NUMBERS[i % 4 * 4 + i / 4]).collect();
    compare("contiguous", &x.t()?.contiguous()?, &transposed)?;
    compare("cat", &Tensor::cat(&[&x.t()?, &x], 0)?, &[&transposed[..], &NUMBERS].concat())?;
    let indexes = Tensor::new([3i64, -1, 1 << 32, i64::MIN, 0], device)?;
    let mut rows = [[i64::MIN; 4]; 5];
    (rows[0], rows[4]) = (NUMBERS[12..].try_into()?, NUMBERS[..4].try_into()?);
    compare("index_select", &x.index_select(&indexes, 0)?, rows.as_flattened())?;
    let columns = Tensor::new([[3u32], [0], [9], [1]], device)?;
    compare("gather", &x.gather(&columns, 1)?, &[NUMBERS[3], NUMBERS[4], i64::MIN, NUMBERS[13]])?;
    let bordered = x.flatten_all()?.pad(&[(1, 2)], PadMode::Constant((-(1i64 << 40)).into()))?;
    compare("pad", &bordered, &[&[-(1i64 << 40)][..], &NUMBERS, &[-(1i64 << 40); 2]].concat())?;
    let rolled = [&NUMBERS[13..], &NUMBERS[..13]].concat();
    compare("roll", &x.flatten_all()?.roll(&[3], 0)?, &rolled)?;
    let chosen: Vec<i64> = NUMBERS.into_iter().filter(|&x| x > 0).collect();
    compare("masked_select", &x.masked_select(&x.gt(0)?)?, &chosen)?;
    let condition = x.gt(&Tensor::full(0i64, (), device)?)?;
    compare("where_cond", &condition.where_cond(&x, &x.neg()?)?, &NUMBERS.map(i64::wrapping_abs))?;
    let doubles = x.to_dtype(DType::F64)?;
    compare("to_dtype", &doubles, &NUMBERS.map(|x| x as f64))?;
    compare("to_dtype", &doubles.to_dtype(DType::I64)?, &NUMBERS.map(|x| x as f64 as i64))?;
    compare("to_dtype", &x.to_dtype(DType::I32)?, &NUMBERS.map(|x| x as i32))?;
    compare("to_dtype", &x.to_dtype(DType::U8)?, &NUMBERS.map(|x| x as u8))?;
    compare("to_dtype", &Tensor::new([u32::MAX, 1 << 31], device)?.to_dtype(DType::I64)?, &[0xffff_ffff, 1i64 << 31])
}

fn reduced(device: &Device) -> Outcome {
    let x = Tensor::new(NUMBERS, device)?;
    compare("sum", &x.sum_all()?, &[NUMBERS.into_iter().fold(0, i64::wrapping_add)])?;
    compare("min", &x.min_all()?, &[i64::MIN])?;
    compare("max", &x.max_all()?, &[i64::MAX])?;
    compare("argmax", &x.argmax_all()?, &[7u32])?;
    let running = |start: i64, fold: fn(i64, i64) -> i64| -> Vec<i64> {
        NUMBERS
            .iter()
            .scan(start, |state, &x| Some(*state).map(|before| *state = fold(before, x)).map(|()| *state))
            .collect()
    };
    compare("cumsum", &x.cumsum(0)?, &running(0, i64::wrapping_add))?;
    compare("cummin", &x.cummin(0)?, &running(i64::MAX, i64::min))?;
    let odd = x.bitwise_or(1)?;
    let powers: Vec<i64> = NUMBERS.map(|x| (x | 1).wrapping_pow(5)).into();
    compare("pow", &odd.pow(5)?, &powers)?;
    let products: Vec<i64> =
        (0..16).map(|end| NUMBERS[..=end].iter().fold(1, |product: i64, x| product.wrapping_mul(x | 1))).collect();
    compare("cumprod", &odd.cumprod(0)?, &products)?;
    compare("prod", &odd.prod_all()?, &products[15..])?;
    let product = x.reshape((4, 4))?.matmul(&x.reshape((4, 4))?)?;
    let term = |i: usize, k: usize| NUMBERS[i / 4 * 4 + k].wrapping_mul(NUMBERS[k * 4 + i % 4]);
    let expected: Vec<i64> = (0..16).map(|i| (0..4).fold(0, |sum: i64, k| sum.wrapping_add(term(i, k)))).collect();
    compare("matmul", &product, &expected)
}

/// Returns `length` numbers. Many are equal, and many differ in one word only.
fn many(length: usize) -> Vec<i64> {
    (0..length).map(|i| NUMBERS[i * 7 % 16].wrapping_add(((i * i) % 5) as i64) ^ ((i as i64 % 3) << 32)).collect()
}

/// Sorts by a key as Rust does, and compares the elements and their indexes.
fn check_sorted<T: Element + Copy, K: Ord>(numbers: &[T], key: impl Fn(T) -> K, device: &Device) -> Outcome {
    let x = Tensor::new(numbers, device)?;
    for descending in [false, true] {
        let mut places: Vec<u32> = (0..numbers.len() as u32).collect();
        let by_place = |&place: &u32| key(numbers[place as usize]);
        match descending {
            true => places.sort_by_key(|place| std::cmp::Reverse(by_place(place))),
            false => places.sort_by_key(by_place),
        }
        let taken = numbers.len() / 3;
        compare("argsort", &x.argsort(0, descending)?, &places)?;
        compare("topk", &x.topk(taken, 0, descending)?.1, &places[..taken])?;
        // Compare bits, because NaN equals nothing.
        let sorted: Vec<T> = places.iter().map(|&place| numbers[place as usize]).collect();
        let bytes = x.sort(0, descending)?.0.to_vec::<T>()?;
        if bytemuck::cast_slice::<T, u8>(&bytes) != bytemuck::cast_slice::<T, u8>(&sorted) {
            return Err(format!("sort: expected {sorted:?}, got {bytes:?}").into());
        }
    }
    Ok(())
}

fn sorted(device: &Device) -> Outcome {
    check_sorted(&NUMBERS, |x| x, device)?;
    check_sorted(&many(1000), |x| x, device)?;
    // NaN with any bits are largest, and zeros are equal.
    let order = |x: f64| match x {
        _ if x.is_nan() => i64::MAX,
        0.0 => 0,
        _ if x > 0.0 => x.to_bits().cast_signed(),
        _ => -(x.abs().to_bits().cast_signed()),
    };
    let odd =
        [0x7ff0_0000_0000_0001, 0xfff0_0000_0000_0001, 0x7ff8_0000_0000_0000, u64::MAX, 1, 1 << 63].map(f64::from_bits);
    let infinite =
        [f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, 0.0, -0.0, 1.0, 1f64.next_up(), -1f64.next_up()];
    let doubles: Vec<f64> = many(500).into_iter().map(|x| f64::from_bits(x.cast_unsigned())).collect();
    check_sorted(&[&odd[..], &infinite, &odd, &doubles, &infinite].concat(), order, device)
}

/// Several numbers of a row for each index, and one index with most of them.
fn scattered(device: &Device) -> Outcome {
    let src = many(3000);
    let indexes: Vec<u32> = (0..3000).map(|i| if i % 3 == 0 { i * i % 17 } else { 5 }).collect();
    let [x, index, source] =
        [Tensor::new(NUMBERS, device)?, Tensor::new(&indexes[..], device)?, Tensor::new(&src[..], device)?];
    let expected = |combine: fn(i64, i64) -> i64| {
        let mut all = NUMBERS;
        for (&index, &x) in indexes.iter().zip(&src) {
            if let Some(place) = all.get_mut(index as usize) {
                *place = combine(*place, x);
            }
        }
        all
    };
    compare("scatter", &x.clone().scatter(&index, &source, 0)?, &expected(|_, x| x))?;
    compare("scatter_add", &x.clone().scatter_add(&index, &source, 0)?, &expected(i64::wrapping_add))?;
    compare("index_add", &x.clone().index_add(&index, &source, 0)?, &expected(i64::wrapping_add))?;
    compare("scatter_max", &x.scatter_max(&index, &source, 0)?, &expected(i64::max))
}

fn images(device: &Device) -> Outcome {
    let x = Tensor::new(NUMBERS, device)?.reshape((1, 4, 4))?;
    let largest = |i: usize| [0, 1, 4, 5].map(|tap| NUMBERS[i / 2 * 8 + i % 2 * 2 + tap]).into_iter().max();
    let expected: Vec<i64> = (0..4).filter_map(largest).collect();
    compare("max_pool2d", &x.max_pool2d(&PoolConfig::new(2))?, &expected)?;
    compare("adaptive_max_pool2d", &x.adaptive_max_pool2d([2, 2])?, &expected)?;
    let doubled: Vec<i64> = (0..64).map(|i| NUMBERS[i / 16 * 4 + i % 8 / 2]).collect();
    compare("upsample_nearest2d", &x.upsample_nearest2d(8, 8)?, &doubled)?;
    let chosen: Vec<i64> = (0..4).map(|i| NUMBERS[i / 2 * 8 + i % 2 * 2]).collect();
    compare("resize_nearest", &x.resize((2, 2), ResizeConfig::NEAREST)?, &chosen)
}

/// Numbers that are not ties, but become ties if they are first rounded to `f32`.
fn rounded_once(to: DType, device: &Device) -> Outcome {
    let mut numbers = Vec::new();
    for x in [1.0, 1.5, 3.0, 1000.0, 0.1, 60000.0, 1e-3] {
        let here = round(x, to);
        let unit = crate::reference::numbers::ulp(here, to);
        for middle in [here + unit / 2.0, here - unit / 2.0, here + 1.5 * unit] {
            numbers.extend([middle, middle.next_up(), middle.next_down(), middle + unit * 1e-9, middle - unit * 1e-9]);
        }
    }
    numbers.extend(numbers.clone().iter().map(|x| -x));
    let values = array(&[numbers.len()], numbers.iter().map(|&x| round(x, to)).collect());
    check("to_dtype", &Tensor::new(numbers, device)?.to_dtype(to)?, &Expected::new(values, to))
}

fn wide_ties(device: &Device) -> Outcome {
    let numbers: Vec<i64> = (24..62).flat_map(|bits| [0, 1, -1].map(|d| (1 << bits) + (1 << (bits - 8)) + d)).collect();
    // A double would lose the 1 that is added, so this rounds by hand.
    let exact = |x: i64| {
        let bits = 63 - x.leading_zeros();
        let (unit, whole) = (1i64 << (bits - 7), x >> (bits - 7));
        let rest = x - whole * unit;
        let up = rest > unit / 2 || (rest == unit / 2 && whole % 2 == 1);
        ((whole + i64::from(up)) * unit) as f64
    };
    let values = array(&[numbers.len()], numbers.iter().map(|&x| exact(x)).collect());
    check("to_dtype", &Tensor::new(numbers, device)?.to_dtype(DType::BF16)?, &Expected::new(values, DType::BF16))
}

pub fn add(suite: &mut Suite) {
    for function in &ARITHMETIC {
        suite.add(function.0, "i64::wide", move |device| pairs(function, device));
    }
    for function in &COMPARISONS {
        suite.add(function.0, "i64::wide", move |device| pairs(function, device));
    }
    suite.add("wide", "i64::unary", unary);
    suite.add("wide", "i64::moved", moved);
    suite.add("wide", "i64::reduced", reduced);
    suite.add("wide", "sorted", sorted);
    suite.add("wide", "i64::scattered", scattered);
    suite.add("wide", "i64::images", images);
    suite.add("to_dtype", "i64_to_bf16::ties", wide_ties);
    for to in [DType::F32, DType::F16, DType::BF16] {
        suite.add("to_dtype", format!("f64_to_{to}::ties"), move |device| rounded_once(to, device));
    }
}
