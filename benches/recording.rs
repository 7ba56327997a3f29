//! How long the host takes to record an operation, on the best device or the one of `MARQUETRY_DEVICE`.
//!
//! `cargo bench --bench recording`. Each figure is the median of 31 rounds of 200 operations, in nanoseconds per
//! operation. The device is idle before a round, and a round ends when the last operation has been recorded: no more
//! batches are submitted than may be in flight.

use marquetry::{DType, Device, Result, Tensor};
use std::time::Instant;

type Operation<'a> = Box<dyn Fn() -> Result<Tensor> + 'a>;

const ROUNDS: usize = 31;
const OPERATIONS: usize = 200;

/// Returns the median time of an operation in nanoseconds.
fn measure(device: &Device, operation: impl Fn() -> Result<Tensor>) -> Result<f64> {
    let mut rounds = Vec::new();
    for _ in 0..=ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..OPERATIONS {
            operation()?.realize()?;
        }
        rounds.push(start.elapsed().as_nanos() as f64 / OPERATIONS as f64);
    }
    // The first round compiles the kernel.
    rounds.remove(0);
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

fn main() -> Result<()> {
    let device = Device::best()?;
    println!("{device}");
    let vector = Tensor::rand(0f32, 1.0, 64, &device)?;
    let matrix = Tensor::rand(0f32, 1.0, (8, 8), &device)?;
    let turned = Tensor::rand(0f32, 1.0, (8, 8, 3), &device)?.transpose(0, 2)?;
    let ids = Tensor::zeros(8, DType::U32, &device)?;
    let sixteen = || (0..16).try_fold(vector.clone(), |sum, _| sum.add(&vector));
    let rows: [(&str, Operation); 7] = [
        ("sixteen fused additions", Box::new(sixteen)),
        ("add of a number", Box::new(|| vector.add(1.0))),
        ("chain of four", Box::new(|| vector.add(1.0)?.mul(&vector)?.gelu()?.sub(&vector))),
        ("copy of a permuted view", Box::new(|| turned.contiguous())),
        ("matrix product with a bias", Box::new(|| matrix.matmul(&matrix)?.add(&matrix))),
        ("softmax", Box::new(|| matrix.softmax(-1))),
        ("index_select", Box::new(|| matrix.index_select(&ids, 0))),
    ];
    let (mut x, bias) = (Tensor::zeros(1024, DType::F32, &device)?, Tensor::rand(0f32, 1.0, 1024, &device)?);
    let mut rounds: Vec<f64> = Vec::new();
    for _ in 0..ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..1000 {
            x = x.add(&bias)?.tanh()?;
        }
        x.realize()?;
        rounds.push(start.elapsed().as_nanos() as f64 / 1000.0);
    }
    rounds.sort_by(f64::total_cmp);
    println!("{:<28} {:>8.0} ns", "a link tanh(x + b)", rounds[ROUNDS / 2]);
    for (name, operation) in rows {
        println!("{name:<28} {:>8.0} ns", measure(&device, operation)?);
    }
    Ok(())
}
