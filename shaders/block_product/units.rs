//! Products of up to 16 vectors of `f16` and a quantised matrix on matrix units. A lane unpacks the numbers that it
//! holds of a unit's operand, so they never leave registers. The subgroups of a workgroup share the depth.
//!
//! Which lane holds which elements is known of NVIDIA's GPUs, as in `matmul/fragments.rs`: lane `4 g + t` holds four
//! elements of the depth, of the lines `g` and `g + 8`. Along the depth, the order does not matter if it is the same
//! for both operands. So lane `t` takes its elements from unit `t` of four, in the order of [`HALVES`].

use super::{BlockProduct, Part};
use crate::kernels::blocks::{HALVES, Scale, Unit, units};
use crate::kernels::epilogue::Outputs;
use crate::kernels::workgroup::tree;
use crate::shader::{Access, KernelBuilder, MatrixType, MatrixVar, Scalar, Type, Value};
use crate::tuning::UnitBlock;

/// The rows and the depth of a unit.
pub(super) const UNIT: u32 = 16;

pub(super) const LANES: u32 = UnitBlock::LANES;

/// The lanes that share the lines of an operand.
const SHARING: u32 = 4;

/// The lines of a lane are this far apart.
const APART: u32 = 8;

/// Elements in 16 bytes of a vector.
const LOAD: u32 = 8;

pub(super) fn write<'k>(k: &'k KernelBuilder, config: &BlockProduct, subgroups: u32) {
    k.use_matrices();
    let (part, x, blocks, y) = config.declare_buffers(k, || k.buffer("x", Type::vec4(Scalar::U32), Access::Read));
    let blocks = blocks.in_halves();
    let types = MatrixType::of_units(config.dtype, [UNIT; 3]);
    let (lane, subgroup) = (k.local_index() % LANES, k.local_index() / LANES);
    let (g, t) = (lane / SHARING, lane % SHARING);
    let vectors: Vec<_> = (0..config.count).step_by(APART as usize).map(|line| part.vector(g + line)).collect();
    let matrix = [0, APART].map(|line| part.row(g + line));
    let sums = k.zero_matrix(types[2]);

    let (units, elements) = (units(config.format), config.format.block_elements() as u32);
    let count = part.row_blocks * units;
    // Beyond the end, the last unit is multiplied by 0.
    let place = |step: Value<'k>| {
        let at = step * SHARING + t;
        (at.lt(count), at.min(count - 1) / units, at.min(count - 1) % units)
    };
    let loaded = |step| {
        let (_, block, unit) = place(step);
        matrix.map(|row| blocks.load(row + block, unit))
    };
    // While a step is multiplied, the next one is loaded. NVIDIA's driver would unroll the loop: 35 KB of instructions
    // instead of 7.
    let next = loaded(subgroup).map(|loaded| loaded.map(|&word| k.var(word)));
    k.for_rolled(subgroup, (count + (SHARING - 1)) / SHARING, subgroups, |step| {
        let current = next.each_ref().map(|next| next.map(|word| word.get()));
        for (next, loaded) in next.iter().zip(loaded(step + subgroups)) {
            next.set(&loaded);
        }
        let (is_inside, block, unit) = place(step);
        let lines = [0, 1].map(|line| blocks.decode(&current[line], matrix[line] + block, unit));
        for (i, place) in blocks.places(unit).iter().enumerate() {
            let is_there = place.is_there.map_or(is_inside, |is_there| is_there & is_inside);
            let numbers = lines.each_ref().map(|line| Numbers::new(line, i, is_there));
            let run = (block * elements + place.first) / LOAD;
            for load in 0..2 {
                let eights: Vec<_> = vectors.iter().map(|&line| x.load(line + run + load)).collect();
                for four in 0..2 {
                    let mut vectors: Vec<_> = eights.iter().flat_map(|&eight| ordered(k, eight, four)).collect();
                    // If there are no more than eight, the other columns are 0.
                    vectors.resize(8, k.number(Type::F16, 0));
                    let vectors = k.matrix_of_halves(types[1], &vectors);
                    let rows: Vec<_> = numbers.iter().flat_map(|line| line.four(load * 2 + four)).collect();
                    sums.set(k.matrix_of_halves(types[0], &rows).multiply_add(vectors, sums.get()));
                }
            }
        }
    });
    store(k, config, (sums, subgroups), [subgroup, g, t], (&part, &y));
}

/// Sixteen numbers of a line of the matrix.
struct Numbers<'a, 'k> {
    of: &'a Unit<'a, 'k>,
    place: usize,
    scale: Scale<'k>,
}

impl<'a, 'k> Numbers<'a, 'k> {
    /// Takes the numbers, or zeros if they are not there.
    fn new(of: &'a Unit<'a, 'k>, place: usize, is_there: Value<'k>) -> Self {
        let (scale, four) = (of.scale(place), |number: Value<'k>| is_there.select(number, 0).splat(4));
        Numbers { of, place, scale: Scale { factor: four(scale.factor), offset: scale.offset.map(four) } }
    }

    /// Returns four of the numbers.
    fn four(&self, four: u32) -> Vec<Value<'k>> {
        self.scale.of_halves(self.of.digits(self.place, four as usize)).lanes()
    }
}

/// Returns the first or the second four of eight neighbours, in the order of the numbers of the matrix.
fn ordered<'k>(k: &'k KernelBuilder, eight: Value<'k>, four: u32) -> [Value<'k>; 4] {
    let words = k.vector(&[0, 1].map(|word| eight.lane(four * 2 + word)));
    let halves = words.bitcast(Type::vec4(Scalar::F16));
    HALVES.map(|lane| halves.lane(lane))
}

/// Adds up the sums of the subgroups in workgroup memory, and stores them.
fn store<'k>(
    k: &'k KernelBuilder,
    config: &BlockProduct,
    (sums, subgroups): (MatrixVar<'k>, u32),
    [subgroup, g, t]: [Value<'k>; 3],
    (part, y): (&Part<'k>, &Outputs<'k>),
) {
    // A line of rows for each vector. Lanes that store together use different banks.
    const PITCH: u32 = UNIT + 4;
    let memory = k.workgroup_array(Type::F32, subgroups * config.count * PITCH);
    // A lane has four elements of each of its rows: two neighbours, and those eight columns from there.
    for element in 0..8 {
        let (row, column) = (element / 4 * APART, element / 2 % 2 * APART + element % 2);
        if column < config.count {
            let (row, vector) = (g + row, t * 2 + column);
            let place = (subgroup * config.count + vector) * PITCH + row;
            k.when(vector.lt(config.count), || memory.store(place, sums.element(element)));
        }
    }
    k.barrier();
    const FOURS: u32 = UNIT / 4;
    k.for_step(k.local_index(), config.count * FOURS, subgroups * LANES, |four| {
        let (vector, row) = (four / FOURS, four % FOURS * 4);
        let sum = |e: u32| {
            let of = |subgroup| memory.load(vector * PITCH + row + (subgroup * config.count * PITCH + e));
            tree((0..subgroups).map(of).collect(), &|&a, &b| a + b)
        };
        config.store(k, part, y, [vector, row], k.vector(&[0, 1, 2, 3].map(sum)));
    });
}
