//! The self-test of attention on matrix units. Only the driver knows how lanes hold matrices, and few drivers have been
//! seen. So each such kernel must attend to known numbers correctly on each device, before it is used for others.

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::kernels::attention::{Attention, AttentionTile, Parameters};
use crate::kernels::parameters::Strided;
use crate::lazy::allocate;
use crate::ops::verdict;
use crate::tensor::Tensor;

use super::OP;

/// Whether a kernel has computed the attention to known numbers correctly. The test runs once per device; a kernel that
/// fails is switched off.
pub(super) fn is_trusted(device: &Device, config: &Attention) -> bool {
    verdict(device, config, |device, config| {
        let trial = Trial::new(config);
        let found = trial.run(device).map_err(|error| error.to_string())?;
        trial.check(&found)
    })
}

/// Attention to numbers that look like random ones. Weights are so uneven that rows have little in common, and a window
/// makes all rows see other keys.
#[derive(Clone)]
struct Trial {
    config: Attention,
    queries: usize,
    keys: usize,
    /// The keys behind the last query.
    behind: usize,
    /// How far back and ahead a query sees, its own key included.
    window: i32,
    ahead: i32,
    /// The queries, the keys and the values.
    numbers: [Vec<f64>; 3],
}

const CAP: f64 = 5.0;

const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const MASK: usize = 3;

impl Trial {
    /// Returns a trial that fills a block of rows, and begins another one if there may be several. All rows of a block
    /// see some stages wholly, and there are stages before and behind these.
    fn new(config: &Attention) -> Trial {
        let (rows, stage) = config.tile.block();
        let [features, columns] = [config.features, config.columns].map(|length| length as usize);
        let window = rows + 3 * stage;
        // A few rows are one block. Without keys behind them, hardly any of them would have keys ahead.
        let (others, behind) = if matches!(config.tile, AttentionTile::FewRows(_)) { (0, stage) } else { (17, 0) };
        let (queries, keys) = (rows + others, window + rows + 33 + behind);
        let numbers =
            [(Q, queries, features), (K, keys, features), (V, keys, columns)].map(|(operand, rows, length)| {
                (0..rows * length).map(|at| Trial::number(operand, at / length, at % length)).collect()
            });
        Trial { config: config.clone(), queries, keys, behind, window: window as i32, ahead: 1, numbers }
    }

    /// Returns a number from -1 to 1 that the dtypes of attention have.
    fn number(operand: usize, row: usize, column: usize) -> f64 {
        // The finalizer of MurmurHash3: without it, rows would be alike but for a shift.
        let mut mixed = (operand * 0x0100_0000 + row * 1024 + column) as u32;
        for factor in [0x85eb_ca6b, 0xc2b2_ae35] {
            mixed = (mixed ^ (mixed >> 16)).wrapping_mul(factor);
        }
        f64::from((mixed >> 16) % 129) / 64.0 - 1.0
    }

    /// Returns an element of the mask: of a truth value, or of a float that is added.
    fn mask(&self, query: usize, key: usize) -> f64 {
        let number = Trial::number(MASK, query, key);
        if self.config.mask.is_some_and(DType::is_float) { number } else { f64::from(number > -0.5) }
    }

    /// Returns the key at which the first query stands.
    fn reach(&self) -> i32 {
        self.keys as i32 - (self.queries + self.behind) as i32
    }

    fn scale(&self) -> f64 {
        -9.0 / f64::from(self.config.features).sqrt()
    }

    /// Computes the rows with the kernel.
    fn run(&self, device: &Device) -> Result<Vec<f64>> {
        let Attention { dtype, features, columns, batch_rank, mask, softcap, .. } = self.config;
        let matrix = |operand: usize, rows: usize, columns: usize| {
            let numbers: Vec<f32> = self.numbers[operand].iter().map(|&number| number as f32).collect();
            Tensor::from_vec(numbers, (rows, columns), device)?.to_dtype(dtype)
        };
        let [features, columns] = [features, columns].map(|length| length as usize);
        let mut operands =
            vec![matrix(Q, self.queries, features)?, matrix(K, self.keys, features)?, matrix(V, self.keys, columns)?];
        if let Some(dtype) = mask {
            let places = (0..self.queries).flat_map(|query| (0..self.keys).map(move |key| (query, key)));
            let numbers: Vec<f32> = places.map(|(query, key)| self.mask(query, key) as f32).collect();
            operands.push(Tensor::from_vec(numbers, (self.queries, self.keys), device)?.to_dtype(dtype)?);
        }
        let place = |group: bool, line: usize| {
            let before = batch_rank + usize::from(group);
            let strides = std::iter::repeat_n(0, before).chain([line as isize, 1]).collect();
            Strided { offset: 0, strides }
        };
        let reach = self.reach();
        let wide = dtype.widened();
        let parameters = Parameters {
            queries: self.queries,
            keys: self.keys,
            kv_heads: 1,
            group: 1,
            forward: reach + self.ahead,
            backward: reach - self.window + 1,
            scale: Word::of(self.scale(), wide, OP)?,
            softcap: softcap.then(|| Word::of(CAP, wide, OP)).transpose()?,
            parts: None,
            span: None,
            pages: None,
            append: None,
            lengths: std::iter::repeat_n(1, batch_rank).collect(),
            q: place(true, features),
            k: place(false, features),
            v: place(false, columns),
            mask: mask.map(|_| place(true, self.keys)),
            q_prologue: None,
            k_prologue: None,
            v_prologue: None,
            mask_prologue: None,
            epilogue: None,
        };
        let shape = (self.queries, columns).into();
        let y = allocate(&shape, wide, device, OP)?;
        let mut buffers = operands.iter().map(Tensor::buffer).collect::<Result<Vec<_>>>()?;
        buffers.push(&y);
        let groups = self.queries.div_ceil(self.config.tile.block().0);
        let kernel = self.config.clone();
        device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
        let rows = Tensor::from_buffer(y, shape, wide, device).to_vec::<f32>()?;
        Ok(rows.into_iter().map(f64::from).collect())
    }

