//! Fusion: how many kernels run, what they store, and how [`Device::explain`] tells it.

use crate::count_launches;
use half::f16;
use marquetry::internals::{open_tuned, tuning};
use marquetry::nn::{Conv2d, Gate, GatedLinear, Linear, RmsNorm};
use marquetry::{AttentionConfig, ConvConfig, DType, Device, Explanation, Gemm, PoolConfig, Result, Tensor};

on_each_device! {
    a_chain_is_one_launch
    shared_results_are_computed_at_most_twice
    expressions_pass_through_views
    held_results_are_stored_beside_others
    what_is_seen_in_two_ways_is_computed_once
    what_runs_apart_counts_as_computed
    what_is_below_counts_as_computed
    what_a_prologue_computes_counts_as_computed
    reductions_are_fused_both_ways
    norms_are_fused_both_ways
    convolutions_are_finished_by_their_kernels
    images_keep_their_order
    pools_and_lookups_are_finished_by_their_kernels
    operands_are_computed_as_they_are_loaded
    explanations_tell_what_is_written
    products_that_wait_for_each_other
    fusion_can_be_switched_off
    products_are_finished_by_their_kernels
    planned_products_keep_nothing_of_earlier_ones
    planned_expressions_keep_nothing_of_earlier_ones
    planned_views_keep_nothing_of_earlier_ones
    planned_attention_keeps_nothing_of_earlier_calls
    products_that_others_wait_for_are_kept
    what_kernels_of_products_cannot_do_runs_apart
    products_hold_their_operands
    products_normalise_their_rows
    fusion_does_not_show_in_the_numbers
}

fn a_chain_is_one_launch(device: &Device) -> Result<()> {
    let x = Tensor::new([1f32, -2.0, 3.0], device)?;
    let bias = Tensor::new(0.5f32, device)?;
    let before = device.stats();
    let y = ((&x * 2.0)? + &bias)?.relu()?.add(&x)?.to_dtype(DType::F16)?;
    assert_eq!(device.stats().launches, before.launches, "nothing runs before it is needed");
    y.realize()?;
    assert_eq!(device.stats().launches, before.launches + 1);
    assert_eq!(y.to_dtype(DType::F32)?.to_vec::<f32>()?, [3.5, -2.0, 9.5]);
    Ok(())
}

fn shared_results_are_computed_at_most_twice(device: &Device) -> Result<()> {
    let x = Tensor::new([1f32, 2.0], device)?;
    let shared = x.sqr()?;
    let before = device.stats().launches;
    let uses: Vec<Tensor> = (0..10).map(|i| &shared + f64::from(i)).collect::<Result<_>>()?;
    for (i, sum) in uses.iter().enumerate() {
        assert_eq!(sum.to_vec::<f32>()?, [1.0 + i as f32, 4.0 + i as f32]);
    }
    // The first use computes the square and does not store it: that moves no fewer bytes than a second computation. The
    // second use stores it beside its own result, and the others read it.
    assert_eq!(device.stats().launches - before, 10);
    Ok(())
}

/// Returns how many kernels a result takes, and checks its elements.
fn launches_of(device: &Device, expected: &[f32], work: impl FnOnce() -> Result<Tensor>) -> Result<u64> {
    let (y, launches) = count_launches(device, || {
        let y = work()?;
        y.realize()?;
        Ok(y)
    })?;
    for (&y, &expected) in y.to_vec::<f32>()?.iter().zip(expected) {
        assert!((y - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{y}, not {expected}");
    }
    Ok(launches)
}

fn expressions_pass_through_views(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 24.0, device)?.reshape((4, 6))?.contiguous()?;
    let row = Tensor::arange(0f32, 6.0, device)?;
    x.realize()?;
    row.realize()?;
    let sum = |r: usize, c: usize| (r * 6 + c + c) as f32 * 2.0;
    let pending = || x.add(&row)?.mul(2.0);
    let turned: Vec<f32> = (0..24).map(|i| -sum(i % 4, i / 4)).collect();
    assert_eq!(launches_of(device, &turned, || pending()?.t()?.neg())?, 1);
    let part: Vec<f32> = (0..8).map(|i| -sum(1 + i / 4, 1 + i % 4)).collect();
    assert_eq!(launches_of(device, &part, || pending()?.narrow(0, 1, 2)?.narrow(1, 1, 4)?.neg())?, 1);
    let split: Vec<f32> = (0..24).map(|i| -sum(i % 4, i / 4)).collect();
    assert_eq!(launches_of(device, &split, || pending()?.reshape((4, 2, 3))?.permute([1, 2, 0])?.neg())?, 1);
    let spread: Vec<f32> = (0..24).map(|i| sum(1, i % 6) + (i as f32)).collect();
    assert_eq!(launches_of(device, &spread, || pending()?.narrow(0, 1, 1)?.broadcast_to((4, 6))?.add(&x))?, 1);
    // A row that is repeated has no single stride over both axes, so the sum is computed first.
    let flat: Vec<f32> = (0..24).map(|i| -sum(i / 6, i % 6)).collect();
    assert_eq!(launches_of(device, &flat, || pending()?.flatten_all()?.neg())?, 2);
    let numbers = [&row, &(&row + 1.0)?].map(Clone::clone);
    let normal: Vec<f32> = (0..24).map(|i| ((i as f32) - (i % 6) as f32) / (1.0 + (i % 6) as f32).sqrt()).collect();
    assert_eq!(launches_of(device, &normal, || x.batch_norm(&numbers[0], &numbers[1], None, None, 0.0))?, 1);
    Ok(())
}

/// What is held is stored by the kernel that computes it, unless a second computation moves fewer bytes.
fn held_results_are_stored_beside_others(device: &Device) -> Result<()> {
    let [x, y] = [1f32, 2.0].map(|start| Tensor::arange(start, start + 64.0, device).and_then(|x| x.contiguous()));
    let (x, y) = (x?, y?);
    x.realize()?;
    y.realize()?;
    let sum = x.add(&y)?;
    let expected: Vec<f32> = (0..64).map(|i| (2.0 * i as f32 + 3.0).tanh()).collect();
    assert_eq!(launches_of(device, &expected, || sum.tanh())?, 1);
    let expected: Vec<f32> = (0..64).map(|i| 2.0 * i as f32 + 3.0).collect();
    assert_eq!(launches_of(device, &expected, || Ok(sum.clone()))?, 0, "the kernel has stored both");
    Ok(())
}

/// A kernel cannot store a result for each view of it.
fn what_is_seen_in_two_ways_is_computed_once(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 16.0, device)?.reshape((4, 4))?.contiguous()?;
    let y = Tensor::ones((4, 4), DType::F32, device)?.contiguous()?;
    x.realize()?;
    y.realize()?;
    for turned_first in [false, true] {
        let sum = x.add(&y)?;
        let turned = sum.t()?;
        let (result, told) = device.explain(|| -> Result<()> {
            if turned_first { turned.add(&sum) } else { sum.add(&turned) }?.realize()?;
            sum.realize()
        })?;
        result?;
        let written: Vec<u64> = told.kernels.iter().map(|kernel| kernel.bytes_written).collect();
        assert_eq!(written, [4 * 16; 2], "{told}");
    }
    Ok(())
}

