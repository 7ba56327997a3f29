//! Random tensors, equal to the reference bit by bit on every device, and random indexes.

use super::floats;
use crate::compare::{Expected, Sample, check, download};
use crate::devices;
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::numbers::{round, ulp};
use crate::reference::threefry::{gumbel, integer, normal, threefry, uniform, wide_integer, wide_words, words};
use crate::reference::{ArrayD, array};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use half::{bf16, f16};
use marquetry::{DType, Device, Element, Tensor};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub const TOLERANCES: Table = &[
    (
        &["rand", "rand_like"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "exact multiples of 2^-24, scaled (the scale) and shifted",
            ..EXACT
        },
    ),
    (
        &["randn", "randn_like", "gumbel"],
        Tolerance {
            ulp: 4.0,
            of_scale: 9.0 * EPS,
            reason: "quantiles within 4 ulp; scaling (the scale) and shifting add the rounding of a product",
            ..EXACT
        },
    ),
    (
        &["rand_int", "bernoulli", "multinomial", "gumbel_top_k", "sample_top_k"],
        Tolerance { reason: "the result is an integer", ..EXACT },
    ),
];

/// Locks the device's one sequence of random numbers, so that tests that set its seed take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const SEEDS: [u64; 3] = [0, 7, 0xfedc_ba98_7654_3210];

fn check_uniform(shape: &[usize], device: &Device) -> Outcome {
    undisturbed(|| {
        let _turn = alone();
        for seed in SEEDS {
            device.set_seed(seed);
            for sequence in 0..3 {
                let random = Tensor::rand(0f32, 1.0, shape, device)?;
                let exact = words(seed, sequence, shape.iter().product()).into_iter().map(uniform).collect();
                // Without a scale, only the exact number passes: multiples of 2^-24 below 1 are not rounded.
                check("full", &random, &Expected::new(array(shape, exact), DType::F32))?;
            }
        }
        Ok(())
    })
}

/// Checks numbers that are scaled and shifted, which is rounded.
fn check_scaled(
    op: &str,
    device: &Device,
    draw: impl Fn() -> marquetry::Result<Tensor>,
    unit: fn(u32) -> f64,
    [shift, scale]: [f64; 2],
) -> Outcome {
    undisturbed(|| {
        let _turn = alone();
        device.set_seed(7);
        let random = draw()?;
        let units: Vec<f64> = words(7, 0, random.elem_count()).into_iter().map(unit).collect();
        let exact = units.iter().map(|x| shift + scale * x).collect();
        let scales = units.iter().map(|x| (scale * x).abs() + shift.abs()).collect();
        let expected = Expected::new(array(random.dims(), exact), random.dtype());
        let standard = [shift, scale] == [0.0, 1.0];
        let expected = if standard { expected } else { expected.with_scale(array(random.dims(), scales)) };
        check(op, &random, &expected)
    })
}

/// Checks `f64` numbers: they are drawn in `f32`, then scaled and shifted in `f64`.
fn check_doubles(
    op: &str,
    device: &Device,
    units: impl Fn() -> marquetry::Result<Tensor>,
    draw: impl Fn() -> marquetry::Result<Tensor>,
    [shift, scale]: [f64; 2],
) -> Outcome {
    undisturbed(|| {
        let _turn = alone();
        device.set_seed(7);
        let units = download(&units()?)?;
        device.set_seed(7);
        let scales = units.mapv(|x| (scale * x).abs() + shift.abs());
        check(op, &draw()?, &Expected::new(units.mapv(|x| shift + scale * x), DType::F64).with_scale(scales))
    })
}

const MANY: usize = 1 << 16;

/// Fails unless mean and variance are within five standard errors. By chance, this happens once in two million draws,
/// and the draw is the same in every run. The standard error of a variance needs the fourth moment of the distribution:
/// `kurtosis` times the squared variance.
fn check_moments(values: &ArrayD<f64>, mean: f64, variance: f64, kurtosis: f64) -> Outcome {
    let count = values.len() as f64;
    let sample_mean = values.sum() / count;
    let sample_variance = values.mapv(|x| (x - mean) * (x - mean)).sum() / count;
    let (mean_error, variance_error) = ((variance / count).sqrt(), variance * ((kurtosis - 1.0) / count).sqrt());
    if (sample_mean - mean).abs() > 5.0 * mean_error || (sample_variance - variance).abs() > 5.0 * variance_error {
        return Err(format!("mean {sample_mean}, variance {sample_variance}; expected {mean} and {variance}").into());
    }
    Ok(())
}

