//! Attention and rotary embeddings.

use super::{FLOATS, floats, is_brief, shaped};
use crate::compare::{Expected, Sample, check, download, upload};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::attention::{Attention, attention, rotary};
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::numbers::round;
use crate::reference::{ArrayD, Axis, array};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::{AttentionConfig, DType, Device, Tensor};

pub const TOLERANCES: Table = &[
    (
        &["scaled_dot_product_attention"],
        Tolerance {
            ulp: 8.0,
            of_scale: EPS,
            reason: "the rounding of scores, of their distances and of sums (the scale); exp and a division; on units, weights are \
                     rounded or cut to the dtype (the scale)",
            ..EXACT
        },
    ),
    (&["alibi_mask"], Tolerance { ulp: 1.0, reason: "a slope rounded once, and a product", ..EXACT }),
    (
        &["rope", "rope_i"],
        Tolerance { ulp: 0.5, of_scale: EPS, reason: "two products (the scale), rounded or not, and a sum", ..EXACT },
    ),
    (&["rotary_tables"], Tolerance { ulp: 4.0, reason: "as sin and cos, of a rounded product", ..EXACT }),
];

pub const OP: &str = "scaled_dot_product_attention";

/// The memory layout of an operand.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    As(Layout),
    /// `(batch, tokens, heads, d)` in memory, with the middle axes swapped.
    TokensFirst,
}

/// The axes of a mask. The other axes have length 1 or are absent.
#[derive(Debug, Clone, Copy)]
enum Over {
    All,
    /// `(batch, 1, 1, keys)`, as for padding.
    Padding,
    /// `(queries, keys)`
    Matrix,
    /// `(heads, queries, 1)`
    Queries,
}

/// A call, without the elements of its tensors.
#[derive(Debug, Clone)]
struct Call {
    batch: usize,
    heads: [usize; 2],
    tokens: [usize; 2],
    width: [usize; 2],
    places: [Place; 3],
    mask: Option<(DType, Over)>,
    causal: bool,
    window: Option<usize>,
    scale: Option<f64>,
    softcap: Option<f64>,
}

const CONTIGUOUS: [Place; 3] = [Place::As(Layout::Contiguous); 3];

impl Default for Call {
    fn default() -> Self {
        Call {
            batch: 2,
            heads: [2, 2],
            tokens: [33, 70],
            width: [20, 12],
            places: CONTIGUOUS,
            mask: None,
            causal: false,
            window: None,
            scale: None,
            softcap: None,
        }
    }
}

/// Returns a quarter of normally distributed numbers. With such scores, several keys have weight.
pub fn quarter(inputs: &mut Inputs, shape: &[usize], dtype: DType) -> ArrayD<f64> {
    inputs.array(shape, dtype, Domain::Normal).mapv(|x| round(x * 0.25, dtype))
}

fn operand(name: &str, shape: &[usize], place: Place, dtype: DType, device: &Device) -> Outcome<Sample> {
    let quarter = |shape: &[usize]| quarter(&mut Inputs::new(name), shape, dtype);
    match place {
        Place::As(layout) => layout.place(quarter(shape), dtype, device),
        Place::TokensFirst => {
            let rank = shape.len();
            let mut tokens_first = shape.to_vec();
            tokens_first.swap(rank - 3, rank - 2);
            let base = quarter(&tokens_first);
            let tensor = upload(&base, dtype, device)?.transpose(-3, -2)?;
            let mut values = base;
            values.swap_axes(rank - 3, rank - 2);
            Ok(Sample { tensor, values: values.as_standard_layout().into_owned() })
        }
    }
}

/// Returns a mask and the numbers that it adds to the scores.
fn mask(name: &str, shape: &[usize], dtype: DType, device: &Device) -> Outcome<(Tensor, ArrayD<f64>)> {
    let mut inputs = Inputs::new(name);
    let count: usize = shape.iter().product();
    let boolean = !dtype.is_float();
    let elements: Vec<f64> = (0..count)
        .map(|_| match (boolean, inputs.below(3)) {
            (true, 0) => 0.0,
            (true, n) => n as f64,
            (false, 0) => f64::NEG_INFINITY,
            (false, _) => round(inputs.normal(), dtype),
        })
        .collect();
    let values = array(shape, elements);
    let tensor = upload(&values, dtype, device)?;
    let added = if boolean { values.mapv(|x| if x == 0.0 { f64::NEG_INFINITY } else { 0.0 }) } else { values };
    Ok((tensor, added))
}