/// Returns how many kernels have negated.
fn negations(told: &Explanation) -> usize {
    told.kernels.iter().map(|kernel| kernel.name.matches("neg(").count()).sum()
}

/// A comparison, whose result is small, is stored by a kernel of its own. This kernel computes the negation below it,
/// so the next kernel is the second that does.
fn what_runs_apart_counts_as_computed(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 16.0, device)?.reshape((4, 4))?.contiguous()?;
    x.realize()?;
    let negated = x.neg()?;
    let chosen = negated.add(1)?.gt(0)?.where_cond(&negated, &negated)?;
    let (result, told) = device.explain(|| -> Result<()> {
        chosen.t()?.abs()?.realize()?;
        chosen.realize()?;
        negated.realize()
    })?;
    result?;
    assert_eq!(negations(&told), 2, "{told}");
    Ok(())
}

/// Nobody holds the negation but two results over it, which the first kernel computes and does not store.
fn what_is_below_counts_as_computed(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 16.0, device)?.reshape((4, 4))?.contiguous()?;
    x.realize()?;
    let negated = x.neg()?;
    let (absolute, sign) = (negated.abs()?, negated.sign()?);
    drop(negated);
    let (result, told) = device.explain(|| -> Result<()> {
        absolute.add(&sign)?.realize()?;
        absolute.realize()?;
        sign.realize()
    })?;
    result?;
    assert_eq!(negations(&told), 2, "{told}");
    Ok(())
}

/// A norm and the expression behind it compute the same operand, which is needed again.
fn what_a_prologue_computes_counts_as_computed(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 16.0, device)?.reshape((4, 4))?.contiguous()?;
    x.realize()?;
    let negations = |behind: &dyn Fn(&Tensor) -> Result<Tensor>| -> Result<usize> {
        let negated = x.neg()?;
        let (result, told) = device.explain(|| -> Result<()> {
            behind(&negated)?.realize()?;
            negated.abs()?.realize()?;
            negated.realize()
        })?;
        result?;
        Ok(told.kernels.iter().map(|kernel| kernel.name.matches("neg(").count()).sum())
    };
    assert_eq!(negations(&|y| y.softmax(-1)?.add(y))?, 2);
    assert_eq!(negations(&|y| y.sum_keepdim(-1)?.add(y))?, 2);
    assert_eq!(negations(&|y| y.sum_keepdim(-1)?.add(&y.max_keepdim(-1)?)?.add(y))?, 2);
    Ok(())
}

fn reductions_are_fused_both_ways(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 24.0, device)?.reshape((4, 6))?.contiguous()?;
    let row = Tensor::arange(0f32, 6.0, device)?;
    let column = Tensor::arange(1f32, 5.0, device)?;
    for tensor in [&x, &row, &column] {
        tensor.realize()?;
    }
    let sum = |r: usize| (0..6).map(|c| (r * 6 + c + c) as f32).map(|x| x / (1.0 + (-x).exp())).sum::<f32>();
    let sums: Vec<f32> = (0..4).map(sum).collect();
    assert_eq!(launches_of(device, &sums, || x.add(&row)?.silu()?.sum(-1))?, 1);
    let scaled: Vec<f32> = (0..4).map(|r| sum(r) * 2.0 / (r + 1) as f32).collect();
    assert_eq!(launches_of(device, &scaled, || (x.add(&row)?.silu()?.sum(-1)? * 2.0)?.div(&column))?, 1);
    let mean: Vec<f32> = (0..6).map(|c| -(c as f32 + 9.0)).collect();
    assert_eq!(launches_of(device, &mean, || x.neg()?.mean(0))?, 1);
    let largest: Vec<f32> = (0..6).map(|c| 23.0 - (c as f32 + 18.0)).collect();
    assert_eq!(launches_of(device, &largest, || 23.0 - x.t()?.affine(1.0, 0.0)?.max(1)?)?, 1);
    let ids = x.t()?.neg()?.argmin(1)?.to_dtype(DType::F32)?;
    assert_eq!(launches_of(device, &[3.0; 6], || Ok(ids.clone()))?, 1);
    let halves = x.to_dtype(DType::F16)?;
    halves.realize()?;
    let total = |r: usize| (0..6).map(|c| (r * 6 + c) as f32).sum::<f32>();
    let totals: Vec<f32> = (0..4).map(total).collect();
    assert_eq!(launches_of(device, &totals, || halves.neg()?.abs()?.sum(1)?.to_dtype(DType::F32))?, 1);
    // Results of less than 32 bits share words.
    let (sums, launches) = count_launches(device, || {
        let sums = halves.neg()?.abs()?.sum(1)?;
        sums.realize()?;
        Ok(sums)
    })?;
    assert_eq!((sums.dtype(), launches), (DType::F16, 1));
    assert_eq!(sums.to_dtype(DType::F32)?.to_vec::<f32>()?, totals);
    let (positive, launches) = count_launches(device, || {
        let positive = x.sub(3.0)?.gt(0)?.all(1)?;
        positive.realize()?;
        Ok(positive)
    })?;
    assert_eq!(launches, 1);
    assert_eq!(positive.to_vec::<bool>()?, [false, true, true, true]);
    // Addends with an axis of length 1, with and without rows.
    let one = Tensor::new([5f32], device)?;
    let tall = column.unsqueeze(1)?;
    one.realize()?;
    let sums: Vec<f32> = (0..4).map(|r| totals[r] + (r + 1) as f32 + 5.0).collect();
    assert_eq!(launches_of(device, &sums, || x.sum_keepdim(1)?.add(&tall)?.add(&one))?, 1);
    // A sum that somebody else holds is stored once.
    let sums = x.sum(1)?;
    let doubled: Vec<f32> = totals.iter().map(|total| total * 2.0).collect();
    assert_eq!(launches_of(device, &doubled, || &sums * 2.0)?, 1);
    assert_eq!(launches_of(device, &totals, || Ok(sums.clone()))?, 0);
    Ok(())
}

