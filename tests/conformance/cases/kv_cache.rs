//! Caches of keys and values: attention over what earlier passes have written.

use super::attention::{OP, quarter, rounding_on_units};
use crate::compare::{Expected, check, download, upload};
use crate::full_tier;
use crate::reference::attention::{Attention, attention};
use crate::reference::inputs::Inputs;
use crate::reference::numbers::{round, ulp};
use crate::reference::{ArrayD, Axis, array};
use crate::suite::{Outcome, Suite};
use marquetry::nn::{KvCache, KvCacheConfig, Rope, Sequence};
use marquetry::{AttentionConfig, BlockFormat, DType, Device, Tensor};

/// What happens to a cache. Sequences have numbers, in the order in which they begin.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A pass over new tokens: for each sequence, how many. A sequence that is not there begins.
    Pass(&'static [(usize, usize)]),
    /// Another sequence begins with the tokens of this one.
    Fork(usize),
    Rewind(usize, usize),
    Remove(usize),
}

use Event::{Fork, Pass, Remove, Rewind};

#[derive(Debug, Clone)]
struct Story {
    heads: [usize; 2],
    features: usize,
    window: Option<usize>,
    softcap: Option<f64>,
    packed: bool,
    /// Whether pages hold NaN before they are written.
    spoilt: bool,
    /// The pairs that are rotated, and whether they are neighbours.
    rotation: Option<(usize, bool)>,
    events: &'static [Event],
}

impl Default for Story {
    fn default() -> Self {
        let (window, softcap, rotation) = (None, None, None);
        Story { heads: [4, 2], features: 20, window, softcap, packed: false, spoilt: false, rotation, events: &[] }
    }
}

const LENGTH: usize = 400;

/// A sequence, and what the cache should have of it in each layer: keys and values, `(tokens, kv_heads, features)`.
struct Known {
    sequence: Sequence,
    layers: [[ArrayD<f64>; 2]; LAYERS],
}

const LAYERS: usize = 2;

/// A cache whose story is told, and the sequences that have begun.
struct Told<'a> {
    story: &'a Story,
    cache: KvCache,
    rope: Option<Rope>,
    known: Vec<Option<Known>>,
    dtype: DType,
    device: &'a Device,
}

impl Story {
    fn tell(&self, dtype: DType, device: &Device) -> Outcome {
        // Fewer pages than three sequences of this length would need.
        let config = KvCacheConfig::new(LAYERS, self.heads[1], self.features).dtype(dtype).length(LENGTH);
        let config = config.packed(self.packed.then_some(BlockFormat::Q8_0));
        let mut cache = KvCache::new(&config.sequences(3).tokens(2 * LENGTH).window(self.window), device)?;
        if self.spoilt {
            self.spoil(&mut cache, dtype, device)?;
        }
        let rope = match self.rotation {
            Some((pairs, neighbours)) => {
                let rope = Rope::new(2 * pairs, 100.0, LENGTH, device)?;
                Some(if neighbours { rope.neighbours() } else { rope })
            }
            None => None,
        };
        let mut told = Told { story: self, cache, rope, known: Vec::new(), dtype, device };
        for (number, event) in self.events.iter().enumerate() {
            told.happens(number, *event)?;
        }
        Ok(())
    }

    /// Fills pages with NaN: those of two sequences that come and go.
    fn spoil(&self, cache: &mut KvCache, dtype: DType, device: &Device) -> Outcome {
        const TOKENS: usize = LENGTH / 64 * 64;
        let sequences = [cache.add(), cache.add()];
        for sequence in sequences {
            cache.extend(&[(sequence, TOKENS)])?;
            let [heads, kv_heads] = self.heads;
            let [q, k, v] = [heads, kv_heads, kv_heads]
                .map(|heads| Tensor::full(f32::NAN, (TOKENS, heads, self.features), device)?.to_dtype(dtype));
            let (q, k, v) = (q?, k?, v?);
            for layer in 0..LAYERS {
                cache.attend(layer, [&q, &k, &v], None, &AttentionConfig::default().causal(true))?;
            }
        }
        for sequence in sequences {
            cache.remove(sequence)?;
        }
        Ok(())
    }
}

