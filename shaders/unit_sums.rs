//! The sums of products on matrix units whose lanes hold known elements. The subgroups of a workgroup share the depth.
//!
//! Which lane holds which elements is known of NVIDIA's GPUs (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane
//! `4 g + t` holds four elements of the depth, of the lines `g` and `g + 8`. Along the depth, the order does not matter
//! if it is the same for both operands.

use super::workgroup::tree;
use crate::shader::{KernelBuilder, MatrixVar, Scalar, Type, Value};
use crate::tuning::UnitBlock;

/// The lines and the depth of a unit.
pub(super) const UNIT: u32 = 16;

pub(super) const LANES: u32 = UnitBlock::LANES;

/// The lanes that share the lines of an operand.
pub(super) const SHARING: u32 = 4;

/// The lines of a lane are this far apart.
pub(super) const APART: u32 = 8;

/// Rows whose sums are added up together.
const FOUR: u32 = 4;

/// The distance between vectors in workgroup memory, in rows. Lanes that store together use different banks.
const fn pitch(rows: u32) -> u32 {
    rows + FOUR
}

/// Returns the bytes of workgroup memory that the sums take. A subgroup has sums of `rows` rows.
pub(super) const fn memory(rows: u32, subgroups: u32, vectors: u32) -> u32 {
    4 * subgroups * vectors * pitch(rows)
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
    /// How many lines of a lane are neighbouring rows: 1, 2 or 4.
    pub neighbours: u32,
    /// Whether the first half of a workgroup's rows are gates for the second half.
    pub gated: bool,
}

/// Returns the row of a lane's line. Each unit has two of them, and some are neighbours.
pub(super) fn row<'k>(member: &Member<'k>, line: u32, neighbours: u32) -> Value<'k> {
    member.g * neighbours + (line / neighbours * APART * neighbours + line % neighbours)
}

/// Adds up the sums of the subgroups in workgroup memory. `store` gets a vector, a row, and the sums of four rows.
/// If these are gates, it also gets the sums of the four rows that they gate.
pub(super) fn add_up<'k>(
    k: &'k KernelBuilder,
    Sums { units, subgroups, vectors, neighbours, gated }: Sums<'_, 'k>,
    member: &Member<'k>,
    store: impl Fn([Value<'k>; 2], &[Value<'k>]),
) {
    let lines = units.len() as u32 * 2;
    let rows = lines * APART;
    let pitch = pitch(rows) / neighbours;
    let memory = k.workgroup_array(Type { scalar: Scalar::F32, lanes: neighbours }, subgroups * vectors * pitch);
    // In each of its lines a lane has the sums of four vectors: of two neighbours, and of two that come eight later.
    for (pair, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let element = |line: u32| units[line as usize / 2].element(line % 2 * 4 + pair * 2 + column);
        let first = pair * APART + column;
        if first < vectors {
            let vector = member.t * 2 + first;
            let place = (member.subgroup * vectors + vector) * pitch + member.g;
            k.when(vector.lt(vectors), || {
                for group in 0..lines / neighbours {
                    let sums: Vec<_> = (0..neighbours).map(|i| element(group * neighbours + i)).collect();
                    memory.store(place + group * APART, if let [sum] = sums[..] { sum } else { k.vector(&sums) });
                }
            });
        }
    }
    k.barrier();
    let parts = if gated { 2 } else { 1 };
    let (outputs, fours) = (rows / parts, rows / parts / FOUR);
    k.for_step(k.local_index(), vectors * fours, subgroups * LANES, |four| {
        let (vector, row) = (four / fours, four % fours * FOUR);
        let four = |part: u32| {
            let of = |subgroup: u32| {
                let place = vector * pitch + (row + part * outputs) / neighbours + subgroup * vectors * pitch;
                let loads = (0..FOUR / neighbours).map(|i| memory.load(place + i).lanes());
                k.vector(&loads.collect::<Vec<_>>().concat())
            };
            tree((0..subgroups).map(of).collect(), &|&a, &b| a + b)
        };
        store([vector, row], &(0..parts).map(four).collect::<Vec<_>>());
    });
}