fn distribution(device: &Device) -> Outcome {
    let _turn = alone();
    device.set_seed(1);
    let uniform = download(&Tensor::rand(-2f32, 4.0, MANY, device)?)?;
    if let Some(stray) = uniform.iter().find(|x| !(-2.0..4.0).contains(*x)) {
        return Err(format!("{stray} is not in -2..4").into());
    }
    check_moments(&uniform, 1.0, 3.0, 1.8)?;
    check_moments(&download(&Tensor::randn(1f32, 2.0, MANY, device)?)?, 1.0, 4.0, 3.0)?;
    let (euler, variance) = (0.577_215_664_901_532_9, std::f64::consts::PI.powi(2) / 6.0);
    check_moments(&download(&Tensor::gumbel(1f32, 2.0, MANY, device)?)?, 1.0 + 2.0 * euler, 4.0 * variance, 5.4)?;
    let tenths = download(&Tensor::rand(0f32, 10.0, MANY, device)?)?.mapv(f64::floor);
    check_frequencies(&tenths, &[0.1; 10])?;
    check_frequencies(&download(&Tensor::rand_int(0u32, 7, MANY, device)?)?, &[1.0 / 7.0; 7])?;
    check_frequencies(&download(&Tensor::rand_int(0i64, 7, MANY, device)?)?, &[1.0 / 7.0; 7])?;
    let weights = Tensor::new([1f32, 0.0, 4.0, 3.0, 2.0], device)?;
    check_frequencies(&download(&weights.multinomial(20_000, true)?)?, &[0.1, 0.0, 0.4, 0.3, 0.2])?;
    // The probability of the second of two indexes drawn without replacement from weights 1, 2 and 3 is the sum of
    // w_i / (1 - w_j) w_j.
    let rows = Tensor::new([1f32, 2.0, 3.0], device)?.broadcast_to((20_000, 3))?.multinomial(2, false)?;
    let [first, second] = &rows.split(1, 1)?[..] else { return Err("two places per row".into()) };
    check_frequencies(&download(first)?, &[1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0])?;
    check_frequencies(&download(second)?, &[1.0 / 12.0 + 1.0 / 6.0, 1.0 / 15.0 + 1.0 / 3.0, 1.0 / 10.0 + 1.0 / 4.0])?;
    check_frequencies(&download(&Tensor::full(0.3f32, MANY, device)?.bernoulli()?)?, &[0.7, 0.3])
}

/// Fails unless whole numbers have the expected frequencies, by Pearson's test. Its statistic has one degree of freedom
/// less than there are numbers. By chance, it exceeds the limit less than once in ten thousand draws, and the draw is
/// the same in every run.
fn check_frequencies(numbers: &ArrayD<f64>, probabilities: &[f64]) -> Outcome {
    let count = numbers.len() as f64;
    let mut statistic = 0.0;
    for (number, &probability) in probabilities.iter().enumerate() {
        let found = numbers.iter().filter(|x| **x == number as f64).count() as f64;
        match probability {
            0.0 if found > 0.0 => return Err(format!("{number} occurs, which should not").into()),
            0.0 => {}
            _ => statistic += (found - count * probability).powi(2) / (count * probability),
        }
    }
    let freedom = probabilities.iter().filter(|p| **p > 0.0).count() as f64 - 1.0;
    let strays = numbers.iter().filter(|x| !(0.0..probabilities.len() as f64).contains(*x)).count();
    if strays > 0 || statistic > freedom + 7.0 * (2.0 * freedom).sqrt() {
        return Err(format!("chi square {statistic} of {freedom} degrees of freedom, {strays} strays").into());
    }
    Ok(())
}

fn integers<T: Element + Copy>(ranges: &[(T, T)], device: &Device) -> Outcome {
    let _turn = alone();
    for &(low, high) in ranges {
        device.set_seed(11);
        let random = Tensor::rand_int(low, high, (7, 143), device)?;
        let (first, count) = (low.to_f64() as i64, (high.to_f64() - low.to_f64()) as u64);
        let exact = words(11, 0, 7 * 143).into_iter().map(|bits| integer(bits, first, count)).collect();
        check("rand_int", &random, &Expected::new(array(&[7, 143], exact), T::DTYPE))?;
    }
    Ok(())
}

