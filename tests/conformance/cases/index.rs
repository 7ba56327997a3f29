//! Selection of elements by an index tensor.

use super::{is_brief, sample, shaped};
use crate::compare::{Expected, Sample, check};
use crate::layouts::Layout;
use crate::reference::index::{gather, index_select};
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::{ArrayD, array, broadcast};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EXACT, Table, Tolerance};
use marquetry::{DType, Device};
use ndarray::{Axis, Slice};

/// The index dtypes that are tested with a table of this dtype.
fn index_dtypes(table: DType) -> &'static [DType] {
    match table {
        DType::F32 => &[DType::U32, DType::I32, DType::U8, DType::I8, DType::I64],
        _ if is_brief(table) => &[DType::U32],
        _ => &[DType::U32, DType::I32, DType::U8],
    }
}

/// Indexes below `length`, with repetitions, in no order.
fn indexes(shape: &[usize], length: usize) -> ArrayD<f64> {
    let mut inputs = Inputs::new("indexes");
    array(shape, (0..shape.iter().product()).map(|_| inputs.below(length) as f64).collect())
}

fn check_selection(table: &Sample, indexes: &Sample, axis: i32) -> Outcome {
    let dtype = table.tensor.dtype();
    let resolved = axis.rem_euclid(table.values.ndim() as i32) as usize;
    let expected = index_select(&table.values, &indexes.values, resolved, dtype);
    check("index_select", &table.tensor.index_select(&indexes.tensor, axis)?, &Expected::new(expected, dtype))
}

fn check_embedding(table: &Sample, ids: &Sample) -> Outcome {
    let dtype = table.tensor.dtype();
    let flat = array(&[ids.values.len()], ids.values.iter().copied().collect());
    let rows = index_select(&table.values, &flat, 0, dtype);
    let shape = [ids.values.shape(), &table.values.shape()[1..]].concat();
    let expected = Expected::new(array(&shape, rows.into_iter().collect()), dtype);
    check("embedding", &table.tensor.embedding(&ids.tensor)?, &expected)
}

/// Indexes out of the range of a short axis, mixed with valid ones.
fn strays(dtype: DType) -> Vec<f64> {
    match dtype {
        DType::I32 => vec![0.0, -1.0, 5.0, 4.0, i32::MIN.into(), i32::MAX.into(), 2.0],
        // Some numbers have a small lower word.
        DType::I64 => vec![0.0, -1.0, 5.0, 4.0, 2f64.powi(32), -(2f64.powi(32)) + 1.0, 2f64.powi(40) + 3.0, 2.0],
        DType::I8 => vec![0.0, -1.0, 5.0, 4.0, -128.0, 127.0, 2.0],
        DType::U32 => vec![5.0, 0.0, u32::MAX.into(), 2f64.powi(31), 4.0, 1e9],
        _ => vec![255.0, 4.0, 5.0, 0.0, 6.0],
    }
}

pub const TOLERANCES: Table = &[
    (&["gather", "take_along_dim"], Tolerance { moves: true, reason: "nothing is computed", ..EXACT }),
    (&["one_hot"], Tolerance { reason: "the result is an integer", ..EXACT }),
];