fn norms_are_fused_both_ways(device: &Device) -> Result<()> {
    for length in [6, 600] {
        let x = Tensor::arange(0f32, 4.0 * length as f32, device)?.reshape((4, length))?.mul(0.01)?;
        let residual = x.flip(1)?.add(0.5)?.contiguous()?;
        let mask = Tensor::arange(0f32, length as f32, device)?.mul(-0.25)?;
        let ones = Tensor::ones(length, DType::F32, device)?;
        for tensor in [&x, &residual, &mask, &ones] {
            tensor.realize()?;
        }
        let scaled = x.mul(0.3)?.add(&mask)?;
        scaled.realize()?;
        let expected = scaled.softmax(-1)?.to_vec::<f32>()?;
        assert_eq!(launches_of(device, &expected, || x.mul(0.3)?.add(&mask)?.softmax(-1))?, 1);
        let summed = x.add(&residual)?;
        summed.realize()?;
        let normal = summed.layer_norm(&ones, &ones, 1e-5)?;
        normal.realize()?;
        let expected = normal.silu()?.to_vec::<f32>()?;
        assert_eq!(launches_of(device, &expected, || x.add(&residual)?.layer_norm(&ones, &ones, 1e-5)?.silu())?, 1);
        // The sum is used again: the same kernel stores it.
        let sum = x.add(&residual)?;
        let expected = normal.to_vec::<f32>()?;
        assert_eq!(launches_of(device, &expected, || sum.layer_norm(&ones, &ones, 1e-5))?, 1);
        assert_eq!(launches_of(device, &summed.to_vec::<f32>()?, || Ok(sum.clone()))?, 0);
        // A number per column, and a residual that is broadcast over the batch.
        let batch = Tensor::cat(&[&x, &residual], 0)?.reshape((2, 4, length))?;
        batch.realize()?;
        let normal = batch.softmax(-1)?;
        normal.realize()?;
        let expected = normal.mul(&mask)?.add(&residual)?.to_vec::<f32>()?;
        assert_eq!(launches_of(device, &expected, || batch.softmax(-1)?.mul(&mask)?.add(&residual))?, 1);
        // A copy that is held, normalised twice, in halves.
        let halves = x.to_dtype(DType::F16)?;
        halves.realize()?;
        let copy = halves.t()?.contiguous()?;
        let expected = halves.t()?.to_dtype(DType::F32)?.to_vec::<f32>()?;
        let normals = [copy.softmax(-1)?, copy.softmax(-1)?];
        normals[0].realize()?;
        normals[1].realize()?;
        assert_eq!(normals[0].to_vec::<f16>()?, normals[1].to_vec::<f16>()?);
        assert_eq!(copy.to_dtype(DType::F32)?.to_vec::<f32>()?, expected);
        // Along columns.
        let expected = x.softmax(0)?.mul(&residual)?.to_vec::<f32>()?;
        let launches = launches_of(device, &expected, || x.softmax(0)?.mul(&residual)?.add(0.0))?;
        assert_eq!(launches, 1);
        // Halves are stored by fours, if a row has them.
        let halves = summed.to_dtype(DType::F16)?;
        halves.realize()?;
        let expected = halves.softmax(-1)?.to_dtype(DType::F32)?.to_vec::<f32>()?;
        assert_eq!(launches_of(device, &expected, || halves.softmax(-1)?.to_dtype(DType::F32))?, 1);
    }
    Ok(())
}

fn convolutions_are_finished_by_their_kernels(device: &Device) -> Result<()> {
    let numbers = |shape: &[usize], scale: f64| -> Result<Tensor> {
        let elements = shape.iter().product::<usize>();
        let x = Tensor::arange(0f32, elements as f32, device)?.rem(17.0)?.affine(scale, -8.0 * scale)?;
        let x = x.reshape(shape)?.contiguous()?;
        x.realize()?;
        Ok(x)
    };
    let x = numbers(&[2, 3, 8, 8], 0.1)?;
    let weight = numbers(&[4, 3, 3, 3], 0.05)?;
    let [bias, mean] = [0.3, -0.2].map(|scale| numbers(&[4], scale));
    let (bias, mean) = (bias?, mean?);
    let variance = mean.abs()?.add(0.5)?;
    variance.realize()?;
    let config = ConvConfig::default().padding(1);
    let conv = |bias: Option<&Tensor>| x.conv2d(&weight, bias, &config);
    let plain = conv(None)?;
    plain.realize()?;
    let biased = conv(Some(&bias))?;
    biased.realize()?;
    let expected = biased.relu()?.to_vec::<f32>()?;
    assert_eq!(launches_of(device, &expected, || conv(Some(&bias))?.relu())?, 1);
    let normal = plain.batch_norm(&mean, &variance, None, None, 1e-5)?;
    normal.realize()?;
    let expected = normal.silu()?.to_vec::<f32>()?;
    let work = || conv(None)?.batch_norm(&mean, &variance, None, None, 1e-5)?.silu();
    assert_eq!(launches_of(device, &expected, work)?, 1);
    let expected = plain.add(&normal)?.to_vec::<f32>()?;
    assert_eq!(launches_of(device, &expected, || conv(None)?.add(&normal))?, 1);
    // An inverted residual: 1x1, depthwise 3x3, 1x1, with norms, clips and the residual.
    let (expand, project) = (numbers(&[6, 4, 1, 1], 0.1)?, numbers(&[4, 6, 1, 1], 0.1)?);
    let depthwise = numbers(&[6, 1, 3, 3], 0.1)?;
    let [scales, shifts] = [0.2, 0.1].map(|scale| numbers(&[6], scale));
    let (scales, shifts) = (scales?.abs()?.add(0.5)?, shifts?);
    scales.realize()?;
    let (one, three) = (ConvConfig::default(), ConvConfig::default().padding(1).groups(6));
    let block = |step: &dyn Fn(Tensor) -> Result<Tensor>| -> Result<Tensor> {
        let wide = step(step(normal.conv2d(&expand, None, &one)?)?.batch_norm(&shifts, &scales, None, None, 0.0)?)?;
        let wide = step(step(wide.relu6()?)?.conv2d(&depthwise, None, &three)?)?;
        let wide = step(step(wide.batch_norm(&shifts, &scales, None, None, 0.0)?)?.relu6()?)?;
        let narrow = step(wide.conv2d(&project, None, &one)?)?;
        step(step(narrow.batch_norm(&mean, &variance, None, None, 0.0)?)?.add(&normal)?)
    };
    let apart = |x: Tensor| x.realize().map(|()| x);
    let expected = block(&apart)?.to_vec::<f32>()?;
    assert_eq!(launches_of(device, &expected, || block(&Ok))?, 3);
    Ok(())
}