fn wide_integers(device: &Device) -> Outcome {
    let large = 1 << 62;
    let ranges = [(0, 6), (-10, -9), (i64::MIN, i64::MAX), (-large, large), (large, i64::MAX), (-7, (1 << 32) + 5)];
    let _turn = alone();
    for (low, high) in ranges {
        device.set_seed(12);
        let random = Tensor::rand_int(low, high, (7, 143), device)?.to_vec::<i64>()?;
        let count = high.wrapping_sub(low).cast_unsigned();
        let exact: Vec<i64> =
            wide_words(12, 0, 7 * 143).into_iter().map(|bits| wide_integer(bits, low, count)).collect();
        if random != exact || random.iter().any(|x| !(low..high).contains(x)) {
            return Err(format!("integers from {low} to {high} are not those of the reference").into());
        }
    }
    Ok(())
}

fn bernoulli(layout: Layout, dtype: DType, device: &Device) -> Outcome {
    let mut inputs = Inputs::new("probabilities");
    let mut probability = |i: usize| match i % 11 {
        7 => [0.0, 1.0, -1.0, 2.0, f64::NAN, f64::INFINITY][i / 11 % 6],
        _ => round(inputs.uniform(), dtype),
    };
    let shape = layout.shape();
    let probabilities = array(&shape, (0..shape.iter().product()).map(&mut probability).collect());
    let p = layout.place(probabilities, dtype, device)?;
    let _turn = alone();
    device.set_seed(5);
    let drawn = p.tensor.bernoulli()?;
    let bits = words(5, 0, p.values.len());
    let exact = bits.into_iter().zip(&p.values).map(|(bits, &p)| f64::from(uniform(bits) < p)).collect();
    check("bernoulli", &drawn, &Expected::new(array(p.values.shape(), exact), dtype))
}

/// Fails unless the indexes for each row are those of its largest numbers, in order. If two numbers are nearly equal, a
/// device may choose either.
fn check_places(op: &str, places: &Tensor, rows: &[Vec<f64>], independent: bool) -> Outcome {
    let drawn: Vec<usize> = download(places)?.iter().map(|&place| place as usize).collect();
    let per_row = if independent { 1 } else { drawn.len() / rows.len() };
    if drawn.len() != rows.len() * per_row || places.dtype() != DType::U32 {
        return Err(format!("{op}: {} of {} for {} rows", drawn.len(), places.dtype(), rows.len()).into());
    }
    for (row, places) in rows.iter().zip(drawn.chunks(per_row)) {
        let mut left = row.clone();
        for &place in places {
            let largest = left.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if left.get(place).is_none_or(|&value| value < largest - 1e-5 * largest.abs().max(1.0)) {
                return Err(format!("{op}: {place} is drawn, which has {:?} of {row:?}", left.get(place)).into());
            }
            left[place] = f64::NEG_INFINITY;
        }
    }
    Ok(())
}

/// The rows of logits, each repeated `times` times, plus the noise of a seed.
fn perturbed(seed: u64, logits: &ArrayD<f64>, times: usize) -> Vec<Vec<f64>> {
    let length = logits.shape()[logits.ndim() - 1];
    let logits: Vec<f64> = logits.iter().copied().collect();
    let rows: Vec<&[f64]> = logits.chunks(length).flat_map(|row| std::iter::repeat_n(row, times)).collect();
    let noise: Vec<f64> = words(seed, 0, rows.len() * length).into_iter().map(gumbel).collect();
    let sum = |(row, noise): (&&[f64], &[f64])| row.iter().zip(noise).map(|(x, noise)| x + noise).collect();
    rows.iter().zip(noise.chunks(length)).map(sum).collect()
}

/// Weights or logits in few or many rows, short or long.
fn rows_of(layout: Layout, shape: &[usize], dtype: DType, positive: bool, device: &Device) -> Outcome<Sample> {
    let values = Inputs::new("rows").array(shape, dtype, Domain::Normal);
    let values = if positive { values.mapv(|x| if x < -3.0 { 0.0 } else { x.abs() }) } else { values };
    layout.place(values, dtype, device)
}

const ROWS: [[usize; 3]; 3] = [[2, 3, 50], [5, 4, 7], [1, 1, 300]];

/// A row that is long enough to be drawn from in chunks.
const LONG: [usize; 3] = [1, 1, 3001];

