//! Sorting along an axis.

use super::rows::Rows;
use super::{largest_team, subgroup_lanes};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::checked_elements;
use crate::base::shape::{Axis, Shape};
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::rows::RowsParameters;
use crate::kernels::sort::{
    BlockParameters, Blocks, CountParameters, DIGITS, Input, LONGEST, MERGED, MergeParameters, Output, RowParameters,
    ScatterParameters, SelectParameters, ShortParameters, SortCount, SortMerge, SortRow, SortScatter, SortSelect,
    SortShort, SortTake, TakeParameters, WORKGROUP, key_bits, memory,
};
use crate::lazy::allocate;
use crate::tensor::Tensor;

/// A digit of a radix sort has eight bits.
const DIGIT_BITS: u32 = DIGITS.ilog2();

/// The most invocations of a workgroup that sorts a block or selects elements. On an H100, a sort of 2^24 numbers takes
/// 1.0 ms; with 128 or 512 invocations, 1.3 or 1.1.
const MOST_SORTING: u32 = 256;

/// How many elements an invocation of a workgroup that sorts may hold.
const EACH: [u32; 6] = [5, 7, 9, 11, 13, 15];

/// Elements are selected before they are sorted if a row has this many times as many as are wanted.
const WORTH_SELECTING: usize = 4;

/// Sorted rows: tables with the first elements of each row, and with their places, as far as they are asked for.
struct Sorted {
    rows: Rows,
    axis: usize,
    taken: usize,
    values: Option<Tensor>,
    places: Option<Tensor>,
}

/// What is sorted: the rows of a tensor, or the tables that a kernel has written.
struct Table {
    input: Input,
    /// The elements' bits, and their places if they are not the places in this row.
    bits: Buffer,
    places: Option<Buffer>,
    rows: Option<RowsParameters>,
    /// The length of a row.
    length: usize,
}

/// The tables that a kernel writes.
struct Tables {
    bits: Option<Buffer>,
    places: Option<Buffer>,
}

/// Sorts `count` rows.
struct Sorter<'a> {
    device: &'a Device,
    dtype: DType,
    count: usize,
    /// All ones for descending order, else 0.
    mask: u32,
    op: &'static str,
}

/// The invocations of a workgroup that sorts a block, and how many elements each holds.
#[derive(Clone, Copy)]
struct Block {
    lanes: u32,
    each: u32,
}

impl Block {
    fn size(self) -> usize {
        (self.lanes * self.each) as usize
    }

    /// Returns the smallest block for rows of a length that a device has, or else its largest one.
    fn of(device: &Device, length: usize) -> Block {
        let (limits, subgroup) = (&device.info().limits, subgroup_lanes(device));
        let most = largest_team(device).min(MOST_SORTING);
        // Whole subgroups.
        let lanes = (WORKGROUP..=most).step_by(subgroup.unwrap_or(WORKGROUP).max(32) as usize);
        let blocks = lanes.flat_map(|lanes| EACH.map(|each| Block { lanes, each }));
        let fits = |block: &Block| memory(block.lanes, block.each, subgroup) <= limits.max_workgroup_memory;
        let blocks = blocks.filter(fits);
        let smallest = blocks.clone().filter(|block| block.size() >= length).min_by_key(|block| block.size());
        let largest = || blocks.max_by_key(|block| block.size());
        // Every device has room for this one.
        smallest.or_else(largest).unwrap_or(Block { lanes: WORKGROUP, each: EACH[0] })
    }
}

/// The sorted runs of each row: `count` of them, and `length` elements in all. Each has `run` elements, but the last
/// may have fewer.
#[derive(Clone, Copy)]
struct Runs {
    count: usize,
    run: usize,
    length: usize,
}

impl Runs {
    /// Returns the runs that pieces of a row become if each keeps its first `most` elements.
    fn pieces(length: usize, most: usize) -> Runs {
        Runs::cut(length, length.min(LONGEST as usize), most)
    }

