//! Products of a few vectors and a quantised matrix in registers, for any device.

use super::BlockProduct;
use crate::base::block_format::BlockFormat;
use crate::kernels::blocks::{Scale, bias, has_offset, units};
use crate::kernels::elements::Runs;
use crate::kernels::workgroup::sum_each;
use crate::shader::{KernelBuilder, Type, Value, Var};

/// The rows of the matrix that an invocation multiplies.
pub(super) const ROWS: u32 = 4;

/// Writes the kernel. The members of a workgroup share the depth of the rows, unless each has its own. `subgroup` is
/// the number of a subgroup's lanes, if these are used.
pub(super) fn write(k: &KernelBuilder, config: &BlockProduct, (members, own_rows): (u32, bool), subgroup: Option<u32>) {
    // Four rows have 64 packed numbers and more at a time, and each vector has four sums and four products.
    k.narrow_subgroups();
    // A unit of `TQ1_0` has the most numbers.
    if config.count > 1 || config.format == BlockFormat::TQ1_0 {
        k.large_registers();
    }
    let (part, x, blocks, y) = config.declare_buffers(k, || Runs::input(k, "x", config.dtype, 4));
    let (first_unit, step, first_row) = match own_rows {
        true => (k.u32(0), 1, k.local_index() * ROWS),
        false => (k.local_index(), members, k.u32(0)),
    };
    let lines = (0..config.count).map(|vector| part.vector(vector)).collect();
    // Lanes with rows of their own want the same numbers of the vectors.
    let vectors = Vectors::new(k, x, lines, subgroup.filter(|_| own_rows));
    let matrix: Vec<_> = (0..ROWS).map(|row| part.row(&blocks, first_row + row)).collect();
    let zero = k.number(Type::F32, 0);
    let sums: Vec<Var> = (0..config.count * ROWS).map(|_| k.var(zero)).collect();
    let (units, elements) = (units(config.format), config.format.block_elements() as u32);
    k.for_step(first_unit, part.row_blocks * units, step, |at| {
        let (block, unit) = (at / units, at % units);
        let rows: Vec<_> = matrix.iter().map(|&row| blocks.unit(blocks.block(row, block), unit)).collect();
        let places = blocks.places(unit);
        for (n, together) in places.chunks(vectors.places).enumerate() {
            let neighbours = vectors
                .at(together.iter().map(|place| (block * elements + place.first()) / vectors.length()).collect());
            for (i, place) in together.iter().enumerate() {
                let add = || {
                    let (number, mut products) = (n * vectors.places + i, Products::new(config));
                    for load in 0..vectors.loads {
                        let fours = load * vectors.length() / 4..(load + 1) * vectors.length() / 4;
                        let of_rows = |four| rows.iter().map(|row| row.digits(number, four as usize)).collect();
                        let digits: Vec<Vec<_>> = fours.map(of_rows).collect();
                        for vector in 0..config.count as usize {
                            products.add(vector, &neighbours.load(vector, i, load), &digits);
                        }
                    }
                    let scales: Vec<_> = rows.iter().map(|row| row.scale(number)).collect();
                    for (vector, sums) in sums.chunks(ROWS as usize).enumerate() {
                        for (row, sum) in sums.iter().enumerate() {
                            sum.set(products.finish([vector, row], scales[row], sum.get()));
                        }
                    }
                };
                match place.is_there {
                    Some(is_there) => drop(k.when(is_there, add)),
                    None => add(),
                }
            }
        }
    });

    let sums: Vec<_> = sums.iter().map(|sum| sum.get()).collect();
    if !own_rows {
        let vectors: Vec<_> = sums.chunks(ROWS as usize).map(<[_]>::to_vec).collect();
        return sum_each(k, (members, 1), subgroup, &vectors, |vector, _, numbers| {
            config.store(k, &part, &y, [vector, first_row], k.vector(numbers));
        });
    }
    for (vector, four) in (0..).zip(sums.chunks(ROWS as usize)) {
        config.store(k, &part, &y, [k.u32(vector), first_row], k.vector(four));
    }
}

/// Reads vectors, sixteen neighbours at a time.
struct Vectors<'k> {
    k: &'k KernelBuilder,
    x: Runs<'k>,
    /// Where they begin, in loads.
    lines: Vec<Value<'k>>,
    /// Loads of sixteen neighbours.
    loads: u32,
    /// The places whose neighbours are loaded at once: several if the lanes of a subgroup load for each other.
    places: usize,
    exchange: bool,
}