fn multinomial(layout: Layout, dtype: DType, device: &Device) -> Outcome {
    for shape in ROWS.into_iter().chain([LONG]) {
        let weights = rows_of(layout, &shape, dtype, true, device)?;
        let logits = weights.values.mapv(f64::ln);
        let _turn = alone();
        device.set_seed(21);
        let drawn = weights.tensor.multinomial(3, true)?;
        check_places("multinomial", &drawn, &perturbed(21, &logits, 3), true)?;
        device.set_seed(22);
        let drawn = weights.tensor.multinomial(4, false)?;
        if drawn.dims() != [shape[0], shape[1], 4] {
            return Err(format!("got shape {}", drawn.shape()).into());
        }
        check_places("multinomial", &drawn, &perturbed(22, &logits, 1), false)?;
    }
    let none = weights_of_nothing(dtype, device)?;
    check("multinomial", &none.multinomial(2, true)?, &Expected::new(array(&[0, 2], vec![]), DType::U32))
}

fn weights_of_nothing(dtype: DType, device: &Device) -> Outcome<Tensor> {
    Ok(Tensor::zeros((0, 3), dtype, device)?)
}

fn top_k(layout: Layout, dtype: DType, device: &Device) -> Outcome {
    for shape in ROWS {
        let logits = rows_of(layout, &shape, dtype, false, device)?;
        let length = shape[2];
        let plain: Vec<Vec<f64>> =
            logits.values.iter().copied().collect::<Vec<_>>().chunks(length).map(<[f64]>::to_vec).collect();
        let cooled = logits.values.mapv(|x| x / 0.7);
        let _turn = alone();
        check_places("gumbel_top_k", &logits.tensor.gumbel_top_k(5, 0.0)?, &plain, false)?;
        device.set_seed(31);
        check_places("gumbel_top_k", &logits.tensor.gumbel_top_k(5, 0.7)?, &perturbed(31, &cooled, 1), false)?;
        check_places("sample_top_k", &logits.tensor.sample_top_k(5, 0.0)?, &plain, true)?;
        device.set_seed(32);
        check_places("sample_top_k", &logits.tensor.sample_top_k(1000, 0.7)?, &perturbed(32, &cooled, 1), true)?;
        // The largest numbers in order. One of them is drawn.
        let mut sorted: Vec<Vec<(f64, usize)>> =
            plain.iter().map(|row| row.iter().copied().zip(0..).collect()).collect();
        sorted.iter_mut().for_each(|row| row.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))));
        let best = sorted.iter().flat_map(|row| row[..5].iter().map(|(x, _)| x / 0.7)).collect();
        let noisy = perturbed(33, &array(&[plain.len(), 5], best), 1);
        let expand = |(row, noisy): (&Vec<(f64, usize)>, &Vec<f64>)| {
            let mut whole = vec![f64::NEG_INFINITY; length];
            row.iter().zip(noisy).for_each(|(&(_, place), &x)| whole[place] = x);
            whole
        };
        let rows: Vec<Vec<f64>> = sorted.iter().zip(&noisy).map(expand).collect();
        device.set_seed(33);
        let token = logits.tensor.sample_top_k(5, 0.7)?;
        if token.dims() != &shape[..2] {
            return Err(format!("got shape {}", token.shape()).into());
        }
        check_places("sample_top_k", &token, &rows, true)?;
    }
    Ok(())
}

/// Half precision is coarse: numbers near the end of the range must not be rounded to the end.
fn below_the_end(device: &Device) -> Outcome {
    let _turn = alone();
    device.set_seed(1);
    let halves = download(&Tensor::rand(f16::ZERO, f16::ONE, 4 * MANY, device)?)?;
    let brief = download(&Tensor::rand(bf16::ZERO, bf16::ONE, 4 * MANY, device)?)?;
    let doubles = download(&Tensor::rand(0f64, 1.0, MANY, device)?)?;
    let floats = download(&Tensor::rand(1000f32, 1000.001, MANY, device)?)?;
    let end = f64::from(1000.001f32);
    match halves
        .iter()
        .chain(&brief)
        .chain(&doubles)
        .find(|x| !(0.0..1.0).contains(*x))
        .or(floats.iter().find(|x| !(1000.0..end).contains(*x)))
    {
        Some(stray) => Err(format!("{stray} is not below the end of its range").into()),
        None => Ok(()),
    }
}

/// Tries a case up to three times: cases of other files draw numbers on the same device, which may come in between.
fn undisturbed(case: impl Fn() -> Outcome) -> Outcome {
    case().or_else(|_| case()).or_else(|_| case())
}