/// Images with their channels last pass a network without a copy, and their results have the same order.
fn images_keep_their_order(device: &Device) -> Result<()> {
    // Products of windows are for devices with workgroup memory.
    let device = &open_tuned(&device.id(), &tuning::entry("default").unwrap().tuning)?;
    let numbers = |shape: &[usize]| -> Result<Tensor> {
        let elements = shape.iter().product::<usize>();
        let x = Tensor::arange(0f32, elements as f32, device)?.rem(17.0)?.affine(0.1, -0.8)?;
        x.realize()?;
        x.reshape(shape)
    };
    let channels_last = |shape: [usize; 4]| numbers(&shape)?.permute([0, 3, 1, 2]);
    let x = channels_last([2, 6, 8, 16])?;
    let in_rows = x.contiguous()?;
    in_rows.realize()?;
    let (weight, pointwise) = (channels_last([32, 3, 3, 16])?, numbers(&[16, 16, 1, 1])?);
    let (scale, padded) = (numbers(&[32, 1, 1])?, ConvConfig::default().padding(1));
    let depthwise = Conv2d::new(numbers(&[16, 1, 3, 3])?, None, padded.clone().groups(16));
    // The layer prepares its weight once.
    depthwise.forward(&x)?.realize()?;
    let pool = PoolConfig::new(3).stride(2).padding(1);
    type Work<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
    let works: [(&str, Work); 6] = [
        ("windows", &|x| x.conv2d(&weight, None, &padded)?.mul(&scale)?.relu()),
        ("pointwise", &|x| x.conv2d(&pointwise, None, &ConvConfig::default())?.relu()?.add(x)),
        ("depthwise", &|x| depthwise.forward(x)?.mul(&scale.narrow(0, 0, 16)?)?.relu6()),
        ("max pool", &|x| x.max_pool2d(&pool)?.sqr()),
        ("average pool", &|x| x.avg_pool2d(&PoolConfig::new(2))?.neg()),
        ("elementwise", &|x| x.gt(0.1)?.where_cond(&x.exp()?, &x.mul(x)?)),
    ];
    for (name, work) in works {
        let expected = work(&in_rows)?;
        assert!(expected.is_contiguous(), "{name}: strides {:?}", expected.strides());
        let last = work(&x)?.permute([0, 2, 3, 1])?;
        assert!(last.is_contiguous(), "{name}: strides {:?} with channels last", last.strides());
        drop(last);
        assert_eq!(launches_of(device, &expected.to_vec::<f32>()?, || work(&x))?, 1, "{name}");
    }
    Ok(())
}

fn pools_and_lookups_are_finished_by_their_kernels(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 75.0, device)?.reshape((1, 3, 5, 5))?.contiguous()?;
    let table = Tensor::arange(0f32, 35.0, device)?.reshape((5, 7))?.contiguous()?;
    let (ids, row) = (Tensor::new([4u32, 0, 2], device)?, Tensor::arange(1f32, 8.0, device)?);
    for tensor in [&x, &table, &ids, &row] {
        tensor.realize()?;
    }
    let pool = || x.max_pool2d(&PoolConfig::new(2).stride(1));
    let expected: Vec<f32> = (0..48).map(|i| (i / 16 * 25 + i / 4 % 4 * 5 + i % 4 + 6) as f32 * 2.0 + 1.0).collect();
    assert_eq!(launches_of(device, &expected, || (pool()? * 2.0)? + 1.0)?, 1);
    let chosen = [4, 0, 2];
    let expected: Vec<f32> = (0..21).map(|i| (chosen[i / 7] * 7 + i % 7) as f32 * 0.5 + (i % 7 + 1) as f32).collect();
    assert_eq!(launches_of(device, &expected, || (table.index_select(&ids, 0)? * 0.5)?.add(&row))?, 1);
    Ok(())
}

/// Passes a tensor on, or computes it first.
type Step<'a> = &'a dyn Fn(Tensor) -> Result<Tensor>;

fn operands_are_computed_as_they_are_loaded(device: &Device) -> Result<()> {
    let numbers = |shape: &[usize], scale: f64| -> Result<Tensor> {
        let elements = shape.iter().product::<usize>();
        let x = Tensor::arange(0f32, elements as f32, device)?.rem(17.0)?.affine(scale, -8.0 * scale)?;
        let x = x.reshape(shape)?.contiguous()?;
        x.realize()?;
        Ok(x)
    };
    let check = |launches: u64, work: &dyn Fn(Step) -> Result<Tensor>| -> Result<()> {
        let expected = work(&|x| x.realize().map(|()| x))?.to_vec::<f32>()?;
        assert_eq!(launches_of(device, &expected, || work(&Ok))?, launches);
        Ok(())
    };
    // A table of halves is not widened as a whole.
    let table = numbers(&[9, 8], 0.5)?.to_dtype(DType::F16)?;
    let ids = Tensor::new([4u32, 0, 2], device)?;
    table.realize()?;
    let lookup = |step: Step| step(table.to_dtype(DType::F32)?)?.index_select(&ids, 0);
    check(1, &lookup)?;
    let (_, told) = device.explain(|| lookup(&Ok)?.realize())?;
    assert!(told.kernels.len() == 1 && told.kernels[0].name.starts_with("gather(f32(x0)"), "{told}");
    // Of the table no more than three rows, with four bytes for each element.
    assert_eq!(told.kernels[0].bytes_read, 4 * 3 * 8 + 4 * 3, "{told}");
    let (wide, two) = (table.to_dtype(DType::F32)?, Tensor::new([2f32], device)?);
    wide.realize()?;
    check(1, &|step| step(two.mul(&wide.t()?)?)?.index_select(&ids, 0))?;
    // A gather cannot load a sum of a matrix and its transpose, which is computed before. That is the first computation
    // of what is held below it, so nothing else is stored.
    let square = numbers(&[9, 9], 0.5)?;
    let negative = square.neg()?;
    let (result, told) = device.explain(|| negative.add(&square.t()?)?.index_select(&ids, 0)?.realize())?;
    result?;
    assert_eq!(told.kernels.iter().map(|kernel| kernel.bytes_written).collect::<Vec<_>>(), [4 * 81, 4 * 27], "{told}");
    let [x, y] = [0.1, 0.2].map(|scale| numbers(&[2, 3, 8, 8], scale));
    let (x, y) = (x?, y?);
    check(1, &|step| step(x.add(&y)?)?.cumsum(-1))?;
    check(1, &|step| step(step(x.add(&y)?)?.transpose(0, 2)?)?.cumsum(0))?;
    let weight = numbers(&[4, 3, 3, 3], 0.05)?;
    let convolution = ConvConfig::default().padding(1);
    check(1, &|step| step(x.add(&y)?)?.conv2d(&weight, None, &convolution))?;
    // Nine times an expression of six operations is more than a kernel of its own.
    let six = |step: Step| {
        let long = x.add(&y)?.mul(&y)?.tanh()?.sub(&x)?.abs()?.sqrt()?;
        step(long)?.conv2d(&weight, None, &convolution)
    };
    check(2, &six)?;
    // A column for each channel has strides of its own.
    let channels = numbers(&[3, 1, 1], 0.3)?;
    check(2, &|step| step(x.add(&channels)?)?.conv2d(&weight, None, &convolution))?;

    let heads = numbers(&[1, 5, 4, 8], 0.05)?;
    let tokens = numbers(&[1, 5, 32], 0.1)?;
    let (projection, hidden) = (numbers(&[32, 32], 0.02)?, Tensor::new([[0u8, 0, 0, 1, 1]], device)?);
    let config = |step: Step| -> Result<AttentionConfig> {
        let mask = Tensor::zeros((1, 4, 5, 5), DType::F32, device)?;
        Ok(AttentionConfig::default().mask(step(mask.masked_fill(&hidden.to_dtype(DType::Bool)?, f64::NEG_INFINITY)?)?))
    };
    let attend = |step: Step| {
        let [q, k] = [2.0, 0.5].map(|scale| step(heads.mul(scale)?.transpose(1, 2)?));
        let v = step(heads.transpose(1, 2)?.neg()?)?;
        step(q?.scaled_dot_product_attention(&k?, &v, &config(step)?)?)
    };
    check(1, &attend)?;
    // The tokens come before the heads in memory, so that the heads are joined without a copy.
    check(2, &|step| step(attend(step)?.transpose(1, 2)?.flatten(2, 3)?.matmul(&projection)?)?.add(&tokens))?;
    // Halves are rounded by the kernel itself.
    let halves = heads.to_dtype(DType::F16)?.transpose(1, 2)?;
    halves.realize()?;
    let attended = || halves.scaled_dot_product_attention(&halves, &halves, &AttentionConfig::default());
    let (_, launches) = count_launches(device, || attended()?.realize())?;
    assert_eq!(launches, 1);
    Ok(())
}

