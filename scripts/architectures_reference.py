#!/usr/bin/env python3
"""Small language models with random weights, as GGUF files, and the logits that `transformers` computes with them.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==4.57.6 gguf==0.19.0
    venv/bin/python scripts/architectures_reference.py

It writes to tests/data/architectures: for each architecture NAME.gguf, and logits.npz with `ids`, the tokens; NAME, the
logits `(tokens, vocabulary)` in f32; and NAME.packed, those with keys and values that are rounded as Q8_0 rounds them:
in blocks of 32 numbers, to multiples of a 127th of the largest magnitude. phi3.short are those of the first tokens
alone, which phi3 rotates by other factors.

The names of tensors and metadata are those of llama.cpp, and so is what its converter does to the weights: the rows of
llama's queries and keys are in the order for neighbouring pairs, and gemma's norms have 1 added. llama.cpp reads
`bitnet.hidden_act`, but its converter does not write it. The classes compute with the weights that the files hold,
rounded to f16.
"""

import math
import os
import sys
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.integrations.bitnet import ActQuant  # noqa: E402

FOLDER = Path(__file__).parent.parent / "tests/data/architectures"
VOCABULARY, TOKENS, CONTEXT = 96, 40, 64

COMMON = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, rope_theta=10_000.0,
    attn_implementation="eager", pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
LONG_FACTORS = [1.0 + place / 8 for place in range(16)]
LONG = dict(original_max_position_embeddings=24)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, **LONG)
YARN = dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=32)
GEMMA = dict(head_dim=32, hidden_activation="gelu_pytorch_tanh", sliding_window=16, query_pre_attn_scalar=32)

CONFIGS = {
    "llama": transformers.LlamaConfig(**COMMON, head_dim=32, rope_scaling=LLAMA3, tie_word_embeddings=False),
    "qwen2": transformers.Qwen2Config(**COMMON, head_dim=32, rope_scaling=YARN, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**COMMON, head_dim=32, tie_word_embeddings=True),
    "gemma2": transformers.Gemma2Config(
        **COMMON, **GEMMA, attn_logit_softcapping=3.0, final_logit_softcapping=5.0
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **{**COMMON, "num_hidden_layers": 6, "rope_theta": 1_000_000.0}, **GEMMA, rope_local_base_freq=10_000.0,
        rope_scaling=dict(rope_type="linear", factor=8.0),
    ),
    "phi3": transformers.Phi3Config(
        **{**COMMON, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}, partial_rotary_factor=1.0, sliding_window=20, tie_word_embeddings=False,
        original_max_position_embeddings=24,
        rope_scaling=dict(type="longrope", short_factor=[1.0] * 16, long_factor=LONG_FACTORS),
    ),
    "bitnet": transformers.BitNetConfig(
        **{**COMMON, "hidden_size": 256, "intermediate_size": 256}, hidden_act="relu2", tie_word_embeddings=True
    ),
}  # fmt: skip

LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.attn_sub_norm": "attn_sub_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.ffn_sub_norm": "ffn_sub_norm",
}  # fmt: skip
GEMMA_LAYER = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def name_in_gguf(name: str, architecture: str) -> str:
    module, kind = name.rsplit(".", 1)
    if module in WHOLE:
        return f"{WHOLE[module]}.{kind}"
    _, _, number, rest = module.split(".", 3)
    names = LAYER | GEMMA_LAYER if architecture.startswith("gemma") else LAYER
    return f"blk.{number}.{names[rest]}.{kind}"


def randomize(model, architecture: str) -> None:
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (0 if architecture.startswith("gemma") else 1))
        elif name.endswith("bias"):
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        elif "embed" in name or "lm_head" in name:
            parameter.copy_(torch.randn_like(parameter) * 0.5)
        elif architecture == "bitnet":
            # Ternary, with one scale.
            scale = float(np.float16(0.03 + 0.01 * torch.rand(1).item()))
            parameter.copy_(torch.randint(-1, 2, parameter.shape) * scale)
        else:
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[1]) * 1.5)
        parameter.copy_(parameter.half().float())


class Ternary(torch.nn.Linear):
    """A layer whose input is rounded as in AutoBitLinear. Its weight has the scale already."""

    def forward(self, x):
        return torch.nn.functional.linear(ActQuant.apply(x), self.weight)


