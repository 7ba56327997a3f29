//! Products of up to 16 vectors of `f16` and a quantised matrix on matrix units. A lane unpacks the numbers that it
//! holds of a unit's operand, so they never leave registers. The subgroups of a workgroup share the depth.
//!
//! Lane `t` takes its elements of the depth from unit `t` of four.

use super::{BlockProduct, Part};
use crate::kernels::blocks::{Scale, Unit, shares_scale, units};
use crate::kernels::unit_sums::{self, APART, LANES, Member, SHARING, Sums, UNIT};
use crate::kernels::workgroup::{Team, is_last, tree};
use crate::shader::{Access, Array, KernelBuilder, MatrixType, Scalar, Type, Value};

/// Elements in 16 bytes of a vector.
pub(super) const LOAD: u32 = 8;

pub(super) fn write<'k>(k: &'k KernelBuilder, config: &BlockProduct, (subgroups, whole): (u32, bool)) {
    k.use_matrices();
    let vector = |name| k.buffer(name, Type::vec4(Scalar::U32), Access::Read);
    let (part, (x, weights), blocks, y) =
        config.declare_buffers(k, || (vector("x"), config.normalized.map(|_| vector("norm"))));
    let blocks = blocks.in_halves();
    let types = MatrixType::of_units(config.dtype, [UNIT; 3]);
    let member = Member::new(k);
    let Member { subgroup, g, t } = member;
    let lines = (0..config.count).step_by(APART as usize).map(|line| g + line);
    let (x, vectors): (_, Vec<_>) = match (weights, config.normalized) {
        (Some(weights), Some(loads)) => {
            let memory = k.workgroup_array(Type::vec4(Scalar::U32), config.count * loads);
            let load = |vector, place| x.load(part.vector(vector) + place);
            normalize(k, &part, weights, [config.count, loads, subgroups * LANES], load, |place, words| {
                memory.store(place, words);
            });
            k.barrier();
            (memory, lines.map(|line| line.min(config.count - 1) * loads).collect())
        }
        _ => (x, lines.map(|line| part.vector(line)).collect()),
    };
    let matrix = match config.gate {
        Some(_) => [part.row(&blocks, g), part.gated_row(&blocks, g)],
        None => [0, APART].map(|line| part.row(&blocks, g + line)),
    };
    let sums = k.zero_matrix(types[2]);

    let (units, elements) = (units(config.format), config.format.block_elements() as u32);
    let count = part.row_blocks * units;
    let steps = (count + (SHARING - 1)) / SHARING;
    let shares = shares_scale(config.format, SHARING);
    // If a step has one block, a lane has the same unit of each.
    let places_of_lane = (units == SHARING).then(|| blocks.places(t));
    let unit_of_step = |step: Value<'k>| {
        if units == SHARING {
            return (step, t);
        }
        let at = step * SHARING + t;
        // Beyond the end, the last unit is loaded again, and taken as zeros.
        let within = if whole { at } else { at.min(count - 1) };
        (within / units, within % units)
    };
    // Other formats have more registers to fill, and take longer if they load ahead.
    let load_ahead = shares.then(|| {
        let (block, unit) = unit_of_step(subgroup.min(steps - 1));
        matrix.map(|row| blocks.ahead(blocks.block(row, block), unit))
    });
    // NVIDIA's driver would unroll the loop, to five times the instructions.
    k.for_rolled(subgroup, steps, subgroups, |step| {
        let is_inside = (!whole).then(|| (step * SHARING + t).lt(count));
        let (block, unit) = unit_of_step(step);
        let lines = match &load_ahead {
            Some(lines) => {
                let units = [0, 1].map(|i| blocks.unit_of(&lines[i], blocks.block(matrix[i], block), unit));
                let (block, unit) = unit_of_step((step + subgroups).min(steps - 1));
                for (line, row) in lines.iter().zip(matrix) {
                    blocks.load_ahead(line, blocks.block(row, block), unit);
                }
                units
            }
            None => matrix.map(|row| blocks.unit(blocks.block(row, block), unit)),
        };
        // If a step's numbers share a scale, it is for their sums.
        let products = if shares { k.zero_matrix(types[2]) } else { sums };
        let places = match &places_of_lane {
            Some(places) => places,
            None => &blocks.places(unit),
        };
        for (i, place) in places.iter().enumerate() {
            let is_there = match (place.is_there, is_inside) {
                (Some(is_there), Some(is_inside)) => Some(is_there & is_inside),
                (is_there, is_inside) => is_there.or(is_inside),
            };
            let numbers = lines.each_ref().map(|line| match shares {
                true => Numbers { of: line, place: i, scale: None },
                false => Numbers::new(line, i, is_there),
            });
            for load in 0..2 {
                let eight =
                    |&line: &Value<'k>| or_zero(is_there, x.load(place.run(line, block * elements, LOAD) + load));
                let eights: Vec<_> = vectors.iter().map(eight).collect();
                for four in 0..2 {
                    let mut vectors: Vec<_> =
                        eights.iter().flat_map(|&eight| four_of(k, eight, four).lanes()).collect();
                    // If there are no more than eight, the other columns are 0.
                    vectors.resize(8, k.number(Type::F16, 0));
                    let vectors = k.matrix_of_elements(types[1], &vectors);
                    let rows: Vec<_> = numbers.iter().flat_map(|line| line.four(load * 2 + four)).collect();
                    products.set(k.matrix_of_elements(types[0], &rows).multiply_add(vectors, products.get()));
                }
            }
        }
        if shares {
            let factors = lines.each_ref().map(|line| line.scale(0).factor.convert(Scalar::F32));
            let sum = |e| products.element(e).fma(factors[unit_sums::line(e) as usize], sums.element(e));
            sums.set(k.matrix_of_elements(types[2], &(0..8).map(sum).collect::<Vec<_>>()));
        }
    });
    let sums = Sums { units: &[sums], subgroups, vectors: config.count, neighbours: 1, gated: config.gate.is_some() };
    unit_sums::add_up(k, sums, &member, |place, fours| {
        let four = config.gate.map_or(fours[0], |gate| gate.apply(fours[0]) * fours[1]);
        config.store(k, &part, &y, place, four);
    });
    if let Some(loads) = config.norm_of_results {
        let weights = vector("norm");
        let normalized = k.buffer("normalized", Type::vec4(Scalar::U32), Access::Write);
        let counts = k.buffer("counts", Type::U32, Access::ReadWrite);
        let workgroups = (part.rows + (config.tile_rows() - 1)) / config.tile_rows();
        let last = is_last(counts, k.u32(0), workgroups, k.workgroup_array(Type::U32, 1));
        let load =
            |_, place: Value<'k>| k.vector(&[0, 1].map(|quad| y.load_packed_of_all(place * 2 + quad).lanes()).concat());
        k.when(last, || {
            normalize(k, &part, weights, [1, loads, subgroups * LANES], load, |place, words| {
                normalized.store(place, words);
            });
        });
    }
}

