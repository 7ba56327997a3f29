//! Elements picked by an index tensor.

use super::{is_brief, sample, shaped};
use crate::compare::{Expected, Sample, check};
use crate::layouts::Layout;
use crate::reference::index::index_select;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::{ArrayD, array};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Device};

/// The dtypes of indexes that a table of a dtype is tried with.
fn index_dtypes(table: DType) -> &'static [DType] {
    match table {
        DType::F32 => &[DType::U32, DType::I32, DType::U8, DType::I8, DType::I64],
        _ if is_brief(table) => &[DType::U32],
        _ => &[DType::U32, DType::I32, DType::U8],
    }
}

/// Indexes below `length`, repeated and in no order.
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

/// Numbers that name no slice of a short axis.
fn strays(dtype: DType) -> Vec<f64> {
    match dtype {
        DType::I32 => vec![0.0, -1.0, 5.0, 4.0, i32::MIN.into(), i32::MAX.into(), 2.0],
        // Numbers whose lower word is small.
        DType::I64 => vec![0.0, -1.0, 5.0, 4.0, 2f64.powi(32), -(2f64.powi(32)) + 1.0, 2f64.powi(40) + 3.0, 2.0],
        DType::I8 => vec![0.0, -1.0, 5.0, 4.0, -128.0, 127.0, 2.0],
        DType::U32 => vec![5.0, 0.0, u32::MAX.into(), 2f64.powi(31), 4.0, 1e9],
        _ => vec![255.0, 4.0, 5.0, 0.0, 6.0],
    }
}

pub fn add(suite: &mut Suite) {
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
            for layout in [Layout::Sliced, Layout::Broadcast, Layout::Unaligned] {
                suite.add("index_select", format!("{dtype}::{index_dtype}_indexes_{}", layout.name()), move |device| {
                    let table = sample("table", Layout::Contiguous, dtype, Domain::Special, device)?;
                    check_selection(&table, &layout.place(indexes(&[9], 5), index_dtype, device)?, 1)
                });
            }
        }
        for layout in
            [Layout::Transposed, Layout::Sliced, Layout::Broadcast, Layout::Offset, Layout::Unaligned, Layout::Odd]
        {
            suite.add("index_select", format!("{dtype}::table_{}", layout.name()), move |device| {
                let table = sample("table", layout, dtype, Domain::Special, device)?;
                check_selection(&table, &Layout::Contiguous.place(indexes(&[6], 3), DType::U32, device)?, 0)
            });
        }
        suite.add("index_select", format!("{dtype}::nothing"), move |device| select_nothing(dtype, device));
        for (name, shape, layout) in [
            ("vector", &[7][..], Layout::Contiguous),
            ("matrix", &[3, 5], Layout::Transposed),
            ("batch", &[2, 3, 2], Layout::Sliced),
            ("scalar", &[], Layout::Contiguous),
            ("empty", &[2, 0], Layout::Contiguous),
        ] {
            suite.add("embedding", format!("{dtype}::{name}"), move |device| {
                let table = shaped("table", &[11, 9], Layout::Contiguous, dtype, Domain::Special, device)?;
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

/// No indexes, and slices without elements of an axis that is empty or not.
fn select_nothing(dtype: DType, device: &Device) -> Outcome {
    let none = Layout::Contiguous.place(array(&[0], Vec::new()), DType::U32, device)?;
    check_selection(&sample("table", Layout::Contiguous, dtype, Domain::Special, device)?, &none, 1)?;
    let empty = sample("table", Layout::Empty, dtype, Domain::Special, device)?;
    check_selection(&empty, &none, 1)?;
    check_selection(&empty, &Layout::Contiguous.place(indexes(&[3], 4), DType::U32, device)?, 0)
}