/// Returns how far weights may be rounded, in half ulps of 1: to halves, or to `bf16`, if matrix units compute them.
/// If 16 rows or more share keys, weights are made larger by 0.28 % and then cut to `bf16`. That takes at most 2^-7 of
/// them away. The device's `exp2` of at most 2^-24 is within another 128 half ulps (Vulkan, "Precision of Individual
/// Operations").
pub fn rounding_on_units(device: &Device, dtype: DType, lengths: [usize; 2], rows: usize) -> f64 {
    let units = device.info().features.matrix_units;
    let in_vectors = lengths.into_iter().all(|length| length.is_multiple_of(8));
    match dtype {
        DType::F16 if in_vectors && units.f16.is_some() => 2f64.powi(-11) / EPS + 128.0,
        DType::BF16 if in_vectors && units.bf16.is_some() => {
            let rounding = if rows >= 16 { 2f64.powi(-7) - 0.0028 } else { 2f64.powi(-8) };
            rounding / EPS + 128.0
        }
        _ => 0.0,
    }
}

fn rounding_of([q, _, v]: &[Sample; 3]) -> f64 {
    let [q, v] = [q, v].map(|x| &x.tensor);
    let [[heads, queries, features], [kv_heads, _, columns]] =
        [q, v].map(|x| [3, 2, 1].map(|n| x.dims()[x.rank() - n]));
    rounding_on_units(q.device(), q.dtype(), [features, columns], heads / kv_heads * queries)
}

impl Call {
    fn mask_shape(&self, over: Over) -> Vec<usize> {
        let [queries, keys] = self.tokens;
        match over {
            Over::All => vec![self.batch, self.heads[0], queries, keys],
            Over::Padding => vec![self.batch, 1, 1, keys],
            Over::Matrix => vec![queries, keys],
            Over::Queries => vec![self.heads[0], queries, 1],
        }
    }

    fn operands(&self, dtype: DType, device: &Device) -> Outcome<[Sample; 3]> {
        let ([heads, kv_heads], [queries, keys], [d, columns]) = (self.heads, self.tokens, self.width);
        Ok([
            operand("q", &[self.batch, heads, queries, d], self.places[0], dtype, device)?,
            operand("k", &[self.batch, kv_heads, keys, d], self.places[1], dtype, device)?,
            operand("v", &[self.batch, kv_heads, keys, columns], self.places[2], dtype, device)?,
        ])
    }

    fn check(&self, dtype: DType, device: &Device) -> Outcome {
        self.check_operands(&self.operands(dtype, device)?, device)
    }

    fn check_operands(&self, operands: &[Sample; 3], device: &Device) -> Outcome {
        let mask = self.mask.map(|(dtype, over)| mask("mask", &self.mask_shape(over), dtype, device)).transpose()?;
        self.check_masked(operands, mask)
    }

    fn check_masked(&self, operands: &[Sample; 3], mask: Option<(Tensor, ArrayD<f64>)>) -> Outcome {
        let (mask, added) = mask.unzip();
        let Call { causal, window, scale, softcap, .. } = *self;
        let config =
            AttentionConfig::default().mask(mask).causal(causal).sliding_window(window).scale(scale).softcap(softcap);
        let ([q, k, v], rounding) = (operands, rounding_of(operands));
        let options = Attention { mask: added, causal, window, scale, softcap, rounding };
        let (values, errors) = attention(&q.values, &k.values, &v.values, &options);
        let result = q.tensor.scaled_dot_product_attention(&k.tensor, &v.tensor, &config)?;
        check(OP, &result, &Expected::new(values, q.tensor.dtype()).with_scale(errors))
    }
}

fn add_call(suite: &mut Suite, name: &str, dtype: DType, call: Call) {
    suite.add(OP, format!("{dtype}::{name}"), move |device| call.check(dtype, device));
}

/// Adds sizes of both axes, with and without `causal`.
fn add_sizes(suite: &mut Suite, dtype: DType) {
    for queries in [1, 5, 33, 70] {
        for keys in [0, 1, 70, 300] {
            for (kind, causal) in [("all", false), ("causal", true)] {
                let call = Call { tokens: [queries, keys], causal, ..Call::default() };
                add_call(suite, &format!("{kind}_{queries}_{keys}"), dtype, call);
            }
        }
    }
    for (name, width) in [("tiny", [1, 1]), ("odd", [5, 3]), ("usual", [64, 64]), ("wide", [100, 132])] {
        add_call(suite, name, dtype, Call { width, ..Call::default() });
        add_call(suite, &format!("{name}_decode"), dtype, Call { width, tokens: [1, 130], ..Call::default() });
    }
    for (name, heads) in [("grouped", [6, 2]), ("multi_query", [5, 1]), ("one_head", [1, 1])] {
        for (kind, tokens) in [("", [33, 70]), ("_decode", [1, 300]), ("_few", [3, 130])] {
            let call = Call { heads, tokens, causal: true, ..Call::default() };
            add_call(suite, &format!("{name}{kind}"), dtype, call);
        }
    }
    let empty = [("no_batch", 0, [3, 4]), ("no_queries", 2, [0, 4]), ("no_keys", 2, [3, 0])];
    for (name, batch, tokens) in empty {
        add_call(suite, name, dtype, Call { batch, tokens, ..Call::default() });
    }
    for (name, tokens) in [("no_features", [33, 70]), ("no_features_decode", [1, 70])] {
        add_call(suite, name, dtype, Call { width: [0, 16], tokens, ..Call::default() });
    }
    add_call(suite, "no_columns", dtype, Call { width: [20, 0], ..Call::default() });
}

