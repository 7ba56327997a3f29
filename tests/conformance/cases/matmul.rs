//! Matrix products.

use super::{FLOATS, is_brief, numbers, shaped};
use crate::compare::{Expected, Sample, check};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::inputs::Domain;
use crate::reference::linear::matmul;
use crate::reference::numbers::summed;
use crate::reference::{ArrayD, Slice};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Tensor};

/// Shapes of both operands: ranks 1 to 5, broadcast batches, and sizes near multiples of any tile.
const SHAPES: [(&str, &[usize], &[usize]); 20] = [
    ("small", &[2, 3], &[3, 4]),
    ("one", &[1, 1], &[1, 1]),
    ("odd", &[33, 65], &[65, 17]),
    ("beyond_tiles", &[70, 130], &[130, 90]),
    ("tiles", &[64, 64], &[64, 64]),
    ("row_of_many", &[1, 300], &[300, 5]),
    ("many_rows", &[257, 3], &[3, 2]),
    ("outer", &[9, 1], &[1, 11]),
    ("vectors", &[65], &[65]),
    ("vector_left", &[7], &[7, 9]),
    ("vector_right", &[9, 7], &[7]),
    ("vector_batch_left", &[7], &[2, 3, 7, 5]),
    ("vector_batch_right", &[2, 3, 5, 7], &[7]),
    ("batch", &[3, 5, 7], &[3, 7, 4]),
    ("batch_left", &[3, 5, 7], &[7, 4]),
    ("batch_right", &[5, 7], &[3, 7, 4]),
    ("batch_broadcast", &[3, 1, 5, 7], &[2, 7, 4]),
    ("batch_broadcast_both", &[3, 1, 5, 7], &[1, 2, 7, 4]),
    ("batch_ranks", &[2, 1, 3, 4, 5], &[2, 1, 5, 6]),
    ("batch_of_one", &[1, 1, 4, 5], &[3, 1, 5, 6]),
];

const EMPTY: [(&str, &[usize], &[usize]); 4] = [
    ("no_depth", &[3, 0], &[0, 4]),
    ("no_rows", &[0, 3], &[3, 4]),
    ("no_columns", &[3, 4], &[4, 0]),
    ("no_batch", &[0, 2, 3], &[3, 4]),
];

fn check_product(a: &Sample, b: &Sample) -> Outcome {
    check("matmul", &a.tensor.matmul(&b.tensor)?, &product(a, b, summed(a.tensor.dtype())))
}

fn check_product_f32(a: &Sample, b: &Sample) -> Outcome {
    check("matmul_f32", &a.tensor.matmul_f32(&b.tensor)?, &product(a, b, DType::F32))
}

/// The product of two samples, to be rounded to a dtype.
fn product(a: &Sample, b: &Sample, output: DType) -> Expected {
    let (values, magnitude) = matmul(&a.values, &b.values, a.tensor.dtype());
    // k products and k additions are rounded.
    let depth = a.values.shape()[a.values.ndim() - 1] as f64;
    Expected::new(values, output).with_scale(magnitude * (depth + 1.0))
}

/// Swaps the last two axes without moving an element.
fn t(x: &Sample) -> Outcome<Sample> {
    let mut values = x.values.clone();
    let rank = values.ndim();
    values.swap_axes(rank - 2, rank - 1);
    Ok(Sample { tensor: x.tensor.t()?, values })
}

/// Reverses the rows, so that their stride in memory is negative.
fn flipped(x: &Sample) -> Outcome<Sample> {
    let mut values = x.values.clone();
    values.invert_axis(ndarray::Axis(0));
    Ok(Sample { tensor: x.tensor.flip(0)?, values: values.as_standard_layout().into_owned() })
}

fn narrow(x: &Sample, axis: usize, start: usize, length: usize) -> Outcome<Sample> {
    let values: ArrayD<f64> = x.values.slice_axis(ndarray::Axis(axis), Slice::from(start..start + length)).to_owned();
    Ok(Sample { tensor: x.tensor.narrow(axis, start, length)?, values })
}