fn sequence(device: &Device) -> Outcome {
    let _turn = alone();
    let draw = || download(&Tensor::rand(0f32, 1.0, 9, device)?);
    device.set_seed(3);
    let (first, second) = (draw()?, draw()?);
    device.set_seed(3);
    if draw()? != first || draw()? != second || first == second {
        return Err("a seed does not start the sequence anew".into());
    }
    // A tensor without elements need not draw, but must not fail.
    check("zeros", &Tensor::rand(0f32, 1.0, (3, 0), device)?, &Expected::new(array(&[3, 0], Vec::new()), DType::F32))
}

/// Integers and uniform numbers are the same on all devices. Other numbers agree within 4 ulp.
fn same_on(other: &'static str, device: &Device) -> Outcome {
    let _turn = alone();
    let other = devices::open(other)?;
    let draw = |device: &Device| -> Outcome<[ArrayD<f64>; 4]> {
        device.set_seed(99);
        let exact = [Tensor::rand(0f32, 1.0, 1000, device)?, Tensor::rand_int(-50i32, 50, 1000, device)?];
        let near = [Tensor::randn(0f32, 1.0, 20_000, device)?, Tensor::gumbel(0f32, 1.0, 20_000, device)?];
        Ok([download(&exact[0])?, download(&exact[1])?, download(&near[0])?, download(&near[1])?])
    };
    let (here, there) = (draw(device)?, draw(&other)?);
    if here[..2] != there[..2] {
        return Err(format!("uniform numbers of {device} and {other} differ").into());
    }
    // Quantiles are polynomials. A device may fuse their products and sums.
    let near = |(a, b): &(&f64, &f64)| (*a - *b).abs() <= 4.0 * ulp(**a, DType::F32);
    let pairs = here[2..].iter().zip(&there[2..]).flat_map(|(here, there)| here.iter().zip(there));
    match pairs.into_iter().find(|pair| !near(pair)) {
        Some((a, b)) => Err(format!("numbers of {device} and {other} differ: {a:?}, {b:?}").into()),
        None => Ok(()),
    }
}

