#!/usr/bin/env python3
"""Layers of BitNet b1.58 as the Python package transformers (4.57.6) computes them, for tests/bitnet.rs.

    bitnet_reference.py FILE.safetensors

For each layer L, `plain` and `biased`, the file holds what a model's file holds,

    L.weight, L.weight_scale, L.bias   the packed bytes, one bf16, and f32 if there is a bias

and what the classes C, `bitlinear` and `autobitlinear`, make of `inputs`, f32, rounded to a dtype D:

    L.C.D                              in f64, rounded to f32
    L.autobitlinear.bf16.model         in bf16, as in a model

Of `inputs`, a layer takes as many columns as its weight has. `bytes` holds every byte, and `bytes.numbers` what
`unpack_weights` makes of them.
"""

import os
import sys

# The functions run as they are written, which needs no compiler of C++.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers.integrations.bitnet import AutoBitLinear, BitLinear, pack_weights, unpack_weights  # noqa: E402

TOKENS, FEATURES = 17, 512
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def near_a_tie(x: torch.Tensor, features: int) -> torch.Tensor:
    """Whether another rounding of the scale may change the whole number that an element becomes, in any dtype."""
    near = torch.zeros(x.shape, dtype=torch.bool)
    for dtype in DTYPES.values():
        number = x.to(dtype).double()
        largest = number[:, :features].abs().amax(-1, keepdim=True).clamp(min=1e-5)
        distance = (number * (127 / largest) % 1 - 0.5).abs()
        near |= (distance > 0) & (distance < 1e-3)
    return near


def inputs() -> torch.Tensor:
    """Normal numbers of several sizes; numbers between two whole ones, zeros, one number beside zeros, tiny ones."""
    x = torch.randn(TOKENS, FEATURES) * 10.0 ** torch.linspace(-3, 2, TOKENS)[:, None]
    # The largest number is among the first, which every layer takes.
    x[:, 7] = x.abs().amax(-1) * 1.25
    x[0] = torch.arange(FEATURES) % 254 - 127 + 0.5
    x[0, 0], x[1], x[2] = -127, 0, 0
    x[2, 100], x[3] = -0.75, x[3] / x[3].abs().max() * 4e-6
    while (near := near_a_tie(x, 256) | near_a_tie(x, FEATURES)).any():
        near[:, 7] = False
        x = torch.where(near, x * 0.99, x)
    return x


def layer(name: str, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype):
    """A layer of a class of transformers, with its weights."""
    columns, rows = weight.shape[1], weight.shape[0] * 4
    kind = {"bitlinear": BitLinear, "autobitlinear": AutoBitLinear}[name]
    module = kind(columns, rows, bias is not None, dtype=dtype)
    if name == "autobitlinear":
        module = module.to(dtype)
    state = {"weight": weight.clone(), "weight_scale": scale.to(dtype)}
    if bias is not None:
        state["bias"] = bias.to(dtype)
    module.load_state_dict(state)
    return module.requires_grad_(False)


def main() -> None:
    torch.manual_seed(31)
    x = inputs()
    tensors = {"inputs": x, "bytes": torch.arange(256, dtype=torch.uint8).repeat(2, 1)}
    tensors["bytes"][1] = tensors["bytes"][1].flip(0)
    tensors["bytes.numbers"] = unpack_weights(tensors["bytes"], torch.int8)
    for name, rows, columns, has_bias in [("plain", 64, 512, False), ("biased", 52, 256, True)]:
        numbers = torch.randint(-1, 2, (rows, columns), dtype=torch.int8)
        weight = pack_weights(numbers.clone())
        assert torch.equal(unpack_weights(weight, torch.int8), numbers)
        scale = torch.rand(1).add(0.75).bfloat16()
        bias = torch.randn(rows) if has_bias else None
        tensors |= {f"{name}.weight": weight, f"{name}.weight_scale": scale}
        if has_bias:
            tensors[f"{name}.bias"] = bias
        for kind in ["bitlinear", "autobitlinear"]:
            exact = layer(kind, weight, scale, bias, torch.float64)
            for dtype, torch_dtype in DTYPES.items():
                y = exact(x[:, :columns].to(torch_dtype).double())
                tensors[f"{name}.{kind}.{dtype}"] = y.float()
        model = layer("autobitlinear", weight, scale, bias, torch.bfloat16)
        tensors[f"{name}.autobitlinear.bf16.model"] = model(x[:, :columns].bfloat16())
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, sys.argv[1])


if __name__ == "__main__":
    main()
