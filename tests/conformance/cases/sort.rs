//! Sorting and top-k.

use super::shaped;
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::inputs::{Domain, Inputs, specials};
use crate::reference::reduce::sorted;
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EXACT, Table, Tolerance};
use marquetry::{DType, Device};

pub const TOLERANCES: Table =
    &[(&["sort", "sort_values", "argsort", "topk"], Tolerance { moves: true, reason: "nothing is computed", ..EXACT })];

fn check_sort(input: &Sample, axis: i32) -> Outcome {
    let resolved = axis.rem_euclid(input.values.ndim() as i32) as usize;
    let (length, dtype) = (input.values.shape()[resolved], input.tensor.dtype());
    for descending in [false, true] {
        let [values, places] = sorted(&input.values, resolved, length, descending);
        let (values, places) = (Expected::new(values, dtype), Expected::new(places, DType::U32));
        let (sorted, order) = input.tensor.sort(axis, descending)?;
        check("sort", &sorted, &values)?;
        check("sort", &order, &places)?;
        check("argsort", &input.tensor.argsort(axis, descending)?, &places)?;
        check("sort_values", &input.tensor.sort_values(axis, descending)?, &values)?;
    }
    Ok(())
}

fn check_topk(input: &Sample, k: usize, axis: i32) -> Outcome {
    let resolved = axis.rem_euclid(input.values.ndim() as i32) as usize;
    for largest in [true, false] {
        let [values, places] = sorted(&input.values, resolved, k, largest);
        let (top, order) = input.tensor.topk(k, axis, largest)?;
        check("topk", &top, &Expected::new(values, input.tensor.dtype()))?;
        check("topk", &order, &Expected::new(places, DType::U32))?;
    }
    Ok(())
}

fn vector(values: Vec<f64>, dtype: DType, device: &Device) -> Outcome<Sample> {
    let values = array(&[values.len()], values);
    Ok(Sample { tensor: upload(&values, dtype, device)?, values })
}

pub fn add(suite: &mut Suite) {
    for dtype in DType::ALL {
        for (name, shape, layout, axis) in [
            ("sliced_middle", &[4, 5, 6][..], Layout::Sliced, 1),
            ("transposed_last", &[4, 5, 6], Layout::Transposed, -1),
            ("broadcast_middle", &[4, 5, 6], Layout::Broadcast, 1),
            ("first", &[300, 3], Layout::Contiguous, 0),
            ("last", &[3, 300], Layout::Unaligned, 1),
            ("sixty_four", &[2, 64], Layout::Contiguous, 1),
            ("sixty_five", &[2, 65], Layout::Contiguous, 1),
            ("one", &[1, 1], Layout::Contiguous, 0),
            ("empty", &[4, 0, 6], Layout::Contiguous, 1),
            ("no_rows", &[4, 0, 6], Layout::Contiguous, 0),
        ] {
            // Reading the elements is the same for all dtypes.
            if dtype != DType::F32 && !["sliced_middle", "last", "sixty_five"].contains(&name) {
                continue;
            }
            suite.add("sort", format!("{dtype}::{name}"), move |device| {
                check_sort(&shaped("sort", shape, layout, dtype, Domain::Special, device)?, axis)
            });
        }
        suite.add("argsort", format!("{dtype}::sliced_middle"), move |device| {
            let input = shaped("sort", &[4, 5, 6], Layout::Sliced, dtype, Domain::Special, device)?;
            for descending in [false, true] {
                let [_, places] = sorted(&input.values, 1, 5, descending);
                check("argsort", &input.tensor.argsort(1, descending)?, &Expected::new(places, DType::U32))?;
            }
            Ok(())
        });
        suite.add("sort_values", format!("{dtype}::sliced_middle"), move |device| {
            let input = shaped("sort", &[4, 5, 6], Layout::Sliced, dtype, Domain::Special, device)?;
            for descending in [false, true] {
                let [values, _] = sorted(&input.values, 1, 5, descending);
                check("sort_values", &input.tensor.sort_values(1, descending)?, &Expected::new(values, dtype))?;
            }
            Ok(())
        });
        suite.add("sort", format!("{dtype}::many_ties"), move |device| {
            check_sort(&shaped("sort", &[2, 5000], Layout::Contiguous, dtype, Domain::Small, device)?, 1)
        });
        for (name, shape, layout, axis, ks) in [
            ("sliced_middle", &[4, 5, 6][..], Layout::Sliced, 1, &[1, 3, 5][..]),
            ("first", &[300, 3], Layout::Contiguous, 0, &[1, 7, 64, 65, 300]),
            ("last", &[3, 1000], Layout::Contiguous, 1, &[0, 2, 63, 200, 999]),
            ("selected_twice", &[2, 4999], Layout::Unaligned, 1, &[5, 250]),
        ] {
            suite.add("topk", format!("{dtype}::{name}"), move |device| {
                let input = shaped("topk", shape, layout, dtype, Domain::Special, device)?;
                ks.iter().try_for_each(|&k| check_topk(&input, k, axis))
            });
        }
    }
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        suite.add("sort", format!("{dtype}::nan_and_infinity"), move |device| {
            // Zeros of both signs and several NaN keep their order.
            let mut inputs = Inputs::new("specials");
            let specials = specials(dtype);
            let row: Vec<f64> = (0..200).map(|_| specials[inputs.below(specials.len())]).collect();
            check_sort(&vector(row.clone(), dtype, device)?, 0)?;
            check_topk(&vector(row, dtype, device)?, 20, 0)
        });
    }
    for (dtype, length) in [(DType::F32, 65_536), (DType::F32, 100_003), (DType::I32, 100_003), (DType::F64, 100_003)] {
        suite.add("sort", format!("{dtype}::{length}"), move |device| {
            check_sort(&shaped("long", &[length], Layout::Contiguous, dtype, Domain::Special, device)?, 0)
        });
        suite.add("topk", format!("{dtype}::{length}"), move |device| {
            let input = shaped("long", &[length], Layout::Contiguous, dtype, Domain::Special, device)?;
            [1, 50, 5000].into_iter().try_for_each(|k| check_topk(&input, k, 0))
        });
    }
}
