//! Attention of a few rows, which share each key. Memory bandwidth limits it, so keys and values are read once, 16
//! bytes at a time, and loaded ahead. A subgroup takes several keys at a time. The subgroups of a workgroup share the
//! keys, and so do workgroups: the last one to finish joins the parts, in order.

mod lanes;
mod lines;
pub(crate) mod newest;
mod parts;
mod row;
mod steps;
mod units;

use super::AttentionBlock;
use crate::base::dtype::DType;
use crate::kernels::elements::Runs;
use crate::kernels::unit_sums;
use crate::shader::{Scalar, Type};
use newest::{Newest, NewestBuffers};

/// How workgroups divide the keys of a few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FewRows {
    /// The rows.
    pub rows: u32,
    /// Whether each head has one query.
    pub is_step: bool,
    /// The subgroups of a workgroup, and their lanes.
    subgroups: u32,
    lanes: u32,
    /// The elements of a run of 16 bytes.
    per_run: u32,
    products: Products,
    /// Whether keys and values are packed rows.
    pub packed: bool,
    /// Whether several workgroups share the keys. Their parts are joined.
    pub joined: bool,
}

/// What computes the products of rows, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Products {
    /// Lanes. So many of them share a key, a power of two.
    Lanes { sharing: u32 },
    /// Matrix units. Values have at most 64 elements for each octet.
    Units { octets: u32 },
}

impl FewRows {
    /// With more rows, sums would not fit the registers.
    const MOST: usize = 8;

    /// The longest keys and values for matrix units. The sums and what is loaded of longer ones would not fit the
    /// registers.
    const LONGEST_ON_UNITS: usize = 128;

    /// Returns how the rows of some heads and queries are divided. Subgroups have `lanes` lanes. Keys and values have
    /// at most `length` elements of this dtype, or are packed. `None` if a subgroup cannot hold a key.
    pub fn new(
        (dtype, packed): (DType, bool),
        [heads, queries]: [usize; 2],
        length: usize,
        lanes: u32,
    ) -> Option<FewRows> {
        let rows = heads * queries;
        let per_run = if packed { 16 } else { 16 / dtype.size_in_bytes() };
        let sharing = length.div_ceil(per_run).next_power_of_two();
        let fits = (1..=FewRows::MOST).contains(&rows) && (1..=lanes as usize).contains(&sharing);
        let [rows, sharing, per_run] = [rows, sharing, per_run].map(|n| n as u32);
        let subgroups = if sharing * per_run * rows > 1024 { 4 } else { 8 };
        let (is_step, products) = (queries == 1, Products::Lanes { sharing });
        fits.then_some(FewRows { rows, is_step, subgroups, lanes, per_run, products, packed, joined: false })
    }

    /// Returns the same on matrix units, if they can multiply these rows. `keys` is the number of keys of all heads
    /// together. `compute_units` compute units share them.
    pub fn on_units(self, [features, columns]: [usize; 2], keys: usize, compute_units: usize) -> Option<FewRows> {
        let fits = features.max(columns) <= FewRows::LONGEST_ON_UNITS;
        let can = self.per_run == 8 && self.lanes == unit_sums::LANES && fits;
        let products = Products::Units { octets: columns.div_ceil(64) as u32 };
        // With few keys, more workgroups share them.
        let is_filled = keys / unit_sums::UNIT as usize >= 8 * compute_units;
        // A single row takes as long on lanes.
        (can && self.rows > 1).then_some(FewRows { products, subgroups: if is_filled { 8 } else { 4 }, ..self })
    }

    /// Returns the same for workgroups that share the keys or do not.
    pub fn joined(self, joined: bool) -> FewRows {
        FewRows { joined, ..self }
    }

    /// Returns the same for any number of queries.
    pub fn of_any_queries(self) -> FewRows {
        FewRows { is_step: false, ..self }
    }

    /// Returns samples, with the features and columns of keys and values.
    pub fn samples() -> Vec<(DType, FewRows, [u32; 2])> {
        let sample = |(dtype, packed, rows, length, joined)| {
            let few = FewRows::new((dtype, packed), [rows, 1], length, 32)?.joined(joined);
            let columns = if packed { length } else { length - few.per_run as usize };
            Some((dtype, few, [length, columns].map(|n| n as u32)))
        };
        let all = [
            (DType::F16, false, 1, 128, true),
            (DType::BF16, false, 4, 80, false),
            (DType::F32, false, 8, 64, true),
            (DType::F16, false, 3, 128, true),
            (DType::F16, true, 1, 128, true),
            (DType::BF16, true, 4, 96, false),
            (DType::F32, true, 8, 64, true),
        ];
        let samples: Vec<_> = all.into_iter().filter_map(sample).collect();
        let on_units = samples.clone().into_iter().filter_map(|(dtype, few, lengths)| {
            few.on_units(lengths.map(|length| length as usize), if few.joined { 4096 } else { 16 }, 1)
                .map(|few| (dtype, few, lengths))
        });
        samples.into_iter().chain(on_units).collect()
    }

    pub fn name(self) -> String {
        let step = if self.is_step { ", a step" } else { "" };
        let joined = if self.joined { ", joined" } else { "" };
        let products = match self.products {
            Products::Lanes { sharing } => format!("{sharing} lanes a key"),
            Products::Units { .. } => "units".into(),
        };
        format!("{} rows{step}, {} subgroups, {products}{joined}", self.rows, self.subgroups)
    }

    pub const fn workgroup(self) -> u32 {
        self.subgroups * self.lanes
    }

    /// Whether matrix units compute the products.
    pub const fn uses_units(self) -> bool {
        matches!(self.products, Products::Units { .. })
    }

    /// The bytes of workgroup memory.
    pub const fn memory(self) -> u32 {
        self.subgroups * self.rows * (16 * self.quads() + 8) + 4
    }

    /// How many workgroups have as many subgroups as that.
    pub fn workgroups(self, subgroups: usize) -> usize {
        // With several rows, lanes have more to compute and units use more registers. Half as many are enough.
        subgroups / self.subgroups as usize / if self.rows == 1 { 1 } else { 2 }
    }

    /// The keys of a subgroup's step, and of a workgroup's.
    pub const fn own_step(self) -> u32 {
        match self.products {
            Products::Lanes { sharing } => self.lanes / sharing * self.turns(),
            Products::Units { .. } => unit_sums::UNIT,
        }
    }

    pub const fn step(self) -> u32 {
        self.own_step() * self.subgroups
    }

    /// How many keys a lane has of a step, if lanes compute the products.
    const fn turns(self) -> u32 {
        match self.rows {
            1..=4 => 4,
            _ => 2,
        }
    }

    /// The vectors of four that hold a row's sums.
    pub const fn quads(self) -> u32 {
        match self.products {
            Products::Lanes { sharing } => sharing * self.per_run / 4,
            Products::Units { octets } => octets * 16,
        }
    }

    /// The invocations that join the same quad of a row, each for some of the parts.
    fn slices(self) -> u32 {
        (self.workgroup() / (self.rows * self.quads())).clamp(1, self.subgroups)
    }
}

const PAIR: Type = Type::vec2(Scalar::F32);

/// The elements of a run of `f16` or `bf16`.
const RUN: u32 = 8;

pub(super) fn write<'k>(p: &AttentionBlock<'k, Runs<'k>>, few: FewRows, newest: Option<NewestBuffers<'k>>) {
    let newest = Newest::new(p, newest);
    match few.products {
        Products::Lanes { sharing } => lanes::write(p, few, sharing, newest),
        Products::Units { .. } => units::write(p, few, newest),
    }
}
