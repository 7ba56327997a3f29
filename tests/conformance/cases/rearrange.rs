//! Chunks, repetition, rolling, flips, diagonals and triangles.

use super::{sample, shaped};
use crate::compare::{Expected, check};
use crate::layouts::Layout;
use crate::reference::inputs::Domain;
use crate::reference::rearrange::{diag, masked, repeat, roll};
use crate::reference::{ArrayD, Axis, Slice, array};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EXACT, Table, Tolerance};
use marquetry::{DType, Device, Sections, Tensor};

pub const TOLERANCES: Table = &[(
    &["split", "chunk", "repeat", "tile", "roll", "flip", "tril", "triu", "eye", "diag"],
    Tolerance { moves: true, reason: "nothing is computed", ..EXACT },
)];

fn check_parts(op: &str, parts: &[Tensor], x: &ArrayD<f64>, sizes: &[usize], axis: usize, dtype: DType) -> Outcome {
    if parts.len() != sizes.len() {
        return Err(format!("{op}: {} parts, expected {sizes:?}", parts.len()).into());
    }
    let mut start = 0;
    for (part, size) in parts.iter().zip(sizes) {
        let expected = x.slice_axis(Axis(axis), Slice::from(start..start + size)).to_owned();
        check(op, part, &Expected::new(expected, dtype))?;
        start += size;
    }
    Ok(())
}

fn split(layout: Layout, dtype: DType, device: &Device) -> Outcome {
    let x = sample("split", layout, dtype, Domain::Special, device)?;
    let splits: [(usize, Sections, &[usize]); 5] = [
        (1, 2.into(), &[2, 2, 1]),
        (2, [1, 0, 5].into(), &[1, 0, 5]),
        (0, vec![4].into(), &[4]),
        (0, 9.into(), &[4]),
        (2, Sections::Of(3), &[3, 3]),
    ];
    for (axis, sections, sizes) in splits {
        check_parts("split", &x.tensor.split(sections, axis)?, &x.values, sizes, axis, dtype)?;
    }
    Ok(())
}

fn chunk(layout: Layout, dtype: DType, device: &Device) -> Outcome {
    let x = sample("chunk", layout, dtype, Domain::Special, device)?;
    let chunks: [(usize, usize, &[usize]); 5] =
        [(1, 2, &[3, 2]), (2, 4, &[2, 2, 2]), (0, 1, &[4]), (0, 100, &[1, 1, 1, 1]), (0, usize::MAX, &[1; 4])];
    for (axis, count, sizes) in chunks {
        check_parts("chunk", &x.tensor.chunk(count, axis)?, &x.values, sizes, axis, dtype)?;
    }
    let empty = sample("chunk", Layout::Empty, dtype, Domain::Special, device)?;
    check_parts("chunk", &empty.tensor.chunk(3, 1)?, &empty.values, &[0], 1, dtype)
}

fn repeats(layout: Layout, dtype: DType, device: &Device) -> Outcome {
    let x = sample("repeat", layout, dtype, Domain::Special, device)?;
    for times in [&[2, 1, 3][..], &[1, 1, 1], &[3, 2, 2], &[2, 1, 1, 1], &[2, 0, 1], &[2, 3, 1, 2, 1]] {
        check("repeat", &x.tensor.repeat(times)?, &Expected::new(repeat(&x.values, times), dtype))?;
        check("tile", &x.tensor.tile(times)?, &Expected::new(repeat(&x.values, times), dtype))?;
    }
    check("tile", &x.tensor.tile(2)?, &Expected::new(repeat(&x.values, &[1, 1, 2]), dtype))?;
    check("tile", &x.tensor.tile(())?, &Expected::new(x.values.clone(), dtype))?;
    // Along axes of length 1 a view is enough.
    let row = shaped("repeat", &[1, 6], Layout::Contiguous, dtype, Domain::Special, device)?;
    check("repeat", &row.tensor.repeat((3, 1))?, &Expected::new(repeat(&row.values, &[3, 1]), dtype))?;
    let scalar = shaped("repeat", &[], Layout::Contiguous, dtype, Domain::Special, device)?;
    check("repeat", &scalar.tensor.repeat((2, 3))?, &Expected::new(repeat(&scalar.values, &[2, 3]), dtype))
}