    /// Returns what `length` elements in runs of `run` become if each run keeps its first `most` elements.
    fn cut(length: usize, run: usize, most: usize) -> Runs {
        let (count, kept) = (length.div_ceil(run), run.min(most));
        let last = (length - (count - 1) * run).min(kept);
        Runs { count, run: kept, length: (count - 1) * kept + last }
    }

    /// Returns the runs after pairs of them have been merged.
    fn merged(self, most: usize) -> Runs {
        Runs::cut(self.length, 2 * self.run, most)
    }
}

impl Tensor {
    /// Returns the elements sorted along an axis, and their places (`u32`) on it before the sort. Equal elements keep
    /// their order, also if it is `descending`. NaN counts as largest, and zeros of both signs are equal. (candle:
    /// `sort_last_dim`.)
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[3f32, 1.0, 2.0], [1.0, 1.0, 0.0]], &device)?;
    /// let (values, places) = x.sort(-1, false)?;
    /// assert_eq!(values.to_vec::<f32>()?, [1.0, 2.0, 3.0, 0.0, 1.0, 1.0]);
    /// assert_eq!(places.to_vec::<u32>()?, [1, 2, 0, 2, 0, 1]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn sort(&self, axis: impl Into<Axis>, descending: bool) -> Result<(Tensor, Tensor)> {
        self.sorted(axis.into(), None, descending, Output::BOTH, "sort")?.values_and_places(self, "sort")
    }

    /// Returns the elements sorted along an axis as [`sort`](Self::sort) does, without their places. For elements
    /// of 32 bits or more, this takes less time and memory. (numpy: `sort`.)
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([3u32, 1, 2], &device)?;
    /// assert_eq!(x.sort_values(0, true)?.to_vec::<u32>()?, [3, 2, 1]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn sort_values(&self, axis: impl Into<Axis>, descending: bool) -> Result<Tensor> {
        let output = Output { bits: true, places: false };
        self.sorted(axis.into(), None, descending, output, "sort_values")?.values(self, "sort_values")
    }

    /// Returns the places (`u32`) of the elements in the order of [`sort`](Self::sort). (candle: `arg_sort_last_dim`.)
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn argsort(&self, axis: impl Into<Axis>, descending: bool) -> Result<Tensor> {
        let output = Output { bits: false, places: true };
        self.sorted(axis.into(), None, descending, output, "argsort")?.places(self)
    }

    /// Returns the `k` largest elements along an axis, or the smallest if `largest` is false, and their places (`u32`)
    /// on it. They are sorted from the largest (or smallest) on, equal ones in the order of their places. NaN counts as
    /// largest.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([5u32, 9, 7, 9], &device)?;
    /// let (values, places) = x.topk(3, 0, true)?;
    /// assert_eq!(values.to_vec::<u32>()?, [9, 9, 7]);
    /// assert_eq!(places.to_vec::<u32>()?, [1, 3, 2]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if the axis has fewer than `k` elements.
    pub fn topk(&self, k: usize, axis: impl Into<Axis>, largest: bool) -> Result<(Tensor, Tensor)> {
        self.sorted(axis.into(), Some(k), largest, Output::BOTH, "topk")?.values_and_places(self, "topk")
    }

    /// Sorts each row. The result has the first `taken` elements of each row, or all of them.
    fn sorted(
        &self,
        axis: Axis,
        taken: Option<usize>,
        descending: bool,
        output: Output,
        op: &'static str,
    ) -> Result<Sorted> {
        let (device, dtype) = (self.device(), self.dtype());
        let axis = axis.resolve(self.shape(), op)?;
        let taken = taken.unwrap_or(self.dims()[axis]);
        if taken > self.dims()[axis] {
            let message = format!(
                "k = {taken} is more than axis {axis} of shape {} has; k is at most {}",
                self.shape(),
                self.dims()[axis]
            );
            return Err(Error::InvalidArgument { op, message });
        }
        // Of the kernels that read the rows, this one has the most parameters.
        let kernel = |rows| SortShort { input: Input::Rows(rows), output: Output::BOTH };
        let rows = Rows::along(self, axis, &kernel, op)?;
        // Elements that share words are taken by their places in the end.
        let is_narrow = dtype.size_in_bytes() < 4;
        let output = Output { bits: output.bits && !is_narrow, places: output.places || is_narrow };
        let shape = Shape::from((rows.count, taken));
        let mask = if descending { u32::MAX } else { 0 };
        let sorter = Sorter { device, dtype, count: rows.count, mask, op };
        let (length, tables) = match checked_elements(&shape, op)? {
            0 => (taken, sorter.tables(taken, output)?),
            _ => sorter.sort(Table::of(&rows), taken, output)?,
        };
        let whole = Shape::from((rows.count, length));
        let tensor = |buffer: Option<Buffer>, dtype| {
            let part = |table: Tensor| table.narrow(1, 0, taken)?.copied();
            let table = buffer.map(|buffer| Tensor::from_buffer(buffer, whole.clone(), dtype, device));
            // A view would keep the whole table in memory.
            table.map(|table| if length > taken { part(table) } else { Ok(table) })
        };
        let (values, places) =
            (tensor(tables.bits, dtype).transpose()?, tensor(tables.places, DType::U32).transpose()?);
        Ok(Sorted { rows, axis, taken, values, places })
    }
}

