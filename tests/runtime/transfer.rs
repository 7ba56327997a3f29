//! Bytes to devices and back: in pieces, in several threads, through memory that is used again.

use marquetry::{DType, Device, Error, MemoryKind, Result, Tensor};

on_each_device! {
    bytes_come_back_in_order
    staging_memory_is_used_again
    small_uploads_share_staging_memory
    threads_transfer_side_by_side
    parts_are_read_into_memory
    read_into_checks_its_room
    tensors_are_filled_anew
}

/// Bytes that differ from one tensor to the next, and from place to place.
fn numbers(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|i| ((i * 31 + i / 251 + seed * 7) % 251) as u8).collect()
}

/// Fails at the first wrong byte. `assert_eq` would print all.
fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "{what}: byte {wrong:?} is wrong");
}

fn bytes_come_back_in_order(device: &Device) -> Result<()> {
    const PIECE: usize = 4 << 20;
    for count in [1, 3, 65_536, 65_537, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
        let sent = numbers(count, count);
        let there = Tensor::from_slice(&sent, count, device)?;
        assert_same(&there.to_vec()?, &sent, &format!("{count} bytes"));
        // A kernel's result may lie in other memory.
        let computed = there.mul(3)?.add(1)?;
        let expected: Vec<u8> = sent.iter().map(|byte| byte.wrapping_mul(3).wrapping_add(1)).collect();
        assert_same(&computed.to_vec()?, &expected, &format!("{count} bytes of a kernel"));
    }
    Ok(())
}

/// More bytes are on their way than there is staging memory. None of it is filled again before it has been copied.
fn staging_memory_is_used_again(device: &Device) -> Result<()> {
    const COUNT: usize = (5 << 20) + 3;
    let tensors = (0..30).map(|seed| Tensor::from_slice(&numbers(COUNT, seed), COUNT, device));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    for (seed, tensor) in tensors.iter().enumerate() {
        assert_same(&tensor.to_vec()?, &numbers(COUNT, seed), &format!("tensor {seed}"));
    }
    Ok(())
}

fn small_uploads_share_staging_memory(device: &Device) -> Result<()> {
    // More than one buffer of 4 MiB.
    let tensors = (0..400).map(|i| Tensor::from_slice(&numbers(20_000 + i, i), 20_000 + i, device));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    for (i, tensor) in tensors.iter().enumerate() {
        assert_same(&tensor.to_vec()?, &numbers(20_000 + i, i), &format!("tensor {i}"));
    }
    Ok(())
}