fn rolls(layout: Layout, dtype: DType, device: &Device) -> Outcome {
    let x = sample("roll", layout, dtype, Domain::Special, device)?;
    for (shifts, axes) in [
        (&[1][..], &[0][..]),
        (&[-2], &[-1]),
        (&[0, 7, -1], &[0, 1, 2]),
        (&[2, -3], &[2, 0]),
        (&[isize::MIN, isize::MAX], &[1, -1]),
        (&[], &[]),
    ] {
        let rolled = axes.iter().zip(shifts).fold(x.values.clone(), |rolled, (&axis, &shift)| {
            if rolled.is_empty() { rolled } else { roll(&rolled, shift, i32::rem_euclid(axis, 3) as usize) }
        });
        check("roll", &x.tensor.roll(shifts, axes)?, &Expected::new(rolled, dtype))?;
    }
    Ok(())
}

fn flips(layout: Layout, dtype: DType, device: &Device) -> Outcome {
    let x = sample("flip", layout, dtype, Domain::Special, device)?;
    for axes in [&[0usize][..], &[1], &[2, 0], &[0, 1, 2], &[]] {
        let mut flipped = x.values.clone();
        axes.iter().for_each(|&axis| flipped.invert_axis(Axis(axis)));
        check("flip", &x.tensor.flip(axes)?, &Expected::new(flipped, dtype))?;
    }
    check("flip", &x.tensor.flip([0, 1])?.flip([1, 0])?, &Expected::new(x.values, dtype))
}

fn triangles(layout: Layout, dtype: DType, device: &Device) -> Outcome {
    let x = sample("triangle", layout, dtype, Domain::Special, device)?;
    for diagonal in [0, 1, -2, 100, -100, isize::MAX, isize::MIN] {
        let lower = masked(&x.values, |row, column| column - row <= diagonal as i128);
        check("tril", &x.tensor.tril(diagonal)?, &Expected::new(lower, dtype))?;
        let upper = masked(&x.values, |row, column| column - row >= diagonal as i128);
        check("triu", &x.tensor.triu(diagonal)?, &Expected::new(upper, dtype))?;
    }
    Ok(())
}

fn diagonals(dtype: DType, device: &Device) -> Outcome {
    for layout in [Layout::Contiguous, Layout::Transposed, Layout::Sliced, Layout::Flipped, Layout::Broadcast] {
        let matrix = shaped("diag", &[4, 6], layout, dtype, Domain::Special, device)?;
        for diagonal in [0, 2, 6, -1, -4] {
            let expected = Expected::new(diag(&matrix.values, diagonal), dtype);
            check("diag", &matrix.tensor.diag(diagonal)?, &expected)?;
        }
        let vector = shaped("diag", &[5], layout, dtype, Domain::Special, device)?;
        for diagonal in [0, 3, -2] {
            let expected = Expected::new(diag(&vector.values, diagonal), dtype);
            check("diag", &vector.tensor.diag(diagonal)?, &expected)?;
        }
    }
    let nothing = shaped("diag", &[0], Layout::Contiguous, dtype, Domain::Special, device)?;
    check("diag", &nothing.tensor.diag(0)?, &Expected::new(array(&[0, 0], vec![]), dtype))?;
    check("diag", &nothing.tensor.diag(-2)?, &Expected::new(array(&[2, 2], vec![0.0; 4]), dtype))
}

fn identities(dtype: DType, device: &Device) -> Outcome {
    for size in [0, 1, 2, 7] {
        let ones = (0..size * size).map(|i| f64::from(i / size == i % size)).collect();
        check("eye", &Tensor::eye(size, dtype, device)?, &Expected::new(array(&[size, size], ones), dtype))?;
    }
    Ok(())
}

pub fn add(suite: &mut Suite) {
    type Case = fn(Layout, DType, &Device) -> Outcome;
    // The shape is [4, 5, 6].
    let layouts = [Layout::Contiguous, Layout::Transposed, Layout::Sliced, Layout::Flipped, Layout::Broadcast];
    let of_any: [(&'static str, Case); 4] =
        [("repeat", repeats), ("roll", rolls), ("flip", flips), ("tril", triangles)];
    let of_one: [(&'static str, Case); 2] = [("split", split), ("chunk", chunk)];
    for dtype in DType::ALL {
        for (op, case) in of_any {
            // A triangle is a fused expression. Other tests cover how it reads each dtype.
            let all = op != "tril" || matches!(dtype, DType::F32 | DType::U8);
            for layout in Layout::ALL.into_iter().filter(|&layout| all || layout == Layout::Transposed) {
                suite.add(op, format!("{dtype}::{}", layout.name()), move |device| case(layout, dtype, device));
            }
        }
        for (op, case) in of_one {
            for layout in layouts {
                suite.add(op, format!("{dtype}::{}", layout.name()), move |device| case(layout, dtype, device));
            }
        }
        suite.add("diag", dtype.name(), move |device| diagonals(dtype, device));
        suite.add("eye", dtype.name(), move |device| identities(dtype, device));
    }
}