fn add_layouts(suite: &mut Suite, dtype: DType) {
    use Layout::{Broadcast, Contiguous, Pending, PendingTransposed, Sliced, Transposed, Unaligned};
    let same = |layout| [Place::As(layout); 3];
    let places = [
        ("tokens_first", [Place::TokensFirst; 3]),
        ("tokens_first_keys", [Place::As(Contiguous), Place::TokensFirst, Place::TokensFirst]),
        ("transposed", same(Transposed)),
        ("sliced", same(Sliced)),
        ("broadcast", same(Broadcast)),
        ("unaligned", same(Unaligned)),
        ("pending", same(Pending)),
        ("pending_values", [Place::As(Contiguous), Place::As(Contiguous), Place::As(PendingTransposed)]),
    ];
    for (name, places) in places {
        for (kind, heads) in [("", [2, 2]), ("_grouped", [4, 2])] {
            for (step, tokens) in [("", [19, 21]), ("_decode", [1, 70])] {
                let call = Call { places, heads, tokens, causal: true, ..Call::default() };
                add_call(suite, &format!("{name}{kind}{step}"), dtype, call);
            }
        }
    }
}

fn add_masks(suite: &mut Suite, dtype: DType) {
    let mut dtypes = vec![DType::U8, DType::F32, dtype];
    if dtype == DType::F32 || full_tier() {
        dtypes.push(DType::Bool);
    }
    dtypes.dedup();
    for mask_dtype in dtypes {
        let overs =
            [("all", Over::All), ("padding", Over::Padding), ("matrix", Over::Matrix), ("queries", Over::Queries)];
        for (name, over) in overs {
            for (kind, heads, tokens) in
                [("", [2, 2], [33, 70]), ("_grouped", [4, 2], [5, 130]), ("_decode", [2, 2], [1, 300])]
            {
                let call = Call { mask: Some((mask_dtype, over)), heads, tokens, ..Call::default() };
                add_call(suite, &format!("{mask_dtype}_mask_{name}{kind}"), dtype, call);
            }
        }
    }
    suite.add(OP, format!("{dtype}::masked_rows"), move |device| {
        // Every second query sees no key.
        let call = Call { tokens: [9, 40], ..Call::default() };
        let row =
            |hidden: f64, seen: f64| array(&[9, 1], (0..9).map(|i| if i % 2 == 0 { hidden } else { seen }).collect());
        let added = row(f64::NEG_INFINITY, 0.0);
        let [truths, bytes] = [DType::Bool, DType::U8].map(|dtype| upload(&row(0.0, 1.0), dtype, device));
        for mask in [truths?, bytes?, upload(&added, DType::F32, device)?] {
            call.check_masked(&call.operands(dtype, device)?, Some((mask, added.clone())))?;
        }
        Ok(())
    });
    suite.add(OP, format!("{dtype}::mask_of_large_numbers"), move |device| {
        // `f32::MIN` as in PyTorch's `finfo.min`: far below all scores. If a query has it everywhere, all keys weigh
        // the same.
        let lowest = f64::from(f32::MIN);
        let added = array(&[4, 40], (0..160).map(|i| if i < 80 || i % 3 == 0 { lowest } else { 0.0 }).collect());
        let mask = upload(&added, DType::F32, device)?;
        for (heads, width) in [([2, 2], [0, 12]), ([8, 2], [64, 64])] {
            let call = Call { tokens: [4, 40], heads, width, ..Call::default() };
            call.check_masked(&call.operands(dtype, device)?, Some((mask.clone(), added.clone())))?;
        }
        Ok(())
    });
}

fn add_settings(suite: &mut Suite, dtype: DType) {
    for tokens in [[33, 70], [70, 33], [1, 300], [40, 40]] {
        let [queries, keys] = tokens;
        let base = Call { tokens, ..Call::default() };
        let padding = Some((DType::U8, Over::Padding));
        let calls = [
            ("scale", Call { scale: Some(0.7), ..base.clone() }),
            ("negative_scale", Call { scale: Some(-0.1), ..base.clone() }),
            ("softcap", Call { softcap: Some(1.5), ..base.clone() }),
            ("window", Call { window: Some(7), ..base.clone() }),
            ("window_of_one", Call { window: Some(1), ..base.clone() }),
            ("wide_window", Call { window: Some(usize::MAX), ..base.clone() }),
            ("causal_window", Call { window: Some(33), causal: true, ..base.clone() }),
            (
                "everything",
                Call {
                    window: Some(40),
                    causal: true,
                    softcap: Some(2.0),
                    scale: Some(0.3),
                    mask: padding,
                    heads: [4, 2],
                    ..base
                },
            ),
        ];
        for (name, call) in calls {
            add_call(suite, &format!("{name}_{queries}_{keys}"), dtype, call);
        }
    }
}