pub fn add(suite: &mut Suite) {
    suite.add("rand", "reference", |_| {
        // Known answers from the authors' Random123 library.
        let known = [
            ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
            ([u32::MAX; 2], [u32::MAX; 2], [0x1cb9_96fc, 0xbb00_2be7]),
            ([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3], [0xc492_3a9c, 0x483d_f7a0]),
        ];
        let wrong = known.into_iter().find(|&(key, counter, words)| threefry(key, counter) != words);
        wrong.map_or(Ok(()), |known| Err(format!("the reference does not give {known:x?}").into()))
    });
    for (name, shape) in [("one", &[][..]), ("three", &[3]), ("odd", &[3, 65, 7]), ("many", &[10_000])] {
        suite.add("rand", format!("f32::{name}"), |device| check_uniform(shape, device));
    }
    suite.add("rand", "f32::scaled", |device| {
        check_scaled("rand", device, || Tensor::rand(-3f32, 4.5, 999, device), uniform, [-3.0, 7.5])
    });
    suite.add("rand", "f16::scaled", |device| {
        let (low, high) = (f16::from_f32(-3.0), f16::from_f32(4.5));
        check_scaled("rand", device, || Tensor::rand(low, high, 999, device), uniform, [-3.0, 7.5])
    });
    suite.add("rand", "bf16::scaled", |device| {
        let (low, high) = (bf16::from_f32(-3.0), bf16::from_f32(4.5));
        check_scaled("rand", device, || Tensor::rand(low, high, 999, device), uniform, [-3.0, 7.5])
    });
    suite.add("rand", "f64::scaled", |device| {
        check_scaled("rand", device, || Tensor::rand(-3f64, 4.1, 999, device), uniform, [-3.0, 7.1])
    });
    for dtype in floats() {
        suite.add("rand_like", format!("{dtype}::scaled"), move |device| {
            // Bounds that no float dtype has are rounded to it.
            let x = Tensor::zeros((27, 37), dtype, device)?;
            let [low, high] = [-3.1, 4.7].map(|bound| round(bound, dtype));
            check_scaled("rand_like", device, || x.t()?.rand_like(-3.1, 4.7), uniform, [low, high - low])?;
            let expected = Expected::new(ArrayD::from_elem([2, 3].as_slice(), 1.0), dtype);
            match dtype {
                DType::F64 => Ok(()),
                _ => check("full", &Tensor::zeros((2, 3), dtype, device)?.rand_like(1.0, 1.0 + 1e-9)?, &expected),
            }
        });
        suite.add("randn_like", format!("{dtype}::scaled"), move |device| {
            let draw = || Tensor::zeros((27, 37), dtype, device)?.randn_like(5.0, 0.25);
            let units = || Tensor::randn(0f32, 1.0, (27, 37), device);
            match dtype {
                DType::F64 => check_doubles("randn_like", device, units, draw, [5.0, 0.25]),
                _ => check_scaled("randn_like", device, draw, normal, [5.0, 0.25]),
            }
        });
    }
    suite.add("randn", "f32::standard", |device| {
        let count = if full_tier() { 1 << 20 } else { 20_000 };
        check_scaled("randn", device, || Tensor::randn(0f32, 1.0, count, device), normal, [0.0, 1.0])
    });
    suite.add("gumbel", "f32::standard", |device| {
        let count = if full_tier() { 1 << 22 } else { 1 << 18 };
        check_scaled("gumbel", device, || Tensor::gumbel(0f32, 1.0, count, device), gumbel, [0.0, 1.0])
    });
    suite.add("gumbel", "f16::scaled", |device| {
        let draw = || Tensor::gumbel(f16::from_f32(-2.0), f16::from_f32(0.5), 999, device);
        check_scaled("gumbel", device, draw, gumbel, [-2.0, 0.5])
    });
    suite.add("randn", "bf16::scaled", |device| {
        let draw = || Tensor::randn(bf16::from_f32(5.0), bf16::from_f32(0.25), 999, device);
        check_scaled("randn", device, draw, normal, [5.0, 0.25])
    });
    suite.add("gumbel", "bf16::scaled", |device| {
        let draw = || Tensor::gumbel(bf16::from_f32(-2.0), bf16::from_f32(0.5), 999, device);
        check_scaled("gumbel", device, draw, gumbel, [-2.0, 0.5])
    });
    suite.add("randn", "f64::scaled", |device| {
        let draw = || Tensor::randn(5f64, 0.3, 999, device);
        check_doubles("randn", device, || Tensor::randn(0f32, 1.0, 999, device), draw, [5.0, 0.3])
    });
    suite.add("gumbel", "f64::scaled", |device| {
        let draw = || Tensor::gumbel(-2f64, 0.7, 999, device);
        check_doubles("gumbel", device, || Tensor::gumbel(0f32, 1.0, 999, device), draw, [-2.0, 0.7])
    });
    suite.add("rand_int", "u32::reference", |device| {
        let largest = u32::MAX;
        integers(&[(0, 6), (5, 6), (0, 1 << 20), (0, largest), (largest - 3, largest), (1 << 31, largest)], device)
    });
    suite.add("rand_int", "i32::reference", |device| {
        integers(&[(-10, 10), (i32::MIN, i32::MAX), (-1, 0), (i32::MAX - 7, i32::MAX)], device)
    });
    suite.add("rand_int", "u8::reference", |device| integers(&[(0u8, 255), (250, 255)], device));
    suite.add("rand_int", "i8::reference", |device| integers(&[(-128i8, 127), (-5, 3), (-1, 0)], device));
    suite.add("rand_int", "i64::reference", wide_integers);
    for dtype in floats() {
        for layout in Layout::ALL {
            suite.add("bernoulli", format!("{dtype}::{}", layout.name()), move |device| {
                bernoulli(layout, dtype, device)
            });
        }
        for layout in [Layout::Contiguous, Layout::Transposed, Layout::Sliced, Layout::Broadcast] {
            suite.add("multinomial", format!("{dtype}::{}", layout.name()), move |device| {
                multinomial(layout, dtype, device)
            });
            suite
                .add("sample_top_k", format!("{dtype}::{}", layout.name()), move |device| top_k(layout, dtype, device));
        }
    }
    suite.add("randn", "f32::scaled", |device| {
        check_scaled("randn", device, || Tensor::randn(5f32, 0.3, 999, device), normal, [5.0, f64::from(0.3f32)])
    });
    suite.add("randn", "f16::scaled", |device| {
        let deviation = round(0.3, DType::F16);
        let draw = || Tensor::randn(f16::from_f32(5.0), f16::from_f32(deviation as f32), 999, device);
        check_scaled("randn", device, draw, normal, [5.0, deviation])
    });
    suite.add("rand", "f32::distribution", distribution);
    suite.add("rand", "below_the_end", below_the_end);
    suite.add("set_seed", "sequence", |device| undisturbed(|| sequence(device)));
    for other in devices::selected() {
        suite.add("set_seed", format!("same_as_{other}"), move |device| undisturbed(|| same_on(other, device)));
    }
}
