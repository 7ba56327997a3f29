//! How fast bytes move between the host and the best device, or the one of `MARQUETRY_DEVICE`.
//!
//! `cargo bench --bench transfers` measures all rows. Figures are medians of nine rounds, the device is idle before
//! each, and a round ends when the device has the bytes, or the host. A `memcpy` in eight threads between memory that
//! has been touched is measured in the same run: no way over the host's memory is faster than that. So is one in a
//! thread to new memory, which the system has to find and clear: this is what `to_vec` does with the bytes that come.

use anyhow::Result;
use clap::Parser;
use marquetry::io::SafeTensors;
use marquetry::{DType, Device, Tensor, TimedCommand};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Measure transfers between host and device
#[derive(Parser)]
struct Args {
    /// The largest tensor in MiB
    #[arg(long, default_value = "256")]
    size: usize,
    /// The size of the safetensors file in GiB
    #[arg(long, default_value = "0.5")]
    file: f64,
    /// What cargo passes to benches
    #[arg(long, hide = true)]
    bench: bool,
}

const THREADS: usize = 8;

/// Returns the median time of nine rounds. The first round, which allocates, does not count.
fn median(device: &Device, mut round: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..10 {
        device.synchronize()?;
        let start = Instant::now();
        round()?;
        times.push(start.elapsed());
    }
    times.remove(0);
    times.sort();
    Ok(times[times.len() / 2])
}

fn print(name: &str, bytes: usize, time: Duration) {
    let seconds = time.as_secs_f64();
    println!("{name:<44} {:>10.1} {:>8.2}", seconds * 1e6, bytes as f64 / seconds / 1e9);
}

/// Copies in several threads.
fn copy(from: &[f32], to: &mut [f32]) {
    let share = from.len().div_ceil(THREADS);
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(share).zip(to.chunks_mut(share)) {
            scope.spawn(|| to.copy_from_slice(from));
        }
    });
}

/// Measures a tensor of some bytes each way.
fn tensor(device: &Device, bytes: usize) -> Result<()> {
    let count = bytes / size_of::<f32>();
    let numbers: Vec<f32> = (0..count).map(|i| (i % 1000) as f32).collect();
    let mut read = vec![1f32; count];
    let size = match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    };
    let row = |name: &str, time| print(&format!("{size}: {name}"), bytes, time);
    if bytes >= 64 << 20 {
        let memcpy = || {
            copy(&numbers, &mut read);
            Ok(())
        };
        row("memcpy", median(device, memcpy)?);
        let to_new_memory = || {
            black_box(numbers.clone());
            Ok(())
        };
        row("memcpy to new memory", median(device, to_new_memory)?);
    }
    let mut tensor = Some(Tensor::from_slice(&numbers, count, device)?);
    row(
        "new tensor",
        median(device, || {
            let new = Tensor::from_slice(&numbers, count, device)?;
            device.synchronize()?;
            drop(new);
            Ok(())
        })?,
    );
    row(
        "write_from",
        median(device, || {
            tensor = tensor.take().map(|tensor| tensor.write_from(&numbers)).transpose()?;
            Ok(device.synchronize()?)
        })?,
    );
    let Some(tensor) = tensor else { return Ok(()) };
    row("read_into", median(device, || Ok(tensor.read_into(&mut read)?))?);
    row("to_vec", median(device, || Ok(tensor.to_vec::<f32>().map(drop)?))?);
    anyhow::ensure!(read == numbers, "{size}: other bytes came back");
    // A device that shares the host's memory may keep it elsewhere.
    let result = tensor.neg()?;
    result.realize()?;
    row("read_into, of a result", median(device, || Ok(result.read_into(&mut read)?))?);
    anyhow::ensure!(read.iter().zip(&numbers).all(|(y, x)| *y == -x), "{size}: other bytes came back");
    Ok(())
}

/// Measures an upload beside products that keep the device busy.
fn beside_products(device: &Device, bytes: usize) -> Result<()> {
    let sixteen = device.info().features.matrix_units.f16.is_some();
    let (dtype, size) = if sixteen { (DType::F16, 8192) } else { (DType::F32, 1024) };
    let matrix = Tensor::rand(0f32, 1.0, (size, size), device)?.to_dtype(dtype)?;
    let numbers = vec![1f32; bytes / size_of::<f32>()];
    let mut tensor = Some(Tensor::from_slice(&numbers, numbers.len(), device)?);
    let products = || (0..8).try_for_each(|_| matrix.matmul(&matrix)?.realize());
    let alone = median(device, || {
        products()?;
        Ok(device.synchronize()?)
    })?;
    let upload = median(device, || {
        tensor = tensor.take().map(|tensor| tensor.write_from(&numbers)).transpose()?;
        Ok(device.synchronize()?)
    })?;
    let both = median(device, || {
        products()?;
        tensor = tensor.take().map(|tensor| tensor.write_from(&numbers)).transpose()?;
        Ok(device.synchronize()?)
    })?;
    print(&format!("eight products of {size}x{size}"), 0, alone);
    print("an upload", bytes, upload);
    print("both", bytes, both);
    let (done, profile) = device.profile(|| {
        products()?;
        tensor.take().map(|tensor| tensor.write_from(&numbers)).transpose()
    })?;
    done?;
    let (copies, products): (Vec<_>, Vec<_>) = profile.commands.iter().partition(|command| command.name == "upload");
    let beside = |copy: &TimedCommand| -> Duration {
        let common = |product: &&TimedCommand| {
            copy.end.min(product.end).saturating_duration_since(copy.start.max(product.start))
        };
        products.iter().map(common).sum()
    };
    print("by timestamps: its copies", bytes, copies.iter().map(|copy| copy.duration()).sum());
    print("by timestamps: while a product ran", 0, copies.iter().map(|copy| beside(copy)).sum());
    Ok(())
}

/// Measures the load of a file that was just written, so that the system holds it in memory.
fn file(device: &Device, gib: f64) -> Result<()> {
    let path = std::env::temp_dir().join(format!("marquetry-{}.safetensors", std::process::id()));
    let each = 128 << 20;
    let count = ((gib * f64::from(1 << 30)) as usize / each).max(1);
    let tensor = Tensor::rand(0f32, 1.0, each / size_of::<f32>(), device)?;
    SafeTensors::save(&path, (0..count).map(|i| (format!("x{i}"), tensor.clone())))?;
    let opened = SafeTensors::open(&path)?;
    let load = median(device, || {
        let all = opened.load_all(device)?;
        device.synchronize()?;
        drop(all);
        Ok(())
    });
    std::fs::remove_file(path)?;
    print(&format!("{count} tensors of 128 MiB from safetensors"), count * each, load?);
    Ok(())
}

fn main() -> Result<()> {
    let Args { size, file: gib, .. } = Args::parse();
    let device = Device::best()?;
    println!("{device}\n{:<44} {:>10} {:>8}", "", "us", "GB/s");
    for bytes in [4 << 10, 1 << 20, 64 << 20, size << 20] {
        tensor(&device, bytes)?;
    }
    beside_products(&device, 64 << 20)?;
    file(&device, gib)?;
    println!("{:?}", device.memory_stats());
    Ok(())
}
