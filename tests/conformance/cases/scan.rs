//! Cumulative sums, products and extremes.

use super::{FLOATS, shaped};
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::functions::{maximum, minimum};
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::numbers::{round, summed, wrap};
use crate::reference::reduce::running;
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::{DType, Device, Result, Tensor};

pub const TOLERANCES: Table = &[
    (
        &["cumsum"],
        Tolerance {
            ulp: 0.5,
            of_scale: 2.0 * EPS,
            reason: "compensated: rounded once, and 2^-23 of the sum of magnitudes so far (the scale)",
            ..EXACT
        },
    ),
    (
        &["cumprod"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "a rounding per element (the scale: that many products)",
            ..EXACT
        },
    ),
    (&["cummax", "cummin"], Tolerance { reason: "the result is a number of the dtype", ..EXACT }),
];

struct Scan {
    name: &'static str,
    call: fn(&Tensor, i32) -> Result<Tensor>,
    /// True if narrow integers are widened.
    widens: bool,
    domain: Domain,
    fold: fn(f64, f64) -> f64,
}

const SCANS: [Scan; 4] = [
    Scan { name: "cumsum", call: |x, axis| x.cumsum(axis), widens: true, domain: Domain::Normal, fold: |a, b| a + b },
    Scan { name: "cumprod", call: |x, axis| x.cumprod(axis), widens: true, domain: Domain::Factor, fold: |a, b| a * b },
    Scan { name: "cummax", call: |x, axis| x.cummax(axis), widens: false, domain: Domain::Special, fold: maximum },
    Scan { name: "cummin", call: |x, axis| x.cummin(axis), widens: false, domain: Domain::Special, fold: minimum },
];

impl Scan {
    fn check(&self, input: &Sample, axis: i32) -> Outcome {
        let resolved = axis.rem_euclid(input.values.ndim() as i32) as usize;
        let dtype = input.tensor.dtype();
        let result = if self.widens { summed(dtype) } else { dtype };
        // Products of integers are wrapped at each step, so they stay small enough for a double.
        let fold = |a: f64, b: f64| {
            let folded = (self.fold)(a, b);
            let product = || (a as i64).wrapping_mul(b as i64);
            match self.name {
                _ if result.is_float() => folded,
                "cumprod" => wrap(product(), result),
                _ => wrap(folded as i64, result),
            }
        };
        let values = running(&input.values, resolved, fold);
        let scale = match self.name {
            "cumsum" => running(&input.values.mapv(f64::abs), resolved, |a, b| a + b),
            _ => {
                let places = running(&input.values.mapv(|_| 1.0), resolved, |a, b| a + b);
                places * values.mapv(f64::abs)
            }
        };
        let expected = Expected::new(values, result).with_scale(scale);
        check(self.name, &(self.call)(&input.tensor, axis)?, &expected)
    }
}

fn vector(values: Vec<f64>, dtype: DType, device: &Device) -> Outcome<Sample> {
    let values = array(&[values.len()], values);
    Ok(Sample { tensor: upload(&values, dtype, device)?, values })
}

