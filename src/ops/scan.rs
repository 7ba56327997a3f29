//! Running sums, products and extremes along an axis.

use super::reduce::{fold_chunks, state_buffers};
use super::rows::Rows;
use super::{choose_team, largest_team, subgroup_lanes};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::{Axis, Dims, checked_elements};
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::fold::FoldOp;
use crate::kernels::look_back::{self, LookBack};
use crate::kernels::rows::RowsType;
use crate::kernels::scan::{Held, Parameters, Scan, Scanned};
use crate::kernels::workgroup::{Team, WORKGROUP};
use crate::lazy::{Deferred, allocate};
use crate::tensor::Tensor;

/// Rows longer than this are cut into chunks of this length.
const CHUNK: usize = 4096;

/// On GPUs, rows of this length are held in registers: this many quads for each member of a team, which has at most
/// this many members. In shorter rows, most members would have nothing to do.
const SHORTEST_HELD: usize = 64;
const QUADS: usize = 4;
const MOST_HOLDING: u32 = 256;

/// So many chunks keep every device busy. If there are more, a chunk has several parts: with fewer states, their scan
/// takes less time.
const MANY_CHUNKS: usize = 2048;
const MOST_PARTS: usize = 16;

/// The members of a workgroup that looks back, and the quads of a member. On an H200, 2^26 sums of `f32` take 196 us
/// with 128 and 8, and 200 to 290 us with others of 128 to 512 and 2 to 12.
const LOOK_BACK_TEAM: u32 = 128;
const LOOK_BACK_QUADS: u32 = 8;

/// How often a workgroup looks for a state. A look takes about 1 us, and what is missing is there after some 10 us.
const LOOK_BACK_TRIES: usize = 10_000;

/// The most members of a team that scans the states of chunks. Each needs some workgroup memory.
const LARGEST_TEAM: u32 = 512;

impl Tensor {
    /// Returns the running folds along an axis, in the kernel's dtype.
    fn scan(&self, fold: FoldOp, axis: Axis, op: &'static str) -> Result<Tensor> {
        let axis = axis.resolve(self.shape(), op)?;
        let (dtype, device) = (fold.output(self.dtype()), self.device());
        let output = allocate(self.shape(), dtype, device, op)?;
        if checked_elements(self.shape(), op)? > 0 {
            if self.dims()[axis] > CHUNK {
                // Two kernels read it, or one that may have to compute what another one has computed.
                self.realize()?;
            }
            // A kernel's parameters do not depend on who works on the rows.
            let (scanned, team) = (Scanned::Rows, Team::Invocation);
            let kept: Dims = (0..self.rank()).filter(|&other| other != axis).collect();
            let kernel = |rows, prologue| Scan { op: fold, rows, prologue, scanned, team, held: None };
            let inner: usize = self.dims()[axis + 1..].iter().product();
            let length = self.dims()[axis];
            let by_fours = device.tuning().loads.several
                && inner == 1
                && length >= SHORTEST_HELD
                && self.dtype().size_in_bytes() <= 4;
            let rows = Rows::deferred(&Deferred::new(self)?, &kept, &[axis], by_fours, &kernel, op)?;
            let whole = rows.length <= CHUNK;
            let (team, held) = match held(device, rows.length.min(CHUNK)) {
                (team, held) if by_fours && rows.are_quads => (team, Some(held)),
                _ => (choose_team(device, rows.count * rows.length.div_ceil(CHUNK), rows.length.min(CHUNK)), None),
            };
            // A team that holds elements can take one part of a long chunk after the other.
            let parts = if held.is_some() { rows.count * rows.length.div_ceil(CHUNK) / MANY_CHUNKS } else { 1 };
            let long = CHUNK * parts.clamp(1, MOST_PARTS).next_power_of_two();
            if let (false, Some(Held { subgroup, .. })) = (whole, held)
                && looks_back(device, fold, &rows)
            {
                let held = Held { quads: LOOK_BACK_QUADS, subgroup };
                let told = Tensor::zeros(words_to_tell(fold, &rows, held), DType::U32, device)?;
                look_back(fold, &rows, &output, &told, held, LOOK_BACK_TRIES)?;
                return Ok(Tensor::from_buffer(output, self.shape().clone(), dtype, device));
            }
            let (scanned, chunk) = if whole { (Scanned::Rows, rows.length) } else { (Scanned::Chunks, long) };
            let before = if whole { Vec::new() } else { self.states_before_chunks(fold, &rows, chunk, op)? };
            let bindings: Vec<&Buffer> = rows.inputs().chain(&before).chain([&output]).collect();
            let prologue = rows.prologue.as_ref().map(|prologue| prologue.kernel.clone());
            let kernel = Scan { op: fold, rows: rows.ty, prologue, scanned, team, held };
            let per_row = rows.length.div_ceil(chunk);
            let chunks = rows.count * per_row;
            let parameters = Parameters {
                chunks,
                per_row,
                span: chunk,
                length: rows.length,
                share: share(team, chunk),
                inner: Some(inner),
                rows: Some(rows.parameters.clone()),
                prologue: rows.prologue.as_ref().map(|prologue| prologue.parameters.clone()),
            };
            let groups = team.groups(chunks);
            device.runtime().run(Launch { kernel, buffers: &bindings, parameters, groups })?;
        }
        Ok(Tensor::from_buffer(output, self.shape().clone(), dtype, device))
    }

