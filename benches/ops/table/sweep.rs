//! Products and convolutions of many sizes, primes among them. `cliffs.rs` compares neighbours.

use super::Sizes;
use super::conv::Problem;
use super::matmul::plain;
use crate::case::Case;
use marquetry::DType;

/// Sizes of interest: powers of two and their neighbours, primes, and sizes that models have.
const SIZES: [usize; 60] = [
    1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 24, 29, 31, 32, 33, 47, 48, 49, 52, 61, 63, 64, 65, 67, 96, 97, 100, 127,
    128, 129, 191, 197, 255, 256, 257, 320, 384, 385, 509, 512, 513, 768, 769, 1000, 1023, 1024, 1025, 1031, 1500,
    2047, 2048, 2053, 3001, 4000, 4001, 4093, 4096, 4100,
];

/// What is swept, and how a problem takes a size.
type Axis<T> = (&'static str, fn(T, usize) -> T);

/// Returns the sizes up to a largest one, each with the next multiple of 16.
fn sizes(largest: usize) -> Vec<usize> {
    let wanted = SIZES.into_iter().filter(|&size| size <= largest);
    let mut sizes: Vec<usize> = wanted.flat_map(|size| [size, size.next_multiple_of(16)]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Cases whose names are those of a series, a colon and the size.
pub fn cases(device: &Sizes) -> Vec<Case> {
    let ([m, n, k], largest) = device.swept;
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        let products: [Axis<[usize; 3]>; 3] = [
            ("rows", |[_, n, k], size| [size, n, k]),
            ("columns", |[m, _, k], size| [m, size, k]),
            ("depth", |[m, n, _], size| [m, n, size]),
        ];
        for (axis, with) in products {
            let case = |size| named(plain(dtype, with([m, n, k], size)), &format!("matmul {dtype}, {axis}"), size);
            cases.extend(sizes(largest).into_iter().map(case));
        }
        let images = device.images.min(8);
        let convolutions: [Axis<Problem>; 3] = [
            ("inputs", |conv, size| Problem { input: size, ..conv }),
            ("outputs", |conv, size| Problem { output: size, ..conv }),
            ("side", |conv, size| Problem { side: size, ..conv }),
        ];
        for channels_last in [false, true] {
            let order = if channels_last { ", channels last" } else { "" };
            let conv = Problem { dtype, images, channels_last, ..Problem::square(device, 64, 28) };
            for (axis, with) in convolutions {
                let series = format!("conv2d {dtype}{order}, {axis}");
                let case = |size| named(with(conv, size).case(), &series, size);
                cases.extend(sizes(largest / 8).into_iter().map(case));
            }
        }
    }
    cases
}

fn named(case: Case, series: &str, size: usize) -> Case {
    Case { name: format!("{series}: {size}"), ..case }
}
