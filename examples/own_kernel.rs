//! A kernel of the app's own, written once and run on every device: `cargo run --example own_kernel`.
//!
//! It computes the rotary position embedding of language models (Su et al., 2021, "RoFormer"). In each head, the pair
//! `(x[d], x[d + half])` is rotated by the angle `position * base^(-d / half)`.

use marquetry::shader::{Access, Type};
use marquetry::{Argument, Device, Kernel, Result, Tensor};

const TOKENS: usize = 6;
const HEADS: usize = 2;
const HALF: usize = 16;
const BASE: f32 = 10_000.0;
const WORKGROUP: u32 = 64;

fn rope(device: &Device) -> Result<Kernel> {
    Kernel::build("rope", device, WORKGROUP, |k| {
        // x and y are [tokens, heads, 2 half]. An invocation rotates one pair.
        let x = k.buffer("x", Type::F32, Access::Read);
        let y = k.buffer("y", Type::F32, Access::Write);
        let pairs = k.named_parameter("pairs", Type::U32);
        let heads = k.named_parameter("heads", Type::U32);
        let half = k.named_parameter("half", Type::U32);
        let log_base = k.named_parameter("log_base", Type::F32);
        let float = marquetry::shader::Scalar::F32;

        let pair = k.global_index();
        k.when(pair.lt(pairs), || {
            let (row, d) = (pair / half, pair % half);
            let position = (row / heads).convert(float);
            let angle = position * (-log_base * d.convert(float) / half.convert(float)).exp();
            let (sine, cosine) = angle.sin_cos();
            let first = row * half * 2 + d;
            let (a, b) = (x.load(first), x.load(first + half));
            y.store(first, a * cosine - b * sine);
            y.store(first + half, a * sine + b * cosine);
        });
    })
}

/// Computes the same on the host, in double precision.
fn expected(x: &[f32]) -> Vec<f64> {
    let mut y: Vec<f64> = x.iter().copied().map(f64::from).collect();
    for (row, numbers) in y.chunks_mut(2 * HALF).enumerate() {
        for d in 0..HALF {
            let angle = (row / HEADS) as f64 * f64::from(BASE).powf(-(d as f64) / HALF as f64);
            let (a, b) = (numbers[d], numbers[d + HALF]);
            numbers[d] = a * angle.cos() - b * angle.sin();
            numbers[d + HALF] = a * angle.sin() + b * angle.cos();
        }
    }
    y
}

fn main() -> Result<()> {
    for info in Device::list() {
        let device: Device = info.id().parse()?;
        let kernel = rope(&device)?;

        let x = Tensor::randn(0f32, 1.0, (TOKENS, HEADS, 2 * HALF), &device)?;
        let pairs = x.elem_count() / 2;
        let arguments = [
            Argument::from(&x),
            Argument::output(x.shape().clone()),
            (pairs as u32).into(),
            (HEADS as u32).into(),
            (HALF as u32).into(),
            BASE.ln().into(),
        ];
        let [y] = kernel.launch(pairs.div_ceil(WORKGROUP as usize), arguments)?;

        let expected = expected(&x.to_vec::<f32>()?);
        let errors = y.to_vec::<f32>()?.into_iter().zip(expected).map(|(y, wanted)| (f64::from(y) - wanted).abs());
        println!("{device}\n  {}\n  largest error {:.1e}", kernel.signature(), errors.fold(0.0, f64::max));
    }
    Ok(())
}