/// Divides `count` vectors by their root mean squares, and multiplies them by weights. A vector has `loads` loads of 16
/// bytes, which `load` returns by vector and place, and the workgroup `members` invocations. `store` gets the places in
/// all results, and what is there. A norm's own kernel rounds its results to the same dtype, and differs only in the
/// order of its sum.
fn normalize<'k>(
    k: &'k KernelBuilder,
    part: &Part<'k>,
    weights: Array<'k>,
    [count, loads, members]: [u32; 3],
    load: impl Fn(u32, Value<'k>) -> Value<'k>,
    store: impl Fn(Value<'k>, Value<'k>),
) {
    let team = Team::Workgroup(members).join(k).in_subgroups(Some(LANES));
    let places: Vec<_> = (0..loads.div_ceil(members)).map(|turn| k.local_index() + turn * members).collect();
    let inside = |place: Value<'k>| place.min(loads - 1);
    // All loads are on their way at once.
    let load_of = |vector| -> Vec<_> { places.iter().map(|&place| load(vector, inside(place))).collect() };
    let vectors: Vec<_> = (0..count).map(load_of).collect();
    let weights = places.iter().map(|&place| weights.load(inside(place))).collect();
    let numbers_of = |loads: Vec<Value<'k>>| -> Vec<_> {
        loads.into_iter().map(|load| [0, 1].map(|four| four_of(k, load, four).convert(Scalar::F32))).collect()
    };
    let weights = numbers_of(weights);
    for (vector, numbers) in (0..).zip(vectors.into_iter().map(numbers_of)) {
        let square = |(&place, fours): (&Value<'k>, &[Value<'k>; 2])| {
            let squares = (fours[0] * fours[0] + fours[1] * fours[1]).lanes();
            let sum = tree(squares, &|&a, &b| a + b);
            place.lt(loads).select(sum, 0)
        };
        let squares = tree(places.iter().zip(&numbers).map(square).collect(), &|&a, &b| a + b);
        let mean = team.reduce(squares, |a, b| a + b) / k.f32((loads * LOAD) as f32);
        let scale = (k.f32(1.0) / (mean + part.eps.unwrap_or(k.f32(0.0))).sqrt()).splat(4);
        for ((&place, fours), weights) in places.iter().zip(&numbers).zip(&weights) {
            let words = [0, 1].map(|half| {
                (fours[half] * scale * weights[half]).convert(Scalar::F16).bitcast(Type::vec2(Scalar::U32)).lanes()
            });
            k.when(place.lt(loads), || store(place + vector * loads, k.vector(&words.concat())));
        }
    }
}

/// Returns a number or a vector, or 0 if it is not there.
fn or_zero<'k>(is_there: Option<Value<'k>>, value: Value<'k>) -> Value<'k> {
    is_there.map_or(value, |is_there| is_there.select(value, 0))
}

/// Sixteen numbers of a line of the matrix.
struct Numbers<'a, 'k> {
    of: &'a Unit<'a, 'k>,
    place: usize,
    /// `None` if the sums are scaled.
    scale: Option<Scale<'k>>,
}

impl<'a, 'k> Numbers<'a, 'k> {
    /// Takes the numbers, or zeros if they are not there.
    fn new(of: &'a Unit<'a, 'k>, place: usize, is_there: Option<Value<'k>>) -> Self {
        let (scale, four) = (of.scale(place), |number: Value<'k>| or_zero(is_there, number).splat(4));
        let scale = Scale { factor: four(scale.factor), offset: scale.offset.map(four) };
        Numbers { of, place, scale: Some(scale) }
    }

    /// Returns four of the numbers.
    fn four(&self, four: u32) -> Vec<Value<'k>> {
        let digits = self.of.digits(self.place, four as usize);
        self.scale.map_or(digits, |scale| scale.of_halves(digits)).lanes()
    }
}

/// Returns the first or the second four of eight neighbours.
fn four_of<'k>(k: &'k KernelBuilder, eight: Value<'k>, four: u32) -> Value<'k> {
    let words = k.vector(&[0, 1].map(|word| eight.lane(four * 2 + word)));
    words.bitcast(Type::vec4(Scalar::F16))
}