    /// Returns the state of each row before each of its chunks.
    fn states_before_chunks(&self, fold: FoldOp, rows: &Rows, chunk: usize, op: &'static str) -> Result<Vec<Buffer>> {
        let device = self.device();
        let inputs: Vec<&Buffer> = rows.inputs().collect();
        let states = fold_chunks(device, fold, rows, &inputs, chunk, op)?;
        let per_row = rows.length.div_ceil(chunk);
        let before = state_buffers(device, fold, rows.dtype(), rows.count * per_row, op)?;
        let ty = RowsType { dtype: self.dtype().widened(), kept_rank: 0, row_rank: 0 };
        // Each row has a workgroup, on every device: then a member's sums have only a few terms.
        let most = if device.tuning().loads.several { largest_team(device).min(LARGEST_TEAM) } else { WORKGROUP };
        let team = Team::Workgroup(per_row.next_power_of_two().clamp(WORKGROUP as usize, most as usize) as u32);
        let kernel = Scan { op: fold, rows: ty, prologue: None, scanned: Scanned::States, team, held: None };
        let parameters = Parameters {
            chunks: rows.count,
            per_row: 1,
            span: per_row,
            length: per_row,
            share: share(team, per_row),
            inner: None,
            rows: None,
            prologue: None,
        };
        let bindings: Vec<&Buffer> = states.iter().chain(&before).collect();
        let groups = team.groups(rows.count);
        device.runtime().run(Launch { kernel, buffers: &bindings, parameters, groups })?;
        Ok(before)
    }
}

/// Whether a running fold of long rows, whose members hold quads, is one kernel.
fn looks_back(device: &Device, fold: FoldOp, rows: &Rows) -> bool {
    let words = fold.state(rows.dtype()).iter().all(|dtype| dtype.size_in_bytes() == 4);
    device.tuning().scan.look_back && device.info().features.memory_model && words
}

/// Returns how many chunks a row has, and all states that are told.
fn told_states(rows: &Rows, held: Held) -> (usize, usize) {
    let per_row = rows.length.div_ceil((4 * held.quads * LOOK_BACK_TEAM) as usize);
    (per_row, rows.count * (per_row + per_row.div_ceil(LOOK_BACK_TEAM as usize)))
}

/// Returns the number of words in which they are told.
fn words_to_tell(fold: FoldOp, rows: &Rows, held: Held) -> usize {
    look_back::WORDS * fold.state(rows.dtype()).len() * told_states(rows, held).1
}

/// Launches it. `output` has room for the results. `told` has the words, all 0, in which workgroups tell their states.
fn look_back(fold: FoldOp, rows: &Rows, output: &Buffer, told: &Tensor, held: Held, tries: usize) -> Result<()> {
    let (per_row, states) = told_states(rows, held);
    let chunks = rows.count * per_row;
    let kernel = LookBack { op: fold, rows: rows.ty, members: LOOK_BACK_TEAM, held };
    let (quads, rows_of) = (rows.length / 4, rows.parameters.clone());
    let parameters = look_back::Parameters { chunks, per_row, quads, states, tries, rows: rows_of };
    let buffers: Vec<&Buffer> = rows.inputs().chain([told.buffer()?, output]).collect();
    told.device().runtime().run(Launch { kernel, buffers: &buffers, parameters, groups: chunks })
}

/// Returns a team for chunks of a length, and what its members hold.
fn held(device: &Device, chunk: usize) -> (Team, Held) {
    let most = largest_team(device).min(MOST_HOLDING) as usize;
    let members = chunk.div_ceil(4 * QUADS).next_power_of_two().clamp(WORKGROUP as usize, most);
    // Members exchange results in workgroup memory, 16 bytes a quad. The state of each takes at most 16 bytes there.
    let fit = (device.info().limits.max_workgroup_memory as usize / (16 * members)).saturating_sub(1).max(1);
    let quads = chunk.div_ceil(4 * members);
    // If they do not fit, members take turns with about as many quads in each.
    let quads = quads.div_ceil(quads.div_ceil(fit)) as u32;
    (Team::Workgroup(members as u32), Held { quads, subgroup: subgroup_lanes(device) })
}

/// Returns the length of a member's part of a chunk.
fn share(team: Team, chunk: usize) -> usize {
    chunk.div_ceil(team.size() as usize)
}