fn threads_transfer_side_by_side(device: &Device) -> Result<()> {
    std::thread::scope(|scope| {
        let threads = (0..4).map(|thread| {
            scope.spawn(move || -> Result<()> {
                for round in 0..3 {
                    let seed = 10 * thread + round;
                    for count in [9 << 20, 100, 70_000] {
                        let sent = numbers(count, seed);
                        let there = Tensor::from_slice(&sent, count, device)?;
                        assert_same(&there.to_vec()?, &sent, &format!("{count} bytes of thread {thread}"));
                    }
                }
                Ok(())
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

fn parts_are_read_into_memory(device: &Device) -> Result<()> {
    const COUNT: usize = 10 << 20;
    let sent = numbers(COUNT, 1);
    let x = Tensor::from_slice(&sent, COUNT, device)?;
    for (start, count) in [(0, COUNT), (7, COUNT - 9), (4 << 20, 6 << 20), (12_345, 1), (3, 0)] {
        let mut part = vec![0u8; count];
        x.narrow(0, start, count)?.read_into(&mut part)?;
        assert_same(&part, &sent[start..start + count], &format!("{count} bytes from {start} on"));
        part.fill(0);
        pollster::block_on(x.narrow(0, start, count)?.read_into_async(&mut part))?;
        assert_same(&part, &sent[start..start + count], &format!("{count} bytes from {start} on, without blocking"));
    }
    // Rows with gaps, a transposed matrix, and truth values.
    let x = Tensor::arange(0i32, 12, device)?.reshape((3, 4))?;
    let mut rows = [0i32; 6];
    x.narrow(1, 1, 2)?.read_into(&mut rows)?;
    assert_eq!(rows, [1, 2, 5, 6, 9, 10]);
    let mut turned = [0i32; 12];
    x.t()?.read_into(&mut turned)?;
    assert_eq!(turned, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
    pollster::block_on(x.narrow(1, 0, 2)?.read_into_async(&mut rows))?;
    assert_eq!(rows, [0, 1, 4, 5, 8, 9]);
    let mut truth = [false; 12];
    x.gt(7)?.flatten_all()?.read_into(&mut truth)?;
    assert_eq!(truth, [false, false, false, false, false, false, false, false, true, true, true, true]);
    pollster::block_on(x.lt(2)?.flatten_all()?.read_into_async(&mut truth))?;
    assert_eq!(truth, [true, true, false, false, false, false, false, false, false, false, false, false]);
    Ok(())
}

fn read_into_checks_its_room(device: &Device) -> Result<()> {
    let x = Tensor::zeros((2, 3), DType::F32, device)?;
    let error = x.read_into(&mut [0f32; 5]).expect_err("one is missing");
    assert!(matches!(error, Error::ElementCount { op: "read_into", elements: 5, .. }), "{error}");
    assert!(matches!(x.read_into(&mut [0u32; 6]), Err(Error::ElementType { .. })));
    let error = pollster::block_on(x.read_into_async(&mut [0f32; 7])).expect_err("one is too much");
    assert!(matches!(error, Error::ElementCount { op: "read_into_async", elements: 7, .. }), "{error}");
    assert!(matches!(pollster::block_on(x.read_into_async(&mut [0u32; 6])), Err(Error::ElementType { .. })));
    Ok(())
}

/// `write_from` replaces the elements in place if nobody else holds them.
fn tensors_are_filled_anew(device: &Device) -> Result<()> {
    const COUNT: usize = (5 << 20) + 1;
    for count in [1, 1000, COUNT] {
        let mut x = Tensor::from_slice_in(&numbers(count, 0), count, MemoryKind::Device, device)?;
        let held = x.clone();
        x = x.write_from(&numbers(count, 1))?;
        assert_same(&held.to_vec()?, &numbers(count, 0), "the other holder's elements");
        assert_same(&x.to_vec()?, &numbers(count, 1), "a tensor that was held");
        // The sums read what was there when they were recorded.
        let mut sums = Vec::new();
        let in_use = device.memory_stats().in_use;
        for seed in 2..6 {
            x = x.write_from(&numbers(count, seed))?;
            let sum = x.to_dtype(DType::U32)?.sum_all()?;
            sum.realize()?;
            sums.push(sum);
        }
        let kept = device.memory_stats().in_use - in_use;
        assert!(kept < 4096, "{kept} bytes more for {count} elements");
        for (sum, seed) in sums.iter().zip(2..) {
            let expected: u32 = numbers(count, seed).into_iter().map(u32::from).sum();
            assert_eq!(sum.to_scalar::<u32>()?, expected, "seed {seed}");
        }
    }
    // Something pending still wants the old elements.
    let x = Tensor::new([1f32, 2.0, 3.0], device)?;
    x.realize()?;
    let pending = x.add(1.0)?;
    let x = x.write_from(&[7f32, 8.0, 9.0])?;
    assert_eq!((pending.to_vec::<f32>()?, x.to_vec::<f32>()?), (vec![2.0, 3.0, 4.0], vec![7.0, 8.0, 9.0]));
    // A part that begins the buffer, and ends within a word.
    let bytes = Tensor::new([1u8, 2, 3, 4, 5, 6, 7, 8], device)?;
    let start = bytes.narrow(0, 0, 5)?;
    assert_eq!(start.clone().write_from(&[9u8; 5])?.to_vec::<u8>()?, [9; 5]);
    assert_eq!(bytes.to_vec::<u8>()?, [1, 2, 3, 4, 5, 6, 7, 8]);
    drop(bytes);
    assert_eq!(start.write_from(&[8u8; 5])?.to_vec::<u8>()?, [8; 5]);
    // A part of a tensor, a pending result and a tensor of no elements.
    let row = Tensor::arange(0i32, 12, device)?.reshape((3, 4))?.i(1)?;
    assert_eq!(row.write_from(&[9, 8, 7, 6])?.to_vec::<i32>()?, [9, 8, 7, 6]);
    let pending = Tensor::ones((2, 2), DType::F32, device)?.add(1.0)?;
    assert_eq!(pending.write_from(&[1f32, 2.0, 3.0, 4.0])?.to_vec2::<f32>()?, [[1.0, 2.0], [3.0, 4.0]]);
    assert_eq!(Tensor::zeros(0, DType::F32, device)?.write_from::<f32>(&[])?.dims(), [0]);
    let x = Tensor::zeros((2, 3), DType::F32, device)?;
    assert!(matches!(x.clone().write_from(&[0f32; 7]), Err(Error::ElementCount { op: "write_from", elements: 7, .. })));
    assert!(matches!(x.write_from(&[0u32; 6]), Err(Error::ElementType { .. })));
    // In a step, the elements are constants.
    let step = device.capture(|args| {
        let x = args.input("x", 2, DType::F32)?;
        Ok([("y", x.add(1.0)?.write_from(&[5f32, 6.0])?.add(&x)?)])
    })?;
    let x = Tensor::new([1f32, 2.0], device)?;
    assert_eq!(step.run([("x", (&x).into())])?.get("y")?.to_vec::<f32>()?, [6.0, 8.0]);
    Ok(())
}
