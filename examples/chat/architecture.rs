//! The architectures that this example runs: what differs between them, and what their files say.

use anyhow::{Context, Result, bail, ensure};
use marquetry::Device;
use marquetry::io::Gguf;
use marquetry::nn::{Gate, Rope};
use std::f64::consts::PI;

/// What is the same for all models of an architecture. Biases, norms and packed weights are applied if the file has
/// them, and so are caps of scores and logits.
#[derive(Debug, Clone, Copy)]
pub struct Architecture {
    name: &'static str,
    /// What the network applies to its gates.
    pub gate: Gate,
    /// Whether the file has the weights in the order in which neighbouring features are rotated together.
    rotates_neighbours: bool,
    /// Whether vectors of tokens are multiplied by the square root of their length.
    pub scales_embedding: bool,
    window: Windows,
    /// The tokens of a window, if the file does not say it.
    usual_window: Option<usize>,
    /// The base of rotation in layers with a window, if it is another one, and not scaled. A file may name another.
    windowed_base: Option<f64>,
    /// The number of layers of the one model that divides scores by the square root of the width over the heads.
    scaled_by_width: Option<usize>,
    /// Whether the weights of layers are ternary.
    pub ternary: bool,
}

/// The layers that see a window alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Windows {
    None,
    All,
    /// All but each `n`th.
    AllBut(usize),
}

const LLAMA: Architecture = Architecture {
    name: "llama",
    gate: Gate::Silu,
    rotates_neighbours: true,
    scales_embedding: false,
    window: Windows::None,
    usual_window: None,
    windowed_base: None,
    scaled_by_width: None,
    ternary: false,
};

const QWEN: Architecture = Architecture { name: "qwen2", rotates_neighbours: false, ..LLAMA };

const GEMMA: Architecture = Architecture {
    name: "gemma2",
    gate: Gate::GeluTanh,
    scales_embedding: true,
    window: Windows::AllBut(2),
    usual_window: Some(4096),
    scaled_by_width: Some(46),
    ..QWEN
};

const ARCHITECTURES: [Architecture; 7] = [
    LLAMA,
    QWEN,
    Architecture { name: "qwen3", ..QWEN },
    GEMMA,
    Architecture {
        name: "gemma3",
        window: Windows::AllBut(6),
        windowed_base: Some(10_000.0),
        scaled_by_width: Some(62),
        ..GEMMA
    },
    Architecture { name: "phi3", window: Windows::All, ..QWEN },
    Architecture { name: "bitnet", ternary: true, ..QWEN },
];

/// What the file says about the model.
#[derive(Debug, Clone)]
pub struct Config {
    pub architecture: Architecture,
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    /// Heads of keys and values. Each serves several heads of queries.
    pub kv_heads: usize,
    /// Features of a head.
    pub head_width: usize,
    /// The most tokens that the model was trained on.
    pub context: usize,
    /// The tokens of the vocabulary.
    pub vocabulary: usize,
    pub eps: f64,
    /// The factor of scores.
    pub scale: f64,
    pub score_cap: Option<f64>,
    pub logit_cap: Option<f64>,
    /// The tokens that a layer with a window sees.
    window: Option<usize>,
    rotated: usize,
    rope_base: f64,
}