impl Table {
    fn of(rows: &Rows) -> Table {
        let (bits, parameters) = (rows.buffer.clone(), Some(rows.parameters.clone()));
        Table { input: Input::Rows(rows.ty), bits, places: None, rows: parameters, length: rows.length }
    }

    /// Returns what an earlier kernel has written.
    fn written(dtype: DType, tables: Tables, length: usize) -> Table {
        let input = Input::Table { dtype, places: tables.places.is_some() };
        let Some(bits) = tables.bits else { unreachable!("a kernel that others follow writes the elements' bits") };
        Table { input, bits, places: tables.places, rows: None, length }
    }

    /// Returns the buffers that a kernel reads.
    fn buffers(&self, output: Output) -> impl Iterator<Item = &Buffer> {
        [&self.bits].into_iter().chain(self.places.iter().filter(move |_| output.places))
    }
}

impl Sorter<'_> {
    /// Allocates tables for rows of a length.
    fn tables(&self, length: usize, output: Output) -> Result<Tables> {
        let shape = Shape::from((self.count, length));
        let word = if self.dtype.size_in_bytes() < 4 { DType::U32 } else { self.dtype };
        let table = |wanted: bool, dtype| wanted.then(|| allocate(&shape, dtype, self.device, self.op)).transpose();
        Ok(Tables { bits: table(output.bits, word)?, places: table(output.places, DType::U32)? })
    }

    /// Returns tables with the first `taken` elements of each row at least, and the length of their rows.
    fn sort(&self, mut table: Table, taken: usize, output: Output) -> Result<(usize, Tables)> {
        if !self.device.tuning().loads.several {
            // Software devices emulate workgroup memory, and their compilers take seconds for the other kernels.
            return Ok((taken, self.sort_runs(table, taken, output)?));
        }
        while table.length > LONGEST as usize && table.length >= WORTH_SELECTING * taken {
            let (lanes, subgroup) = (largest_team(self.device).min(MOST_SORTING), subgroup_lanes(self.device));
            let kernel = SortSelect { input: table.input, lanes, subgroup };
            if taken > kernel.chunk() as usize / WORTH_SELECTING {
                break;
            }
            table = self.select(&table, kernel, taken)?;
        }
        let block = Block::of(self.device, table.length);
        if table.length <= LONGEST as usize {
            Ok((taken, self.sort_pieces(&table, Runs::pieces(table.length, taken), output)?))
        } else if table.length <= block.size() {
            Ok((taken, self.sort_rows(&table, block, taken, output)?))
        } else {
            Ok((table.length, self.sort_digits(table, block, output)?))
        }
    }

    /// Sorts pieces of the rows, and merges them.
    fn sort_runs(&self, table: Table, taken: usize, output: Output) -> Result<Tables> {
        // Merges need the bits, and the last kernel the places.
        let output_of = |runs: Runs| Output { bits: output.bits || runs.count > 1, ..output };
        let mut runs = Runs::pieces(table.length, taken);
        let mut tables = self.sort_pieces(&table, runs, output_of(runs))?;
        while runs.count > 1 {
            let next = runs.merged(taken);
            tables = self.merge(&Table::written(self.dtype, tables, runs.length), [runs, next], output_of(next))?;
            runs = next;
        }
        Ok(tables)
    }

    fn merge(&self, table: &Table, [runs, next]: [Runs; 2], output: Output) -> Result<Tables> {
        let tables = self.tables(next.length, output)?;
        let per_pair = next.run.div_ceil(MERGED as usize);
        let per_row = next.count * per_pair;
        let invocations = checked_elements(&Shape::from((self.count, per_row)), self.op)?;
        let parameters = MergeParameters {
            invocations,
            per_row,
            per_pair,
            length: runs.length,
            run: runs.run,
            out_length: next.length,
            out_run: next.run,
            mask: self.mask,
        };
        let kernel = SortMerge { input: table.input, output };
        let buffers: Vec<_> = table.buffers(output).chain(tables.buffers()).collect();
        let groups = invocations.div_ceil(WORKGROUP as usize);
        self.device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
        Ok(tables)
    }

    fn select(&self, table: &Table, kernel: SortSelect, taken: usize) -> Result<Table> {
        let chunk = kernel.chunk() as usize;
        let selected = Runs::cut(table.length, chunk, taken);
        let (per_row, out_length) = (selected.count, selected.length);
        let tables = self.tables(out_length, Output::BOTH)?;
        let chunks = self.count * per_row;
        let parameters = SelectParameters {
            chunks,
            per_row,
            length: table.length,
            taken,
            out_length,
            mask: self.mask,
            rows: table.rows.clone(),
        };
        let buffers: Vec<_> = table.buffers(Output::BOTH).chain(tables.buffers()).collect();
        self.device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups: chunks })?;
        Ok(Table::written(self.dtype, tables, out_length))
    }

    /// Sorts pieces of the rows to runs.
    fn sort_pieces(&self, table: &Table, runs: Runs, output: Output) -> Result<Tables> {
        let tables = self.tables(runs.length, output)?;
        let piece = table.length.min(LONGEST as usize);
        let pieces = self.count * runs.count;
        let parameters = ShortParameters {
            pieces,
            per_row: runs.count,
            piece,
            length: table.length,
            taken: runs.run,
            out_length: runs.length,
            mask: self.mask,
            rows: table.rows.clone(),
        };
        let kernel = SortShort { input: table.input, output };
        let buffers: Vec<_> = table.buffers(output).chain(tables.buffers()).collect();
        self.device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups: pieces })?;
        Ok(tables)
    }

    fn sort_rows(&self, table: &Table, block: Block, taken: usize, output: Output) -> Result<Tables> {
        let tables = self.tables(taken, output)?;
        let (mask, rows) = (self.mask, table.rows.clone());
        let parameters = RowParameters { count: self.count, length: table.length, taken, mask, rows };
        let Block { lanes, each } = block;
        let kernel = SortRow { input: table.input, output, lanes, each, subgroup: subgroup_lanes(self.device) };
        let buffers: Vec<_> = table.buffers(output).chain(tables.buffers()).collect();
        self.device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups: self.count })?;
        Ok(tables)
    }

    /// Sorts rows of any length, digit by digit.
    fn sort_digits(&self, mut table: Table, block: Block, output: Output) -> Result<Tables> {
        let length = table.length;
        let last = key_bits(self.dtype) - DIGIT_BITS;
        for shift in (0..last).step_by(DIGIT_BITS as usize) {
            // Later digits need the bits, and the last one the places.
            let tables = self.sort_digit(&table, block, shift, Output { bits: true, ..output })?;
            table = Table::written(self.dtype, tables, length);
        }
        self.sort_digit(&table, block, last, output)
    }

    /// Sorts rows by the digit that begins at a bit of the keys.
    fn sort_digit(&self, table: &Table, block: Block, shift: u32, output: Output) -> Result<Tables> {
        let (runtime, length) = (self.device.runtime(), table.length);
        let per_row = length.div_ceil(block.size());
        let groups = self.count * per_row;
        let blocks = Blocks { input: table.input, lanes: block.lanes, each: block.each };
        let (mask, rows) = (self.mask, table.rows.clone());
        let parameters = BlockParameters { count: groups, per_row, length, shift, mask, rows };

        let shape = Shape::from((self.count, per_row * DIGITS as usize));
        let counts = allocate(&shape, DType::U32, self.device, self.op)?;
        let (kernel, buffers) = (SortCount { blocks }, &[&table.bits, &counts]);
        runtime.run(Launch { kernel, buffers, parameters: CountParameters { blocks: parameters.clone() }, groups })?;
        let sums = Tensor::from_buffer(counts, shape, DType::U32, self.device).cumsum(1)?;

        let tables = self.tables(length, output)?;
        let kernel = SortScatter { blocks, output, subgroup: subgroup_lanes(self.device) };
        let buffers: Vec<_> = table.buffers(output).chain([sums.buffer()?]).chain(tables.buffers()).collect();
        let parameters = ScatterParameters { blocks: parameters };
        runtime.run(Launch { kernel, buffers: &buffers, parameters, groups })?;
        Ok(tables)
    }
}

