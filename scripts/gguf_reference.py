#!/usr/bin/env python3
"""Writes tests/data/reference.gguf with the package `gguf` for Python, version 0.19.

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0 && venv/bin/python scripts/gguf_reference.py

The file has a value of each type, and tensors of several types. `<name>.expected` are the numbers of `<name>`, as the
package dequantises them.
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

PATH = Path(__file__).parent.parent / "tests/data/reference.gguf"

writer = GGUFWriter(PATH, "llama")
writer.add_custom_alignment(64)
writer.add_uint8("test.u8", 200)
writer.add_int8("test.i8", -100)
writer.add_uint16("test.u16", 60_000)
writer.add_int16("test.i16", -30_000)
writer.add_uint32("test.u32", 4_000_000_000)
writer.add_int32("test.i32", -2_000_000_000)
writer.add_float32("test.f32", 0.5)
writer.add_bool("test.bool", True)
writer.add_string("test.string", "Grüße, 世界")
writer.add_array("test.strings", ["a", "", "\u0120b"])
writer.add_array("test.i32s", [1, -2, 3])
writer.add_array("test.f32s", [0.25, -0.5])
writer.add_array("test.bools", [True, False])
writer.add_uint64("test.u64", 2**63 + 1)
writer.add_int64("test.i64", -(2**62))
writer.add_float64("test.f64", 0.1)

numbers = np.random.default_rng(1).standard_normal((4, 256)).astype(np.float32)
writer.add_tensor("f32", numbers[:2, :5].copy())
writer.add_tensor("f16", np.arange(24, dtype=np.float16).reshape(2, 3, 4))
writer.add_tensor("i8", np.arange(-3, 4, dtype=np.int8))
writer.add_tensor("i32", np.array([[1, -2], [3, 2**31 - 1]], dtype=np.int32))
writer.add_tensor("i64", np.array([-(2**40)], dtype=np.int64))
writer.add_tensor("f64", np.array([0.1, 2.0]))
writer.add_tensor("bf16", quants.quantize(numbers[:1, :8], GGMLQuantizationType.BF16), raw_dtype=GGMLQuantizationType.BF16)
writer.add_tensor("bf16.expected", quants.dequantize(quants.quantize(numbers[:1, :8], GGMLQuantizationType.BF16), GGMLQuantizationType.BF16))
for name in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0"]:
    kind = GGMLQuantizationType[name]
    blocks = quants.quantize(numbers, kind)
    writer.add_tensor(name.lower(), blocks, raw_dtype=kind)
    writer.add_tensor(f"{name.lower()}.expected", quants.dequantize(blocks, kind))

writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
