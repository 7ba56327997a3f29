//! Einsum.

use super::{shaped, summed};
use crate::compare::{Expected, Sample, check};
use crate::layouts::Layout;
use crate::reference::inputs::Domain;
use crate::reference::linear::einsum;
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::{DType, Device, Tensor};

pub const TOLERANCES: Table = &[(
    &["einsum"],
    Tolerance {
        ulp: 0.5,
        of_scale: EPS,
        reason: "a product and an addition per term, each within eps of the sum of magnitudes (the scale)",
        ..EXACT
    },
)];

/// The lengths of some axes, by name.
type Lengths = &'static [(char, usize)];

/// Subscripts, their explicit form for the reference, and lengths.
const CASES: &[(&str, &str, Lengths)] = &[
    ("ij->ji", "", &[]),
    ("ij->", "", &[]),
    ("ij->j", "", &[]),
    ("ijk->ki", "", &[]),
    ("ii", "ii->", &[('i', 5)]),
    ("ii->i", "", &[]),
    ("iij->ji", "", &[]),
    ("ijij->ij", "", &[]),
    ("ba", "ba->ab", &[]),
    ("ij,jk", "ij,jk->ik", &[('j', 65)]),
    (" i j , k j -> i k ", "ij,kj->ik", &[]),
    ("ij,jk->ki", "", &[]),
    ("bhqd,bhkd->bhqk", "", &[('b', 2), ('h', 3)]),
    ("bhqk,bhkd->bqhd", "", &[('b', 2), ('h', 3)]),
    ("bqhd,bkhd->bhqk", "", &[('b', 2), ('h', 3)]),
    ("i,j->ij", "", &[]),
    ("i,i->i", "", &[]),
    ("i,i", "i,i->", &[]),
    (",i", ",i->i", &[]),
    (",", ",->", &[]),
    ("ij,ij->ij", "", &[]),
    ("ij,ji->", "", &[]),
    ("ij,ij->i", "", &[]),
    ("ij,j->i", "", &[]),
    ("ijk,kl->ijl", "", &[]),
    ("ijk,jkl->il", "", &[]),
    ("ijk,lkj->il", "", &[]),
    ("ijkl,mj->imkl", "", &[]),
    ("ab,cd->dbca", "", &[]),
    ("ij,kl->il", "", &[]),
    ("ij,jk,kl->il", "", &[]),
    ("ij,ik,il->jkl", "", &[]),
    ("bi,oi,b->bo", "", &[]),
    ("i,i,i,i->", "", &[]),
    ("aBc,Bc", "aBc,Bc->a", &[]),
    ("...ij,...jk->...ik", "xyij,yjk->xyik", &[]),
    ("...ij,jk", "xij,jk->xik", &[]),
    ("i...->...", "ixy->xy", &[]),
    ("...", "xy->xy", &[]),
    ("b...,...->b", "bxy,xy->b", &[]),
    ("ij,jk->ik", "", &[('j', 0)]),
    ("ij,jk->ik", "", &[('i', 0)]),
    ("ij,jk->ik", "", &[('i', 1), ('j', 1)]),
];

/// Shapes with broadcast axes of length 1.
const BROADCASTS: &[(&str, &[usize], &[usize])] = &[
    ("ij,ij->ij", &[1, 4], &[3, 4]),
    ("ij,jk->ik", &[3, 1], &[5, 4]),
    ("bij,bjk->bik", &[1, 3, 4], &[2, 4, 5]),
    ("bij,bjk->ik", &[2, 3, 4], &[1, 4, 5]),
    ("ij,jk->ik", &[3, 1], &[0, 4]),
];

fn check_sum(subscripts: &str, reference: &str, operands: &[Sample]) -> Outcome {
    let dtype = operands[0].tensor.dtype();
    let values: Vec<_> = operands.iter().map(|operand| &operand.values).collect();
    let (exact, magnitude) = einsum(reference, &values, dtype);
    // A bound of the terms per output element: the product of the operands' lengths, divided by the output's length.
    let terms: usize = values.iter().map(|values| values.len()).product::<usize>().max(1) / exact.len().max(1);
    let tensors: Vec<&Tensor> = operands.iter().map(|operand| &operand.tensor).collect();
    let expected = Expected::new(exact, dtype).with_scale(magnitude * (terms.min(200) + operands.len()) as f64);
    check("einsum", &Tensor::einsum(subscripts, &tensors)?, &expected)
}

fn operands(reference: &str, lengths: Lengths, layout: Layout, dtype: DType, device: &Device) -> Outcome<Vec<Sample>> {
    let inputs = reference.split("->").next().unwrap_or_default();
    let length = |name: char| {
        let known = lengths.iter().find(|(other, _)| *other == name);
        known.map_or(2 + name as usize % 5, |(_, length)| *length)
    };
    let terms = inputs.split(',').enumerate().map(|(i, term)| {
        let shape: Vec<usize> = term.chars().map(length).collect();
        let layout = if shape.is_empty() { Layout::Contiguous } else { layout };
        shaped(&format!("einsum {i}"), &shape, layout, dtype, Domain::Small, device)
    });
    terms.collect()
}

pub fn add(suite: &mut Suite) {
    for dtype in summed() {
        let some = if dtype == DType::I32 { 4 } else { 1 };
        for &(subscripts, reference, lengths) in CASES.iter().step_by(some) {
            let reference = if reference.is_empty() { subscripts } else { reference };
            // Views handle the layouts, and views do not depend on the dtype.
            let layouts: &[Layout] =
                if dtype == DType::F32 { &[Layout::Contiguous, Layout::Transposed] } else { &[Layout::Contiguous] };
            for &layout in layouts {
                let lengths_name: String = lengths.iter().map(|(name, length)| format!("{name}{length}")).collect();
                let name = format!("{dtype}::{}::{}{lengths_name}", layout.name(), subscripts.replace(' ', ""));
                suite.add("einsum", name, move |device| {
                    check_sum(subscripts, reference, &operands(reference, lengths, layout, dtype, device)?)
                });
            }
        }
        for &(subscripts, left, right) in BROADCASTS {
            suite.add("einsum", format!("{dtype}::broadcast::{subscripts}_{left:?}"), move |device| {
                let a = shaped("einsum a", left, Layout::Contiguous, dtype, Domain::Normal, device)?;
                let b = shaped("einsum b", right, Layout::Contiguous, dtype, Domain::Normal, device)?;
                check_sum(subscripts, subscripts, &[a, b])
            });
        }
    }
}
