//! How many kernels are compiled, with fusion and without. The structure of a graph makes a kernel, not its shapes.

use crate::report;
use crate::suite::Outcome;
use half::f16;
use marquetry::internals::{open_tuned, tuning_of};
use marquetry::{DType, Device, Tensor};

/// The shapes of a layer that are tried, and the most kernels that may be compiled for all of them. A layer of one
/// shape takes 9. There are others for lengths that are no multiples of four, and for longer rows, which more
/// invocations share: 13 kernels in all on software devices, 34 on GPUs. If each shape had its own, there would be 180.
const SIZES: usize = 20;
const MOST: u64 = 40;

/// Opens a device twice, without other users: the counters and the switch belong to the device. The first fuses, and
/// the second runs each operation when it is called.
pub fn open_pair(device: &Device) -> Outcome<[Device; 2]> {
    let open = || open_tuned(&device.id(), &tuning_of(device.info()).tuning);
    let [fused, apart] = [open()?, open()?];
    apart.set_fusion(false);
    Ok([fused, apart])
}

/// Enters what a pair of devices has compiled into the report of this run. Returns the two numbers.
pub fn report(what: &'static str, [fused, apart]: [&Device; 2]) -> [u64; 2] {
    let kernels = [fused, apart].map(|device| device.stats().compiles);
    report::compiled(what, fused.info().backend.name(), kernels);
    kernels
}

/// A layer of a network: products with biases and an activation, scores, norms and residuals.
fn layer(rows: usize, width: usize, device: &Device) -> Outcome<Tensor> {
    let numbers = |shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        Tensor::from_vec((0..count).map(|i| (i % 13) as f32 * 0.1 - 0.5).collect(), shape, device)
    };
    let (x, bias, weight) = (numbers(&[rows, width])?, numbers(&[width])?, numbers(&[width, width])?);
    let hidden = x.layer_norm(&bias, &bias, 1e-5)?.linear(&weight, Some(&bias))?.gelu()?;
    let sum = hidden.linear(&weight, Some(&bias))?.add(&x)?;
    let scores = sum.matmul(&sum.t()?)?.affine(0.125, 0.0)?.softmax(-1)?;
    Ok(scores.matmul(&sum)?.add(&sum)?.rms_norm(&bias, 1e-5)?.sum(-1)?.to_dtype(DType::F16)?)
}

/// Fails if layers of many shapes take more kernels than they should.
pub fn try_sizes(device: &Device) -> Outcome {
    let pair = open_pair(device)?;
    for size in 1..=SIZES {
        for device in &pair {
            layer(3 * size, 4 * size + size % 2, device)?.to_vec::<f16>()?;
        }
    }
    let [fused, apart] = report("a layer of 20 shapes", pair.each_ref());
    if fused.max(apart) > MOST {
        return Err(format!("{fused} kernels with fusion, {apart} without; {MOST} at most are expected").into());
    }
    Ok(())
}