fn explanations_tell_what_is_written(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 96.0, device)?.reshape((4, 24))?.contiguous()?;
    let [y, row] = [(4, 24), (1, 24)].map(|shape| Tensor::ones(shape, DType::F32, device).and_then(|y| y.contiguous()));
    let (y, row) = (y?, row?);
    for tensor in [&x, &y, &row] {
        tensor.realize()?;
    }
    let bytes = |elements: u64| 4 * elements;
    // The statement still holds the operands, but nothing asks for them.
    let (sums, told) = device.explain(|| x.add(&y)?.gelu()?.sum(-1)?.realize())?;
    sums?;
    assert_eq!(told.kernels.len(), 1, "{told}");
    assert_eq!((told.kernels[0].bytes_read, told.kernels[0].bytes_written), (bytes(2 * 96), bytes(4)), "{told}");
    assert!(told.kernels[0].name.starts_with("sum(gelu(add(x0, x1))"), "{told}");
    assert!(told.not_fused.is_empty(), "{told}");
    // With three inputs, a second computation would move as many bytes as a stored result.
    let z = x.neg()?;
    z.realize()?;
    let (sums, told) = device.explain(|| x.mul(&y)?.add(&z)?.sum(-1)?.realize())?;
    sums?;
    assert_eq!((told.kernels.len(), told.kernels[0].bytes_written), (1, bytes(4)), "{told}");
    // The sum is stored beside the norm.
    let sum = x.add(&y)?;
    let (normal, told) = device.explain(|| sum.layer_norm(&row.squeeze(0)?, None, 1e-5)?.realize())?;
    normal?;
    assert_eq!(told.kernels.len(), 1, "{told}");
    assert_eq!(told.kernels[0].bytes_written, bytes(2 * 96), "{told}");
    // What cannot be fused says why.
    let (flat, told) = device.explain(|| x.add(&row)?.flatten_all()?.neg()?.realize())?;
    flat?;
    assert_eq!((told.kernels.len(), told.not_fused.len()), (2, 1), "{told}");
    assert!(told.to_string().contains("not fused: `add(x0, x1)`: an operand seen through a view"), "{told}");
    assert_eq!(told.bytes_moved(), bytes(96 + 24 + 96 + 96 + 96), "{told}");
    let (nested, _) = device.explain(|| device.explain(|| ()).map(drop))?;
    assert!(nested.unwrap_err().to_string().contains("do not nest"));
    Ok(())
}

/// Each thread finishes its own product with the other's, which waits for the first.
fn products_that_wait_for_each_other(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 16.0, device)?.reshape((4, 4))?.contiguous()?;
    x.realize()?;
    for _ in 0..50 {
        let (p, q) = (x.matmul(&x)?, x.matmul(&x.t()?)?);
        let sums = [p.add(&q.t()?)?, q.add(&p.t()?)?];
        let results = std::thread::scope(|scope| {
            sums.each_ref().map(|sum| scope.spawn(|| sum.to_vec::<f32>())).map(|thread| thread.join().unwrap())
        });
        let [p, q] = [p, q].map(|product| product.to_vec::<f32>());
        let (p, q) = (p?, q?);
        for (result, (a, b)) in results.into_iter().zip([(&p, &q), (&q, &p)]) {
            let expected: Vec<f32> = (0..16).map(|i| a[i] + b[i % 4 * 4 + i / 4]).collect();
            assert_eq!(result?, expected);
        }
    }
    Ok(())
}

fn fusion_can_be_switched_off(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 24.0, device)?.reshape((4, 6))?.contiguous()?;
    x.realize()?;
    device.set_fusion(false);
    let apart = launches_of(device, &[15.0 * 2.0 + 1.0], || (x.narrow(0, 0, 1)?.sum(1)? * 2.0)? + 1.0);
    device.set_fusion(true);
    assert_eq!(apart?, 3);
    let together = launches_of(device, &[15.0 * 2.0 + 1.0], || (x.narrow(0, 0, 1)?.sum(1)? * 2.0)? + 1.0)?;
    assert_eq!(together, 1);
    Ok(())
}