fn add_numbers(suite: &mut Suite, dtype: DType) {
    suite.add(OP, format!("{dtype}::large_scores"), move |device| {
        // exp of the scores overflows, but the result does not.
        let call = Call { scale: Some(16.0), ..Call::default() };
        call.check(dtype, device)
    });
    suite.add(OP, format!("{dtype}::not_finite"), move |device| {
        let call = Call { tokens: [6, 40], ..Call::default() };
        let infinity = f64::INFINITY;
        let numbers = [(0, f64::NAN, 3), (1, f64::NAN, 3), (2, f64::NAN, 3), (2, infinity, 3), (0, infinity, 3)];
        for (place, number, row) in numbers {
            let mut operands = call.operands(dtype, device)?;
            // Replace a number of the second head.
            operands[place].values[[0, 1, row, 2]] = number;
            operands[place].tensor = upload(&operands[place].values, dtype, device)?;
            call.check_operands(&operands, device)?;
        }
        Ok(())
    });
    if dtype != DType::F64 {
        // So few key heads that workgroups share the keys, even with two compute units. The second rows are so short
        // that subgroups of eight lanes take two keys side by side.
        for (name, heads, width) in [("one", [1, 1], [40, 24]), ("four", [4, 1], [24, 16])] {
            let call = Call { batch: 1, heads, tokens: [1, 301], width, causal: true, ..Call::default() };
            add_call(suite, &format!("few_causal_joined_{name}"), dtype, call.clone());
            // Then the kernel computes how many keys a workgroup has.
            let call = Call { mask: Some((DType::Bool, Over::All)), causal: false, ..call };
            add_call(suite, &format!("few_masked_joined_{name}"), dtype, call);
        }
    }
    suite.add(OP, format!("{dtype}::few_causal_not_finite"), move |device| {
        // The last key is infinite, or its value is. The lanes that share it, and those behind it, must not make NaN.
        let call = Call { tokens: [1, 41], heads: [4, 2], width: [24, 40], causal: true, ..Call::default() };
        for (place, column) in [(1, 23), (2, 2)] {
            let mut operands = call.operands(dtype, device)?;
            operands[place].values[[0, 1, 40, column]] = f64::INFINITY;
            // The score becomes minus infinity.
            operands[0].values.mapv_inplace(|x| -x.abs());
            for operand in &mut operands[..] {
                operand.tensor = upload(&operand.values, dtype, device)?;
            }
            call.check_operands(&operands, device)?;
        }
        Ok(())
    });
    suite.add(OP, format!("{dtype}::unseen_keys"), move |device| {
        check_unseen_keys(&Call { tokens: [6, 6], ..Call::default() }, dtype, device)
    });
}

