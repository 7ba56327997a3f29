//! Operations that order or pick elements: sorting, the first elements of an order, draws, rows of a table.

use super::memory::random;
use super::{Sizes, described, power};
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::{ensure_all_close, numbers, places, row};
use anyhow::{Result, ensure};
use marquetry::{DType, Device, Tensor};

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let elements = sizes.elements().min(sizes.uncached / 16);
    let [small, large] = sizes.vocabularies;
    vec![
        sort("sort keys", [1, elements], |x| Ok(vec![x.sort_values(1, false)?])),
        sort("sort", [1, elements], |x| x.sort(1, false).map(|(values, places)| vec![values, places])),
        sort("sort", [elements / 1024, 1024], |x| x.sort(1, false).map(|(values, places)| vec![values, places])),
        top([1, elements], 50),
        top([32, large], 50),
        multinomial([1, small]),
        embedding(DType::F16, sizes),
        embedding(DType::F32, sizes),
        gather(elements),
        scatter_add(elements),
    ]
}

fn case(name: String, bytes: usize, prepare: impl Fn(&Device) -> Result<Prepared> + 'static) -> Case {
    Case { name, cost: Cost::of_memory(bytes), rate: Rate::Bytes, bound: Bound::None, prepare: Box::new(prepare) }
}

/// Integers below a bound.
fn indexes(count: usize, below: usize, device: &Device) -> marquetry::Result<Tensor> {
    let indexes = Tensor::rand_int(0u32, below as u32, count, device)?;
    indexes.realize()?;
    Ok(indexes)
}

/// `run` returns the sorted elements first.
fn sort(
    what: &'static str,
    [rows, length]: [usize; 2],
    run: impl Fn(&Tensor) -> marquetry::Result<Vec<Tensor>> + Clone + 'static,
) -> Case {
    case(format!("{what} u32 {}", described([rows, length])), 8 * rows * length, move |device| {
        let x = Tensor::rand_int(0u32, u32::MAX, (rows, length), device)?;
        x.realize()?;
        let (a, run) = (x.clone(), run.clone());
        let check = move |y: &Tensor| {
            for i in places(rows) {
                let mut expected = numbers(&a.narrow(0, i, 1)?)?;
                expected.sort_by(f64::total_cmp);
                ensure!(row(y, i)? == expected, "row {i} is not sorted");
            }
            Ok(())
        };
        Ok(Prepared::alone(move |_| Ok(run(&x)?.swap_remove(0)), check))
    })
}

fn top([rows, length]: [usize; 2], k: usize) -> Case {
    case(format!("topk {k} f32 {}", described([rows, length])), 4 * rows * length, move |device| {
        let x = random((rows, length), device)?;
        let a = x.clone();
        let check = move |y: &Tensor| {
            for i in places(rows) {
                let mut expected = row(&a, i)?;
                expected.sort_by(|a, b| b.total_cmp(a));
                ensure!(row(y, i)? == expected[..k], "row {i} has others on top");
            }
            Ok(())
        };
        Ok(Prepared::alone(move |_| Ok(x.topk(k, 1, true)?.0), check))
    })
}

fn multinomial([rows, length]: [usize; 2]) -> Case {
    case(format!("multinomial {rows} x {length}"), 4 * rows * length, move |device| {
        // One place has nearly all of the weight.
        let weights = random((rows, length), device)?.abs()?.affine(1e-12, 0.0)?;
        let heavy = Tensor::arange(0u32, length as u32, device)?.eq((length / 3) as u32)?.to_dtype(DType::F32)?;
        let weights = weights.add(&heavy)?;
        weights.realize()?;
        let check = move |y: &Tensor| {
            ensure!(numbers(y)?.iter().all(|&place| place == (length / 3) as f64), "the heavy place is drawn");
            Ok(())
        };
        Ok(Prepared::alone(move |_| weights.multinomial(1, true), check))
    })
}

fn embedding(dtype: DType, sizes: &Sizes) -> Case {
    let (vocabulary, width, tokens) = (sizes.vocabularies[0], sizes.width, 8 * sizes.width);
    let bytes = 2 * tokens * width * dtype.size_in_bytes();
    case(format!("embedding {dtype} {vocabulary} x {width}, {tokens} ids"), bytes, move |device| {
        let table = random((vocabulary, width), device)?.to_dtype(dtype)?;
        table.realize()?;
        let ids = indexes(tokens, vocabulary, device)?;
        let (a, b) = (table.clone(), ids.clone());
        let check = move |y: &Tensor| {
            let ids: Vec<u32> = b.to_vec()?;
            places(tokens)
                .into_iter()
                .try_for_each(|i| ensure_all_close("an embedding", &row(y, i)?, &row(&a, ids[i] as usize)?, 0.0))
        };
        Ok(Prepared::alone(move |_| table.embedding(&ids), check))
    })
}

fn gather(n: usize) -> Case {
    case(format!("gather f32 {}", power(n)), 12 * n, move |device| {
        let (x, at) = (random(n, device)?, indexes(n, n, device)?);
        let (a, b) = (x.clone(), at.clone());
        let check = move |y: &Tensor| {
            let (a, b, y) = (numbers(&a)?, b.to_vec::<u32>()?, numbers(y)?);
            ensure!(b.iter().zip(y).all(|(&i, y)| a[i as usize] == y), "another element is gathered");
            Ok(())
        };
        Ok(Prepared::alone(move |_| x.gather(&at, 0), check))
    })
}

fn scatter_add(n: usize) -> Case {
    case(format!("scatter_add f32 {}", power(n)), 16 * n, move |device| {
        let (x, source, at) = (random(n, device)?, random(n, device)?, indexes(n, n, device)?);
        let [a, b, c] = [x.clone(), source.clone(), at.clone()];
        let check = move |y: &Tensor| {
            let (mut sums, b) = (numbers(&a)?, numbers(&b)?);
            c.to_vec::<u32>()?.into_iter().zip(b).for_each(|(i, x)| sums[i as usize] += x);
            // Few elements come together, in any order.
            ensure_all_close("a sum", &numbers(y)?, &sums, 1e-4)
        };
        Ok(Prepared::alone(move |_| x.clone().scatter_add(&at, &source, 0), check))
    })
}
