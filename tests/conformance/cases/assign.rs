//! Assignment to parts of tensors, and moves between kinds of memory.

use super::{is_brief, shaped};
use crate::compare::{Expected, Sample, check, upload};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::{ArrayD, Slice, broadcast};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Device, MemoryKind, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::ops::Range;

fn assign(target: &ArrayD<f64>, ranges: &[Range<usize>], source: &ArrayD<f64>) -> ArrayD<f64> {
    let mut result = target.clone();
    let mut part = result.slice_each_axis_mut(|axis| Slice::from(ranges[axis.axis.index()].clone()));
    let source = broadcast(source, part.shape());
    part.assign(&source);
    result
}

/// Assigns to a shared tensor, whose other holders must not see it, and to a tensor with no other holder.
fn check_assign(target: Sample, ranges: &[Range<usize>], source: &Sample) -> Outcome {
    let dtype = target.tensor.dtype();
    let expected = Expected::new(assign(&target.values, ranges, &source.values), dtype);
    let copy = target.tensor.clone().slice_assign(ranges.to_vec(), &source.tensor)?;
    check("slice_assign", &copy, &expected)?;
    check("slice_assign", &target.tensor, &Expected::new(target.values, dtype))?;
    check("slice_assign", &target.tensor.slice_assign(ranges.to_vec(), &source.tensor)?, &expected)
}

/// Boxes in a shape of [4, 5, 6]: a part, a row, a column, one element, everything and nothing.
const BOXES: [[Range<usize>; 3]; 6] = [
    [1..3, 2..5, 1..4],
    [2..3, 0..5, 0..6],
    [0..4, 3..4, 5..6],
    [3..4, 4..5, 0..1],
    [0..4, 0..5, 0..6],
    [1..1, 0..5, 0..6],
];

fn boxes(target: Layout, source: Layout, dtype: DType, device: &Device) -> Outcome {
    for ranges in &BOXES {
        let target = shaped("target", &[4, 5, 6], target, dtype, Domain::Special, device)?;
        let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        let source = if shape.contains(&0) { Layout::Contiguous } else { source };
        check_assign(target, ranges, &shaped("source", &shape, source, dtype, Domain::Special, device)?)?;
    }
    Ok(())
}

/// The source has fewer axes, or axes of length 1.
fn broadcasts(dtype: DType, device: &Device) -> Outcome {
    for shape in [vec![], vec![3], vec![2, 1], vec![1, 3, 1], vec![2, 1, 3]] {
        let target = shaped("target", &[4, 5, 6], Layout::Contiguous, dtype, Domain::Special, device)?;
        let source = shaped("source", &shape, Layout::Contiguous, dtype, Domain::Special, device)?;
        let ranges =
            if shape.first() == Some(&2) && shape.len() == 2 { [1..4, 3..5, 2..6] } else { [1..3, 1..4, 2..5] };
        check_assign(target, &ranges, &source)?;
    }
    Ok(())
}

/// Copies a part of a tensor onto an overlapping part. The source must have its old elements.
fn overlapping(dtype: DType, device: &Device) -> Outcome {
    let target = shaped("target", &[7, 9], Layout::Contiguous, dtype, Domain::Special, device)?;
    let source = Sample {
        tensor: target.tensor.narrow(0, 0, 5)?,
        values: target.values.slice_axis(crate::reference::Axis(0), Slice::from(0..5)).to_owned(),
    };
    let expected = Expected::new(assign(&target.values, &[2..7, 0..9], &source.values), dtype);
    check("slice_assign", &target.tensor.slice_assign(2..7, &source.tensor)?, &expected)
}

/// A cache that grows by one row at a time.
fn cache(dtype: DType, device: &Device) -> Outcome {
    let mut sample = shaped("cache", &[2, 20, 5], Layout::Contiguous, dtype, Domain::Special, device)?;
    for row in 0..20 {
        let new = shaped(&format!("row {row}"), &[2, 1, 5], Layout::Contiguous, dtype, Domain::Special, device)?;
        let ranges = [0..2, row..row + 1, 0..5];
        sample.values = assign(&sample.values, &ranges, &new.values);
        sample.tensor = sample.tensor.slice_assign((.., row..=row), &new.tensor)?;
    }
    check("slice_assign", &sample.tensor, &Expected::new(sample.values, dtype))
}

/// A box in a tensor with one to four axes. The rows of the source may be transposed.
#[derive(Debug, Clone)]
struct Random {
    shape: Vec<usize>,
    ranges: Vec<Range<usize>>,
    source: Layout,
}

