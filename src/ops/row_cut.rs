//! How softmax and norms go through their rows.

use super::rows::{COLUMNS, RowAxes};
use super::{choose_team, largest_team, subgroup_lanes};
use crate::base::layout::Layout;
use crate::base::shape::Dims;
use crate::device::Device;
use crate::kernels::normalize::{Held, Load};
use crate::kernels::workgroup::{Team, Turn, WORKGROUP};
use crate::lazy::View;
use crate::tuning;
use std::ops::Range;

/// Columns that a team goes down. `NARROW` columns of `f32` are 128 bytes. A team takes them if its members can then
/// hold the columns in registers, else `WIDE`. Fewer than `NARROWEST` would be less than one read of memory.
const NARROW: u32 = 32;
const WIDE: u32 = 64;
const NARROWEST: u32 = 8;

/// The loads of a column that a member has, if there are enough members.
const LOADS: usize = 8;

/// If a team has more members than these, each has too few registers.
const LARGEST: u32 = 512;

/// Bytes of workgroup memory for a reduction, a number for each member. Softmax has two, and every device has 16 KiB.
const MEMORY: u32 = 8192;

/// On a software device, the fewest loads of four elements per lane for which a row is worth a subgroup.
const FOURS_PER_LANE: usize = 2;

/// The fewest fours for each lane of a software device to load several at a time, if the row is not whole turns.
const LONG_TURNS: usize = 8;

/// How the rows of a tensor lie in memory.
pub(super) struct RowView {
    pub axes: RowAxes,
    pub rows: usize,
    pub length: usize,
    /// The number of rows that lie side by side in the result.
    pub inner: usize,
}

/// Who works on a row, how it is loaded, and where it is held between the passes.
pub(super) struct Cut {
    pub team: Team,
    pub load: Load,
    pub held: Held,
}

impl RowView {
    /// Returns the rows along some axes of tensors of one shape, which has elements. The first is the one that a kernel
    /// reads, and the others belong to its prologue.
    pub fn new(layouts: &[&Layout], axes: &Range<usize>) -> RowView {
        let shape = &layouts[0].shape;
        let (along, kept): (Dims, Dims) = (0..shape.rank()).partition(|axis| axes.contains(axis));
        let length: usize = shape[axes.clone()].iter().product();
        let inner = shape[axes.end..].iter().product();
        RowView { axes: RowAxes::of(layouts, &kept, &along), rows: layouts[0].elements() / length, length, inner }
    }

    /// Whether a row is worth more than one invocation that loads one element at a time.
    fn are_long(&self, device: &Device) -> bool {
        device.tuning().loads.several && self.length >= device.tuning().rows.shortest
    }

    /// Whether long rows lie side by side in the tensor but not in the result, or the other way round.
    pub fn is_turned(&self, device: &Device) -> bool {
        let to_columns = self.inner >= COLUMNS;
        let turned = if to_columns { self.axes.along_strides.last() == Some(&1) } else { self.axes.are_columns() };
        turned && self.are_long(device)
    }

    /// Chooses the cut. `vectors_have_fours` tells whether weight and bias can be read by fours.
    pub fn cut(&self, x: &View, vectors_have_fours: bool) -> Cut {
        let device = x.device();
        if let Some(lanes) = subgroup_lanes(device)
            && !device.tuning().loads.several
            && self.length >= FOURS_PER_LANE * 4 * lanes as usize
            && vectors_have_fours
            && self.has_quads(x)
        {
            // Lanes of a subgroup read neighbours, and need no workgroup memory to combine their results.
            // Several loads at a time take less of a long row's time than one after the other.
            let of_lanes = 4 * lanes as usize;
            let whole = [4, 2].into_iter().find(|&loads| self.length.is_multiple_of(loads as usize * of_lanes));
            let turn = match whole {
                Some(loads) => Turn::WholeQuads(loads),
                None if self.length >= LONG_TURNS * of_lanes => Turn::Quads,
                None => Turn::Single,
            };
            return Cut { team: Team::Workgroup(lanes), load: Load::Along, held: Held::Memory(turn) };
        }
        if !self.are_long(device) {
            let team = choose_team(device, self.rows, self.length);
            if device.tuning().loads.several {
                return Cut { team, load: Load::Element, held: Held::Memory(Turn::Singles) };
            }
            // An invocation of a software device goes down four columns at a time.
            let fours = team == Team::Invocation && self.axes.are_columns() && self.columns_have_quads(x);
            let load = if fours { Load::Across } else { Load::Element };
            return Cut { team, load, held: Held::Memory(Turn::Single) };
        }
        // If there are fewer columns, a team for each of them makes more teams.
        if self.axes.are_columns() && self.rows >= 2 * WIDE as usize {
            return self.cut_columns(x);
        }
        self.cut_rows(x, vectors_have_fours && self.has_quads(x))
    }