impl<'k> Vectors<'k> {
    fn new(k: &'k KernelBuilder, x: Runs<'k>, lines: Vec<Value<'k>>, exchange: Option<u32>) -> Self {
        let loads = 16 / x.length();
        let lanes = exchange.filter(|&lanes| lanes >= loads);
        let places = lanes.map_or(1, |lanes| (lanes / loads) as usize);
        Vectors { k, x, lines, loads, places, exchange: lanes.is_some() }
    }

    /// The elements of a load.
    fn length(&self) -> u32 {
        self.x.length()
    }

    /// Returns the neighbours from some loads on.
    fn at<'a>(&'a self, runs: Vec<Value<'k>>) -> Neighbours<'a, 'k> {
        let exchanged = self.exchange.then(|| {
            // Each lane makes one of the loads.
            let (place, load) = (self.k.subgroup_lane() / self.loads, self.k.subgroup_lane() % self.loads);
            let of_place = |run, (n, &other): (u32, &Value<'k>)| place.eq(n).select(other, run);
            let run = (1..).zip(&runs[1..]).fold(runs[0], of_place);
            self.lines.iter().map(|&line| self.x.load(line + run + load)).collect()
        });
        Neighbours { vectors: self, runs, exchanged }
    }
}

struct Neighbours<'a, 'k> {
    vectors: &'a Vectors<'k>,
    runs: Vec<Value<'k>>,
    /// What the lane has loaded of each vector.
    exchanged: Option<Vec<Vec<Value<'k>>>>,
}

impl<'k> Neighbours<'_, 'k> {
    /// Returns the elements of a vector at a place that a load has.
    fn load(&self, vector: usize, place: usize, load: u32) -> Vec<Value<'k>> {
        let Vectors { x, lines, loads, .. } = self.vectors;
        match &self.exchanged {
            None => x.load(lines[vector] + self.runs[place] + load),
            Some(lanes) => {
                let lane = place as u32 * loads + load;
                lanes[vector].iter().map(|number| number.subgroup_broadcast(lane)).collect()
            }
        }
    }
}

/// The products of sixteen neighbours of each vector and the digits of each row.
struct Products<'k> {
    /// Of each vector and row.
    sums: Vec<Option<Value<'k>>>,
    /// The sums of the vectors' elements, if the format has a bias or offsets.
    elements: Option<Vec<Option<Value<'k>>>>,
    bias: f32,
}

impl<'k> Products<'k> {
    fn new(config: &BlockProduct) -> Self {
        let (count, bias) = (config.count as usize, bias(config.format));
        let has_elements = bias != 0.0 || has_offset(config.format);
        let elements = has_elements.then(|| vec![None; count]);
        Products { sums: vec![None; count * ROWS as usize], elements, bias }
    }

    /// Adds the products of neighbours of a vector and the digits, which come in fours for each row.
    fn add(&mut self, vector: usize, numbers: &[Value<'k>], digits: &[Vec<Value<'k>>]) {
        let rows = &mut self.sums[vector * ROWS as usize..][..ROWS as usize];
        for (four, digits) in numbers.chunks(4).zip(digits) {
            if let Some(elements) = &mut self.elements {
                let sum = (four[0] + four[1]) + (four[2] + four[3]);
                elements[vector] = Some(elements[vector].map_or(sum, |before| before + sum));
            }
            for (sum, &digits) in rows.iter_mut().zip(digits) {
                for (&x, digit) in four.iter().zip(digits.lanes()) {
                    *sum = Some(sum.map_or_else(|| x * digit, |sum| x.fma(digit, sum)));
                }
            }
        }
    }

    /// Returns `sum` plus the scaled products of a vector and a row.
    fn finish(&self, [vector, row]: [usize; 2], scale: Scale<'k>, sum: Value<'k>) -> Value<'k> {
        let Some(products) = self.sums[vector * ROWS as usize + row] else { return sum };
        let Some(elements) = self.elements.as_ref().and_then(|elements| elements[vector]) else {
            return products.fma(scale.factor, sum);
        };
        let products = if self.bias == 0.0 { products } else { elements.fma(-self.bias, products) };
        let sum = products.fma(scale.factor, sum);
        scale.offset.map_or(sum, |offset| elements.fma(offset, sum))
    }
}