/// Running folds along an axis; the shape stays.
///
/// ```
/// # use marquetry::{Device, Tensor};
/// # let device = Device::best()?;
/// let x = Tensor::new([[1f32, 5.0, 3.0], [4.0, 2.0, 6.0]], &device)?;
/// assert_eq!(x.cumsum(1)?.to_vec::<f32>()?, [1.0, 6.0, 9.0, 4.0, 6.0, 12.0]);
/// assert_eq!(x.cumprod(0)?.to_vec::<f32>()?, [1.0, 5.0, 3.0, 4.0, 10.0, 18.0]);
/// assert_eq!(x.cummax(-1)?.to_vec::<f32>()?, [1.0, 5.0, 5.0, 4.0, 4.0, 6.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
impl Tensor {
    /// Returns the sum of each element and all before it along an axis, in the dtype of [`sum`](Self::sum). Sums of
    /// floats are compensated: each is within half a unit in its last place plus 2^-23 of the sum of magnitudes (2^-19
    /// beyond 2^28 elements; for `f64`, 2^-52).
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).
    pub fn cumsum(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.cumulated(FoldOp::Sum, axis.into(), "cumsum")
    }

    /// Returns the product of each element and all before it along an axis, in the dtype of [`prod`](Self::prod).
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).
    pub fn cumprod(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.cumulated(FoldOp::Prod, axis.into(), "cumprod")
    }

    fn cumulated(&self, fold: FoldOp, axis: Axis, op: &'static str) -> Result<Tensor> {
        let result = self.scan(fold, axis, op)?;
        if self.dtype().is_float() { result.to_dtype(self.dtype()) } else { Ok(result) }
    }

    /// Returns the largest of each element and all before it along an axis; NaN from the first NaN on.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).
    pub fn cummax(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.scan(FoldOp::Max, axis.into(), "cummax")?.to_dtype(self.dtype())
    }

    /// Returns the smallest of each element and all before it along an axis; NaN from the first NaN on.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).
    pub fn cummin(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.scan(FoldOp::Min, axis.into(), "cummin")?.to_dtype(self.dtype())
    }
}

#[cfg(test)]
#[cfg(all(has_vulkan, device_tests))]
mod tests {
    use super::*;

    /// What a workgroup misses it computes by itself, and the results are the same bits. What is told has its place.
    #[test]
    fn those_who_look_back_need_nobody() {
        let device = Device::vulkan(0).unwrap();
        let (held, members) = (Held { quads: 1, subgroup: None }, LOOK_BACK_TEAM);
        let chunk = 4 * members as usize;
        let group = chunk * members as usize;
        // A group; two; two and some chunks, the last of which is a part of one.
        for length in [group, 2 * group, 2 * group + 3 * chunk - 8] {
            // Small whole numbers, whose sums are exact, and the largest of which are far apart.
            let numbers: Vec<f32> = (0..2 * length).map(|i| (i % 7) as f32 + (i / 4099) as f32).collect();
            let x = Tensor::from_slice(&numbers, (2, length), &device).unwrap();
            for fold in [FoldOp::Sum, FoldOp::Max] {
                let scan = |tries: usize| -> Result<(Vec<f32>, Vec<u32>)> {
                    let kernel = |rows, _| LookBack { op: fold, rows, members, held };
                    let rows = Rows::deferred(&Deferred::new(&x)?, &[0], &[1], true, &kernel, "test")?;
                    let output = allocate(x.shape(), DType::F32, &device, "test")?;
                    // Nobody tells anything behind the end.
                    let told = Tensor::zeros(words_to_tell(fold, &rows, held) + 8, DType::U32, &device)?;
                    look_back(fold, &rows, &output, &told, held, tries)?;
                    let found = Tensor::from_buffer(output, x.shape().clone(), DType::F32, &device).to_vec()?;
                    Ok((found, told.to_vec()?))
                };
                let (expected, told) = scan(LOOK_BACK_TRIES).unwrap();
                let running = |row: &[f32]| -> Vec<f64> {
                    let next = |state: &mut f64, &x: &f32| {
                        let x = f64::from(x);
                        *state = if fold == FoldOp::Sum { *state + x } else { state.max(x) };
                        Some(*state)
                    };
                    row.iter().scan(0.0, next).collect()
                };
                let exact: Vec<f64> = numbers.chunks(length).flat_map(running).collect();
                let wrong =
                    expected.iter().zip(&exact).position(|(&found, &exact)| f64::from(found) != exact as f32 as f64);
                assert_eq!(wrong, None, "{fold:?} of {length}");
                let (words, behind) = told.split_at(told.len() - 8);
                assert_eq!(behind, [0; 8], "{fold:?} of {length}");
                let states = words.len() / look_back::WORDS / fold.state(DType::F32).len();
                let first = f32::from_bits(words[0] & !0xffff | words[states] >> 16);
                assert_eq!(f64::from(first), exact[chunk - 1], "{fold:?} of {length}: the state of the first chunk");
                for tries in [0, 1] {
                    assert!(scan(tries).unwrap().0 == expected, "{fold:?} of {length}, {tries} tries");
                }
            }
        }
    }
}