/// Adds calls that matrix units compute: rows of 16 bytes, and 16 queries or more.
fn add_units(suite: &mut Suite, dtype: DType) {
    let base = Call { width: [64, 64], ..Call::default() };
    for width in [[32, 32], [40, 24], [72, 200], [128, 128], [256, 192], [8, 256]] {
        for tokens in [[33, 70], [16, 1], [200, 330], [330, 200]] {
            for (kind, causal) in [("all", false), ("causal", true)] {
                let ([d, columns], [queries, keys]) = (width, tokens);
                let name = format!("units_{kind}_{d}_{columns}_{queries}_{keys}");
                add_call(suite, &name, dtype, Call { width, tokens, causal, ..base.clone() });
            }
        }
    }
    // So many heads that workgroups compute 64 or 128 rows.
    for (name, heads) in [("64", [36, 4]), ("128", [72, 24])] {
        for (kind, causal, window) in [("all", false, None), ("causal", true, None), ("window", true, Some(70))] {
            let call = Call { heads, tokens: [300, 330], causal, window, ..base.clone() };
            add_call(suite, &format!("units_rows_{name}_{kind}"), dtype, call);
        }
    }
    for (name, heads) in [("grouped", [6, 2]), ("multi_query", [5, 1])] {
        for tokens in [[33, 70], [3, 130], [200, 330]] {
            let name = format!("units_{name}_{}", tokens[0]);
            add_call(suite, &name, dtype, Call { heads, tokens, causal: true, ..base.clone() });
        }
    }
    let settings = [
        ("scale", Call { scale: Some(0.7), ..base.clone() }),
        ("negative_scale", Call { scale: Some(-0.1), ..base.clone() }),
        ("no_scale", Call { scale: Some(0.0), causal: true, ..base.clone() }),
        ("large_scores", Call { scale: Some(16.0), ..base.clone() }),
        ("softcap", Call { softcap: Some(1.5), ..base.clone() }),
        ("window", Call { window: Some(7), ..base.clone() }),
        ("window_of_one", Call { window: Some(1), ..base.clone() }),
        ("causal_window", Call { window: Some(33), causal: true, ..base.clone() }),
    ];
    for (name, call) in settings {
        for tokens in [[33, 70], [70, 33], [130, 330]] {
            add_call(suite, &format!("units_{name}_{}", tokens[0]), dtype, Call { tokens, ..call.clone() });
        }
    }
    for mask_dtype in [DType::Bool, DType::F32, dtype] {
        for (name, over) in [("all", Over::All), ("padding", Over::Padding), ("queries", Over::Queries)] {
            for (kind, call) in [
                ("", base.clone()),
                ("_capped", Call { softcap: Some(2.0), causal: true, scale: Some(-0.3), ..base.clone() }),
                ("_grouped", Call { heads: [4, 2], tokens: [20, 130], ..base.clone() }),
            ] {
                let call = Call { mask: Some((mask_dtype, over)), ..call };
                add_call(suite, &format!("units_{mask_dtype}_mask_{name}{kind}"), dtype, call);
            }
        }
    }
    let layouts = [Layout::Transposed, Layout::Sliced, Layout::Broadcast, Layout::Unaligned, Layout::Pending];
    let places = layouts.into_iter().map(|layout| (format!("{layout:?}").to_lowercase(), [Place::As(layout); 3]));
    for (name, places) in places.chain([("tokens_first".into(), [Place::TokensFirst; 3])]) {
        for heads in [[2, 2], [4, 2]] {
            let call = Call { places, heads, tokens: [19, 70], causal: true, ..base.clone() };
            add_call(suite, &format!("units_{name}_{}", heads[0]), dtype, call);
        }
    }
    for width in [[64, 64], [72, 40], [40, 72]] {
        for (heads, queries) in [([2, 2], 1), ([8, 2], 1), ([2, 2], 3), ([4, 2], 4)] {
            let tokens = [queries, 300];
            let base = Call { width, heads, tokens, causal: true, ..Call::default() };
            let calls = [
                ("plain", base.clone()),
                ("window", Call { window: Some(70), ..base.clone() }),
                ("softcap", Call { softcap: Some(1.5), scale: Some(-0.4), ..base.clone() }),
                ("mask", Call { mask: Some((DType::Bool, Over::All)), ..base.clone() }),
                ("float_mask", Call { mask: Some((dtype, Over::Padding)), ..base.clone() }),
                ("tokens_first", Call { places: [Place::TokensFirst; 3], ..base }),
            ];
            for (name, call) in calls {
                let (rows, length) = (heads[0] / heads[1] * queries, width[0]);
                add_call(suite, &format!("few_{name}_{rows}_of_{queries}_{length}"), dtype, call);
            }
        }
    }
    suite.add(OP, format!("{dtype}::units_not_finite"), move |device| {
        // Numbers that are not finite in a row, or in what all rows see of a head.
        let call = Call { tokens: [33, 70], width: [64, 64], ..Call::default() };
        let numbers = [(0, f64::NAN), (1, f64::NAN), (2, f64::NAN), (2, f64::INFINITY), (0, f64::INFINITY)];
        for (place, number) in numbers {
            let mut operands = call.operands(dtype, device)?;
            operands[place].values[[0, 1, 3, 2]] = number;
            operands[place].tensor = upload(&operands[place].values, dtype, device)?;
            call.check_operands(&operands, device)?;
        }
        Ok(())
    });
    suite.add(OP, format!("{dtype}::units_unseen_keys"), move |device| {
        check_unseen_keys(&Call { tokens: [40, 40], ..base.clone() }, dtype, device)
    });
}

/// Checks all queries but the last one, which alone sees a key with NaN.
fn check_unseen_keys(call: &Call, dtype: DType, device: &Device) -> Outcome {
    let [queries, keys] = call.tokens;
    let mut operands = call.operands(dtype, device)?;
    let rounding = rounding_of(&operands);
    let [q, k, v] = operands.each_ref().map(|operand| &operand.values);
    let expected = attention(q, k, v, &Attention { causal: true, rounding, ..Attention::default() });
    operands[1].values.index_axis_mut(Axis(2), keys - 1).fill(f64::NAN);
    operands[1].tensor = upload(&operands[1].values, dtype, device)?;
    let config = AttentionConfig::default().causal(true);
    let [q, k, v] = operands.map(|operand| operand.tensor);
    let first = |x: ArrayD<f64>| x.slice_axis(Axis(2), (..queries - 1).into()).to_owned();
    let result = q.scaled_dot_product_attention(&k, &v, &config)?.narrow(2, 0, queries - 1)?;
    check(OP, &result, &Expected::new(first(expected.0), dtype).with_scale(first(expected.1)))
}

