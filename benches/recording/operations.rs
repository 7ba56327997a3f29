//! One operation.
//!
//! `all` is over 31 rounds of 200 operations. A round ends when the last operation has been recorded: no more batches
//! are submitted than may be in flight. `unsubmitted` is over 301 rounds of 15 operations, which are too few for a
//! batch: it is what the operation takes without the backend, which encodes batches. After each of these rounds the
//! host sorts a thousand numbers, and `sort` tells how long that takes. A slow core takes longer for both.

use crate::{Wanted, median, median_us};
use anyhow::{Result, ensure};
use marquetry::{AttentionConfig, ConvConfig, DType, Device, Tensor};
use std::hint::black_box;
use std::time::Instant;

type Operation<'a> = Box<dyn Fn() -> marquetry::Result<Tensor> + 'a>;

/// Returns how long the host sorts a thousand numbers, in microseconds.
fn sort_us() -> f64 {
    let mut random = fastrand::Rng::with_seed(1);
    let mut numbers: Vec<u32> = (0..1000).map(|_| random.u32(..)).collect();
    let start = Instant::now();
    numbers.sort_unstable();
    let time = start.elapsed();
    black_box(numbers);
    time.as_nanos() as f64 / 1e3
}

/// Measures an operation, and prints a row.
fn row(device: &Device, name: &str, operation: &Operation) -> Result<()> {
    let round = |operations: usize| (0..operations).try_for_each(|_| operation()?.realize());
    let all = median_us(device, 31, || Ok(round(200)?))? / 200.0;
    let (mut times, mut sorts) = (Vec::new(), Vec::new());
    for _ in 0..301 {
        device.synchronize()?;
        let before = device.stats().submissions;
        let start = Instant::now();
        round(15)?;
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
        ensure!(device.stats().submissions == before, "{name}: a round is a batch");
        sorts.push(sort_us());
    }
    println!("{name:<34} {all:>8.2} {:>12.2} {:>8.1}", median(times) / 15.0, median(sorts));
    Ok(())
}

/// Prints the rows of operations.
pub fn print(device: &Device, wanted: &Wanted) -> Result<()> {
    let vector = Tensor::rand(0f32, 1.0, 64, device)?;
    let matrix = Tensor::rand(0f32, 1.0, (8, 8), device)?;
    let turned = Tensor::rand(0f32, 1.0, (8, 8, 3), device)?.transpose(0, 2)?;
    let heads = Tensor::rand(0f32, 1.0, (1, 2, 8, 32), device)?;
    let image = Tensor::rand(0f32, 1.0, (1, 4, 8, 8), device)?;
    let filters = Tensor::rand(0f32, 1.0, (4, 4, 3, 3), device)?;
    let (attention, conv) = (AttentionConfig::default(), ConvConfig::default());
    let ids = Tensor::zeros(8, DType::U32, device)?;
    let sixteen = || (0..16).try_fold(vector.clone(), |sum, _| sum.add(&vector));
    let rows: [(&str, Operation); 10] = [
        ("sixteen fused additions", Box::new(sixteen)),
        ("add of a number", Box::new(|| vector.add(1.0))),
        ("chain of four", Box::new(|| vector.add(1.0)?.mul(&vector)?.gelu()?.sub(&vector))),
        ("copy of a permuted view", Box::new(|| turned.contiguous())),
        ("a matrix product", Box::new(|| matrix.matmul(&matrix))),
        ("matrix product with a bias", Box::new(|| matrix.matmul(&matrix)?.add(&matrix))),
        ("softmax", Box::new(|| matrix.softmax(-1))),
        ("index_select", Box::new(|| matrix.index_select(&ids, 0))),
        ("attention", Box::new(|| heads.scaled_dot_product_attention(&heads, &heads, &attention))),
        ("conv2d", Box::new(|| image.conv2d(&filters, None, &conv))),
    ];
    println!("{:<34} {:>8} {:>12} {:>8}", "", "all", "unsubmitted", "sort");
    rows.iter().filter(|(name, _)| wanted.has(name)).try_for_each(|(name, operation)| row(device, name, operation))
}