pub fn add(suite: &mut Suite) {
    for scan in &SCANS {
        let (op, domain) = (scan.name, scan.domain);
        for dtype in DType::ALL {
            for (name, shape, layout, axis) in [
                ("sliced_first", &[4, 5, 6][..], Layout::Sliced, 0),
                ("sliced_middle", &[4, 5, 6], Layout::Sliced, 1),
                ("transposed_last", &[4, 5, 6], Layout::Transposed, -1),
                ("broadcast_middle", &[4, 5, 6], Layout::Broadcast, 1),
                ("last", &[7, 9], Layout::Contiguous, 1),
                ("first", &[7, 9], Layout::Unaligned, 0),
                ("pending", &[7, 9], Layout::Pending, 1),
                ("pending_first", &[4, 5, 6], Layout::PendingTransposed, 0),
                ("long_rows", &[2, 1000], Layout::Contiguous, 1),
                ("short_fours", &[3, 68], Layout::Contiguous, 1),
                ("long_columns", &[1000, 2], Layout::Contiguous, 0),
                ("empty", &[4, 0, 6], Layout::Contiguous, 1),
                ("no_rows", &[4, 0, 6], Layout::Contiguous, 0),
                ("one", &[1, 1], Layout::Contiguous, 0),
            ] {
                // Reading the elements is the same for all dtypes.
                if dtype != DType::F32
                    && !["sliced_middle", "long_rows", "short_fours", "pending_first"].contains(&name)
                {
                    continue;
                }
                // Doubles cannot hold such products. `wide.rs` tests some.
                if op == "cumprod" && dtype == DType::I64 && ["long_rows", "short_fours"].contains(&name) {
                    continue;
                }
                suite.add(op, format!("{dtype}::{name}"), move |device| {
                    scan.check(&shaped(op, shape, layout, dtype, domain, device)?, axis)
                });
            }
        }
        for dtype in [DType::F32, DType::U32] {
            suite.add(op, format!("{dtype}::chunks"), move |device| {
                scan.check(&shaped(op, &[2, 10007], Layout::Contiguous, dtype, domain, device)?, 1)?;
                scan.check(&shaped(op, &[2, 10007], Layout::Pending, dtype, domain, device)?, 1)?;
                // Whole fours, which GPUs hold in registers.
                scan.check(&shaped(op, &[3, 8328], Layout::Offset, dtype, domain, device)?, 1)?;
                scan.check(&shaped(op, &[2, 4100], Layout::Pending, dtype, domain, device)?, 1)?;
                scan.check(&shaped(op, &[10007, 3], Layout::Contiguous, dtype, domain, device)?, 0)
            });
        }
        suite.add(op, "f32::hundred_thousand", move |device| {
            // More than a chunk of chunks, with numbers whose product stays in range.
            let domain = if op == "cumprod" { Domain::Sparse } else { domain };
            let input = shaped(op, &[100_003], Layout::Contiguous, DType::F32, domain, device)?;
            scan.check(&input, 0)
        });
        for dtype in FLOATS {
            suite.add(op, format!("{dtype}::nan_and_infinity"), move |device| {
                let (inf, nan) = (f64::INFINITY, f64::NAN);
                for row in [
                    vec![1.0, nan, 3.0, inf, 9.0],
                    vec![1.0, inf, 2.0, inf, -1.0],
                    vec![-inf, 1.0, inf, 3.0],
                    [vec![1.0; 100], vec![-inf], vec![1.0; 100]].concat(),
                    [vec![1.0; 5000], vec![inf], vec![1.0; 5000], vec![nan, 1.0, 1.0]].concat(),
                ] {
                    scan.check(&vector(row, dtype, device)?, 0)?;
                }
                Ok(())
            });
        }
    }
    // So many chunks that a GPU's team takes several parts of each, one after the other. The sums are exact.
    suite.add("cumsum", "f32::parts_of_chunks", |device| {
        const LENGTH: u32 = 1 << 24;
        let sums = Tensor::ones(LENGTH as usize, DType::F32, device)?.cumsum(0)?;
        let wrong = sums.to_dtype(DType::U32)?.ne(&Tensor::arange(1u32, LENGTH + 1, device)?)?;
        match wrong.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? {
            0 => Ok(()),
            wrong => Err(format!("{wrong} of {LENGTH} sums are wrong").into()),
        }
    });
    suite.add("cumsum", "f32::million", |device| {
        // Large numbers that cancel, and small ones that remain.
        let mut inputs = Inputs::new("million");
        let numbers = (0..1 << 20).map(|place| {
            let size = if place % 16 < 2 { 1e4 } else { 1e-3 };
            round(size * inputs.normal(), DType::F32)
        });
        SCANS[0].check(&vector(numbers.collect(), DType::F32, device)?, 0)
    });
}