/// Adds the cases that are special for `f64`, and some others.
fn add_doubles(suite: &mut Suite) {
    let dtype = DType::F64;
    if full_tier() {
        add_sizes(suite, dtype);
        add_settings(suite, dtype);
        add_masks(suite, dtype);
        add_layouts(suite, dtype);
    }
    let sliced = [Place::As(Layout::Sliced); 3];
    let everything = Call { causal: true, window: Some(40), softcap: Some(2.0), scale: Some(0.3), ..Call::default() };
    for (name, call) in [
        ("plain", Call::default()),
        ("one_query", Call { tokens: [1, 300], causal: true, ..Call::default() }),
        ("grouped_few_sliced", Call { heads: [6, 2], tokens: [3, 130], places: sliced, ..Call::default() }),
        ("wide_rows", Call { width: [100, 132], ..Call::default() }),
        ("mask_and_everything", Call { mask: Some((DType::U8, Over::Padding)), heads: [4, 2], ..everything }),
        ("mask_of_singles", Call { mask: Some((DType::F32, Over::All)), ..Call::default() }),
        ("mask_of_doubles", Call { mask: Some((dtype, Over::Matrix)), ..Call::default() }),
    ] {
        add_call(suite, name, dtype, call);
    }
    add_numbers(suite, dtype);
    suite.add(OP, "f64::mask_below_singles", |device| {
        // Scores below the range of `f32`. If all scores are equal, so are the weights.
        let x = Tensor::ones((2, 9, 20), DType::F64, device)?;
        let config = AttentionConfig::default().mask(Tensor::full(-1e300, (9, 9), device)?);
        let result = x.scaled_dot_product_attention(&x, &x, &config)?;
        check(OP, &result, &Expected::new(array(&[2, 9, 20], vec![1.0; 360]), DType::F64))
    });
}

fn add_ranks(suite: &mut Suite) {
    let dtype = DType::F32;
    let of = |shapes: [&'static [usize]; 3]| {
        move |device: &Device| -> Outcome {
            let place = Place::As(Layout::Contiguous);
            let [q, k, v] = shapes;
            let operands = [
                operand("q", q, place, dtype, device)?,
                operand("k", k, place, dtype, device)?,
                operand("v", v, place, dtype, device)?,
            ];
            Call::default().check_operands(&operands, device)
        }
    };
    suite.add(OP, "f32::no_batch_axes", of([&[4, 9, 20], &[2, 11, 20], &[2, 11, 12]]));
    suite.add(OP, "f32::batch_broadcast", of([&[3, 2, 9, 20], &[1, 2, 11, 20], &[1, 2, 11, 12]]));
    suite.add(OP, "f32::batch_broadcast_queries", of([&[2, 9, 20], &[3, 2, 11, 20], &[3, 2, 11, 12]]));
    suite.add(OP, "f32::batches", of([&[2, 1, 2, 9, 20], &[1, 3, 2, 11, 20], &[2, 3, 2, 11, 12]]));
    suite.add(OP, "f32::many_features", of([&[2, 9, 300], &[2, 70, 300], &[2, 70, 12]]));
    suite.add(OP, "f32::many_columns", of([&[2, 9, 20], &[2, 70, 20], &[2, 70, 300]]));
    suite.add(OP, "f32::as_many_as_a_kernel_holds", of([&[2, 40, 256], &[2, 70, 256], &[2, 70, 256]]));
    suite.add(OP, "f32::many_axes", |device| {
        // More axes that do not merge than the parameters have room for.
        let q = [&[2; 9][..], &[1, 3, 4]].concat();
        let mut operands = [
            operand("q", &q, CONTIGUOUS[0], DType::F32, device)?,
            operand("k", &q, CONTIGUOUS[0], DType::F32, device)?,
            operand("v", &q, CONTIGUOUS[0], DType::F32, device)?,
        ];
        let axes: Vec<usize> = (0..9).rev().chain(9..12).collect();
        for operand in &mut operands[1..] {
            operand.tensor = operand.tensor.permute(axes.clone())?;
            operand.values = operand.values.view().permuted_axes(axes.clone()).as_standard_layout().into_owned();
        }
        let shape = [&[2, 1, 2, 1, 2, 1, 2, 1, 2][..], &[1, 3, 3]].concat();
        Call::default().check_masked(&operands, Some(mask("mask", &shape, DType::U8, device)?))
    });
}