pub fn add(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Sliced, Transposed, Unaligned};
    add_f32(suite);
    for dtype in numbers() {
        let few = |name: &str| matches!(name, "odd" | "vectors" | "batch_broadcast" | "no_depth");
        let shapes = SHAPES.into_iter().chain(EMPTY).filter(|(name, ..)| !is_brief(dtype) || few(name));
        for (name, left, right) in shapes {
            suite.add("matmul", format!("{dtype}::{name}"), move |device| {
                let a = shaped("matmul left", left, Contiguous, dtype, Domain::Normal, device)?;
                let b = shaped("matmul right", right, Contiguous, dtype, Domain::Normal, device)?;
                check_product(&a, &b)
            });
        }
        for (left, right) in [
            (Transposed, Contiguous),
            (Contiguous, Transposed),
            (Transposed, Transposed),
            (Sliced, Contiguous),
            (Contiguous, Sliced),
            (Broadcast, Transposed),
            (Sliced, Broadcast),
            (Unaligned, Unaligned),
        ] {
            if is_brief(dtype) && left != Sliced {
                continue;
            }
            for (name, a, b) in [("", [33, 65].as_slice(), [65, 17].as_slice()), ("_batch", &[3, 5, 7], &[3, 7, 4])] {
                suite.add("matmul", format!("{dtype}::{}_{}{name}", left.name(), right.name()), move |device| {
                    let a = shaped("matmul left", a, left, dtype, Domain::Normal, device)?;
                    let b = shaped("matmul right", b, right, dtype, Domain::Normal, device)?;
                    check_product(&a, &b)
                });
            }
        }
        // A few vectors, deep enough that each invocation loads several runs at a time and then a rest. If the depth is
        // a multiple of 16, bytes are read as words of four. If it is a multiple of 8, halves are read eight at a time.
        let bytes = dtype.size_in_bytes() == 1;
        for (vectors, depth) in match bytes {
            true => [(1, 4112), (3, 8208), (11, 80)],
            false => [(1, 4104), (3, 8196), (11, 68)],
        } {
            for right in [Contiguous, Transposed] {
                let name = format!("{dtype}::vectors_{vectors}_{}", right.name());
                if !bytes && ![DType::F32, DType::F16].contains(&dtype) || bytes && right == Contiguous {
                    continue;
                }
                suite.add("matmul", name, move |device| {
                    let a = shaped("matmul left", &[vectors, depth], Contiguous, dtype, Domain::Normal, device)?;
                    let b = shaped("matmul right", &[depth, 36], right, dtype, Domain::Normal, device)?;
                    check_product(&a, &b)?;
                    check_product(&t(&b)?, &t(&a)?)
                });
            }
        }
        if bytes || [DType::F32, DType::F16].contains(&dtype) {
            suite.add("matmul", format!("{dtype}::vectors_flipped"), move |device| {
                let sample = |name, shape: [usize; 2]| shaped(name, &shape, Contiguous, dtype, Domain::Normal, device);
                let a = flipped(&sample("matmul left", [2, 528])?)?;
                check_product(&a, &flipped(&sample("matmul right", [528, 40])?)?)?;
                check_product(&a, &t(&flipped(&sample("matmul transposed", [40, 528])?)?)?)
            });
            suite.add("matmul", format!("{dtype}::vectors_batch"), move |device| {
                // The first depth allows reads of sixteen bytes, the second only reads of four elements.
                for (vectors, depth) in [(2, 272), (9, 276)] {
                    let a = shaped("matmul left", &[3, vectors, depth], Contiguous, dtype, Domain::Normal, device)?;
                    let across = shaped("matmul right", &[3, depth, 40], Contiguous, dtype, Domain::Normal, device)?;
                    let along =
                        t(&shaped("matmul transposed", &[3, 40, depth], Contiguous, dtype, Domain::Normal, device)?)?;
                    for b in [&across, &along] {
                        check_product(&a, b)?;
                        check_product(&t(b)?, &t(&a)?)?;
                    }
                }
                Ok(())
            });
            suite.add("matmul", format!("{dtype}::vectors_offset"), move |device| {
                // Whole vectors, except that the matrix starts at an offset.
                let a = shaped("matmul left", &[1, 272], Contiguous, dtype, Domain::Normal, device)?;
                let b = shaped("matmul right", &[40, 288], Contiguous, dtype, Domain::Normal, device)?;
                check_product(&a, &t(&narrow(&b, 1, 4, 272)?)?)
            });
        }
        // Few outputs with a depth so large that it is split into parts. Bytes are counted in words of four. The
        // numbers are whole, because the tolerance of others could hide a missing part.
        let depth = if bytes { 4 * 131_264 } else { 131_264 };
        for (name, left, right) in [
            ("vectors", vec![depth], vec![depth]),
            ("few", vec![3, depth], vec![depth, 4]),
            ("batch", vec![2, 2, depth], vec![2, depth, 2]),
            ("odd", vec![1, depth + 3], vec![depth + 3, 1]),
            ("many", vec![20, depth], vec![depth, 24]),
        ] {
            let brief = name != "few" || is_brief(dtype);
            if dtype != DType::F32 && (name == "many" || brief && !full_tier()) {
                continue;
            }
            suite.add("matmul", format!("{dtype}::so_deep_{name}"), move |device| {
                let a = shaped("matmul left", &left, Contiguous, dtype, Domain::Small, device)?;
                let b = shaped("matmul right", &right, Contiguous, dtype, Domain::Small, device)?;
                let (values, _) = matmul(&a.values, &b.values, dtype);
                check("matmul", &a.tensor.matmul(&b.tensor)?, &Expected::new(values, summed(dtype)))
            });
        }
        // Batches so large that GPUs use larger blocks.
        for (name, [m, k, n]) in [("fours", [72, 32, 136]), ("odd", [70, 33, 130])] {
            for (count, left, right) in [
                (40, Contiguous, Contiguous),
                (40, Transposed, Transposed),
                (120, Contiguous, Contiguous),
                (120, Contiguous, Transposed),
                (120, Transposed, Contiguous),
            ] {
                if dtype != DType::F32 && (is_brief(dtype) || name == "odd" || right == Transposed) {
                    continue;
                }
                let case = format!("{dtype}::{count}_{name}_{}_{}", left.name(), right.name());
                suite.add("matmul", case, move |device| {
                    let a = shaped("matmul left", &[count, m, k], left, dtype, Domain::Normal, device)?;
                    let b = shaped("matmul right", &[count, k, n], right, dtype, Domain::Normal, device)?;
                    check_product(&a, &b)
                });
            }
        }
        // Sizes for matrix units: whole units, overlapping blocks, edges within units and tiles, rows that are no
        // multiple of 16 bytes, and a depth that is split.
        for (name, [m, k, n]) in [
            ("whole", [128, 256, 256]),
            ("overlapping", [145, 192, 328]),
            ("edges", [144, 208, 80]),
            ("columns", [49, 48, 37]),
            ("odd", [131, 67, 129]),
            ("deep", [48, 2048, 64]),
            // For vectors on units: columns that are no multiple of 4, and many of them.
            ("vectors", [40, 328, 190]),
            ("wide", [9, 72, 12800]),
            // Enough rows that bytes are first copied along the depth.
            ("tall", [260, 96, 40]),
        ] {
            for (left, right) in [
                (Contiguous, Contiguous),
                (Contiguous, Transposed),
                (Transposed, Contiguous),
                (Transposed, Transposed),
                (Unaligned, Sliced),
            ] {
                let skipped = name == "tall" && (!bytes || left != Contiguous)
                    || matches!(name, "vectors" | "wide") && (bytes || left != Contiguous);
                if dtype.size_in_bytes() > 2 || dtype == DType::BF16 && left == Transposed || skipped {
                    continue;
                }
                let case = format!("{dtype}::units_{name}_{}_{}", left.name(), right.name());
                suite.add("matmul", case, move |device| {
                    let a = shaped("matmul left", &[m, k], left, dtype, Domain::Normal, device)?;
                    let b = shaped("matmul right", &[k, n], right, dtype, Domain::Normal, device)?;
                    check_product(&a, &b)
                });
            }
        }
        // Large enough that operands are copied into another order: rows that are no multiple of 16 bytes, few columns,
        // and matrices that the batch repeats.
        if matches!(dtype, DType::F32 | DType::F16) {
            for (name, left, right) in [("odd", [192, 301], [301, 67]), ("few", [192, 304], [304, 5])] {
                for (left_layout, right_layout) in [(Contiguous, Contiguous), (Transposed, Contiguous)] {
                    let case = format!("{dtype}::copied_{name}_{}", left_layout.name());
                    suite.add("matmul", case, move |device| {
                        let a = shaped("matmul left", &left, left_layout, dtype, Domain::Normal, device)?;
                        let b = shaped("matmul right", &right, right_layout, dtype, Domain::Normal, device)?;
                        check_product(&a, &b)
                    });
                }
            }
            suite.add("matmul", format!("{dtype}::copied_repeated"), move |device| {
                let a = shaped("matmul left", &[3, 64, 301], Contiguous, dtype, Domain::Normal, device)?;
                let mut b = shaped("matmul right", &[301, 67], Contiguous, dtype, Domain::Normal, device)?;
                b.tensor = b.tensor.broadcast_to((3, 301, 67))?;
                b.values = b.values.broadcast(vec![3, 301, 67]).ok_or("a batch of matrices")?.to_owned();
                check_product(&a, &b)
            });
        }
        if dtype.size_in_bytes() <= 2 {
            suite.add("matmul", format!("{dtype}::units_flipped"), move |device| {
                let sample = |name, shape: [usize; 2]| {
                    flipped(&shaped(name, &shape, Contiguous, dtype, Domain::Normal, device)?)
                };
                let (a, b) = (sample("matmul left", [145, 192])?, sample("matmul right", [192, 328])?);
                check_product(&a, &b)?;
                check_product(&a, &t(&sample("matmul transposed", [328, 192])?)?)
            });
            suite.add("matmul", format!("{dtype}::units_batch"), move |device| {
                let a = shaped("matmul left", &[2, 1, 48, 64], Contiguous, dtype, Domain::Normal, device)?;
                let b = shaped("matmul right", &[3, 64, 80], Contiguous, dtype, Domain::Normal, device)?;
                check_product(&a, &b)?;
                check_product(&a, &narrow(&b, 0, 1, 1)?)
            });
        }
        // Sums of whole numbers are exact, so the tolerance cannot hide a missing product.
        suite.add("matmul", format!("{dtype}::exact"), move |device| {
            let a = shaped("matmul left", &[66, 131], Contiguous, dtype, Domain::Small, device)?;
            let b = shaped("matmul right", &[131, 67], Contiguous, dtype, Domain::Small, device)?;
            let (values, _) = matmul(&a.values, &b.values, dtype);
            check("matmul", &a.tensor.matmul(&b.tensor)?, &Expected::new(values, summed(dtype)))
        });
        suite.add("matmul", format!("{dtype}::views"), move |device| {
            let a = shaped("matmul left", &[20, 40], Contiguous, dtype, Domain::Normal, device)?;
            let b = shaped("matmul right", &[30, 40], Contiguous, dtype, Domain::Normal, device)?;
            let (a, b) = (narrow(&a, 1, 3, 31)?, narrow(&t(&b)?, 0, 5, 31)?);
            check_product(&a, &b)?;
            // A Gram matrix: both operands are the same buffer.
            check_product(&a, &t(&a)?)
        });
    }
    suite.add("matmul", "f16::vectors_of_subnormals", |device| {
        let halves = |x: f32, shape: [usize; 2]| Tensor::full(x, shape, device)?.to_dtype(DType::F16);
        for depth in [4, 8, 4104] {
            let a = halves(2f32.powi(-20), [1, depth])?;
            let (across, along) = (halves(1024.0, [depth, 36])?, halves(1024.0, [36, depth])?.t()?);
            let expected = Expected::new(ArrayD::from_elem(vec![1, 36], depth as f64 / 1024.0), DType::F16);
            check("matmul", &a.matmul(&across)?, &expected)?;
            check("matmul", &a.matmul(&along)?, &expected)?;
        }
        Ok(())
    });
    // Products of extremes, just enough to leave the range of 32 bits: sums wrap.
    const DEPTH: usize = (1 << 17) + 32;
    for (dtype, extreme, sum) in [
        (DType::I8, -128.0, (DEPTH as i64 * 128 * 128) as i32 as f64),
        (DType::U8, 255.0, (DEPTH as i64 * 255 * 255) as u32 as f64),
    ] {
        suite.add("matmul", format!("{dtype}::wraps"), move |device| {
            for [m, n] in [[1, 4], [20, 17]] {
                let full =
                    |shape: [usize; 2]| Tensor::full(extreme as f32, shape, device)?.to_dtype(dtype)?.contiguous();
                let (a, b) = (full([m, DEPTH])?, full([n, DEPTH])?);
                let expected = crate::reference::array(&[m, n], vec![sum; m * n]);
                check("matmul", &a.matmul(&b.t()?)?, &Expected::new(expected, summed(dtype)))?;
            }
            Ok(())
        });
    }
    suite.add("matmul", "f16::beyond_f16", |device| {
        // The partial sums leave the range of f16, but the result does not.
        let a = Tensor::from_slice(&[300f32, 300.0, -300.0], (1, 3), device)?.to_dtype(DType::F16)?;
        let b = Tensor::from_slice(&[300f32, 300.0, 599.0], (3, 1), device)?.to_dtype(DType::F16)?;
        let expected = Expected::new(crate::reference::array(&[1, 1], vec![300.0]), DType::F16);
        check("matmul", &a.matmul(&b)?, &expected)
    });
}