pub fn add(suite: &mut Suite) {
    for &dtype in index_dtypes(DType::F32) {
        add_one_hot(suite, dtype);
        suite.add("gather", format!("f32::{dtype}_indexes"), move |device| {
            let x = sample("gathered", Layout::Contiguous, DType::F32, Domain::Special, device)?;
            let indexes = some_strays(&[3, 8, 5], 5, dtype);
            check_gather("gather", &x, &Layout::Contiguous.place(indexes, dtype, device)?, 1)
        });
    }
    suite.add("gather", "f32::many_axes", many_axes);
    DType::ALL.into_iter().for_each(|dtype| add_gather(suite, dtype));
    for dtype in DType::ALL {
        for &index_dtype in index_dtypes(dtype) {
            for axis in [0, 1, 2, -1] {
                suite.add("index_select", format!("{dtype}::{index_dtype}_axis_{axis}"), move |device| {
                    let table = sample("table", Layout::Contiguous, dtype, Domain::Special, device)?;
                    let indexes = Layout::Contiguous.place(indexes(&[13], 4), index_dtype, device)?;
                    check_selection(&table, &indexes, axis)
                });
            }
            suite.add("index_select", format!("{dtype}::{index_dtype}_strays"), move |device| {
                let table = sample("table", Layout::Contiguous, dtype, Domain::Special, device)?;
                let strays = strays(index_dtype);
                let indexes = Layout::Contiguous.place(array(&[strays.len()], strays), index_dtype, device)?;
                check_selection(&table, &indexes, 1)
            });
            for layout in [Layout::Sliced, Layout::Flipped, Layout::Broadcast, Layout::Unaligned] {
                suite.add("index_select", format!("{dtype}::{index_dtype}_indexes_{}", layout.name()), move |device| {
                    let table = sample("table", Layout::Contiguous, dtype, Domain::Special, device)?;
                    check_selection(&table, &layout.place(indexes(&[9], 5), index_dtype, device)?, 1)
                });
            }
        }
        for layout in [
            Layout::Transposed,
            Layout::Sliced,
            Layout::Broadcast,
            Layout::Offset,
            Layout::Unaligned,
            Layout::Odd,
            Layout::Pending,
            Layout::PendingTransposed,
        ] {
            suite.add("index_select", format!("{dtype}::table_{}", layout.name()), move |device| {
                let table = sample("table", layout, dtype, Domain::Special, device)?;
                check_selection(&table, &Layout::Contiguous.place(indexes(&[6], 3), DType::U32, device)?, 0)
            });
        }
        // 32 elements are whole units of 16 bytes, if rows begin at multiples of 16 bytes. From column 3 on, or with 45
        // columns, they do not.
        for (columns, first) in [(32, 0), (48, 16), (48, 3), (45, 0)] {
            suite.add("index_select", format!("{dtype}::units_{columns}_{first}"), move |device| {
                let whole = shaped("table", &[3, 5, columns], Layout::Contiguous, dtype, Domain::Special, device)?;
                let values = whole.values.slice_axis(Axis(2), Slice::from(first..first + 32)).to_owned();
                let table = Sample { tensor: whole.tensor.narrow(2, first, 32)?, values };
                let strays = strays(DType::U32);
                let indexes = Layout::Contiguous.place(array(&[strays.len()], strays), DType::U32, device)?;
                [0, 1, 2].into_iter().try_for_each(|axis| check_selection(&table, &indexes, axis))
            });
        }
        suite.add("index_select", format!("{dtype}::nothing"), move |device| select_nothing(dtype, device));
        for (name, shape, layout) in [
            ("vector", &[7][..], Layout::Contiguous),
            ("matrix", &[3, 5], Layout::Transposed),
            ("batch", &[2, 3, 2], Layout::Sliced),
            ("scalar", &[], Layout::Contiguous),
            ("empty", &[2, 0], Layout::Contiguous),
            ("units", &[3, 5], Layout::Transposed),
        ] {
            let width = if name == "units" { 48 } else { 9 };
            suite.add("embedding", format!("{dtype}::{name}"), move |device| {
                let table = shaped("table", &[11, width], Layout::Contiguous, dtype, Domain::Special, device)?;
                check_embedding(&table, &layout.place(indexes(shape, 11), DType::U32, device)?)
            });
        }
        for &index_dtype in index_dtypes(dtype) {
            suite.add("embedding", format!("{dtype}::{index_dtype}_strays"), move |device| {
                let table = shaped("table", &[5, 3], Layout::Transposed, dtype, Domain::Special, device)?;
                let strays = strays(index_dtype);
                check_embedding(&table, &Layout::Contiguous.place(array(&[strays.len()], strays), index_dtype, device)?)
            });
        }
    }
}

/// Indexes, some of which are out of range.
fn some_strays(shape: &[usize], length: usize, dtype: DType) -> ArrayD<f64> {
    let (mut indexes, strays) = (indexes(shape, length), strays(dtype));
    for (place, index) in indexes.iter_mut().enumerate().filter(|(place, _)| place % 5 == 3) {
        *index = strays[place % strays.len()];
    }
    indexes
}

fn check_gather(op: &str, x: &Sample, indexes: &Sample, axis: i32) -> Outcome {
    let dtype = x.tensor.dtype();
    let rank = x.values.ndim();
    let resolved = axis.rem_euclid(rank as i32) as usize;
    let (tensor, values) = match op {
        "gather" => (x.tensor.gather(&indexes.tensor, axis)?, gather(&x.values, &indexes.values, resolved, dtype)),
        _ => {
            // Broadcast both along their axes of length 1.
            let other = |a: &ArrayD<f64>, b: &ArrayD<f64>| {
                let lengths =
                    (0..rank).map(|i| if i == resolved { a.shape()[i] } else { a.shape()[i].max(b.shape()[i]) });
                broadcast(a, &lengths.collect::<Vec<_>>())
            };
            let (x_values, index_values) = (other(&x.values, &indexes.values), other(&indexes.values, &x.values));
            (x.tensor.take_along_dim(&indexes.tensor, axis)?, gather(&x_values, &index_values, resolved, dtype))
        }
    };
    check(op, &tensor, &Expected::new(values, dtype))
}