def neighbours(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of each head, those of a pair one after the other."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).transpose(1, 2).reshape(weight.shape)


def write(model, config, architecture: str) -> None:
    writer = gguf.GGUFWriter(FOLDER / f"{architecture}.gguf", architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    pairs = np.arange(0, head, 2)
    if architecture == "llama":
        # As in `modeling_rope_utils.py`: slow pairs are divided by the factor, fast ones stay, others lie between.
        low = LONG["original_max_position_embeddings"] / LLAMA3["low_freq_factor"]
        high = LONG["original_max_position_embeddings"] / LLAMA3["high_freq_factor"]
        lengths = 2 * math.pi * config.rope_theta ** (pairs / head)
        smooth = (LONG["original_max_position_embeddings"] / lengths - 1.0) / (4.0 - 1.0)
        between = 1 / ((1 - smooth) / LLAMA3["factor"] + smooth)
        factors = np.where(lengths < high, 1, np.where(lengths > low, LLAMA3["factor"], between))
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    elif architecture == "qwen2":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(YARN["factor"])
        writer.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
    elif architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    elif architecture == "gemma3":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
    elif architecture == "phi3":
        original = LONG["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(CONTEXT / original) / math.log(original)))
        for kind in ["long", "short"]:
            factors = np.array(config.rope_scaling[f"{kind}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    elif architecture == "bitnet":
        writer.add_string("bitnet.hidden_act", config.hidden_act)
    if getattr(config, "sliding_window", None) and architecture in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(config.sliding_window)
    for name, parameter in model.named_parameters():
        name, weight = name_in_gguf(name, architecture), parameter.clone()
        if architecture.startswith("gemma") and "norm" in name:
            weight += 1
        if architecture == "llama" and ("attn_q." in name or "attn_k." in name):
            weight = neighbours(weight, config.num_attention_heads if "_q" in name else config.num_key_value_heads)
        data = weight.numpy()
        if data.ndim == 1:
            writer.add_tensor(name, data.astype(np.float32))
        elif architecture == "bitnet" and name.startswith("blk."):
            kind = gguf.GGMLQuantizationType.TQ2_0
            packed = gguf.quants.quantize(data, kind)
            assert np.array_equal(gguf.quants.dequantize(packed, kind), data), name
            writer.add_tensor(name, packed, raw_dtype=kind)
        else:
            writer.add_tensor(name, data.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rounded(x: torch.Tensor) -> torch.Tensor:
    blocks = x.unflatten(-1, (-1, 32))
    largest = blocks.abs().amax(-1, keepdim=True)
    return ((blocks * (127 / largest)).round() * (largest / 127)).flatten(-2)


def logits_with_packed_cache(model, ids: torch.Tensor) -> torch.Tensor:
    modeling = sys.modules[type(model).__module__]
    attend = modeling.eager_attention_forward
    modeling.eager_attention_forward = lambda module, query, key, value, *arguments, **options: attend(
        module, query, rounded(key), rounded(value), *arguments, **options
    )
    logits = model(ids, use_cache=False).logits[0]
    modeling.eager_attention_forward = attend
    return logits


@torch.no_grad()
def main() -> None:
    torch.manual_seed(21)
    FOLDER.mkdir(exist_ok=True)
    ids = torch.randint(0, VOCABULARY, (1, TOKENS))
    results = {"ids": ids[0].numpy().astype(np.uint32)}
    for architecture, config in CONFIGS.items():
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        randomize(model, architecture)
        if architecture == "bitnet":
            for layer in model.model.layers:
                for part in [layer.self_attn, layer.mlp]:
                    for name, linear in list(part.named_children()):
                        if isinstance(linear, torch.nn.Linear):
                            linear.__class__ = Ternary
        write(model, config, architecture)
        logits = model(ids, use_cache=False).logits[0]
        results[architecture] = logits.float().numpy()
        if architecture == "phi3":
            short = model(ids[:, : LONG["original_max_position_embeddings"] - 1], use_cache=False)
            results["phi3.short"] = short.logits[0].float().numpy()
        results[f"{architecture}.packed"] = logits_with_packed_cache(model, ids).float().numpy()
        print(architecture, "logits up to", logits.abs().max().item(), "deviation", logits.std().item())
    np.savez_compressed(FOLDER / "logits.npz", **results)


main()