impl Config {
    pub fn read(file: &Gguf) -> Result<Self> {
        let name = file.get("general.architecture")?.as_str()?;
        let known = || ARCHITECTURES.map(|architecture| architecture.name).join(", ");
        let mut architecture = *ARCHITECTURES
            .iter()
            .find(|architecture| architecture.name == name)
            .with_context(|| format!("the model has the architecture `{name}`; this example runs {}", known()))?;
        let fields = Fields { file, name };
        if let Some(function) = file.find(&format!("{name}.hidden_act")) {
            architecture.gate = match function.as_str()? {
                "relu2" => Gate::ReluSquared,
                "silu" => Gate::Silu,
                other => bail!("the model applies `{other}` to its gates, which this example does not"),
            };
        }
        let (width, heads) = (fields.number("embedding_length")?, fields.number("attention.head_count")?);
        ensure!(heads > 0, "the model has no heads");
        let head_width = fields.optional("attention.key_length")?.unwrap_or(width / heads);
        let kv_heads = fields.optional("attention.head_count_kv")?.unwrap_or(heads);
        ensure!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "{heads} heads are no multiple of {kv_heads}");
        let layers = fields.number("block_count")?;
        let scaled_by = if architecture.scaled_by_width == Some(layers) { width / heads } else { head_width };
        Ok(Config {
            architecture,
            layers,
            width,
            heads,
            kv_heads,
            head_width,
            context: fields.number("context_length")?,
            vocabulary: file.info("token_embd.weight")?.shape.dims()[0],
            eps: file.get(&format!("{name}.attention.layer_norm_rms_epsilon"))?.as_f64()?,
            scale: (scaled_by as f64).sqrt().recip(),
            score_cap: fields.float("attn_logit_softcapping")?,
            logit_cap: fields.float("final_logit_softcapping")?,
            // Phi 3 has one, too, as in `transformers`; llama.cpp does without.
            window: fields
                .optional("attention.sliding_window")?
                .or(architecture.usual_window)
                .filter(|&tokens| tokens > 0),
            rotated: fields.optional("rope.dimension_count")?.unwrap_or(head_width),
            rope_base: fields.float("rope.freq_base")?.unwrap_or(10_000.0),
        })
    }

    /// Returns how many tokens a layer sees, if that is bounded.
    pub fn window(&self, layer: usize) -> Option<usize> {
        let has_window = match self.architecture.window {
            Windows::None => false,
            Windows::All => true,
            Windows::AllBut(every) => !(layer + 1).is_multiple_of(every),
        };
        self.window.filter(|_| has_window)
    }

    /// Returns how many tokens all layers see at most, if that is bounded.
    pub fn window_of_all(&self) -> Option<usize> {
        (0..self.layers).map(|layer| self.window(layer)).reduce(|most, window| Some(most?.max(window?))).flatten()
    }

    /// Returns the rotary embedding of layers that see all tokens, and that of the others, for `length` positions.
    pub async fn ropes(&self, file: &Gguf, length: usize, device: &Device) -> Result<[Rope; 2]> {
        let fields = Fields { file, name: self.architecture.name };
        let plain = |base: f64| -> Vec<f64> {
            (0..self.rotated / 2).map(|pair| base.powf(-2.0 * pair as f64 / self.rotated as f64)).collect()
        };
        let (mut frequencies, mut magnitude) = (plain(self.rope_base), 1.0);
        let original = fields.optional("rope.scaling.original_context_length")?.unwrap_or(self.context);
        let factor = fields.float("rope.scaling.factor")?.unwrap_or(1.0);
        // Old files have a factor without a type.
        match fields.text("rope.scaling.type")?.as_deref().unwrap_or("linear") {
            "none" | "longrope" => {}
            "linear" => frequencies.iter_mut().for_each(|frequency| *frequency /= factor),
            "yarn" => {
                magnitude = (0.1 * factor.ln() + 1.0) * fields.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
                scale_by_yarn(&mut frequencies, factor, original, self.rope_base);
            }
            other => bail!("the model scales its positions by `{other}`, which this example does not"),
        }
        // Llama 3 and Phi 3 have a factor for each pair.
        let kind = if length > original { "long" } else { "short" };
        for name in ["rope_freqs.weight".to_string(), format!("rope_factors_{kind}.weight")] {
            if !file.names().any(|other| other == name) {
                continue;
            }
            let factors = file.load_async(&name, device).await?.to_vec_async::<f32>().await?;
            let (found, pairs) = (factors.len(), frequencies.len());
            ensure!(found == pairs, "`{name}` has {found} factors for {pairs} pairs of features");
            frequencies.iter_mut().zip(factors).for_each(|(frequency, factor)| *frequency /= f64::from(factor));
            magnitude = fields.float("rope.scaling.attn_factor")?.unwrap_or(magnitude);
        }
        let rope = |frequencies: &[f64], magnitude| -> Result<Rope> {
            let rope = Rope::from_frequencies(frequencies, magnitude, length, device)?;
            Ok(if self.architecture.rotates_neighbours { rope.neighbours() } else { rope })
        };
        let of_all = rope(&frequencies, magnitude)?;
        let windowed = match self.architecture.windowed_base {
            Some(base) => rope(&plain(fields.float("rope.freq_base_swa")?.unwrap_or(base)), 1.0)?,
            None => of_all.clone(),
        };
        Ok([of_all, windowed])
    }
}

/// Scales frequencies as YaRN does, with the usual limits: pairs that turn 32 times or more over the original context
/// stay, and those that turn once or less are divided by the factor (B. Peng et al., "YaRN: Efficient Context Window
/// Extension of Large Language Models", 2023).
fn scale_by_yarn(frequencies: &mut [f64], factor: f64, original: usize, base: f64) {
    let features = 2.0 * frequencies.len() as f64;
    // The pair that turns so many times.
    let pair = |turns: f64| features * (original as f64 / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
    let (first, last) = (pair(32.0).floor().max(0.0), pair(1.0).ceil().min(features - 1.0));
    let length = (last - first).max(0.001);
    for (pair, frequency) in (0..).map(f64::from).zip(frequencies) {
        let scaled = ((pair - first) / length).clamp(0.0, 1.0);
        *frequency *= scaled / factor + (1.0 - scaled);
    }
}

/// The metadata of an architecture.
struct Fields<'a> {
    file: &'a Gguf,
    name: &'a str,
}

impl Fields<'_> {
    fn number(&self, key: &str) -> Result<usize> {
        Ok(self.file.get(&format!("{}.{key}", self.name))?.as_u32()? as usize)
    }

    fn optional(&self, key: &str) -> Result<Option<usize>> {
        let number = self.file.find(&format!("{}.{key}", self.name)).map(|field| field.as_u32()).transpose()?;
        Ok(number.map(|number| number as usize))
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        Ok(self.file.find(&format!("{}.{key}", self.name)).map(|field| field.as_f64()).transpose()?)
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        let text = self.file.find(&format!("{}.{key}", self.name)).map(|field| field.as_str().map(str::to_string));
        Ok(text.transpose()?)
    }
}