fn add_gather(suite: &mut Suite, dtype: DType) {
    // The shapes of the indexes keep the three axes from merging.
    let shapes = |axis: i32| -> [usize; 3] {
        match axis.rem_euclid(3) {
            0 => [7, 4, 5],
            1 => [3, 8, 5],
            _ => [3, 4, 9],
        }
    };
    for layout in Layout::ALL.into_iter().chain([Layout::PendingTransposed]) {
        for axis in [0i32, 1, -1] {
            suite.add("gather", format!("{dtype}::{}_axis_{axis}", layout.name()), move |device| {
                let x = sample("gathered", layout, dtype, Domain::Special, device)?;
                let length = x.values.shape()[axis.rem_euclid(3) as usize];
                let shape = match layout {
                    Layout::Empty if axis == 1 => [4, 0, 6],
                    Layout::Empty => [2, 0, 3],
                    Layout::One => [1, 1, 1],
                    Layout::Odd => [3, 6, 7],
                    _ => shapes(axis),
                };
                let indexes = some_strays(&shape, length, DType::U32);
                check_gather("gather", &x, &Layout::Contiguous.place(indexes, DType::U32, device)?, axis)
            });
        }
    }
    for layout in [Layout::Transposed, Layout::Sliced, Layout::Flipped, Layout::Broadcast, Layout::Unaligned] {
        suite.add("gather", format!("{dtype}::indexes_{}", layout.name()), move |device| {
            let x = sample("gathered", Layout::Transposed, dtype, Domain::Special, device)?;
            check_gather("gather", &x, &layout.place(indexes(&[3, 8, 5], 5), DType::U32, device)?, 1)
        });
    }
    suite.add("take_along_dim", format!("{dtype}::broadcast"), move |device| {
        for (x, indexes_shape, axis) in [
            ([4, 5, 6], [1, 3, 6], 1),
            ([1, 5, 6], [4, 3, 1], 1),
            ([4, 5, 6], [4, 5, 1], -1),
            ([4, 1, 6], [2, 5, 6], 0),
            ([4, 0, 6], [1, 0, 6], 0),
        ] {
            let axis_length = x[i32::rem_euclid(axis, 3) as usize];
            let x = shaped("taken", &x, Layout::Contiguous, dtype, Domain::Special, device)?;
            let indexes = Layout::Contiguous.place(indexes(&indexes_shape, axis_length), DType::U32, device)?;
            check_gather("take_along_dim", &x, &indexes, axis)?;
        }
        Ok(())
    });
}

fn add_one_hot(suite: &mut Suite, dtype: DType) {
    for layout in [Layout::Contiguous, Layout::Sliced, Layout::Empty] {
        suite.add("one_hot", format!("{dtype}::{}", layout.name()), move |device| {
            for classes in [5, 1, 0, 300] {
                let x = layout.place(some_strays(&layout.shape(), 5, dtype), dtype, device)?;
                let shape = [x.values.shape(), &[classes]].concat();
                let rows = x.values.iter().flat_map(|&i| (0..classes).map(move |class| f64::from(i == class as f64)));
                let expected = Expected::new(array(&shape, rows.collect()), DType::U8);
                check("one_hot", &x.tensor.one_hot(classes)?, &expected)?;
            }
            Ok(())
        });
    }
}

/// More axes than a parameter block has strides for, so both tensors are copied to row-major order.
fn many_axes(device: &Device) -> Outcome {
    let table = shaped("many axes", &[2; 20], Layout::Transposed, DType::F32, Domain::Special, device)?;
    let indexes = Layout::Transposed.place(some_strays(&[2; 20], 2, DType::U32), DType::U32, device)?;
    check_gather("gather", &table, &indexes, 5)
}

/// No indexes, and slices without elements along an axis that may be empty.
fn select_nothing(dtype: DType, device: &Device) -> Outcome {
    let none = Layout::Contiguous.place(array(&[0], Vec::new()), DType::U32, device)?;
    check_selection(&sample("table", Layout::Contiguous, dtype, Domain::Special, device)?, &none, 1)?;
    let empty = sample("table", Layout::Empty, dtype, Domain::Special, device)?;
    check_selection(&empty, &none, 1)?;
    check_selection(&empty, &Layout::Contiguous.place(indexes(&[3], 4), DType::U32, device)?, 0)
}
