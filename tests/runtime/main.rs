//! The counters of every device: launches, submissions, waits and memory.

use marquetry::{
    ConvConfig, DType, Device, DeviceKind, Error, Gemm, GemmStridedBatched, MatrixBatch, MemoryKind, PoolConfig,
    Precision, Profile, Result, Tensor, TimedCommand,
};
use std::future::Future as _;
use std::time::Instant;

/// Runs each test on a device without other users, because the counters belong to the device.
macro_rules! on_each_device {
    ($($name:ident)*) => {
        mod vulkan {
            $(#[test] fn $name() { crate::on("vulkan", super::$name); })*
        }
        mod webgpu {
            $(#[test] fn $name() { crate::on("webgpu", super::$name); })*
        }
        mod level_zero {
            $(#[test] fn $name() { crate::on("level-zero", super::$name); })*
        }
    };
}

mod asynchronous;
mod capture;
mod fusion;
mod kv_cache;
mod memory;
mod sampler;
mod transfer;

on_each_device! {
    nothing_is_submitted_before_a_read
    long_work_is_submitted_in_batches
    long_work_exhausts_nothing
    heavy_work_is_submitted_soon
    submitting_does_not_wait_for_the_work_before
    asynchronous_reads_share_a_thread
    padding_takes_no_time
    deep_products_are_cut
    long_windows_are_cut
    memory_is_used_again
    products_are_written_in_place
    what_is_kept_is_bounded
    trim_returns_memory
    many_small_uploads
    large_uploads_are_on_their_way_soon
    dispatches_beyond_65535_workgroups
    long_rows_are_cut_into_chunks
    more_axes_than_parameters
    sums_of_many_long_rows_lose_nothing
    what_32_bits_cannot_count_is_an_error
    products_may_be_less_exact
    products_of_bytes_are_made_of_words
    many_threads_share_a_device
    a_seed_starts_the_sequence_anew
    parts_are_assigned_in_place
    the_host_reaches_memory_where_it_is
    a_profile_tells_of_every_command
    a_part_of_a_buffer_counts_as_a_part
    a_roofline_is_measured_once_and_shown_by_profiles
    profiles_do_not_nest
    a_profile_while_other_threads_work
    a_profile_ends_with_a_panic
}

/// Returns a lock for one test at a time, so that the counters belong to it alone.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn on(name: &str, test: fn(&Device) -> Result<()>) {
    let _alone = alone();
    let device = name.parse::<Device>().unwrap_or_else(|error| panic!("{error}; `make setup` installs a driver"));
    test(&device).unwrap_or_else(|error| panic!("{error}"));
}

fn count_launches<T>(device: &Device, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let before = device.stats().launches;
    Ok((work()?, device.stats().launches - before))
}

fn nothing_is_submitted_before_a_read(device: &Device) -> Result<()> {
    let x = Tensor::randn(0f32, 1.0, (64, 64), device)?;
    let before = device.stats();
    let y = x.matmul(&x.t()?)?.softmax(-1)?.sum(0)?;
    y.realize()?;
    let recorded = device.stats();
    assert_eq!((recorded.submissions, recorded.waits), (before.submissions, before.waits));
    assert_eq!(recorded.launches, before.launches + 4);
    y.to_vec::<f32>()?;
    let read = device.stats();
    assert_eq!((read.submissions, read.waits), (before.submissions + 1, before.waits + 1));
    Ok(())
}

/// Checks the number of full batches that many small kernels make for an idle device. The first has 16, and each
/// further one 16 more, up to 128, if the device has always run those before. If it never has, the fourth has 256, and
/// each further one twice as many, up to 1,024.
fn assert_full_batches(commands: u64, submissions: u64) {
    let batches = |length: &dyn Fn(u32) -> u64| {
        let (mut left, mut count) = (commands, 0);
        while let Some(rest) = left.checked_sub(length(count)) {
            (left, count) = (rest, count + 1);
        }
        u64::from(count)
    };
    let soon = |i: u32| (16 + 16 * u64::from(i)).min(128);
    let behind = |i: u32| if i < 3 { soon(i) } else { 256 << (i - 3).min(2) };
    let expected = batches(&behind)..=batches(&soon);
    assert!(expected.contains(&submissions), "{submissions} submissions for {commands} commands, not {expected:?}");
}

fn long_work_is_submitted_in_batches(device: &Device) -> Result<()> {
    let mut x = Tensor::new([0f32; 8], device)?;
    device.synchronize()?;
    let before = device.stats();
    for _ in 0..1000 {
        x = (x + 1.0)?;
        x.realize()?;
    }
    let after = device.stats();
    assert_eq!(after.launches - before.launches, 1000);
    assert_full_batches(1000, after.submissions - before.submissions);
    assert_eq!(after.waits, before.waits);
    assert_eq!(x.to_vec::<f32>()?, [1000.0; 8]);
    Ok(())
}

fn heavy_work_is_submitted_soon(device: &Device) -> Result<()> {
    let mut submissions = Vec::new();
    let [large, small] = [1 << 24, 16].map(|length: usize| Tensor::zeros(length, DType::F32, device));
    for operand in [large?, small?] {
        operand.realize()?;
        device.synchronize()?;
        let before = device.stats().submissions;
        for _ in 0..8 {
            operand.neg()?.realize()?;
        }
        submissions.push(device.stats().submissions - before);
    }
    // The large ones move 128 MB each.
    assert_eq!(submissions, [8, 0]);
    Ok(())
}

fn submitting_does_not_wait_for_the_work_before(device: &Device) -> Result<()> {
    let [heavy, light] = [900, 8].map(|length: usize| Tensor::ones((length, length), DType::F32, device));
    let (heavy, light) = (heavy?, light?);
    for x in [&heavy, &light] {
        x.matmul(x)?.to_vec::<f32>()?;
    }
    device.synchronize()?;
    let start = Instant::now();
    let mut product = heavy.clone();
    for _ in 0..8 {
        product = (product.matmul(&heavy)? * (1.0 / 900.0))?;
        product.realize()?;
    }
    // Each of these is submitted at once.
    let first = product.to_vec_async::<f32>();
    let mut later = Vec::new();
    let mut pending = Box::pin(first);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(pending.as_mut().poll(&mut context).is_pending(), "the work takes a while");
    // If wgpu gets WGSL, it opens the device by itself, and waits at each submission. A read may then be ready at once.
    let waits = device.id().starts_with("webgpu") && std::env::var_os("MARQUETRY_FORCE").is_some();
    for _ in 0..8 {
        let mut read = Box::pin(async { light.matmul(&light)?.to_vec_async::<f32>().await });
        match read.as_mut().poll(&mut context) {
            std::task::Poll::Pending => later.push(read),
            std::task::Poll::Ready(elements) => {
                assert!(waits, "a read is ready before the work that it stands behind");
                assert_eq!(elements?[0], 8.0);
            }
        }
    }
    let recorded = start.elapsed();
    assert_eq!(pollster::block_on(pending)?[0], 1.0);
    let done = start.elapsed();
    for read in later {
        assert_eq!(pollster::block_on(read)?[0], 8.0);
    }
    // The host shares its cores with software devices.
    assert!(waits || recorded < done / 2, "recording took {recorded:?} of {done:?}");
    Ok(())
}

fn asynchronous_reads_share_a_thread(device: &Device) -> Result<()> {
    let x = Tensor::from_slice(&[1f32; 300], 300, device)?;
    let read = |i: u32| x.add(i).map(|y| Box::pin(async move { y.to_vec_async::<f32>().await }));
    let mut reads = (0..20).map(read).collect::<Result<Vec<_>>>()?;
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut ready = Vec::new();
    for (i, read) in reads.iter_mut().enumerate() {
        if let std::task::Poll::Ready(elements) = read.as_mut().poll(&mut context) {
            ready.push((i, elements?));
        }
    }
    // Others may read meanwhile, although all staging buffers are in use.
    let long = vec![7u8; (9 << 20) + 1];
    assert!((Tensor::from_slice(&long, long.len(), device)?.add(1u8)?).to_vec::<u8>()? == vec![8u8; long.len()]);
    let threads = std::fs::read_dir("/proc/self/task").expect("the process has threads");
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    let waiting = names.filter(|name| name.trim() == "marquetry reads").count();
    assert!((1..=3).contains(&waiting), "{waiting} threads for 20 reads; there are three devices");
    for (i, read) in reads.into_iter().enumerate() {
        let elements = match ready.iter().position(|(known, _)| *known == i) {
            Some(known) => ready.swap_remove(known).1,
            None => pollster::block_on(read)?,
        };
        assert_eq!(elements, [i as f32 + 1.0; 300]);
    }
    // The device is known to be idle: it gets the first 16 commands at once.
    let before = device.stats().submissions;
    for i in 0..16 {
        assert_eq!(device.stats().submissions, before, "after {i} commands");
        x.neg()?.realize()?;
    }
    assert_eq!(device.stats().submissions, before + 1);
    Ok(())
}

/// Fails if the work takes longer than some seconds. It took minutes when loops went over padding.
fn within_seconds<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let result = work()?;
    assert!(start.elapsed().as_secs() < 10, "it took {:?}", start.elapsed());
    Ok(result)
}

fn padding_takes_no_time(device: &Device) -> Result<()> {
    let x = Tensor::new([[1f32, 2.0, 3.0, 4.0]], device)?;
    within_seconds(|| {
        let far = PoolConfig::new(1 << 28).padding([((1 << 28) - 4, 0)]);
        assert_eq!(x.lp_pool1d(1.0, &far)?.to_vec::<f32>()?, [10.0]);
        assert_eq!(x.max_pool1d(&far)?.to_vec::<f32>()?, [4.0]);
        // The windows read every third element of the padded input. In the input, these are the second, the third, and
        // the first with the fourth.
        let apart = PoolConfig::new(1 << 26).dilation(3).stride(1).padding([(3 * (1 << 26) - 4, 0)]);
        assert_eq!(x.max_pool1d(&apart)?.to_vec::<f32>()?, [2.0, 3.0, 4.0]);
        // Each position of the kernel meets at most four elements.
        let length = 1 << 17;
        let kernel = Tensor::ones((1, 1, length), DType::F32, device)?;
        let ramp = |i: usize| {
            [1f32, 3.0, 6.0, 10.0, 9.0, 7.0, 4.0][if i < 4 { i } else { 3 + (i + 1).saturating_sub(length) }]
        };
        let expected: Vec<f32> = (0..length + 3).map(ramp).collect();
        let spread = x.conv_transpose1d(&kernel, None, &ConvConfig::default())?;
        assert!(spread.to_vec::<f32>()? == expected);
        let slid = x.conv1d(&kernel, None, &ConvConfig::default().padding(length - 1))?;
        assert!(slid.to_vec::<f32>()? == expected);
        // No tap reaches the outputs in between.
        let apart = x.conv_transpose1d(&kernel, None, &ConvConfig::default().stride(2).dilation(2))?;
        let expected: Vec<f32> = expected.iter().flat_map(|&y| [y, 0.0]).take(2 * expected.len() - 1).collect();
        assert!(apart.to_vec::<f32>()? == expected);
        Ok(())
    })
}

fn deep_products_are_cut(device: &Device) -> Result<()> {
    // Products with one output run as the parts and their sum. For 64-bit numbers, the products are stored and summed.
    let sum_of_ones = |dtype: DType, depth: usize| -> Result<(f64, bool)> {
        let [row, column] = [(1, depth), (depth, 1)].map(|shape: (usize, usize)| Tensor::ones(shape, dtype, device));
        let (row, column) = (row?, column?);
        row.realize()?;
        column.realize()?;
        let (sum, told) = device.explain(|| {
            let product = row.matmul(&column)?;
            product.realize().map(|()| product)
        })?;
        let is_cut = told.kernels.len() > 1 && told.kernels.iter().any(|kernel| kernel.name.starts_with("sum("));
        Ok((f64::from(sum?.to_dtype(DType::F32)?.reshape(())?.to_scalar::<f32>()?), is_cut))
    };
    for (dtype, deep) in [(DType::F32, 1 << 17), (DType::BF16, 1 << 17), (DType::I8, 1 << 19), (DType::I64, 1 << 17)] {
        if dtype == DType::I64 && !device.info().features.i64 {
            continue;
        }
        assert_eq!(sum_of_ones(dtype, deep)?, (deep as f64, true), "{dtype}");
        // Depths that occur in practice are not split.
        assert_eq!(sum_of_ones(dtype, 1 << 14)?, (f64::from(1 << 14), false), "{dtype}");
    }
    within_seconds(|| {
        assert_eq!(sum_of_ones(DType::F32, 1 << 24)?.0, f64::from(1 << 24));
        Ok(())
    })
}

fn long_windows_are_cut(device: &Device) -> Result<()> {
    const LENGTH: usize = 1 << 24;
    let x = Tensor::ones((1, 1, LENGTH), DType::F32, device)?;
    within_seconds(|| {
        let whole = PoolConfig::new(LENGTH).stride(1);
        let (mean, launches) = count_launches(device, || x.avg_pool1d(&whole)?.to_vec::<f32>())?;
        assert_eq!(mean, [1.0]);
        assert!(launches > 1, "many workgroups share the window: their sums, and the sum of those");
        assert_eq!(x.max_pool1d(&whole)?.to_vec::<f32>()?, [1.0]);
        let two = PoolConfig::new(LENGTH - 1).stride(1);
        assert_eq!(x.lp_pool1d(1.0, &two)?.to_vec::<f32>()?, [(LENGTH - 1) as f32; 2]);
        Ok(())
    })
}

fn long_work_exhausts_nothing(device: &Device) -> Result<()> {
    // With hundreds of batches in flight, a driver may run out of mappings. The stream limits the number of batches.
    let mut x = Tensor::new([0u32; 4], device)?;
    let one = Tensor::new(1u32, device)?;
    device.synchronize()?;
    let before = device.stats();
    for _ in 0..20_000 {
        x = x.add(&one)?;
        x.realize()?;
    }
    assert_full_batches(20_000, device.stats().submissions - before.submissions);
    assert_eq!(x.to_vec::<u32>()?, [20_000; 4]);
    Ok(())
}

fn memory_is_used_again(device: &Device) -> Result<()> {
    let x = Tensor::randn(0f32, 1.0, (100, 100), device)?;
    let pass = || x.matmul(&x)?.tanh()?.sum_all()?.to_scalar::<f32>();
    let first = pass()?;
    let after_first = device.memory_stats();
    for _ in 0..50 {
        assert_eq!(pass()?, first);
    }
    assert_eq!(device.memory_stats(), after_first);
    Ok(())
}

/// A product is written into a small part of a large buffer, without a second buffer of that size.
fn products_are_written_in_place(device: &Device) -> Result<()> {
    let a = Tensor::ones(4, DType::F32, device)?;
    let mut c = Tensor::from_vec(vec![1f32; 1 << 20], 1 << 20, device)?;
    let place = MatrixBatch::new(1000).offset(5000);
    let call = GemmStridedBatched::new([2, 2, 2]).gemm(Gemm::default().beta(1.0)).c(place);
    for _ in 0..3 {
        c = Tensor::gemm_strided_batched(&a, &a, c, call)?;
    }
    assert!(device.memory_stats().peak < 8 << 20, "{:?}", device.memory_stats());
    let expected = [[1.0, 7.0, 7.0, 1.0], [1.0, 7.0, 7.0, 1.0]].concat();
    assert_eq!(c.as_strided((2, 4), &[1000, 1], 4999)?.to_vec::<f32>()?, expected);
    Ok(())
}

/// Growing sizes leave buffers in the pool that nothing will use again.
fn what_is_kept_is_bounded(device: &Device) -> Result<()> {
    let mut all = 0;
    for i in 1..=48 {
        let x = Tensor::ones((i, 1 << 16), DType::F32, device)?;
        let y = (&x + 1.0)?.sum_keepdim(0)?;
        y.realize()?;
        x.realize()?;
        all += (i as u64) << 18;
        let stats = device.memory_stats();
        assert!(stats.cached <= stats.peak, "{stats:?}");
    }
    let stats = device.memory_stats();
    assert!(stats.peak < 32 << 20, "{stats:?}");
    assert!(all > 8 * stats.peak, "without a bound, {all} bytes would be kept");
    Ok(())
}

fn trim_returns_memory(device: &Device) -> Result<()> {
    let before = device.memory_stats().in_use;
    let x = Tensor::from_vec(vec![1f32; 1 << 20], 1 << 20, device)?;
    assert!(device.memory_stats().in_use >= before + (4 << 20));
    drop(x);
    assert_eq!(device.memory_stats().in_use, before);
    assert!(device.memory_stats().cached >= 4 << 20);
    assert!(device.trim()? >= 4 << 20);
    assert_eq!(device.memory_stats().cached, 0);
    let y = Tensor::new([1u32, 2, 3], device)?;
    assert_eq!(y.sum_all()?.to_scalar::<u32>()?, 6);
    Ok(())
}

fn many_small_uploads(device: &Device) -> Result<()> {
    // Buffers return to the pool and are filled again before the device has read them.
    let tensors: Vec<Tensor> = (0..600u32)
        .map(|i| {
            drop(Tensor::new([u32::MAX; 5], device)?);
            Tensor::new([i; 5], device)
        })
        .collect::<Result<_>>()?;
    for (i, tensor) in tensors.iter().enumerate() {
        assert_eq!(tensor.to_vec::<u32>()?, [i as u32; 5]);
    }
    Ok(())
}

fn large_uploads_are_on_their_way_soon(device: &Device) -> Result<()> {
    // A batch is submitted after 64 MiB of uploads, wherever the host writes them. Otherwise uploads would be held
    // without limit.
    let bytes = vec![1u8; 16 << 20];
    device.synchronize()?;
    let before = device.stats().submissions;
    for _ in 0..8 {
        (Tensor::from_slice(&bytes, bytes.len(), device)?.narrow(0, 1, 9)? + 1.0)?.realize()?;
    }
    let submissions = device.stats().submissions - before;
    // A device that moves these bytes slowly gets each kernel at once, and each piece of 2 MiB.
    assert!((2..=8 * (8 + 1)).contains(&submissions), "{submissions}");
    Ok(())
}

fn dispatches_beyond_65535_workgroups(device: &Device) -> Result<()> {
    // Elementwise: four elements per invocation, 64 invocations per workgroup.
    let count = 65_535 * 256 + 777u32;
    let numbers = Tensor::arange(0u32, count, device)?;
    let total = (0..u64::from(count)).sum::<u64>() as u32;
    assert_eq!(numbers.sum_all()?.to_scalar::<u32>()?, total, "modulo 2^32");
    assert_eq!(numbers.slice(0, count as usize - 3.., 1)?.to_vec::<u32>()?, [count - 3, count - 2, count - 1]);
    // Reductions: one row per invocation.
    let rows = 65_535 * 64 + 33;
    let sums = numbers.narrow(0, 0, 2 * rows)?.reshape((rows, 2))?.sum(1)?;
    assert_eq!(sums.narrow(0, rows - 2, 2)?.to_vec::<u32>()?, [4 * (rows as u32 - 2) + 1, 4 * (rows as u32 - 1) + 1]);
    // Matrix products: at least one workgroup for each matrix of a batch.
    let batch = 70_001;
    let scale = Tensor::arange(0i32, batch, device)?.reshape((batch as usize, 1, 1))?;
    let product = scale.matmul(&Tensor::new([[2i32, 3]], device)?)?;
    assert_eq!(product.dims(), [batch as usize, 1, 2]);
    let last = product.narrow(0, batch as usize - 1, 1)?;
    assert_eq!(last.to_vec::<i32>()?, [2 * (batch - 1), 3 * (batch - 1)]);
    assert_eq!(product.to_dtype(DType::F32)?.max_all()?.to_scalar::<f32>()?, 3.0 * (batch - 1) as f32);
    Ok(())
}

fn long_rows_are_cut_into_chunks(device: &Device) -> Result<()> {
    // The chunks do not divide the lengths, and the two axes do not merge.
    let (rows, length) = (3usize, 100_003usize);
    let value = |i: usize| ((i as u64).wrapping_mul(2_654_435_761) % 1_000_003) as i32 - 500_000;
    let numbers: Vec<i32> = (0..rows * length).map(value).collect();
    let x = Tensor::from_slice(&numbers, (rows, length), device)?;
    let by_row = |fold: &dyn Fn(&[i32]) -> i32| -> Vec<i32> { numbers.chunks(length).map(fold).collect() };
    let sum = |row: &[i32]| row.iter().fold(0i32, |sum, x| sum.wrapping_add(*x));
    assert_eq!(x.sum(1)?.to_vec::<i32>()?, by_row(&sum));
    assert_eq!(x.max(1)?.to_vec::<i32>()?, by_row(&|row| *row.iter().max().unwrap()));
    assert_eq!(x.min(1)?.to_vec::<i32>()?, by_row(&|row| *row.iter().min().unwrap()));
    let first_largest = |row: &[i32]| (0..length).rev().max_by_key(|&i| row[i]).unwrap() as u32;
    assert_eq!(x.argmax(1)?.to_vec::<u32>()?, numbers.chunks(length).map(first_largest).collect::<Vec<_>>());
    let every_other = x.slice(1, .., 2)?;
    let halves: Vec<i32> = numbers.chunks(length).flat_map(|row| row.iter().step_by(2).copied()).collect();
    assert_eq!(every_other.sum([1, 0])?.to_scalar::<i32>()?, sum(&halves));
    // The error of a sum of floats stays small, although adding one by one would lose them: 2^24 + 1 = 2^24.
    let ones = Tensor::full(1f32, (1 << 25, 1), device)?;
    assert_eq!(ones.sum_all()?.to_scalar::<f32>()?, (1 << 25) as f32);
    Ok(())
}

fn more_axes_than_parameters(device: &Device) -> Result<()> {
    // Twelve axes of length 2 that do not merge. A sum of two such views needs more words than a launch has.
    let axes: Vec<usize> = (0..12).rev().collect();
    let x = Tensor::arange(0i32, 4096, device)?.reshape([2; 12].as_slice())?;
    let reversed = x.permute(axes.as_slice())?;
    let sum = x.slice(3, ..1, 1)?.broadcast_to([2; 12].as_slice())?.add(&reversed)?.add(&reversed.mul(&x)?)?;
    let bits = |i: i32| (i.reverse_bits() >> 20) & 0xfff;
    let expected: Vec<i32> = (0..4096).map(|i| (i & !(1 << 8)) + bits(i) + bits(i) * i).collect();
    assert_eq!(sum.to_vec::<i32>()?, expected);
    assert_eq!(reversed.sum([0, 2, 4, 6, 8, 10])?.elem_count(), 64);
    // The last input to be copied is contiguous, but misaligned for reads of four elements.
    let shifted = Tensor::arange(0i32, 4097, device)?.narrow(0, 1, 4096)?.reshape([2; 12].as_slice())?;
    let swapped = x.transpose(0, 11)?.transpose(2, 7)?;
    let mixed = reversed.add(&swapped)?.mul(&x.transpose(1, 5)?)?.sub(&shifted)?;
    let copied = reversed.contiguous()?.add(&swapped.contiguous()?)?.mul(&x.transpose(1, 5)?.contiguous()?)?;
    assert_eq!(mixed.to_vec::<i32>()?, copied.sub(&shifted)?.to_vec::<i32>()?);
    let halves = reversed.matmul(&x)?;
    assert_eq!(halves.dims(), [2; 12]);
    Ok(())
}

fn sums_of_many_long_rows_lose_nothing(device: &Device) -> Result<()> {
    // Added one by one in `f32`, ones reach no more than 2^24.
    let length = (1 << 24) + 2;
    let ones = Tensor::new([[1f32]; 16], device)?.broadcast_to((16, length))?;
    assert_eq!(ones.sum(1)?.to_vec::<f32>()?, [length as f32; 16]);
    Ok(())
}

fn what_32_bits_cannot_count_is_an_error(device: &Device) -> Result<()> {
    let one = Tensor::new([[1f32]], device)?;
    let endless = one.broadcast_to((1, 1 << 33))?.matmul(&one.broadcast_to((1 << 33, 1))?);
    assert!(matches!(endless, Err(Error::SizeOverflow { .. })), "{endless:?}");
    let wide = Tensor::rand(f32::MIN, f32::MAX, 4, device);
    assert!(matches!(wide, Err(Error::InvalidArgument { .. })), "{wide:?}");
    Ok(())
}

fn many_threads_share_a_device(device: &Device) -> Result<()> {
    std::thread::scope(|scope| {
        let work = |seed: u32| -> Result<()> {
            for round in 0..20 {
                let x = Tensor::full(seed, (17, 5), device)?;
                let y = x.add(&Tensor::new(round, device)?)?;
                assert_eq!(y.sum(0)?.to_vec::<u32>()?, [17 * (seed + round); 5]);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..8).map(|seed| scope.spawn(move || work(seed))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// Eight threads use three devices at once: each computes, captures, and moves tensors between them.
#[test]
fn many_threads_share_several_devices() {
    let _alone = alone();
    let devices =
        ["vulkan", "webgpu", "level-zero"].map(|name| name.parse::<Device>().expect("`make setup` brings it"));
    let work = |thread: usize| -> Result<()> {
        for round in 0..12 {
            let (here, there) = (&devices[(thread + round) % 3], &devices[(thread + 2 * round + 1) % 3]);
            let step = here.capture(|args| {
                let x = args.input("x", (6, 6), DType::F32)?;
                Ok([("y", x.matmul(&x)?.add(thread)?)])
            })?;
            let x = Tensor::full(round as f32, (6, 6), there)?;
            let y = step.run([("x", (&x.to_device(here)?).into())])?.get("y")?.to_device(there)?;
            let expected = (6 * round * round + thread) as f32;
            assert_eq!(y.sub(&x)?.to_vec::<f32>()?, [expected - round as f32; 36]);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic").expect("no error"));
    });
}

/// Lower precision is a permission. It is used if the device has matrix units.
fn products_may_be_less_exact(device: &Device) -> Result<()> {
    let x = Tensor::rand(-1f32, 1.0, (96, 128), device)?;
    let w = Tensor::rand(-1f32, 1.0, (128, 64), device)?;
    let exact = x.matmul(&w)?.to_vec::<f32>()?;
    let magnitude = x.abs()?.matmul(&w.abs()?)?.to_vec::<f32>()?;
    let on_units = device.info().features.matrix_units.bf16.is_some();
    for (precision, bound) in [(Precision::High, 2f32.powi(-16)), (Precision::Medium, 2f32.powi(-8))] {
        device.set_precision(precision);
        assert_eq!(device.precision(), precision);
        let found = x.matmul(&w).and_then(|y| y.to_vec::<f32>());
        device.set_precision(Precision::Highest);
        let found = found?;
        if !on_units {
            assert_eq!(found, exact, "{precision:?}");
            continue;
        }
        let errors = found.iter().zip(&exact).zip(&magnitude).map(|((x, y), magnitude)| (x - y).abs() / magnitude);
        let largest = errors.fold(0.0, f32::max);
        assert!(largest < bound && largest > bound / 256.0, "{precision:?}: {largest:e}");
    }
    Ok(())
}

/// If it is faster, bytes are read as words along the depth. If there are enough rows, they are first copied along it.
fn products_of_bytes_are_made_of_words(device: &Device) -> Result<()> {
    let info = device.info();
    let by_words = info.features.integer_dot_products || info.kind == DeviceKind::Cpu;
    if !by_words || info.features.matrix_units.i8.is_some() {
        return Ok(());
    }
    let whole = |value: i8, (rows, columns)| Tensor::from_slice(&vec![value; rows * columns], (rows, columns), device);
    let (x, along, across) = (whole(-128, (256, 272))?, whole(127, (32, 256))?.t()?, whole(127, (256, 32))?);
    let (odd, small) = (whole(127, (260, 32))?, whole(127, (36, 32))?);
    for (rows, depth, w, commands, by_words) in [
        (256, 256, &along, 1, true),
        (256, 256, &across, 2, true),
        (255, 256, &across, 1, false),
        // No multiple of 16 bytes: both are copied.
        (256, 260, &odd, 3, true),
        (256, 36, &small, 1, false),
    ] {
        let x = x.narrow(0, 0, rows)?.narrow(1, 0, depth)?;
        let (product, profile) = device.profile(|| -> Result<Tensor> {
            let product = x.matmul(w)?;
            product.realize()?;
            Ok(product)
        })?;
        assert_eq!(product?.to_vec::<i32>()?, vec![-128 * 127 * depth as i32; rows * 32]);
        let names: Vec<_> = profile.commands.iter().map(|command| &*command.name).collect();
        assert_eq!(names.len(), commands, "{names:?}");
        assert_eq!(names[commands - 1].starts_with("matmul(i8 x4, "), by_words, "{names:?}");
    }
    Ok(())
}

/// A tensor that is too large to bind to a kernel is accessed by its address.
#[test]
fn tensors_larger_than_a_binding() {
    on("vulkan", |device| {
        let limits = &device.info().limits;
        let elements = (limits.max_binding_bytes / 4 + 1000) as usize;
        assert!(4 * elements as u64 <= limits.max_buffer_bytes, "the device of this test reaches no larger buffers");
        let x = Tensor::arange(0u32, elements as u32, device)?;
        let y = (&x + 1.0)?;
        let last = elements as u32 - 1;
        assert_eq!(y.narrow(0, elements - 2, 2)?.to_vec::<u32>()?, [last, last + 1]);
        assert_eq!(y.max(0)?.to_scalar::<u32>()?, last + 1);
        assert_eq!(y.argmax(0)?.to_scalar::<u32>()?, last);
        let picked = y.index_select(&Tensor::new([last, 7], device)?, 0)?;
        assert_eq!(picked.to_vec::<u32>()?, [last + 1, 8]);
        let z = y.slice_assign(elements - 3..elements - 1, &Tensor::new([5u32, 6], device)?)?;
        assert_eq!(z.narrow(0, elements - 4, 4)?.to_vec::<u32>()?, [last - 2, 5, 6, last + 1]);
        Ok(())
    });
}

fn a_seed_starts_the_sequence_anew(device: &Device) -> Result<()> {
    let draw = || Tensor::rand(0f32, 1.0, 100, device)?.to_vec::<f32>();
    device.set_seed(42);
    let (first, second) = (draw()?, draw()?);
    assert_ne!(first, second);
    device.set_seed(42);
    assert_eq!((draw()?, draw()?), (first.clone(), second));
    device.set_seed(43);
    assert_ne!(draw()?, first);
    Ok(())
}

fn parts_are_assigned_in_place(device: &Device) -> Result<()> {
    // No cached buffer may serve as a copy.
    device.trim()?;
    let size = 4 << 20;
    let in_use = || device.memory_stats().in_use;
    let row = Tensor::from_vec(vec![1f32; 1024], (1, 1024), device)?;
    let empty = in_use();
    let mut cache = Tensor::zeros((1024, 1024), DType::F32, device)?;
    cache.realize()?;
    let before = (in_use(), device.stats().waits);
    assert_eq!(before.0, empty + size);
    for i in 0..100 {
        cache = cache.slice_assign(i..i + 1, &row)?;
        assert_eq!(in_use(), before.0, "nobody else holds the elements");
    }
    assert_eq!(device.stats().waits, before.1, "no assignment waits");
    let view = cache.narrow(0, 0, 1)?;
    let cache = cache.slice_assign(500.., &Tensor::zeros((), DType::F32, device)?)?;
    assert_eq!(in_use(), before.0 + size, "a view holds the elements");
    drop(view);
    assert_eq!(in_use(), before.0);
    let pending = (&cache + 1.0)?;
    let cache = cache.slice_assign((.., 0..1), &row.narrow(1, 0, 1)?)?;
    assert_eq!(in_use(), before.0 + size, "so does an operation that has not run yet");
    assert_eq!(pending.sum_all()?.to_scalar::<f32>()?, (101 * 1024 + 1024 * 1023) as f32);
    drop(pending);
    assert_eq!(cache.sum_all()?.to_scalar::<f32>()?, (100 * 1024 + 924) as f32);
    Ok(())
}

fn the_host_reaches_memory_where_it_is(device: &Device) -> Result<()> {
    // The host may write less than 32 MiB in place on any device.
    let numbers: Vec<u32> = (0..9_000_000).collect();
    let copies = |kind| -> Result<Vec<String>> {
        let (read, profile) = device.profile(|| -> Result<Vec<u32>> {
            Tensor::from_slice_in(&numbers, numbers.len(), kind, device)?.to_vec::<u32>()
        })?;
        assert_eq!(read?, numbers);
        let mut names: Vec<_> = profile.commands.into_iter().map(|command| command.name).collect();
        names.dedup();
        Ok(names)
    };
    let staged = ["upload", "read"];
    let (visible, unified) = (device.info().host_visible, device.info().unified_memory);
    assert!(visible || !unified);
    let expected: &[&str] = if visible { &[] } else { &staged };
    assert_eq!(copies(MemoryKind::Host)?, expected);
    // The host writes device memory across a bus, but does not read it.
    let expected: &[&str] = if unified { &[] } else { &staged[usize::from(visible)..] };
    assert_eq!(copies(MemoryKind::Shared)?, expected);
    let expected: &[&str] = if unified { &[] } else { &staged };
    assert_eq!(copies(MemoryKind::Device)?, expected);
    let tensor = Tensor::from_slice(&numbers, numbers.len(), device)?;
    assert_eq!(unified, tensor.memory_kind() == MemoryKind::Shared);
    // If memory were reused too early, the host would write it while the device still uses it.
    for round in 0..50u32 {
        let x = Tensor::from_slice_in(&[round; 4096], 4096, MemoryKind::Host, device)?;
        let sum = x.add(&x)?.sum_all()?;
        drop(x);
        drop(Tensor::from_slice_in(&[u32::MAX; 4096], 4096, MemoryKind::Host, device)?);
        assert_eq!(sum.to_scalar::<u32>()?, 2 * 4096 * round);
    }
    Ok(())
}

/// The commands that read what a kernel has computed: none if the host reads the device's memory in place. It may read
/// a few bytes so in any case.
fn commands_of_a_read(device: &Device) -> Result<&'static [&'static str]> {
    let x = Tensor::new([1f32; 100], device)?.add(1.0)?;
    x.realize()?;
    let (_, profile) = device.profile(|| x.to_vec::<f32>())?;
    Ok(if profile.commands.is_empty() { &[] } else { &["read"] })
}

/// Three rows of a table, and a slice of it, are a small part of its bytes.
fn a_part_of_a_buffer_counts_as_a_part(device: &Device) -> Result<()> {
    let table = Tensor::zeros((1000, 64), DType::F32, device)?;
    let ids = Tensor::new([5u32, 999, 0], device)?;
    table.realize()?;
    ids.realize()?;
    let rows = 4 * 3 * 64;
    let work = || -> Result<()> {
        table.embedding(&ids)?.realize()?;
        table.narrow(0, 10, 3)?.add(1.0)?.realize()
    };
    let (done, explanation) = device.explain(work)?;
    done?;
    let moved = explanation.kernels.iter().map(|kernel| (kernel.bytes_read, kernel.bytes_written));
    assert_eq!(moved.collect::<Vec<_>>(), [(rows + 4 * 3, rows), (rows, rows)]);
    let (done, profile) = device.profile(work)?;
    done?;
    let touched = profile.commands.iter().map(|command| command.bytes);
    assert_eq!(touched.collect::<Vec<_>>(), [2 * rows + 4 * 3, 2 * rows]);
    Ok(())
}

fn a_profile_tells_of_every_command(device: &Device) -> Result<()> {
    let [x, w] = [(300, 200), (200, 300)].map(|shape| Tensor::randn(0f32, 1.0, shape, device));
    let (x, w) = (x?, w?);
    // Compile first, so that the times are those of the device.
    let work = || -> Result<Vec<f32>> { x.matmul(&w)?.softmax(-1)?.sum(0)?.to_vec::<f32>() };
    let expected = work()?;
    let before = Instant::now();
    let (result, profile) = device.profile(work)?;
    let after = Instant::now();
    assert_eq!(result?, expected);
    let Profile { commands, start, end, device: name, .. } = &profile;
    assert_eq!(*name, device.id());
    assert!(before <= *start && start <= end && *end <= after);
    let families: Vec<_> = commands.iter().map(|c| c.name.split('(').next().unwrap_or_default()).collect();
    let reads = commands_of_a_read(device)?;
    assert_eq!(families, [&["matmul", "softmax", "sum"], reads].concat(), "{profile}");
    let matrix_bytes = 4 * 300 * 200;
    assert_eq!(commands[0].bytes, 2 * matrix_bytes + 4 * 300 * 300);
    assert!(commands[3..].iter().all(|read| read.bytes == 4 * 300));
    // On the host's clock, in order. Clocks are correlated to within the time of a clock query. On a busy machine, that
    // may be some milliseconds.
    let slack = std::time::Duration::from_millis(5);
    assert!(commands.iter().all(|c| c.start + slack >= before && c.end <= after + slack), "{profile:?}");
    assert!(commands.is_sorted_by(|a, b| a.end <= b.start), "{profile:?}");
    assert!(commands[0].duration() > std::time::Duration::ZERO, "{profile:?}");
    assert!(profile.device_time() <= after.duration_since(before));
    // The host's side, too.
    let did = |what: &str| profile.host.iter().filter(|span| span.name.split(' ').next() == Some(what)).count();
    assert!(did("record") >= 3 && did("submit") >= 1 && did("wait") >= 1, "{:?}", profile.host);
    assert_eq!(did("compile"), 0, "{:?}", profile.host);
    assert!(profile.host.iter().all(|span| *start <= span.start && span.start <= span.end && span.end <= *end));
    // Afterwards nothing is measured, and everything works as before.
    assert_eq!(work()?, expected);
    let (_, idle) = device.profile(|| ())?;
    assert!(idle.commands.is_empty());
    // More than one batch.
    let (_, long) = device.profile(|| -> Result<()> {
        let mut y = Tensor::new([0f32; 8], device)?;
        for _ in 0..700 {
            y = (y + 1.0)?;
            y.realize()?;
        }
        Ok(())
    })?;
    let kernels = long.commands.iter().filter(|command| command.name != "upload").count();
    assert_eq!(kernels, 700);
    assert!(long.commands.is_sorted_by_key(|command: &TimedCommand| command.start));
    Ok(())
}

fn a_roofline_is_measured_once_and_shown_by_profiles(device: &Device) -> Result<()> {
    let (inner, _) = device.profile(|| device.roofline())?;
    assert!(inner.is_err() || device.roofline()? == inner?, "it profiles, or is known");
    let roofline = device.roofline()?;
    assert_eq!(device.roofline()?, roofline);
    // From the slowest processors to the fastest accelerators.
    assert!((1e8..1e14).contains(&roofline.bandwidth) && (1e8..1e16).contains(&roofline.products), "{roofline:?}");
    let has_units = device.info().features.matrix_units.f16.is_some();
    assert_eq!(roofline.matrix_products.is_some(), has_units, "{roofline:?}");
    let x = Tensor::rand(0f32, 1.0, (512, 512), device)?;
    x.realize()?;
    let (result, profile) = device.profile(|| x.matmul(&x)?.to_vec::<f32>())?;
    result?;
    assert_eq!(profile.roofline.as_ref(), Some(&roofline));
    let product = profile.commands.iter().find(|command| command.products() > 0).expect("a product of matrices");
    assert_eq!(product.products(), 512 * 512 * 512);
    let least = product.least_time(&roofline).expect("it is a kernel");
    // The same product was measured. It may be slower than then on a busy machine, but hardly ten times as fast.
    assert!(least > std::time::Duration::ZERO && least < 10 * product.duration(), "{roofline:?}: {profile}");
    Ok(())
}

fn profiles_do_not_nest(device: &Device) -> Result<()> {
    let (inner, outer) = device.profile(|| device.profile(|| ()).map(drop))?;
    assert!(matches!(inner, Err(Error::InvalidArgument { op: "profile", .. })), "{inner:?}");
    assert!(outer.commands.is_empty());
    Ok(())
}

fn a_profile_while_other_threads_work(device: &Device) -> Result<()> {
    let (x, done) = (Tensor::new([1f32, 2.0], device)?, std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!((&x * 3.0)?.to_vec::<f32>()?, [3.0, 6.0]);
            }
            Ok(())
        };
        let others = [scope.spawn(work), scope.spawn(work)];
        let profiles = (0..30).try_for_each(|round| {
            let (result, profile) = device.profile(|| (&x - 7.0)?.to_vec::<f32>())?;
            assert_eq!(result?, [-6.0, -5.0]);
            // Their commands are reported too, each under its own name.
            let mine = profile.commands.iter().filter(|command| command.name.starts_with("sub"));
            assert_eq!(mine.count(), 1, "round {round}: {profile}");
            Ok(())
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        profiles.and(others.into_iter().try_for_each(|thread| thread.join().expect("no panic")))
    })
}

fn a_profile_ends_with_a_panic(device: &Device) -> Result<()> {
    // More than what a GPU's results have that are read in place.
    let x = Tensor::new([1f32; 8], device)?;
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = device.profile(|| {
            (&x + 1.0).and_then(|y| y.realize()).expect("it is recorded");
            panic!("of the test");
        });
    }));
    assert!(panic.is_err());
    let (y, profile) = device.profile(|| (&x * 2.0)?.to_vec::<f32>())?;
    assert_eq!(y?, [2.0; 8]);
    let names: Vec<_> = profile.commands.iter().map(|command| command.name.as_str()).collect();
    let expected = [&["mul(x0, s0)"], commands_of_a_read(device)?].concat();
    assert_eq!(names, expected, "nothing of the other profile");
    Ok(())
}
