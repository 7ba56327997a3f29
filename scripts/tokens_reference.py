#!/usr/bin/env python3
"""Writes tests/data/tokens.json: tokens of 200 texts, and rendered conversations, as `transformers` makes them.

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0 transformers==4.57.6
    venv/bin/python scripts/tokens_reference.py target/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

`GPT2Tokenizer` merges pairs in Python, with the vocabulary, merges and control tokens of the file. SmolLM2 cuts text
before each digit and behind it; the class does not, so this script cuts there first. `cuts` are the tokens by the same
merges if text is cut as Llama 3 and Qwen 2 cut it: with the patterns in their files `tokenizer.json`.
"""

import itertools
import json
import random
import re
import sys
import tempfile
import unicodedata
from pathlib import Path

import regex
from gguf import GGUFReader
from transformers import AddedToken, GPT2Tokenizer

CONTROL = 3
PATH = Path(__file__).parent.parent / "tests/data/tokens.json"

TEXTS = [
    "", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n \n ", "a", " a", "a ", "Hello", "Hello, world!", "hello   world",
    "The quick brown fox jumps over the lazy dog.", "don't can't I'm you're we've he'd she'll it's", "DON'T CAN'T I'M",
    "0", "12", "2026", "3.14159", "1,000,000", "1e-5", "0x1F4A9", "v1.2.3-rc4", "50%", "$9.99", "x2y3", " 7", "7 ", "007",
    "①②③", "½ ¾", "٣٤٥", "x² + y³", "Ⅷ", "１２３",
    "fn main() {\n    println!(\"{}\", 1 + 2);\n}\n", "def f(x):\n\treturn x**2\n", "#include <stdio.h>",
    "SELECT * FROM t WHERE a >= 10;", "<html><body class=\"x\">&nbsp;</body></html>", "{\"key\": [1, 2, null]}",
    "git commit -m 'x' && git push", "/usr/local/bin:/usr/bin", "C:\\Windows\\System32", "https://example.org/a?b=c#d",
    "a@b.org", "snake_case_name", "camelCaseName", "SCREAMING_CASE", "kebab-case", "__init__", "a.b.c", "...", "!!!", "?!",
    "-----", "=====", "~~~~", "***bold***", "`code`", "$$x^2$$", "\\frac{a}{b}", "(a[b]{c})", "\"quoted\"", "'single'",
    "“curly” ‘quotes’", "em—dash", "en–dash", "…", "•", "→ ← ↔", "≤ ≥ ≠ ∞", "∑∫√", "°C", "©®™", "€£¥", "§¶",
    "Grüße, Straße", "café", "cafe\u0301", "naïve façade", "Čeština", "Polski: zażółć gęślą jaźń", "Türkçe ığüşöç", "Ελληνικά",
    "Привет, мир!", "Українська", "עברית", "العربية", "हिन्दी में", "ไทย", "中文字符", "日本語のテキスト", "カタカナ", "한국어",
    "Tiếng Việt", "🦀", "👨‍👩‍👧‍👦", "🇮🇹", "👍🏽", "a🦀b", " 🦀 ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "\u200b", "a\u200bb", "\ufeffa", "\u00a0", "a\u00a0b", "\u3000",
    "\u2028", "\x00", "\x01\x02", "\x7f", "\x1b[31m", "\ufffd", "\U0010ffff", "e\u0301\u0302\u0303", "ﬁ ﬂ", "ǅ", "ß ẞ", "İi",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|>user\nHi<|im_end|>\n", "a<|im_end|>b", " <|im_end|> ",
    "<|im_start", "|im_end|>", "<|im_start|><|im_start|>", "<|IM_END|>", "<|unknown|>", "<repo_name>", "<file_sep>x",
    "<jupyter_start>", "<empty_output>", "<reponame>", "<filename>12",
    "a" * 100, " " * 40, "\n" * 20, "ab" * 50, "1" * 30, "." * 50, "The " * 20, "antidisestablishmentarianism",
    "Donaudampfschifffahrtsgesellschaftskapitän", "lorem ipsum dolor sit amet, consectetur adipiscing elit",
    "What is the capital of Italy?\n\nAnswer in one sentence.", "1. First\n2. Second\n   - nested\n", "| a | b |\n|---|---|\n",
]  # fmt: skip