/// Adds random calls of all kinds.
fn add_random(suite: &mut Suite) {
    for seed in 0..if full_tier() { 400 } else { 40 } {
        suite.add(OP, format!("random::{seed}"), move |device| {
            let mut random = Inputs::new(&format!("attention {seed}"));
            let dtype = FLOATS[random.below(2)];
            let kv_heads = 1 + random.below(3);
            let mut place = || [Place::As(Layout::Contiguous), Place::TokensFirst][random.below(2)];
            let places = [place(), place(), place()];
            let mut maybe = |n: usize| (random.below(2) == 0).then(|| 1 + random.below(n));
            let (window, softcap, scale) = (maybe(60), maybe(3), maybe(4));
            let most_queries = [4, 100][random.below(2)];
            let masks = [
                None,
                None,
                Some((DType::U8, Over::Padding)),
                Some((DType::F32, Over::All)),
                Some((DType::U8, Over::Matrix)),
            ];
            let call = Call {
                batch: 1 + random.below(3),
                heads: [kv_heads * (1 + random.below(3)), kv_heads],
                tokens: [1 + random.below(most_queries), 1 + random.below(200)],
                width: [20, 12],
                places,
                mask: masks[random.below(5)],
                causal: random.below(2) == 0,
                window,
                scale: scale.map(|n| n as f64 * 0.2),
                softcap: softcap.map(|n| n as f64),
            };
            call.check(dtype, device)
                .map_err(|failed| format!("{call:?}: {}", failed.message().unwrap_or_default()).into())
        });
    }
}

fn add_alibi(suite: &mut Suite) {
    for (heads, queries, keys) in [(8, 3, 5), (12, 1, 7), (1, 4, 4), (6, 5, 2), (0, 2, 2), (3, 0, 1)] {
        suite.add("alibi_mask", format!("{heads}_{queries}_{keys}"), move |device| {
            // Computed by recursion, as in the authors' code.
            fn slopes(heads: usize) -> Vec<f64> {
                if heads.is_power_of_two() {
                    return (1..=heads).map(|n| 2f64.powf(-8.0 * n as f64 / heads as f64)).collect();
                }
                let power = 1 << heads.ilog2();
                let more = slopes(2 * power).into_iter().step_by(2).take(heads - power);
                slopes(power).into_iter().chain(more).collect()
            }
            let slopes = if heads == 0 { Vec::new() } else { slopes(heads) };
            let distance = |i: usize, j: usize| ((i + keys) as f64 - (queries + j) as f64).abs();
            let bias = slopes
                .iter()
                .flat_map(|slope| (0..queries).flat_map(move |i| (0..keys).map(move |j| -slope * distance(i, j))));
            let expected = Expected::new(array(&[heads, queries, keys], bias.collect()), DType::F32);
            check("alibi_mask", &Tensor::alibi_mask(heads, queries, keys, device)?, &expected)
        });
    }
    suite.add("alibi_mask", "one_row_does", |device| {
        let call = Call { tokens: [9, 30], causal: true, ..Call::default() };
        let operands = call.operands(DType::F32, device)?;
        let all = Tensor::alibi_mask(2, 9, 30, device)?;
        let added = download(&all)?;
        call.check_masked(&operands, Some((all, added.clone())))?;
        call.check_masked(&operands, Some((Tensor::alibi_mask(2, 1, 30, device)?, added)))
    });
}

fn check_rope(x: &Sample, cos: &Sample, sin: &Sample) -> Outcome {
    let dtype = x.tensor.dtype();
    for (op, neighbours) in [("rope", false), ("rope_i", true)] {
        let (values, magnitudes) = rotary(&x.values, &cos.values, &sin.values, neighbours);
        let turn = if neighbours { Tensor::rope_i } else { Tensor::rope };
        let result = turn(&x.tensor, &cos.tensor, &sin.tensor)?;
        check(op, &result, &Expected::new(values, dtype).with_scale(magnitudes))?;
    }
    Ok(())
}

