#!/usr/bin/env python3
"""Blocks of every format, and what the Python package gguf makes of them, as the reference of the quantised cases.

    quantized_reference.py FILE.safetensors

For each format F the file holds:

    F.patterns, F.patterns.numbers   blocks of all kinds of bit patterns, and their numbers
    F.weights, F.weights.numbers     blocks whose numbers are about as large as a network's weights
    F.quantized                      the blocks of `inputs`, if the package can make them

and `inputs`, numbers to quantise. Blocks are bytes, numbers are f32.
"""

import sys

import numpy as np
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

# For each format, where its blocks have halves and whether these may be negative. The other bytes are integers.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [],
}  # fmt: skip

# Zeros, ones, the largest and smallest numbers, subnormal numbers, infinities, NaN.
SPECIAL = np.array(
    [0x0000, 0x8000, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x0400, 0x8400, 0x03FF, 0x83FF, 0x0001, 0x7C00, 0xFC00, 0x7E00],
    dtype=np.uint16,
)

# How large the integers of a format make its numbers.
INTEGERS = {"Q8_0": 64, "Q2_K": 16, "Q3_K": 64, "Q4_K": 300, "Q5_K": 600, "Q6_K": 1500, "IQ4_NL": 60, "IQ4_XS": 1000}


def patterns(name: str, random: np.random.Generator) -> np.ndarray:
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    count = 256 if name == "MXFP4" else 5120 // elements
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    # Some blocks have equal bytes, or each byte once.
    blocks[0], blocks[1], blocks[2] = 0x00, 0xFF, np.arange(size, dtype=np.uint8)
    blocks[3], blocks[4] = 0x5A, np.arange(255, 255 - size, -1) & 0xFF
    for which, place in enumerate(HALVES[name]):
        halves = np.roll(SPECIAL, 5 * which)
        blocks[5 : 5 + len(halves), place : place + 2] = halves[: count - 5].view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = np.arange(256)
    return blocks


def weights(name: str, random: np.random.Generator) -> np.ndarray:
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = random.integers(0, 256, (8192 // elements, size), dtype=np.uint8)
    for place in HALVES[name]:
        scale = random.uniform(0.5, 1.5, len(blocks)) / INTEGERS.get(name, 8)
        blocks[:, place : place + 2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(123, 127, len(blocks))
    return blocks


def inputs(random: np.random.Generator) -> np.ndarray:
    """Normal numbers of several sizes; zeros, one number beside zeros, ties between two integers, ramps."""
    rows = [random.standard_normal((12, 256)) * 10.0 ** random.uniform(-3, 2, (12, 1))]
    ties = np.tile(np.arange(-8, 8) / 2, 16)
    alone = np.where(np.arange(256) % 32 == 5, -3.25, 0)
    rows.append([np.zeros(256), alone, ties, ties + 0.25, np.arange(256) / 255, np.full(256, 0.75), -np.arange(256.0)])
    return np.concatenate(rows).astype(np.float32)


def main() -> None:
    random = np.random.default_rng(20)
    tensors = {"inputs": inputs(random)}
    for name in HALVES:
        kind = GGMLQuantizationType[name]
        for case, blocks in [("patterns", patterns(name, random)), ("weights", weights(name, random))]:
            tensors[f"{name}.{case}"] = blocks
            with np.errstate(all="ignore"):
                tensors[f"{name}.{case}.numbers"] = dequantize(blocks, kind).reshape(-1)
        try:
            blocks = quantize(tensors["inputs"], kind)
        except NotImplementedError:
            continue
        tensors[f"{name}.quantized"] = blocks.reshape(-1, GGML_QUANT_SIZES[kind][1])
    save_file(tensors, sys.argv[1])


if __name__ == "__main__":
    main()