impl Tables {
    fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.bits.iter().chain(&self.places)
    }
}

impl Sorted {
    /// Returns a table of the rows as a tensor with the axis where it was.
    fn shaped(&self, table: &Tensor, like: &Tensor) -> Result<Tensor> {
        let mut shape: Vec<usize> = like.dims().to_vec();
        shape.remove(self.axis);
        shape.push(self.taken);
        let mut order: Vec<usize> = (0..like.rank() - 1).collect();
        order.insert(self.axis, like.rank() - 1);
        table.reshape(shape)?.permute(order)
    }

    fn places(&self, of: &Tensor) -> Result<Tensor> {
        let Some(places) = &self.places else { unreachable!("places were asked for") };
        self.shaped(places, of)
    }

    fn values(&self, of: &Tensor, op: &'static str) -> Result<Tensor> {
        match &self.values {
            Some(values) => self.shaped(values, of),
            None => self.shaped(&self.taken(of, op)?, of),
        }
    }

    /// Takes the elements at the places found.
    fn taken(&self, of: &Tensor, op: &'static str) -> Result<Tensor> {
        let Some(places) = &self.places else { unreachable!("elements are taken by their places") };
        let values = allocate(places.shape(), of.dtype(), of.device(), op)?;
        let count = places.elem_count();
        if count > 0 {
            let kernel = SortTake { rows: self.rows.ty };
            let parameters = TakeParameters { count, per_row: self.taken, rows: self.rows.parameters.clone() };
            let buffers = [&self.rows.buffer, places.buffer()?, &values];
            let groups = count.div_ceil(4).div_ceil(WORKGROUP as usize);
            of.device().runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
        }
        Ok(Tensor::from_buffer(values, places.shape().clone(), of.dtype(), of.device()))
    }

    fn values_and_places(&self, of: &Tensor, op: &'static str) -> Result<(Tensor, Tensor)> {
        Ok((self.values(of, op)?, self.places(of)?))
    }
}
