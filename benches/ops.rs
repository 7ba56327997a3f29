//! Operations on every device, with the copy bandwidth of the same run as the ceiling of those bound by memory.
//!
//! `make bench`, or `cargo bench -- vulkan/matmul` for a part. The time is from the launch to the end of the device's
//! work. On a software device only the ratios mean anything.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use marquetry::{DType, Device, DeviceKind, Result, Tensor};
use std::hint::black_box;
use std::time::Duration;

/// Times an operation, the wait for the device included.
fn measure(c: &mut Criterion, device: &Device, name: &str, throughput: Throughput, op: impl Fn() -> Result<Tensor>) {
    let mut group = c.benchmark_group(device.id());
    group.throughput(throughput).sample_size(10).measurement_time(Duration::from_secs(2));
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let result = op().expect("the operation");
            result.eval().expect("the launch");
            device.synchronize().expect("the device");
            black_box(result)
        });
    });
}

fn memory_bound(c: &mut Criterion, device: &Device, side: usize) -> Result<()> {
    let x = Tensor::randn(0f32, 1.0, (side, side), device)?;
    let y = Tensor::randn(0f32, 1.0, (side, side), device)?;
    let (weight, bias) = (Tensor::ones(side, DType::F32, device)?, Tensor::zeros(side, DType::F32, device)?);
    for tensor in [&x, &y, &weight, &bias] {
        tensor.eval()?;
    }
    let bytes = |transfers: u64| Throughput::Bytes(transfers * (side * side * 4) as u64);
    // A sum with a constant reads and writes each element once: the ceiling for the others.
    measure(c, device, "copy (ceiling)", bytes(2), || &x + 0.0);
    measure(c, device, "add", bytes(3), || &x + &y);
    measure(c, device, "tanh(a * b + a)", bytes(3), || ((&x * &y)? + &x)?.tanh());
    measure(c, device, "transposed copy", bytes(2), || x.t()?.contiguous());
    measure(c, device, "sum of all", bytes(1), || x.sum_all());
    measure(c, device, "sum of rows", bytes(1), || x.sum(1));
    measure(c, device, "sum of columns", bytes(1), || x.sum(0));
    measure(c, device, "softmax", bytes(2), || x.softmax(-1));
    measure(c, device, "cumsum of rows", bytes(2), || x.cumsum(1));
    let row = x.flatten_all()?.narrow(0, 0, 1 << 20)?;
    measure(c, device, "argsort of 2^20", Throughput::Elements(1 << 20), || row.argsort(0, false));
    measure(c, device, "top 50 of 2^20", Throughput::Elements(1 << 20), || Ok(row.topk(50, 0, true)?.0));
    measure(c, device, "layer norm", bytes(2), || x.layer_norm(&weight, &bias, 1e-5));
    Ok(())
}

fn matrix_products(c: &mut Criterion, device: &Device, sizes: &[usize]) -> Result<()> {
    for &n in sizes {
        for dtype in [DType::F32, DType::F16] {
            let a = Tensor::randn(0f32, 1.0, (n, n), device)?.to_dtype(dtype)?;
            let b = Tensor::randn(0f32, 1.0, (n, n), device)?.to_dtype(dtype)?;
            a.eval()?;
            b.eval()?;
            let operations = || Throughput::Elements(2 * (n as u64).pow(3));
            measure(c, device, &format!("matmul {dtype} {n}"), operations(), || a.matmul(&b));
            measure(c, device, &format!("matmul {dtype} {n} transposed"), operations(), || a.matmul(&b.t()?));
        }
    }
    Ok(())
}

/// A thousand dependent small operations: what a launch costs.
fn launches(c: &mut Criterion, device: &Device) -> Result<()> {
    let x = Tensor::randn(0f32, 1.0, 256, device)?;
    x.eval()?;
    measure(c, device, "1000 dependent launches", Throughput::Elements(1000), || {
        let mut y = x.clone();
        for _ in 0..1000 {
            y = y.abs()?;
            y.eval()?;
        }
        Ok(y)
    });
    Ok(())
}

fn benches(c: &mut Criterion) {
    for info in Device::list() {
        let device: Device = info.id().parse().expect("a listed device opens");
        println!("{device}");
        let software = info.kind == DeviceKind::Cpu;
        let (side, sizes): (usize, &[usize]) = if software { (1024, &[256, 512]) } else { (8192, &[512, 4096]) };
        memory_bound(c, &device, side).expect("operations bound by memory");
        matrix_products(c, &device, sizes).expect("matrix products");
        launches(c, &device).expect("launches");
    }
}

criterion_group!(ops, benches);
criterion_main!(ops);