/// Products in `f32`. Their kernels differ from those above in how they store. So each kind of kernel has a case.
fn add_f32(suite: &mut Suite) {
    use Layout::{Contiguous, Transposed};
    for dtype in FLOATS {
        for (name, left, right) in SHAPES.into_iter().chain(EMPTY) {
            if full_tier()
                || matches!(name, "odd" | "tiles" | "vectors" | "vector_left" | "batch_broadcast" | "no_depth")
            {
                suite.add("matmul_f32", format!("{dtype}::{name}"), move |device| {
                    let a = shaped("matmul left", left, Contiguous, dtype, Domain::Normal, device)?;
                    let b = shaped("matmul right", right, Contiguous, dtype, Domain::Normal, device)?;
                    check_product_f32(&a, &b)
                });
            }
        }
        // A few vectors, and sizes for matrix units.
        for (name, [m, k, n]) in [("one", [1, 4104, 36]), ("few", [3, 4104, 36]), ("units", [145, 192, 328])] {
            for right in [Contiguous, Transposed] {
                suite.add("matmul_f32", format!("{dtype}::{name}_{}", right.name()), move |device| {
                    let a = shaped("matmul left", &[m, k], Contiguous, dtype, Domain::Normal, device)?;
                    let b = shaped("matmul right", &[k, n], right, dtype, Domain::Normal, device)?;
                    check_product_f32(&a, &b)
                });
            }
        }
        // The depth is split into parts. The numbers are whole, so the sums are exact. `f16` would not hold them.
        suite.add("matmul_f32", format!("{dtype}::so_deep"), move |device| {
            let a = shaped("matmul left", &[3, 131_264], Contiguous, dtype, Domain::Small, device)?;
            let b = shaped("matmul right", &[131_264, 4], Contiguous, dtype, Domain::Small, device)?;
            let (values, _) = matmul(&a.values, &b.values, dtype);
            check("matmul_f32", &a.tensor.matmul_f32(&b.tensor)?, &Expected::new(values, DType::F32))
        });
    }
}
