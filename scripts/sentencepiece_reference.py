#!/usr/bin/env python3
"""Writes tests/data/sentencepiece.json: two small vocabularies, and the tokens that `sentencepiece` cuts texts into.

    python3 -m venv venv && venv/bin/pip install sentencepiece==0.2.3
    venv/bin/python scripts/sentencepiece_reference.py

The vocabularies are trained as those of Llama 2 (a space before the text) and of Gemma (no such space), on the
project's own documentation. `kinds` are the types of tokens in GGUF files. Texts that name a control token are left
out: a chat finds these tokens in its text, and `sentencepiece` does not.
"""

import io
import json
from pathlib import Path

import sentencepiece

ROOT = Path(__file__).parent.parent
CONTROL_TOKENS = ["<s>", "</s>", "<|user|>"]


def kind(model: sentencepiece.SentencePieceProcessor, token: int) -> int:
    tests = [(model.IsUnknown, 2), (model.IsControl, 3), (model.IsUnused, 5), (model.IsByte, 6)]
    return next((number for test, number in tests if test(token)), 1)


def vocabulary(lines: list[str], texts: list[str], has_prefix: bool) -> dict:
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_writer=trained, vocab_size=700, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=has_prefix,
        character_coverage=0.999, split_digits=True, control_symbols=["<|user|>"], minloglevel=2,
        allow_whitespace_only_pieces=True,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    tokens = range(model.GetPieceSize())
    return {
        "has_prefix": has_prefix,
        "tokens": [model.IdToPiece(token) for token in tokens],
        "scores": [model.GetScore(token) for token in tokens],
        "kinds": [kind(model, token) for token in tokens],
        "texts": [{"text": text, "ids": model.Encode(text), "decoded": model.Decode(model.Encode(text))} for text in texts],
    }


lines = (ROOT / "docs/architecture.md").read_text().splitlines() + (ROOT / "README.md").read_text().splitlines()
texts = [entry["text"] for entry in json.loads((ROOT / "tests/data/tokens.json").read_text())["texts"]]
texts = [text for text in texts if not any(token in text for token in CONTROL_TOKENS) and "\0" not in text]
vocabularies = [vocabulary(lines, texts, has_prefix) for has_prefix in [True, False]]
(ROOT / "tests/data/sentencepiece.json").write_text(json.dumps(vocabularies, ensure_ascii=False, indent=None))