fn add_rotary(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Sliced, Transposed, Unaligned};
    for dtype in floats() {
        let layouts = [Sliced, Contiguous, Transposed, Broadcast, Unaligned];
        for &layout in if dtype == DType::F64 && !full_tier() { &layouts[..1] } else { &layouts[..] } {
            for (name, table) in [("", DType::F32), ("_same", dtype)] {
                suite.add("rope", format!("{dtype}::{}{name}", layout.name()), move |device| {
                    let x = shaped("x", &[2, 3, 5, 8], layout, dtype, Domain::Normal, device)?;
                    let cos = shaped("cos", &[5, 4], layout, table, Domain::Normal, device)?;
                    let sin = shaped("sin", &[5, 4], layout, table, Domain::Normal, device)?;
                    check_rope(&x, &cos, &sin)
                });
            }
        }
        let shapes: [(&str, &[usize], &[usize]); 8] = [
            ("partial", &[2, 3, 5, 11], &[5, 3]),
            ("no_pairs", &[2, 5, 4], &[5, 0]),
            ("empty", &[2, 0, 4], &[0, 2]),
            ("vector", &[7], &[3]),
            ("each_sequence", &[2, 3, 5, 8], &[2, 1, 5, 4]),
            ("one_angle", &[2, 3, 5, 8], &[4]),
            ("head", &[1, 4, 33, 128], &[33, 64]),
            ("token", &[1, 4, 1, 64], &[1, 32]),
        ];
        for (name, shape, table) in shapes {
            if dtype == DType::F64 && name != "no_pairs" && !full_tier() {
                continue;
            }
            suite.add("rope", format!("{dtype}::{name}"), move |device| {
                let x = shaped("x", shape, Contiguous, dtype, Domain::Normal, device)?;
                let cos = shaped("cos", table, Contiguous, DType::F32, Domain::Normal, device)?;
                let sin = shaped("sin", table, Contiguous, DType::F32, Domain::Normal, device)?;
                check_rope(&x, &cos, &sin)
            });
        }
    }
    suite.add("rope", "f32::many_axes", |device| {
        let shape = [&[2; 16][..], &[4]].concat();
        let axes: Vec<usize> = (0..16).rev().chain([16]).collect();
        let x = shaped("x", &shape, Contiguous, DType::F32, Domain::Normal, device)?;
        let values = x.values.view().permuted_axes(axes.clone()).as_standard_layout().into_owned();
        let x = Sample { tensor: x.tensor.permute(axes)?, values };
        let table = [&[2, 1].repeat(8)[..], &[2]].concat();
        let cos = shaped("cos", &table, Contiguous, DType::F32, Domain::Normal, device)?;
        let sin = shaped("sin", &table, Contiguous, DType::F32, Domain::Normal, device)?;
        check_rope(&x, &cos, &sin)
    });
    for (name, positions, dim, theta) in
        [("llama", 200, 64, 10000.0), ("long", 70, 6, 1e6), ("none", 0, 4, 10000.0), ("no_pairs", 3, 0, 10.0)]
    {
        suite.add("rotary_tables", name, move |device| {
            let frequency = |i: usize| round(f64::powf(theta, -2.0 * i as f64 / dim as f64), DType::F32);
            let angle = |i: usize| round((i / (dim / 2)) as f64 * frequency(i % (dim / 2)), DType::F32);
            let angles = array(&[positions, dim / 2], (0..positions * dim / 2).map(angle).collect());
            for positions in
                [Tensor::arange(0u32, positions as u32, device)?, Tensor::arange(0f32, positions as f32, device)?]
            {
                let (cos, sin) = positions.rotary_tables(dim, theta)?;
                check("rotary_tables", &cos, &Expected::new(angles.mapv(f64::cos), DType::F32))?;
                check("rotary_tables", &sin, &Expected::new(angles.mapv(f64::sin), DType::F32))?;
            }
            Ok(())
        });
    }
    suite.add("rotary_tables", "f64::positions", |device| {
        let positions = Tensor::arange(0f64, 200.0, device)?;
        let (cos, sin) = positions.rotary_tables(64, 10000.0)?;
        let angle = |i: usize| (i / 32) as f64 * f64::powf(10000.0, -2.0 * (i % 32) as f64 / 64.0);
        let angles = array(&[200, 32], (0..200 * 32).map(angle).collect());
        check("rotary_tables", &cos, &Expected::new(angles.mapv(f64::cos), DType::F64))?;
        check("rotary_tables", &sin, &Expected::new(angles.mapv(f64::sin), DType::F64))
    });
    suite.add("rotary_tables", "any_positions", |device| {
        let (cos, sin) = Tensor::arange(0u32, 50, device)?.rotary_tables(8, 100.0)?;
        let positions = Tensor::new([[3u32, 49], [0, 7]], device)?;
        let (some_cos, some_sin) = positions.rotary_tables(8, 100.0)?;
        check("to_dtype", &cos.embedding(&positions)?, &Expected::new(download(&some_cos)?, DType::F32))?;
        check("to_dtype", &sin.embedding(&positions)?, &Expected::new(download(&some_sin)?, DType::F32))
    });
}

pub fn add(suite: &mut Suite) {
    for dtype in FLOATS {
        // The dtypes differ only in how elements are read, and each of these kernels takes seconds to compile.
        if dtype == DType::F32 || full_tier() {
            add_sizes(suite, dtype);
            add_settings(suite, dtype);
        }
        // Only devices with units need them all.
        if dtype.size_in_bytes() == 2 && full_tier() {
            add_units(suite, dtype);
        }
        if !is_brief(dtype) {
            add_masks(suite, dtype);
        }
        add_layouts(suite, dtype);
        add_numbers(suite, dtype);
    }
    add_doubles(suite);
    add_ranks(suite);
    add_random(suite);
    add_alibi(suite);
    add_rotary(suite);
}