CONVERSATIONS = [
    [{"role": "user", "content": "What is the capital of Italy?"}],
    [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "  spaces, \"quotes\" & <tags>  "},
        {"role": "assistant", "content": "Grüße\n"},
        {"role": "user", "content": "<|im_end|> {{ 1 }} {% x %}"},
    ],
    [
        {"role": "system", "content": ""},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "again"},
    ],
]


def random_texts(count: int):
    """Texts of random characters of one script or of several."""
    chance = random.Random(20)
    ranges = [(0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x900, 0x97F), (0x3040, 0x30FF),
              (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x2000, 0x27BF), (0x1F300, 0x1F6FF), (0x09, 0x0D), (0x30, 0x39)]  # fmt: skip
    for _ in range(count):
        chosen = [chance.choice(ranges) for _ in range(chance.choice([1, 2, 5]))]
        yield "".join(chr(chance.randint(*chance.choice(chosen))) for _ in range(chance.randint(1, 60)))


def load(path: str) -> GPT2Tokenizer:
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, merges = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocabulary.write_text(json.dumps({token: place for place, token in enumerate(tokens)}))
        merges.write_text("#version: 0.2\n" + "\n".join(fields["tokenizer.ggml.merges"].contents()))
        tokenizer = GPT2Tokenizer(str(vocabulary), str(merges), unk_token=tokens[0])
    control = [token for token, kind in zip(tokens, types) if kind == CONTROL]
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken(token, special=True) for token in control]})
    tokenizer.bos_token = tokens[fields["tokenizer.ggml.bos_token_id"].contents()]
    tokenizer.eos_token = tokens[fields["tokenizer.ggml.eos_token_id"].contents()]
    tokenizer.chat_template = fields["tokenizer.chat_template"].contents()
    return tokenizer


def cut(text: str, names: str):
    """Control tokens and the characters that Unicode calls numbers, each alone, and what stands between them."""
    for piece in re.split(f"({names})", text):
        if re.fullmatch(names, piece):
            yield piece
            continue
        alike = itertools.groupby(enumerate(piece), lambda item: is_numeric(item[1]) and item[0] + 1)
        yield from ("".join(character for _, character in group) for _, group in alike)


PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokens_by(cuts: str, text: str, names: str, tokenizer: GPT2Tokenizer) -> list[int]:
    """Llama 3 cuts numbers into three digits, and takes a word that is a token as it is. Qwen 2 composes characters."""
    pattern = regex.compile(PATTERN.replace("DIGITS", "{1,3}" if cuts == "llama-bpe" else ""))
    ids = []
    for piece in re.split(f"({names})", text):
        if re.fullmatch(names, piece):
            ids.append(tokenizer.convert_tokens_to_ids(piece))
            continue
        for word in pattern.findall(unicodedata.normalize("NFC", piece) if cuts == "qwen2" else piece):
            mapped = "".join(tokenizer.byte_encoder[byte] for byte in word.encode())
            whole = cuts == "llama-bpe" and mapped in tokenizer.encoder
            ids += [tokenizer.encoder[part] for part in ([mapped] if whole else tokenizer.bpe(mapped).split(" "))]
    return ids


def is_numeric(character: str) -> bool:
    return unicodedata.category(character).startswith("N")


def main():
    tokenizer = load(sys.argv[1])
    names = "|".join(re.escape(name) for name in tokenizer.additional_special_tokens)
    texts = TEXTS + list(random_texts(200 - len(TEXTS)))
    encoded = []
    for text in texts:
        ids = [id for piece in cut(text, names) for id in tokenizer.encode(piece, add_special_tokens=False)]
        assert tokenizer.unk_token_id not in ids or tokenizer.unk_token in text, text
        encoded.append({"text": text, "ids": ids})
    conversations = [
        {
            "messages": messages,
            "text": tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True),
        }
        for messages in CONVERSATIONS
    ]
    lines = [json.dumps(line) for line in encoded]
    cuts = {name: [tokens_by(name, text, names, tokenizer) for text in texts] for name in ["llama-bpe", "qwen2"]}
    rest = f'"conversations": {json.dumps(conversations)}, "cuts": {json.dumps(cuts)}'
    PATH.write_text('{"texts": [\n' + ",\n".join(lines) + f"\n], {rest}}}\n")


main()