fn products_are_finished_by_their_kernels(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 72.0, device)?.reshape((6, 12))?;
    let weight = Tensor::ones((8, 12), DType::F32, device)?;
    let (bias, residual) = (Tensor::arange(0f32, 8.0, device)?, Tensor::ones((6, 8), DType::F32, device)?);
    for input in [&x, &bias, &weight, &residual] {
        input.realize()?;
    }
    let (y, launches) =
        count_launches(device, || (x.linear(&weight, Some(&bias))?.sub(100.0)?.relu()? * 2.0)?.add(&residual))?;
    assert_eq!(launches, 0, "nothing runs before it is needed");
    let (_, launches) = count_launches(device, || y.realize())?;
    assert_eq!(launches, 1);
    let expected = |row: usize, column: usize| (144.0 * row as f32 + 66.0 + column as f32 - 100.0).max(0.0) * 2.0 + 1.0;
    let expected: Vec<f32> = (0..48).map(|i| expected(i / 8, i % 8)).collect();
    assert_eq!(y.to_vec::<f32>()?, expected);
    let config = Gemm::default().trans_b(true).alpha(2.0).beta(3.0);
    let (_, launches) = count_launches(device, || x.gemm(&weight, Some(&bias), config)?.realize())?;
    assert_eq!(launches, 1);
    // What follows a transposed product has the order of the product.
    let (_, launches) = count_launches(device, || x.matmul(&weight.t()?)?.t()?.add(&residual.t()?)?.realize())?;
    assert_eq!(launches, 1);
    // If the product is used in another order or in part, it runs alone.
    let other = residual.t()?.contiguous()?;
    other.realize()?;
    let (_, launches) = count_launches(device, || x.matmul(&weight.t()?)?.t()?.add(&other)?.realize())?;
    assert_eq!(launches, 2);
    let (_, launches) = count_launches(device, || x.matmul(&weight.t()?)?.narrow(0, 0, 2)?.neg()?.realize())?;
    assert_eq!(launches, 2);
    Ok(())
}

/// Products of one plan differ in the places of their operands and of the epilogue's inputs, and in its numbers.
fn planned_products_keep_nothing_of_earlier_ones(device: &Device) -> Result<()> {
    let numbers = |seed: usize| (0..3 * 64).map(|i| ((i * i + i * seed) % 7) as f32 - 3.0).collect::<Vec<f32>>();
    let elements = [3, 7, 11].map(numbers);
    let tensors = elements.iter().map(|elements| Tensor::from_slice(elements, (3, 8, 8), device));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    let part = |of: usize, part: usize| tensors[of].narrow(0, part, 1)?.squeeze(0);
    // Each pass changes one thing against the first: a factor's place, the bias's place, the number.
    for [a, b, bias, scale] in [[0, 0, 0, 1], [1, 0, 0, 1], [0, 2, 0, 1], [0, 0, 1, 1], [0, 0, 0, 3]] {
        let element = |of: usize, part: usize, row: usize, column: usize| elements[of][part * 64 + row * 8 + column];
        let product = |i: usize| (0..8).map(|k| element(0, a, i / 8, k) * element(1, b, k, i % 8)).sum::<f32>();
        let plain: Vec<f32> = (0..64).map(product).collect();
        assert_eq!(part(0, a)?.matmul(&part(1, b)?)?.to_vec::<f32>()?, plain);
        let finished = |i: usize| plain[i] * scale as f32 + element(2, bias, i / 8, i % 8);
        let expected: Vec<f32> = (0..64).map(finished).collect();
        let y = (part(0, a)?.matmul(&part(1, b)?)? * scale as f64)?.add(&part(2, bias)?)?;
        assert_eq!(y.to_vec::<f32>()?, expected);
        // An input whose columns are strided.
        let turned: Vec<f32> = (0..64).map(|i| plain[i] + element(2, bias, i % 8, i / 8)).collect();
        assert_eq!(part(0, a)?.matmul(&part(1, b)?)?.add(&part(2, bias)?.t()?)?.to_vec::<f32>()?, turned);
        // All of a product, then a part of a larger one, seen through the same layout.
        for rows in [4, 8] {
            let y = part(0, a)?.narrow(0, 0, rows)?.matmul(&part(1, b)?)?.narrow(0, 0, 4)?.t()?.t()?;
            let y = (y * scale as f64)?.add(&part(2, bias)?.narrow(0, 0, 4)?)?;
            assert_eq!(y.to_vec::<f32>()?, expected[..32], "{rows} rows");
        }
    }
    // Different producers share a plan.
    let halves = part(0, 0)?.to_dtype(DType::F16)?;
    halves.realize()?;
    let row = |row: usize| &elements[0][row * 8..][..8];
    let largest = (0..8).map(|i| row(i).iter().copied().fold(f32::MIN, f32::max) * 2.0 + 1.0);
    let sums = (0..8).map(|i| row(i).iter().sum::<f32>() * 2.0 + 1.0);
    let finished = |folded: Tensor| ((folded * 2.0)? + 1.0)?.to_dtype(DType::F32)?.to_vec::<f32>();
    assert_eq!(finished(halves.max(-1)?)?, largest.collect::<Vec<_>>());
    assert_eq!(finished(halves.sum(-1)?)?, sums.collect::<Vec<_>>());
    Ok(())
}

/// Expressions of one structure share a plan. Inputs, their places, numbers and what is held must be each run's own.
/// All results are whole numbers that `f32` holds.
fn planned_expressions_keep_nothing_of_earlier_ones(device: &Device) -> Result<()> {
    let elements: Vec<f32> = (0..96).map(|i| (i * i % 23) as f32).collect();
    let [all, others] = [0, 1].map(|_| Tensor::from_slice(&elements, 96, device));
    let (all, others) = (all?, others?);
    for held in [false, true] {
        // Places at multiples of four and others, numbers that are equal and others.
        for first in [0, 4, 8, 3, 7] {
            for [a, b, c] in [[4, 4, 4], [3, 3, 5], [2, 5, 5], [2, 3, 2], [2, 3, 5], [7, 3, 5]] {
                let x = |i: usize| elements[first + i];
                let other = |i: usize| elements[60 - first + i];
                let part = (all.narrow(0, first, 16)? * a)?.add(&others.narrow(0, 60 - first, 16)?)?;
                let sum = (((&part * b)? - c)? - x(0) as i64)?;
                let part = held.then_some(part);
                let expected = |i: usize| (x(i) * a as f32 + other(i)) * b as f32 - c as f32 - x(0);
                assert_eq!(sum.to_vec::<f32>()?, (0..16).map(expected).collect::<Vec<_>>());
                if let Some(part) = part {
                    let (part, launches) = count_launches(device, || part.to_vec::<f32>())?;
                    assert_eq!(launches, 0, "the kernel has stored it");
                    assert_eq!(part, (0..16).map(|i| x(i) * a as f32 + other(i)).collect::<Vec<_>>());
                }
            }
        }
    }
    // Views of one tensor, at first at the same place. Then they are one input.
    for [first, second] in [[0, 0], [4, 0], [0, 8], [5, 5], [5, 1], [1, 9]] {
        let [x, y] = [first, second].map(|start| all.narrow(0, start, 16));
        let expected = |i: usize| elements[first + i] * 2.0 + elements[second + i];
        assert_eq!((x? * 2.0)?.add(&y?)?.to_vec::<f32>()?, (0..16).map(expected).collect::<Vec<_>>());
        let [x, y] = [(all.narrow(0, 0, 64)? * 2.0)?.narrow(0, first, 16), all.narrow(0, second, 16)];
        assert_eq!(x?.add(&y?)?.to_vec::<f32>()?, (0..16).map(expected).collect::<Vec<_>>());
    }
    // The same terms over other dtypes.
    for dtype in [DType::F32, DType::I32, DType::U32] {
        let sums = (all.narrow(0, 0, 16)?.to_dtype(dtype)? + 1)?.to_dtype(DType::F32)?;
        assert_eq!(sums.to_vec::<f32>()?, elements[..16].iter().map(|x| x + 1.0).collect::<Vec<_>>());
    }
    Ok(())
}