impl Told<'_> {
    fn happens(&mut self, number: usize, event: Event) -> Outcome {
        match event {
            Pass(parts) => return self.pass(number, parts),
            Fork(from) => {
                let Known { sequence, layers } = self.known(from);
                let (from, layers) = (*sequence, layers.clone());
                let sequence = self.cache.fork(from)?;
                self.known.push(Some(Known { sequence, layers }));
            }
            Rewind(place, length) => {
                let sequence = self.known(place).sequence;
                self.cache.rewind(sequence, length)?;
                let layers = &mut self.known[place].as_mut().unwrap().layers;
                for rows in layers.iter_mut().flatten() {
                    *rows = rows.slice_axis(Axis(0), (..length).into()).to_owned();
                }
            }
            Remove(place) => {
                let sequence = self.known(place).sequence;
                self.cache.remove(sequence)?;
                self.known[place] = None;
            }
        }
        Ok(())
    }

    fn known(&self, place: usize) -> &Known {
        self.known[place].as_ref().expect("a story tells of sequences that are there")
    }

    fn pass(&mut self, number: usize, parts: &[(usize, usize)]) -> Outcome {
        for &(place, _) in parts {
            if place == self.known.len() {
                let none = array(&[0, self.story.heads[1], self.story.features], Vec::new());
                let layers = std::array::from_fn(|_| [none.clone(), none.clone()]);
                self.known.push(Some(Known { sequence: self.cache.add(), layers }));
            }
        }
        let more: Vec<_> = parts.iter().map(|&(place, more)| (self.known(place).sequence, more)).collect();
        self.cache.extend(&more)?;
        // One layer's kernels run behind those of the other one.
        let attended = (0..LAYERS).map(|layer| self.attend(number, layer, parts)).collect::<Outcome<Vec<_>>>()?;
        for (layer, (output, queries)) in attended.iter().enumerate() {
            if self.story.packed {
                self.round(layer, parts)?;
            }
            self.check(layer, output, queries, parts)?;
        }
        Ok(())
    }

    /// Records the attention of a layer. Returns it, and the queries as they are compared with keys. Notes the keys and
    /// values.
    fn attend(&mut self, number: usize, layer: usize, parts: &[(usize, usize)]) -> Outcome<(Tensor, ArrayD<f64>)> {
        let Story { heads: [heads, kv_heads], features, window, softcap, .. } = *self.story;
        let tokens: usize = parts.iter().map(|(_, more)| more).sum();
        let operand = |name: &str, heads: usize| {
            let mut inputs = Inputs::new(&format!("{name} {number} {layer}"));
            quarter(&mut inputs, &[tokens, heads, features], self.dtype)
        };
        let rows = [operand("q", heads), operand("k", kv_heads), operand("v", kv_heads)];
        // Every second pass has parts of one tensor, as models do.
        let [q, k, v] = if number.is_multiple_of(2) {
            rows.each_ref().map(|rows| upload(rows, self.dtype, self.device))
        } else {
            let views = rows.each_ref().map(|rows| rows.view());
            let packed = upload(&along(1, &views), self.dtype, self.device)?;
            let parts = [(0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads)];
            parts.map(|(first, heads)| Ok(packed.narrow(1, first, heads)?))
        };
        let (q, k, v) = (q?, k?, v?);
        let config = AttentionConfig::default().causal(true).sliding_window(window).softcap(softcap);
        let output = self.cache.attend(layer, [&q, &k, &v], self.rope.as_ref(), &config)?;
        let (mut first, mut queries) = (0, Vec::new());
        for &(place, more) in parts {
            let known = self.known[place].as_mut().expect("a sequence");
            let start = known.layers[layer][0].shape()[0];
            let [query, key] = [&q, &k].map(|x| -> Outcome<_> {
                let x = x.narrow(0, first, more)?.transpose(0, 1)?;
                // `Rope` has cases of its own.
                let x = self.rope.as_ref().map_or(Ok(x.clone()), |rope| rope.forward(&x, start))?;
                download(&x.transpose(0, 1)?)
            });
            let value = rows[2].slice_axis(Axis(0), (first..first + more).into()).to_owned();
            for (rows, new) in known.layers[layer].iter_mut().zip([key?, value]) {
                *rows = concatenate(&[rows.view(), new.view()]);
            }
            queries.push(query?);
            first += more;
        }
        let queries: Vec<_> = queries.iter().map(|rows| rows.view()).collect();
        Ok((output, concatenate(&queries)))
    }

    /// Replaces the new keys and values of a layer by what their blocks hold, if that is as near as it can be.
    fn round(&mut self, layer: usize, parts: &[(usize, usize)]) -> Outcome {
        for &(place, more) in parts {
            let known = self.known[place].as_mut().expect("a sequence");
            let found = self.cache.keys_and_values(layer, known.sequence)?;
            for (rows, found) in known.layers[layer].iter_mut().zip([found.0, found.1]) {
                let found = download(&found.transpose(0, 1)?)?;
                let missing = rows.shape()[0] - found.shape()[0];
                let first = rows.shape()[0] - more;
                let mut new = rows.slice_axis_mut(Axis(0), (first..).into());
                let found = found.slice_axis(Axis(0), (first - missing..).into());
                for (row, found) in new.rows().into_iter().zip(found.rows()) {
                    let (row, found) = (row.to_vec(), found.to_vec());
                    for (block, found) in row.chunks(32).zip(found.chunks(32)) {
                        let largest = block.iter().fold(0f64, |largest, x| largest.max(x.abs()));
                        // Half a step. The rows that are compared were rotated by another kernel, and rounded.
                        let tolerance = largest * (0.501 / 127.0 + ulp(1.0, self.dtype));
                        if block.iter().zip(found).any(|(x, found)| (x - found).abs() > tolerance) {
                            return Err(format!("layer {layer}: {found:?} in the cache, of {block:?}").into());
                        }
                    }
                }
                new.assign(&found);
            }
        }
        Ok(())
    }

    fn check(&self, layer: usize, output: &Tensor, queries: &ArrayD<f64>, parts: &[(usize, usize)]) -> Outcome {
        let Story { window, softcap, features, heads: [heads, kv_heads], .. } = *self.story;
        let mut first = 0;
        for &(place, more) in parts {
            let rounding = rounding_on_units(self.device, self.dtype, [features; 2], heads / kv_heads * more);
            let options = Attention { mask: None, causal: true, window, scale: None, softcap, rounding };
            let Known { sequence, layers } = self.known(place);
            let heads_first = |rows: &ArrayD<f64>| {
                let mut rows = rows.clone();
                rows.swap_axes(0, 1);
                rows.as_standard_layout().into_owned()
            };
            let query = heads_first(&queries.slice_axis(Axis(0), (first..first + more).into()).to_owned());
            let [key, value] = layers[layer].each_ref().map(heads_first);
            let output = output.narrow(0, first, more)?;
            let compare = |key: &ArrayD<f64>, value: &ArrayD<f64>| {
                let (mut values, mut errors) = attention(&query, key, value, &options);
                for rows in [&mut values, &mut errors] {
                    *rows = heads_first(rows);
                }
                check(OP, &output, &Expected::new(values, self.dtype).with_scale(errors))
                    .map_err(|failed| format!("layer {layer}: {}", failed.message().unwrap_or_default()))
            };
            let mut compared = compare(&key, &value);
            if self.story.packed && options.rounding > 0.0 && compared.is_err() {
                // Matrix units multiply what blocks hold after it has been rounded to the dtype.
                let [key, value] = [&key, &value].map(|rows| rows.mapv(|x| round(x, self.dtype)));
                compared = compare(&key, &value);
            }
            compared?;
            first += more;
            // What the cache still has of the sequence.
            let (found_keys, found_values) = self.cache.keys_and_values(layer, *sequence)?;
            for (found, rows) in [(found_keys, key), (found_values, value)] {
                let found = download(&found)?;
                let kept = rows.shape()[1] - found.shape()[1];
                if found != rows.slice_axis(Axis(1), (kept..).into()) || kept > 0 && window.is_none() {
                    return Err(format!("layer {layer}: the cache holds other rows than were written").into());
                }
            }
        }
        Ok(())
    }
}

