//! Random tensors: bit for bit those of the reference, on every device.

use crate::compare::{Expected, check, download};
use crate::devices;
use crate::reference::numbers::{round, ulp};
use crate::reference::threefry::{normal, threefry, uniform, words};
use crate::reference::{ArrayD, array};
use crate::suite::{Outcome, Suite};
use half::{bf16, f16};
use marquetry::{DType, Device, Tensor};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A device has one sequence of random numbers: trials that set its seed take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const SEEDS: [u64; 3] = [0, 7, 0xfedc_ba98_7654_3210];

fn check_uniform(shape: &[usize], device: &Device) -> Outcome {
    let _turn = alone();
    for seed in SEEDS {
        device.set_seed(seed);
        for sequence in 0..3 {
            let random = Tensor::rand(0f32, 1.0, shape, device)?;
            let exact = words(seed, sequence, shape.iter().product()).into_iter().map(uniform).collect();
            // Without a scale nothing but the very number passes: multiples of 2^-24 below 1 are not rounded.
            check("full", &random, &Expected::new(array(shape, exact), DType::F32))?;
        }
    }
    Ok(())
}

/// Shifted and scaled, which is rounded.
fn check_scaled(
    op: &str,
    device: &Device,
    draw: impl Fn() -> marquetry::Result<Tensor>,
    unit: fn(u32) -> f64,
    [shift, scale]: [f64; 2],
) -> Outcome {
    let _turn = alone();
    device.set_seed(7);
    let random = draw()?;
    let units: Vec<f64> = words(7, 0, random.elem_count()).into_iter().map(unit).collect();
    let exact = units.iter().map(|x| shift + scale * x).collect();
    let scales = units.iter().map(|x| (scale * x).abs() + shift.abs()).collect();
    let expected = Expected::new(array(random.dims(), exact), random.dtype()).with_scale(array(random.dims(), scales));
    check(op, &random, &expected)
}

const MANY: usize = 1 << 16;

/// Fails unless mean and variance are within five standard errors: by chance once in two million draws, and the draw is
/// the same in every run. The standard error of a variance takes the fourth moment, of which the distribution's is
/// `kurtosis` squared variances.
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
    check_moments(&download(&Tensor::randn(1f32, 2.0, MANY, device)?)?, 1.0, 4.0, 3.0)
}

/// Half precision is coarse: numbers close to the end of the range must not be rounded onto it.
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

fn sequence(device: &Device) -> Outcome {
    let _turn = alone();
    let draw = || download(&Tensor::rand(0f32, 1.0, 9, device)?);
    device.set_seed(3);
    let (first, second) = (draw()?, draw()?);
    device.set_seed(3);
    if draw()? != first || draw()? != second || first == second {
        return Err("a seed does not start the sequence anew".into());
    }
    // A tensor without elements does not have to draw, but must not fail.
    check("zeros", &Tensor::rand(0f32, 1.0, (3, 0), device)?, &Expected::new(array(&[3, 0], Vec::new()), DType::F32))
}

/// The normal distribution too is the same everywhere, as it is made of exactly rounded operations.
fn same_on(other: &'static str, device: &Device) -> Outcome {
    let _turn = alone();
    let other = devices::open(other)?;
    let draw = |device: &Device| -> Outcome<[ArrayD<f64>; 2]> {
        device.set_seed(99);
        let (a, b) = (Tensor::rand(0f32, 1.0, 1000, device)?, Tensor::randn(0f32, 1.0, 1000, device)?);
        Ok([download(&a)?, download(&b)?])
    };
    let ([uniform, normal], [other_uniform, other_normal]) = (draw(device)?, draw(&other)?);
    if uniform != other_uniform {
        return Err(format!("uniform numbers of {device} and {other} differ").into());
    }
    // The inverse of the error function is a polynomial, whose products and sums a device may fuse, or not.
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 4.0 * ulp(*a, DType::F32);
    match normal.iter().zip(&other_normal).find(|&pair| !near(pair)) {
        Some((a, b)) => Err(format!("normal numbers of {device} and {other} differ: {a:?}, {b:?}").into()),
        None => Ok(()),
    }
}

pub fn add(suite: &mut Suite) {
    suite.add("rand", "reference", |_| {
        // Known answers of the authors' Random123 library.
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
    suite.add("randn", "f32::standard", |device| {
        check_scaled("randn", device, || Tensor::randn(0f32, 1.0, 20_000, device), normal, [0.0, 1.0])
    });
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
    suite.add("set_seed", "sequence", sequence);
    for other in devices::selected() {
        suite.add("set_seed", format!("same_as_{other}"), move |device| same_on(other, device));
    }
}