fn random() -> impl Strategy<Value = Random> {
    // Some lengths are whole words, some are not, and some rows are long enough for copies by the driver.
    let length = || prop_oneof![3 => 1..9usize, 1 => 1..40usize];
    let last = prop_oneof![3 => 1..20usize, 1 => (1..20usize).prop_map(|n| 4 * n), 1 => 256..600usize];
    (prop::collection::vec(length(), 0..4), last).prop_flat_map(|(mut shape, last)| {
        shape.push(if shape.iter().product::<usize>() > 2000 { last % 7 + 1 } else { last });
        let range = |n: usize| (0..n, 1..=n).prop_map(move |(start, length)| start..(start + length).min(n));
        let ranges: Vec<_> = shape.iter().map(|&n| prop_oneof![range(n), Just(0..n)]).collect();
        let sources = [Layout::Contiguous, Layout::Transposed, Layout::Sliced, Layout::Unaligned];
        (Just(shape), ranges, prop::sample::select(sources.to_vec())).prop_map(|(shape, ranges, source)| Random {
            shape,
            ranges,
            source,
        })
    })
}

fn try_random(dtype: DType, device: &Device) -> Outcome {
    let config = Config { cases: if full_tier() { 300 } else { 24 }, failure_persistence: None, ..Config::default() };
    let seed = Inputs::new(&format!("slice_assign of {dtype}")).seed();
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let attempt = |random: Random| -> Outcome {
        let target = shaped("target", &random.shape, Layout::Contiguous, dtype, Domain::Special, device)?;
        let shape: Vec<usize> = random.ranges.iter().map(ExactSizeIterator::len).collect();
        check_assign(target, &random.ranges, &shaped("source", &shape, random.source, dtype, Domain::Special, device)?)
    };
    let result = runner.run(&random(), |random| {
        attempt(random).map_err(|failed| TestCaseError::fail(failed.message().unwrap_or_default().to_string()))
    });
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, random)) => Err(format!("{reason}\nthe smallest found: {random:?}").into()),
        Err(TestError::Abort(reason)) => Err(format!("proptest gave up: {reason}").into()),
    }
}

const MEMORIES: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Shared, MemoryKind::Host];

/// Moves elements from the host to one kind of memory, through a kernel, to the other kind, and back to the host.
fn memories(first: MemoryKind, second: MemoryKind, dtype: DType, device: &Device) -> Outcome {
    let values = Inputs::new("memories").array(&[6, 7], dtype, Domain::Small);
    let uploaded = upload(&values, dtype, device)?.to_memory(first)?;
    check("to_memory", &uploaded, &Expected::new(values.clone(), dtype))?;
    let turned = uploaded.t()?.to_memory(second)?;
    let same = uploaded.memory_kind() == second;
    if turned.memory_kind() != second || (!same && !turned.is_contiguous()) {
        return Err(format!("got {turned:?} in {} memory", turned.memory_kind()).into());
    }
    let expected = values.t().to_owned();
    check("to_memory", &turned, &Expected::new(expected.clone(), dtype))?;
    check("to_memory", &turned.maximum(&turned)?, &Expected::new(expected.clone(), dtype))?;
    let row = Inputs::new("row").array(&[6], dtype, Domain::Small);
    let assigned = turned.slice_assign(3..4, &upload(&row, dtype, device)?)?;
    check("to_memory", &assigned, &Expected::new(assign(&expected, &[3..4, 0..6], &row), dtype))
}

fn empty_memories(device: &Device) -> Outcome {
    for kind in MEMORIES {
        let empty = Tensor::zeros((3, 0), DType::F32, device)?.to_memory(kind)?;
        if empty.memory_kind() != kind || !empty.to_vec::<f32>()?.is_empty() {
            return Err(format!("got {empty:?} in {} memory", empty.memory_kind()).into());
        }
    }
    Ok(())
}

pub fn add(suite: &mut Suite) {
    for dtype in DType::ALL {
        for target in [Layout::Contiguous, Layout::Unaligned, Layout::Transposed, Layout::Sliced, Layout::Broadcast] {
            for source in [Layout::Contiguous, Layout::Unaligned, Layout::Transposed, Layout::Sliced, Layout::Broadcast]
            {
                if is_brief(dtype) && source != target {
                    continue;
                }
                let name = format!("{dtype}::{}_to_{}", source.name(), target.name());
                suite.add("slice_assign", name, move |device| boxes(target, source, dtype, device));
            }
        }
        suite.add("slice_assign", format!("{dtype}::broadcast_source"), move |device| broadcasts(dtype, device));
        suite.add("slice_assign", format!("{dtype}::overlapping"), move |device| overlapping(dtype, device));
        suite.add("slice_assign", format!("{dtype}::cache"), move |device| cache(dtype, device));
        suite.add("slice_assign", format!("{dtype}::random"), move |device| try_random(dtype, device));
        for first in MEMORIES {
            for second in MEMORIES {
                let name = format!("{dtype}::{first}_to_{second}");
                suite.add("to_memory", name, move |device| memories(first, second, dtype, device));
            }
        }
    }
    suite.add("to_memory", "empty", empty_memories);
}
