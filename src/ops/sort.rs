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
    CountParameters, DIGITS, Input, LONGEST, Output, RowParameters, ScatterParameters, SelectParameters,
    ShortParameters, SortCount, SortRow, SortScatter, SortSelect, SortShort, SortTake, TakeParameters, WORKGROUP,
    key_bits, memory,
};
use crate::lazy::allocate;
use crate::tensor::Tensor;

/// A digit of a radix sort has eight bits.
const DIGIT_BITS: usize = DIGITS.ilog2() as usize;

/// The most invocations of a workgroup that sorts a block or selects elements. On an H100, a sort of 2^24 numbers takes
/// 1.0 ms; with 128 or 512 invocations, 1.3 or 1.1.
const MOST_SORTING: u32 = 256;

/// How many elements an invocation of a workgroup that sorts may hold. On software devices it holds the first number,
/// and the workgroup is small: their compilers take seconds for larger kernels.
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
        let (most, each) = match device.tuning().loads.several {
            true => (largest_team(device).min(MOST_SORTING), &EACH[..]),
            false => (WORKGROUP, &EACH[..1]),
        };
        // Whole subgroups.
        let lanes = (WORKGROUP..=most).step_by(subgroup.unwrap_or(WORKGROUP).max(32) as usize);
        let blocks = lanes.flat_map(|lanes| each.iter().map(move |&each| Block { lanes, each }));
        let fits = |block: &Block| memory(block.lanes, block.each, subgroup) <= limits.max_workgroup_memory;
        let blocks: Vec<_> = blocks.filter(fits).collect();
        let smallest = blocks.iter().filter(|block| block.size() >= length).min_by_key(|block| block.size());
        let largest = || blocks.iter().max_by_key(|block| block.size());
        // Every device has room for this one.
        smallest.or_else(largest).copied().unwrap_or(Block { lanes: WORKGROUP, each: EACH[0] })
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
        let kernel = |rows| SortSelect { input: Input::Rows(rows), lanes: WORKGROUP, turns: 1, subgroup: None };
        let rows = Rows::along(self, axis, &kernel, op)?;
        // Elements that share words are taken by their places in the end.
        let is_narrow = dtype.size_in_bytes() < 4;
        let output = Output { bits: output.bits && !is_narrow, places: output.places || is_narrow };
        let shape = Shape::from((rows.count, taken));
        let (length, tables) = if checked_elements(&shape, op)? == 0 {
            let sorter = Sorter { device, dtype, count: rows.count, mask: 0, op };
            (taken, sorter.tables(taken, output)?)
        } else {
            let mask = if descending { u32::MAX } else { 0 };
            Sorter { device, dtype, count: rows.count, mask, op }.sort(Table::of(&rows), taken, output)?
        };
        let whole = Shape::from((rows.count, length));
        let tensor = |buffer: Option<Buffer>, dtype| {
            buffer.map(|buffer| Tensor::from_buffer(buffer, whole.clone(), dtype, device).narrow(1, 0, taken))
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
        while table.length > LONGEST as usize && table.length >= WORTH_SELECTING * taken {
            let kernel = self.selecting(table.input);
            if taken > kernel.chunk() as usize / WORTH_SELECTING {
                break;
            }
            table = self.select(&table, kernel, taken)?;
        }
        let block = Block::of(self.device, table.length);
        if table.length <= LONGEST as usize {
            Ok((taken, self.sort_short(&table, taken, output)?))
        } else if table.length <= block.size() {
            Ok((taken, self.sort_rows(&table, block, taken, output)?))
        } else {
            Ok((table.length, self.sort_digits(table, block, output)?))
        }
    }

    /// Returns the kernel that selects elements. It is short on software devices, whose compilers are slow.
    fn selecting(&self, input: Input) -> SortSelect {
        let (lanes, turns) = match self.device.tuning().loads.several {
            true => (largest_team(self.device).min(MOST_SORTING), 4),
            false => (WORKGROUP, 1),
        };
        SortSelect { input, lanes, turns, subgroup: subgroup_lanes(self.device) }
    }

    fn select(&self, table: &Table, kernel: SortSelect, taken: usize) -> Result<Table> {
        let chunk = kernel.chunk() as usize;
        let per_row = table.length.div_ceil(chunk);
        let out_length = (per_row - 1) * taken + (table.length - (per_row - 1) * chunk).min(taken);
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

    fn sort_short(&self, table: &Table, taken: usize, output: Output) -> Result<Tables> {
        let tables = self.tables(taken, output)?;
        let per_group = LONGEST as usize / table.length;
        let (mask, rows) = (self.mask, table.rows.clone());
        let parameters = ShortParameters { count: self.count, per_group, length: table.length, taken, mask, rows };
        let kernel = SortShort { input: table.input, output };
        let buffers: Vec<_> = table.buffers(output).chain(tables.buffers()).collect();
        let groups = self.count.div_ceil(per_group);
        self.device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
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
        let (runtime, Block { lanes, each }) = (self.device.runtime(), block);
        let (length, per_row) = (table.length, table.length.div_ceil(block.size()));
        let blocks = self.count * per_row;
        let digits = key_bits(self.dtype) as usize / DIGIT_BITS;
        let counts_shape = Shape::from((self.count, per_row * DIGITS as usize));
        for number in 0.. {
            let shift = (number * DIGIT_BITS) as u32;
            let counts = allocate(&counts_shape, DType::U32, self.device, self.op)?;
            let (mask, rows) = (self.mask, table.rows.clone());
            let parameters = CountParameters { blocks, per_row, length, shift, mask, rows };
            let kernel = SortCount { input: table.input, lanes, each };
            let buffers = &[&table.bits, &counts];
            runtime.run(Launch { kernel, buffers, parameters, groups: blocks })?;
            let sums = Tensor::from_buffer(counts, counts_shape.clone(), DType::U32, self.device).cumsum(1)?;

            let is_last = number + 1 == digits;
            // Later digits need the bits, and the last one the places.
            let output = Output { bits: !is_last || output.bits, places: output.places };
            let tables = self.tables(length, output)?;
            let rows = table.rows.clone();
            let parameters = ScatterParameters { blocks, per_row, length, shift, mask, rows };
            let kernel = SortScatter { input: table.input, output, lanes, each, subgroup: subgroup_lanes(self.device) };
            let sums = sums.buffer()?;
            let buffers: Vec<_> = table.buffers(output).chain([sums]).chain(tables.buffers()).collect();
            runtime.run(Launch { kernel, buffers: &buffers, parameters, groups: blocks })?;
            if is_last {
                return Ok(tables);
            }
            table = Table::written(self.dtype, tables, length);
        }
        unreachable!("the last digit ends the loop")
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
            let (per_row, pitch) = (self.taken, places.strides()[0].unsigned_abs());
            let parameters = TakeParameters { count, per_row, pitch, rows: self.rows.parameters.clone() };
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