    /// Computes a row by its definition.
    fn row(&self, query: usize) -> Vec<f64> {
        let Attention { features, columns, mask, softcap, .. } = self.config;
        let own = query as i32 + self.reach();
        let sees = |key: usize| {
            let hidden = mask.is_some_and(|dtype| !dtype.is_float() && self.mask(query, key) == 0.0);
            (1 - self.ahead..self.window).contains(&(own - key as i32)) && !hidden
        };
        let (features, columns) = (features as usize, columns as usize);
        let [q, k, v] = &self.numbers;
        let weight = |key: usize| {
            let products = q[query * features..].iter().zip(&k[key * features..]).take(features).map(|(q, k)| q * k);
            let score = products.sum::<f64>() * self.scale();
            let score = if softcap { CAP * (score / CAP).tanh() } else { score };
            (score + if mask.is_some_and(DType::is_float) { self.mask(query, key) } else { 0.0 }).exp()
        };
        let weights: Vec<_> = (0..self.keys).filter(|&key| sees(key)).map(|key| (key, weight(key))).collect();
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let value = |column| weights.iter().map(|&(key, weight)| weight / total * v[key * columns + column]).sum();
        (0..columns).map(value).collect()
    }

    /// Compares the rows with the expected ones.
    fn check(&self, found: &[f64]) -> Result<(), String> {
        let columns = self.config.columns as usize;
        if found.len() != self.queries * columns {
            return Err(format!("{} elements instead of {} x {columns}", found.len(), self.queries));
        }
        // Values are at most 1. So results differ by as much as weights: these are rounded, within 2^-11 (`f16`) or
        // 2^-8 (`bf16` of a few rows), or cut, within 0.0050 (`bf16`). The rest is for the device's `exp2` and for
        // sums.
        let bound = if self.config.dtype == DType::F16 { 1.0 / 1024.0 } else { 1.0 / 128.0 };
        for (query, found) in found.chunks(columns).enumerate() {
            for (column, (&found, expected)) in found.iter().zip(self.row(query)).enumerate() {
                let error = (found - expected).abs();
                if error.is_nan() || error > bound {
                    return Err(format!(
                        "row {query}, column {column} of {} queries and {} keys: {found}, not {expected}",
                        self.queries, self.keys
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention::{AttentionUnits, FewRows};

    fn units() -> AttentionTile {
        AttentionTile::MatrixUnits(AttentionUnits { subgroups: 8, keys: 64, reductions: false })
    }

    fn few_rows() -> AttentionTile {
        let few = FewRows::new((DType::F16, false), [5, 1], 128, 32).unwrap().of_any_queries();
        AttentionTile::FewRows(few.on_units([128, 64], 4096, 132).unwrap())
    }

    fn trial(tile: AttentionTile, dtype: DType, mask: Option<DType>) -> Trial {
        Trial::new(&Attention {
            dtype,
            batch_rank: 1,
            features: 128,
            columns: 64,
            mask,
            softcap: false,
            paged: false,
            packed: false,
            append: None,
            prologues: Default::default(),
            tile,
            parts: false,
            epilogue: None,
        })
    }

    fn rows(trial: &Trial) -> Vec<f64> {
        (0..trial.queries).flat_map(|query| trial.row(query)).collect()
    }

    #[test]
    fn wrong_rows_are_seen() {
        for (tile, dtype, mask) in [
            (units(), DType::F16, None),
            (units(), DType::BF16, None),
            (units(), DType::F16, Some(DType::F32)),
            (few_rows(), DType::F16, None),
            (few_rows(), DType::BF16, Some(DType::U8)),
        ] {
            let trial = trial(tile, dtype, mask);
            let (queries, columns) = (trial.queries, trial.config.columns as usize);
            let right = rows(&trial);
            // All rows of the first block see more than two stages, and there are keys before and behind.
            let (block, stage) = trial.config.tile.block();
            assert!(trial.window as usize > block + 2 * stage && trial.keys > trial.window as usize + block);
            assert_eq!(trial.check(&right), Ok(()));
            let with = |change: &dyn Fn(&mut Trial)| {
                let mut other = trial.clone();
                change(&mut other);
                trial.check(&rows(&other)).unwrap_err()
            };
            // A single key weighs too little to show in each of a few rows.
            let more = if queries > block { 1 } else { 16 };
            with(&|trial| trial.window += more);
            with(&|trial| trial.window = 1000);
            with(&|trial| trial.ahead += more);
            with(&|trial| trial.ahead = 1000);
            with(&|trial| trial.config.features -= 1);
            with(&|trial| trial.config.softcap = true);
            with(&|trial| trial.config.mask = if mask.is_some() { None } else { Some(DType::U8) });
            // Rows or columns swapped with those a power of two apart.
            for distance in [1, 2, 4, 8, 16, 32] {
                let rows =
                    (0..right.len()).map(|at| right[((at / columns) ^ distance) % queries * columns + at % columns]);
                assert!(trial.check(&rows.collect::<Vec<_>>()).is_err(), "rows {distance} apart");
                let columns = (0..right.len()).map(|at| right[at / columns * columns + ((at % columns) ^ distance)]);
                assert!(trial.check(&columns.collect::<Vec<_>>()).is_err(), "columns {distance} apart");
            }
            assert!(trial.check(&right[1..]).is_err());
            assert!(trial.check(&vec![f64::NAN; right.len()]).is_err());
        }
    }
}