/// The same for expressions that are seen through views, which move the places of their inputs.
fn planned_views_keep_nothing_of_earlier_ones(device: &Device) -> Result<()> {
    let elements: Vec<f32> = (0..96).map(|i| (i * i % 23) as f32).collect();
    let all = Tensor::from_slice(&elements, 96, device)?;
    for offset in [0, 24, 4, 1, 30] {
        for (start, step) in [(0, 1), (4, 1), (5, 1), (9, 1), (0, 2), (3, 2)] {
            let at = |i: usize| elements[offset + start + i * step] * 2.0 + 1.0;
            let doubled = (all.narrow(0, offset, 64)? * 2.0)?;
            let part = doubled.slice(0, start.., step as isize)?.narrow(0, 0, 20)?;
            assert_eq!((part + 1.0)?.to_vec::<f32>()?, (0..20).map(at).collect::<Vec<_>>());
        }
        // A matrix and its transpose have the same terms and the same shape, and so have rows and columns.
        let matrix = || all.narrow(0, offset, 64)?.reshape((8, 8));
        let at = |row: usize, column: usize| elements[offset + row * 8 + column];
        let expected = |at: &dyn Fn(usize, usize) -> f32| (0..64).map(|i| at(i / 8, i % 8)).collect::<Vec<f32>>();
        for turned in [false, true] {
            let seen = |x: Tensor| if turned { x.t() } else { Ok(x) };
            let place = |row, column| if turned { at(column, row) } else { at(row, column) };
            let y = seen((matrix()? * 3.0)?)?.add(&matrix()?)?;
            assert_eq!(y.to_vec::<f32>()?, expected(&|row, column| place(row, column) * 3.0 + at(row, column)));
            let line = seen(matrix()?)?.narrow(0, 2, 1)?;
            let y = (matrix()? * 2.0)?.add(&line)?;
            assert_eq!(y.to_vec::<f32>()?, expected(&|row, column| at(row, column) * 2.0 + place(2, column)));
        }
    }
    Ok(())
}

/// Attention of one set of shapes is planned once. Places, the scale, the cap and the mask must be each call's own.
fn planned_attention_keeps_nothing_of_earlier_calls(device: &Device) -> Result<()> {
    let numbers: Vec<f32> = (0..4 * 2 * 5 * 8).map(|i| ((i * i + 3 * i) % 11) as f32 / 11.0 - 0.5).collect();
    let all = Tensor::from_slice(&numbers, (4, 2, 5, 8), device)?;
    let masks: Vec<f32> = (0..75).map(|i| ((i * 7) % 5) as f32 / 4.0).collect();
    let masks = Tensor::from_slice(&masks, (3, 5, 5), device)?;
    let part = |i: usize| all.narrow(0, i, 1);
    // Each call changes one thing against the first: places, the scale, the cap, the mask.
    let calls = [
        ([0, 1, 2], None, None, None),
        ([3, 1, 2], None, None, None),
        ([0, 3, 2], None, None, None),
        ([0, 1, 3], None, None, None),
        ([0, 1, 2], Some(1.5), None, None),
        ([0, 1, 2], None, Some(0.5), None),
        ([0, 1, 2], None, Some(0.25), None),
        ([0, 1, 2], None, None, Some(0)),
        ([0, 1, 2], None, None, Some(2)),
    ];
    for (parts, scale, softcap, mask) in calls {
        let mask = mask.map(|mask| masks.narrow(0, mask, 1)).transpose()?;
        for causal in [false, true] {
            let [q, k, v] = [part(parts[0])?, part(parts[1])?, part(parts[2])?];
            let config = AttentionConfig::default().scale(scale).softcap(softcap).mask(mask.clone()).causal(causal);
            let attended = || q.scaled_dot_product_attention(&k, &v, &config);
            let mut scores = (q.matmul(&k.t()?)? * scale.unwrap_or(1.0 / 8f64.sqrt()))?;
            if let Some(cap) = softcap {
                scores = ((scores / cap)?.tanh()? * cap)?;
            }
            if let Some(mask) = &mask {
                scores = scores.add(mask)?;
            }
            if causal {
                let hidden = Tensor::ones((5, 5), DType::F32, device)?.triu(1)?;
                scores = scores.sub(&(hidden * 1e9)?)?;
            }
            let expected = scores.softmax(-1)?.matmul(&v)?;
            // In memory the tokens come before the heads: in this order the kernel adds the queries too.
            let (sum, launches) = count_launches(device, || {
                let sum = attended()?.transpose(1, 2)?.add(&q.transpose(1, 2)?)?;
                sum.realize()?;
                Ok(sum)
            })?;
            assert_eq!(launches, 1);
            let expected_sum = expected.add(&q)?.transpose(1, 2)?;
            for (seen, expected) in [(attended()?, expected), (sum, expected_sum)] {
                let far = seen.sub(&expected)?.abs()?.max(())?.to_vec::<f32>()?[0];
                // Some roundings of numbers below 1.
                assert!(far <= 1e-6, "{parts:?}, {scale:?}, {softcap:?}: {far} away");
            }
        }
    }
    Ok(())
}

