//! The sums of products on matrix units whose lanes hold known elements. The subgroups of a workgroup share the depth.
//!
//! Which lane holds which elements is known of NVIDIA's GPUs (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane
//! `4 g + t` holds four elements of the depth, of the lines `g` and `g + 8`. Along the depth, the order does not matter
//! if it is the same for both operands.

use super::workgroup::tree;
use crate::shader::{KernelBuilder, MatrixVar, Type, Value};
use crate::tuning::UnitBlock;

/// The lines and the depth of a unit.
pub(super) const UNIT: u32 = 16;

pub(super) const LANES: u32 = UnitBlock::LANES;

/// The lanes that share the lines of an operand.
pub(super) const SHARING: u32 = 4;

/// The lines of a lane are this far apart.
pub(super) const APART: u32 = 8;

/// Rows that are stored together.
const FOUR: u32 = 4;

/// Words of workgroup memory between vectors. If neighbouring lines are neighbouring rows, lanes that store together
/// use different banks.
const fn pitch(units: u32) -> u32 {
    units * UNIT + FOUR
}

/// Returns the bytes of workgroup memory that the sums take. A subgroup has sums of `units` units.
pub(super) const fn memory(units: u32, subgroups: u32, vectors: u32) -> u32 {
    4 * subgroups * vectors * pitch(units)
}

/// How an invocation is part of its workgroup.
#[derive(Clone, Copy)]
pub(super) struct Member<'k> {
    pub subgroup: Value<'k>,
    /// The first of the lane's lines.
    pub g: Value<'k>,
    /// The lane's place among those that share lines.
    pub t: Value<'k>,
}

impl<'k> Member<'k> {
    pub fn new(k: &'k KernelBuilder) -> Self {
        let lane = k.local_index() % LANES;
        Member { subgroup: k.local_index() / LANES, g: lane / SHARING, t: lane % SHARING }
    }
}

/// Returns which of the lane's two lines an element of the sums is of.
pub(super) const fn line(element: u32) -> u32 {
    element / 4
}

/// The sums that the subgroups of a workgroup have.
pub(super) struct Sums<'a, 'k> {
    /// Of a subgroup.
    pub units: &'a [MatrixVar<'k>],
    pub subgroups: u32,
    pub vectors: u32,
    /// Whether the first half of a workgroup's rows are gates for the second half.
    pub gated: bool,
}

/// Adds up the sums of the subgroups in workgroup memory. Each unit has 16 rows, and `row` tells at which row of the
/// workgroup the line `g` of a unit is, or the line `g + 8`. `store` gets a vector, a row, and the sums of four rows.
/// If these are gates, it also gets the sums of the four rows that they gate.
pub(super) fn add_up<'k>(
    k: &'k KernelBuilder,
    Sums { units, subgroups, vectors, gated }: Sums<'_, 'k>,
    member: &Member<'k>,
    row: impl Fn(u32, u32) -> Value<'k>,
    store: impl Fn([Value<'k>; 2], &[Value<'k>]),
) {
    let (rows, pitch) = (units.len() as u32 * UNIT, pitch(units.len() as u32));
    let memory = k.workgroup_array(Type::F32, subgroups * vectors * pitch);
    for (unit, sums) in (0..).zip(units) {
        // A lane has four elements of each of its lines: two neighbours, and those eight columns from there.
        for element in 0..8 {
            let (line, column) = (line(element), element / 2 % 2 * APART + element % 2);
            if column < vectors {
                let vector = member.t * 2 + column;
                let place = (member.subgroup * vectors + vector) * pitch + row(unit, line);
                k.when(vector.lt(vectors), || memory.store(place, sums.element(element)));
            }
        }
    }
    k.barrier();
    let parts = if gated { 2 } else { 1 };
    let (outputs, fours) = (rows / parts, rows / parts / FOUR);
    k.for_step(k.local_index(), vectors * fours, subgroups * LANES, |four| {
        let (vector, row) = (four / fours, four % fours * FOUR);
        let sum = |e: u32| {
            let of = |subgroup| memory.load(vector * pitch + row + (subgroup * vectors * pitch + e));
            tree((0..subgroups).map(of).collect(), &|&a, &b| a + b)
        };
        let four = |part: u32| k.vector(&[0, 1, 2, 3].map(|e| sum(part * outputs + e)));
        store([vector, row], &(0..parts).map(four).collect::<Vec<_>>());
    });
}
