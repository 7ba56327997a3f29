//! Selection by a condition.

use super::{is_brief, layouts, shaped};
use crate::compare::{Expected, Sample, check};
use crate::layouts::Layout;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::zip;
use crate::suite::{Outcome, Suite};
use marquetry::DType;

fn check_choice(condition: &Sample, yes: &Sample, no: &Sample) -> Outcome {
    let chosen = zip(&condition.values, &yes.values, |c, yes| if c != 0.0 { yes } else { f64::NEG_INFINITY });
    let others = zip(&condition.values, &no.values, |c, no| if c != 0.0 { f64::NEG_INFINITY } else { no });
    // Exactly one of the two is the mark.
    let values = zip(&chosen, &others, |a, b| if a == f64::NEG_INFINITY { b } else { a });
    check(
        "where_cond",
        &condition.tensor.where_cond(&yes.tensor, &no.tensor)?,
        &Expected::new(values, yes.tensor.dtype()),
    )
}

pub fn add(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Sliced, Transposed};
    let condition = |shape: &[usize], dtype| {
        // Every nonzero number is true, even if its low bits are 0.
        Inputs::new("condition").array(shape, dtype, Domain::Special).mapv(|x| if x as i64 % 3 == 0 { 0.0 } else { x })
    };
    for dtype in DType::ALL {
        for condition_dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_float()) {
            // Every condition dtype with every dtype would be too many kernels.
            let layouts = match is_brief(dtype) && condition_dtype != DType::Bool {
                true => &[],
                false if is_brief(condition_dtype) && dtype != DType::F32 => &[Contiguous][..],
                false => layouts(dtype),
            };
            for &layout in layouts {
                suite.add("where_cond", format!("{dtype}::{condition_dtype}_{}", layout.name()), move |device| {
                    let shape = layout.shape();
                    let condition = layout.place(condition(&shape, condition_dtype), condition_dtype, device)?;
                    let yes = shaped("yes", &shape, layout, dtype, Domain::Special, device)?;
                    let no = shaped("no", &shape, layout, dtype, Domain::Special, device)?;
                    check_choice(&condition, &yes, &no)
                });
            }
        }
        suite.add("where_cond", format!("{dtype}::mixed"), move |device| {
            let shape = Contiguous.shape();
            let condition = Transposed.place(condition(&shape, DType::Bool), DType::Bool, device)?;
            let yes = shaped("yes", &shape, Sliced, dtype, Domain::Special, device)?;
            let no = shaped("no", &shape, Broadcast, dtype, Domain::Special, device)?;
            check_choice(&condition, &yes, &no)
        });
        suite.add("where_cond", format!("{dtype}::broadcast"), move |device| {
            let condition = Contiguous.place(condition(&[5, 1], DType::Bool), DType::Bool, device)?;
            let yes = shaped("yes", &[2, 1, 6], Contiguous, dtype, Domain::Special, device)?;
            let no = shaped("no", &[], Contiguous, dtype, Domain::Special, device)?;
            check_choice(&condition, &yes, &no)
        });
    }
}