fn products_that_others_wait_for_are_kept(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 16.0, device)?.reshape((4, 4))?;
    x.realize()?;
    let product = x.matmul(&x)?;
    let (more, less) = ((&product + 1.0)?, (&product - 1.0)?);
    let (_, launches) = count_launches(device, || more.realize())?;
    assert_eq!(launches, 1);
    let (elements, launches) = count_launches(device, || product.to_vec::<f32>())?;
    assert_eq!(launches, 0, "the kernel has stored both");
    let (_, launches) = count_launches(device, || less.realize())?;
    assert_eq!(launches, 1);
    let exact: Vec<f32> =
        (0..16).map(|i| (0..4).map(|k| (i / 4 * 4 + k) as f32 * (k * 4 + i % 4) as f32).sum()).collect();
    assert_eq!(elements, exact);
    assert_eq!(more.to_vec::<f32>()?, exact.iter().map(|x| x + 1.0).collect::<Vec<_>>());
    assert_eq!(less.to_vec::<f32>()?, exact.iter().map(|x| x - 1.0).collect::<Vec<_>>());
    // After the product is read itself, there is no kernel left to finish.
    let product = x.matmul(&x)?;
    product.realize()?;
    let (_, launches) = count_launches(device, || (product + 1.0)?.realize())?;
    assert_eq!(launches, 1);
    Ok(())
}

/// Addends with more axes that do not merge than any parameter block has room for, on most devices.
fn what_kernels_of_products_cannot_do_runs_apart(device: &Device) -> Result<()> {
    let a = Tensor::arange(0f32, 64.0 * 3.0 * 5.0, device)?.reshape([2, 2, 2, 2, 2, 2, 3, 5])?;
    let b = Tensor::arange(0f32, 20.0, device)?.reshape((5, 4))?;
    let finished = |product: &Tensor| -> Result<Tensor> {
        let mut sum = product.clone();
        for turn in 0..5 {
            let mut axes: Vec<usize> = (0..6).rev().collect();
            axes.rotate_left(turn);
            let addend = Tensor::arange(0f32, 64.0, device)?.reshape([2; 6])?.permute(axes)?;
            sum = sum.add(&addend.unsqueeze(-1)?.unsqueeze(-1)?)?;
        }
        Ok(sum)
    };
    let product = a.matmul(&b)?;
    product.realize()?;
    assert_eq!(finished(&a.matmul(&b)?)?.to_vec::<f32>()?, finished(&product)?.to_vec::<f32>()?);
    Ok(())
}

/// Operands stay unchanged until the product has run. Then the product releases them.
fn products_hold_their_operands(device: &Device) -> Result<()> {
    let ones = Tensor::ones((512, 512), DType::F32, device)?;
    ones.realize()?;
    let zero = Tensor::zeros((), DType::F32, device)?;
    let product = ones.matmul(&Tensor::ones((512, 1), DType::F32, device)?)?;
    let changed = ones.slice_assign((0..1, ..), &zero)?;
    let in_use = device.memory_stats().in_use;
    assert_eq!(product.to_vec::<f32>()?, [512.0; 512]);
    assert!(device.memory_stats().in_use < in_use - (512 << 10));
    assert_eq!(changed.sum_all()?.to_scalar::<f32>()?, (511 * 512) as f32);
    let sum = (changed.matmul(&Tensor::ones((512, 1), DType::F32, device)?)? + 1.0)?;
    sum.realize()?;
    let in_use = device.memory_stats().in_use;
    drop(changed);
    assert_eq!(device.memory_stats().in_use, in_use - (1 << 20), "what has run holds nothing");
    Ok(())
}

/// With the tuning of a GPU, a norm, a product and what is added to it are one kernel. Plans keep nothing of the norm.
fn products_normalise_their_rows(device: &Device) -> Result<()> {
    let device = open_tuned(&device.id(), &tuning::entry("default").unwrap().tuning)?;
    let matrix = Tensor::ones((8, 64), DType::F32, &device)?;
    let x = Tensor::full(2f32, (1, 64), &device)?;
    let residual = Tensor::full(0.5f32, (1, 8), &device)?;
    for operand in [&matrix, &x, &residual] {
        operand.realize()?;
    }
    let layer = Linear::new(matrix, None);
    // Squares of 4 and 0 or 12: roots of 2 and of 4.
    for (weight, eps, expected) in [(1f32, 0.0, 64.5), (3.0, 0.0, 192.5), (3.0, 12.0, 96.5), (1.0, 12.0, 32.5)] {
        let weight = Tensor::full(weight, 64, &device)?;
        weight.realize()?;
        let (y, launches) = count_launches(&device, || {
            let y = layer.forward_norm(&RmsNorm::new(weight, eps), &x)?.add(&residual)?;
            y.realize()?;
            Ok(y)
        })?;
        assert_eq!((launches, y.to_vec::<f32>()?), (1, vec![expected; 8]));
    }
    // Four gates of 64, and four numbers that they gate.
    let gated = GatedLinear::new(layer, Gate::Silu);
    let norm = RmsNorm::new(Tensor::full(1f32, 64, &device)?, 0.0);
    let (y, launches) = count_launches(&device, || gated.forward_norm(&norm, &x)?.to_vec::<f32>())?;
    assert_eq!((launches, y), (2, vec![4096.0; 4]), "the norm's weight, and all else");
    // Weights with rows that lie backwards, or not in whole runs of 16 bytes.
    let numbers: Vec<f32> = (0..40).map(|i| ((i * 7) % 11) as f32 - 5.0).collect();
    let rows = Tensor::from_slice(&numbers, (8, 5), &device)?;
    let x = Tensor::new([[1f32, -2.0, 0.5, 3.0]], &device)?;
    let weights = rows.narrow(1, 0, 4)?;
    for weights in [weights.clone(), weights.narrow(0, 0, 2)?, weights.contiguous()?.flip(0)?] {
        let outputs = weights.dim(0)? / 2;
        let both = x.linear(&weights, None)?;
        let apart = both.narrow(1, 0, outputs)?.silu()?.mul(&both.narrow(1, outputs, outputs)?)?;
        let y = GatedLinear::new(Linear::new(weights, None), Gate::Silu).forward(&x)?;
        let off = y.sub(&apart)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(off < 1e-4, "{off}");
    }
    Ok(())
}

fn fusion_does_not_show_in_the_numbers(device: &Device) -> Result<()> {
    let half = |shape: usize| Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(DType::F16);
    let (a, b) = (half(1000)?, half(1000)?);
    let sum = a.add(&b)?;
    assert!(sum.eq(&sum)?.min_all()?.to_scalar::<bool>()?, "a pending result is equal to itself");
    let fused = a.add(&b)?.mul(&a)?;
    let rounded = a.add(&b)?;
    rounded.realize()?;
    assert_eq!(fused.to_vec::<f16>()?, rounded.mul(&a)?.to_vec::<f16>()?);
    // A value that overflows in memory also overflows in a fused kernel.
    let large = Tensor::new([f16::from_f32(100.0)], device)?;
    assert_eq!(((&large * 1000.0)? / 1000.0)?.to_vec::<f16>()?, [f16::INFINITY]);
    Ok(())
}