    /// Whether rows are whole fours that lie side by side.
    fn has_quads(&self, x: &View) -> bool {
        self.axes.along_strides[..] == [1]
            && self.inner == 1
            && fours(self.length)
            && fours(x.layout().offset)
            && self.axes.kept_strides.iter().all(|stride| stride % 4 == 0)
    }

    /// Whether each four neighbours of columns that lie side by side begin at a multiple of four.
    fn columns_have_quads(&self, x: &View) -> bool {
        let outer = self.axes.kept_strides.iter().rev().skip(1);
        fours(self.inner)
            && fours(x.layout().offset)
            && self.axes.kept.last().is_some_and(|&columns| fours(columns))
            && outer.chain(&self.axes.along_strides).all(|stride| stride % 4 == 0)
    }

    /// Cuts long rows that have a workgroup each.
    fn cut_rows(&self, x: &View, quads: bool) -> Cut {
        let most = x.device().tuning().rows.held;
        let loads = if quads { self.length / 4 } else { self.length };
        // If a team is larger than needed, its members wait longer for one another: each member takes 64 bytes of
        // fours. If there are few rows, no other team works while a member does, so each takes half as much.
        let own = if quads && x.dtype.size_in_bytes() < 4 { 8 } else { 4 };
        let are_few = self.rows <= tuning::compute_units(x.device().info().compute_units);
        let own = if are_few { own / 2 } else { own };
        let spread = (loads / own).next_power_of_two().clamp(WORKGROUP as usize, 256);
        let needed = loads.div_ceil(most).next_power_of_two();
        let team = (spread.max(needed) as u32).min(largest_team(x.device()));
        let held = loads.div_ceil(team as usize);
        let team = Team::Workgroup(team);
        match () {
            _ if held > most => Cut { team, load: Load::Element, held: Held::Memory(Turn::Singles) },
            _ if quads => Cut { team, load: Load::Along, held: Held::Registers(held as u32) },
            _ => Cut { team, load: Load::Element, held: Held::Registers(held as u32) },
        }
    }

    /// Cuts long rows that lie side by side.
    fn cut_columns(&self, x: &View) -> Cut {
        let (device, tuning) = (x.device(), &x.device().tuning().rows);
        let load = if self.columns_have_quads(x) { Load::Across } else { Load::Element };
        let number = load.across() * x.dtype.widened().size_in_bytes() as u32;
        let most = largest_team(device).min(LARGEST).min(MEMORY / number);
        let held_by = |members: u32| self.length.div_ceil(members as usize) <= tuning.held;
        let mut columns = if held_by(most / (NARROW / load.across())) { NARROW } else { WIDE };
        while columns > NARROWEST && self.rows.div_ceil(columns as usize) < tuning.column_teams {
            columns /= 2;
        }
        let side_by_side = columns / load.across();
        let members = self.length.div_ceil(LOADS).next_power_of_two().max(LOADS) as u32;
        let members = members.min(most / side_by_side);
        let held = match held_by(members) {
            true => Held::Registers(self.length.div_ceil(members as usize) as u32),
            false => Held::Memory(Turn::Singles),
        };
        Cut { team: Team::Columns { members, side_by_side }, load, held }
    }
}

fn fours(n: usize) -> bool {
    n.is_multiple_of(4)
}