/// Joins rows of several arrays.
fn concatenate(rows: &[ndarray::ArrayViewD<'_, f64>]) -> ArrayD<f64> {
    along(0, rows)
}

/// Joins several arrays along an axis.
fn along(axis: usize, arrays: &[ndarray::ArrayViewD<'_, f64>]) -> ArrayD<f64> {
    ndarray::concatenate(Axis(axis), arrays).expect("arrays of fitting shapes")
}

const STORIES: &[(&str, &[Event])] = &[
    ("steps", &[Pass(&[(0, 1)]), Pass(&[(0, 1)]), Pass(&[(0, 1)])]),
    ("prompt", &[Pass(&[(0, 70)]), Pass(&[(0, 1)]), Pass(&[(0, 57)]), Pass(&[(0, 1)])]),
    ("chunks", &[Pass(&[(0, 128)]), Pass(&[(0, 128)]), Pass(&[(0, 3)]), Pass(&[(0, 1)])]),
    ("whole_length", &[Pass(&[(0, LENGTH - 1)]), Pass(&[(0, 1)])]),
    (
        "ragged",
        &[
            Pass(&[(0, 5), (1, 100), (2, 17)]),
            Pass(&[(0, 1), (1, 1), (2, 1)]),
            Pass(&[(2, 3), (0, 3), (1, 70)]),
            Pass(&[(1, 1)]),
        ],
    ),
    (
        "fork",
        &[
            Pass(&[(0, 70)]),
            Fork(0),
            Pass(&[(0, 1), (1, 1)]),
            Fork(1),
            Pass(&[(2, 60)]),
            Pass(&[(1, 1), (2, 1), (0, 1)]),
            Remove(0),
            Pass(&[(2, 1), (1, 1)]),
        ],
    ),
    (
        "rewind",
        &[
            Pass(&[(0, 200)]),
            Rewind(0, 10),
            Pass(&[(0, 1)]),
            Fork(0),
            Rewind(1, 5),
            Pass(&[(1, 2), (0, 1)]),
            Rewind(0, 0),
            Pass(&[(0, 3)]),
        ],
    ),
    (
        "pages_serve_again",
        &[
            Pass(&[(0, 390), (1, 320)]),
            Remove(0),
            Pass(&[(2, 300)]),
            Remove(1),
            Pass(&[(2, 1)]),
            Pass(&[(3, 200), (2, 4)]),
        ],
    ),
];

pub fn add(suite: &mut Suite) {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let mut add = |name: String, story: Story| {
            suite.add("kv_cache", format!("{dtype}::{name}"), move |device| story.tell(dtype, device));
        };
        for &(name, events) in STORIES {
            if dtype == DType::BF16 && name != "ragged" && !full_tier() {
                continue;
            }
            add(name.into(), Story { events, ..Story::default() });
            let rotation = Some((8, name.len() % 2 == 0));
            add(format!("{name}_rotated"), Story { events, rotation, ..Story::default() });
            let (heads, features) = ([8, 1], 64);
            add(
                format!("{name}_shared_keys"),
                Story { events, heads, features, softcap: Some(2.0), ..Story::default() },
            );
            if dtype.size_in_bytes() == 2 && (["ragged", "fork"].contains(&name) || full_tier()) {
                // Rows of whole runs: on GPUs one kernel appends a token and attends to it.
                for (rows, heads, features, rotation, window) in [
                    ("runs", [4, 2], 64, Some((32, false)), None),
                    ("partly_rotated_runs", [2, 2], 40, Some((8, true)), Some(50).filter(|_| name != "rewind")),
                    ("unrotated_runs", [8, 1], 32, None, None),
                ] {
                    let spoilt = true;
                    let story = Story { events, heads, features, rotation, window, spoilt, ..Story::default() };
                    add(format!("{name}_{rows}"), story);
                }
            }
            if name != "rewind" && (dtype == DType::F16 || full_tier()) {
                let packed = Story { events, packed: true, features: 64, rotation, ..Story::default() };
                add(format!("{name}_packed"), packed.clone());
                let (heads, features, softcap) = ([8, 1], 96, Some(2.0));
                add(format!("{name}_packed_window"), Story { heads, features, softcap, window: Some(50), ..packed });
            }
            if name != "rewind" {
                add(format!("{name}_window"), Story { events, window: Some(50), ..Story::default() });
            }
        }
    }
}
