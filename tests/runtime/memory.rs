//! What the pool keeps, and limits of memory.

use marquetry::io::SafeTensors;
use marquetry::{DType, Device, Error, Result, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use std::time::{Duration, Instant};

on_each_device! {
    random_shapes_leave_little_behind
    a_limit_of_memory_holds
    loaded_weights_reserve_little_more_than_their_size
    sizes_that_grow_leave_no_blocks_behind
}

/// Numbers that look random (G. Marsaglia, "Xorshift RNGs", 2003).
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// The bytes that this process has in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is told");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}

/// 20,000 operations on tensors of random sizes, of which some are held for a while. `MARQUETRY_TEST_SECONDS` makes it
/// go on for so long.
fn random_shapes_leave_little_behind(device: &Device) -> Result<()> {
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    let mut held: Vec<Tensor> = Vec::new();
    // The most that has been resident in each half.
    let mut resident_in = [0; 2];
    device.trim()?;
    let before = device.memory_stats().in_use;
    let seconds = std::env::var("MARQUETRY_TEST_SECONDS").map_or(0, |seconds| seconds.parse().expect("a number"));
    let (start, time, mut i) = (Instant::now(), Duration::from_secs(seconds), 0);
    while i < 20_000 || start.elapsed() < time {
        let (rows, columns) = (1 + random.below(200), 1 + random.below(300));
        let x = Tensor::full(i as f32, (rows, columns), device)?;
        x.realize()?;
        let y = match random.below(5) {
            0 => x.t()?.contiguous()?,
            1 => x.add(&x)?.exp()?,
            2 => x.sum_keepdim(0)?,
            3 => Tensor::cat(&[&x, &x], 0)?,
            _ => x.narrow(0, 0, rows.div_ceil(2))?.to_dtype(DType::F16)?,
        };
        y.realize()?;
        if held.len() < 30 {
            held.push(y);
        } else {
            let place = random.below(held.len());
            held[place] = y;
        }
        let stats = device.memory_stats();
        let (kept, peak) = (stats.in_use + stats.cached, stats.peak);
        assert!(2 * kept <= 3 * peak, "after {i} operations: {stats:?}");
        i += 1;
        if i % 100 == 0 {
            let most = &mut resident_in[usize::from(i > 10_000 && start.elapsed() > time / 2)];
            *most = resident().max(*most);
        }
    }
    println!("{i} operations: {:?}, resident in the halves: {resident_in:?}", device.memory_stats());
    // Drivers and the system keep some pages of their own.
    assert!(resident_in[1] < resident_in[0] + (16 << 20), "resident in the halves: {resident_in:?}");
    drop(held);
    device.trim()?;
    let after = device.memory_stats();
    assert_eq!((after.in_use, after.cached), (before, 0));
    Ok(())
}

fn a_limit_of_memory_holds(device: &Device) -> Result<()> {
    device.trim()?;
    let in_use = device.memory_stats().in_use;
    let limit = in_use + (24 << 20);
    device.set_memory_limit(limit);
    let zeros = |megabytes: usize| -> Result<Tensor> {
        let x = Tensor::zeros(megabytes << 20, DType::U8, device)?;
        x.realize()?;
        Ok(x)
    };
    let work = || -> Result<()> {
        assert!(device.memory_stats().budget <= limit);
        let x = zeros(14)?;
        let refused = zeros(14).expect_err("it is more than the limit");
        let Error::OutOfMemory { requested, limit: told, .. } = refused else { panic!("{refused}") };
        assert!(requested >= 14 << 20 && told == limit, "{refused}");
        // What has been dropped makes room, also if commands in flight use it.
        assert_eq!(x.max_all()?.to_scalar::<u8>()?, 0);
        drop(x);
        for megabytes in [14, 15, 16, 17] {
            let x = zeros(megabytes)?;
            let sum = x.add(1u8)?.max_all()?;
            drop(x);
            assert_eq!(sum.to_scalar::<u8>()?, 1);
        }
        let stats = device.memory_stats();
        assert!(stats.in_use + stats.cached <= limit, "{stats:?}");
        Ok(())
    };
    let worked = work();
    device.set_memory_limit(None);
    worked?;
    assert_eq!(zeros(40)?.elem_count(), 40 << 20);
    device.trim()?;
    Ok(())
}

/// A fourth of SmolLM2-135M: eight layers, and a part of the embedding.
fn loaded_weights_reserve_little_more_than_their_size(device: &Device) -> Result<()> {
    const WIDTH: usize = 576;
    let layer = [WIDTH, 192, 192, WIDTH, 1536, 1536, 1536, 1, 1];
    let rows: Vec<usize> = [layer; 8].concat().into_iter().chain([49_152 / 8]).collect();
    let size = rows.iter().map(|rows| 2 * rows * WIDTH).sum::<usize>() as u64;
    let zeros = vec![0; 49_152 / 8 * WIDTH * 2];
    let view = |rows| TensorView::new(Dtype::F16, vec![rows, WIDTH], &zeros[..2 * rows * WIDTH]);
    let tensors = (0..).zip(&rows).map(|(i, rows): (usize, _)| (i.to_string(), view(*rows).expect("they are as many")));
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(tensors, None, &path).expect("it can be written");
    device.trim()?;
    let before = device.memory_stats();
    let weights = SafeTensors::open(&path)?.load_all(device)?;
    device.trim()?;
    let after = device.memory_stats();
    let (used, reserved) = (after.in_use - before.in_use, after.reserved - before.reserved);
    assert!((size..=size + size / 100).contains(&used) && after.cached == before.cached, "{size}: {after:?}");
    assert!((size..=size + size / 100 * 3).contains(&reserved), "{size}: {before:?}, {after:?}");
    drop(weights);
    device.trim()?;
    let left = device.memory_stats().reserved.saturating_sub(before.reserved);
    // Vulkan keeps a small block.
    assert!(left <= 2 << 20, "{left} bytes are left");
    Ok(())
}

/// Tensors that grow one at a time: what they leave behind fits none of those that follow.
fn sizes_that_grow_leave_no_blocks_behind(device: &Device) -> Result<()> {
    device.trim()?;
    let before = device.memory_stats().reserved;
    for megabytes in (1..80).step_by(6) {
        let x = Tensor::zeros(megabytes << 20, DType::U8, device)?;
        x.realize()?;
        let y = x.add(1)?;
        y.realize()?;
        // What the pool has given up goes once its commands have run.
        device.synchronize()?;
        let stats = device.memory_stats();
        // The newest block is an eighth of all at most, and 2 MiB at least.
        let most = (stats.in_use + stats.cached) / 8 * 9 + (4 << 20);
        assert!(stats.reserved - before <= most, "at {megabytes} MiB: {stats:?}");
    }
    device.trim()?;
    let left = device.memory_stats().reserved.saturating_sub(before);
    assert!(left <= 2 << 20, "{left} bytes are left");
    Ok(())
}
