//! Matrix products on the processor by a native library, `gemm`: the comparison for a software device.

use crate::measure::Protocol;
use crate::statistics::median;
use std::hint::black_box;
use std::time::Instant;

/// Returns the floating point operations per second of a product of square `f32` matrices of this size.
pub fn rate(size: usize, protocol: &Protocol) -> f64 {
    // Numbers as large as normally distributed ones; their values do not matter here.
    let numbers =
        |step: usize| -> Vec<f32> { (0..size * size).map(|i| ((i * step) % 257) as f32 / 128.0 - 1.0).collect() };
    let (a, b, mut y) = (numbers(31), numbers(101), vec![0f32; size * size]);
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < protocol.warm_up + protocol.time || times.len() < 5 {
        let start = Instant::now();
        multiply(&a, &b, &mut y, size);
        times.push(start.elapsed().as_secs_f64());
        black_box(&mut y);
    }
    2.0 * (size as f64).powi(3) / median(&times)
}

fn multiply(a: &[f32], b: &[f32], y: &mut [f32], size: usize) {
    let stride = size as isize;
    assert!([a.len(), b.len(), y.len()] == [size * size; 3]);
    #[allow(unsafe_code, reason = "the library takes pointers")]
    // SAFETY: all three are row-major matrices of this size, and `y` is borrowed mutably.
    unsafe {
        gemm::gemm(
            size,
            size,
            size,
            y.as_mut_ptr(),
            1,
            stride,
            false,
            a.as_ptr(),
            1,
            stride,
            b.as_ptr(),
            1,
            stride,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(0),
        );
    }
}
