#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/tiktoken.json: the tiktoken package's ids of the reference texts.

  python3 tests/lm/tokenizer/tiktoken/write_tiktoken_golden.py     (needs `pip install tiktoken`; downloads nothing)

The published rank files are large. These have the same number of ranks, which identifies a file, but contain the tokens
of llama3.tokenizer.json and then tokens that no text contains: 0xF5 and the rank in three bytes. Expressions and
special tokens come from the package. The golden has the number of ids of each text and their FNV-1a hash.
"""
import json
import pathlib

import tiktoken
import tiktoken_ext.openai_public as public

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "tokenizers"

# Cases that the reference texts lack: letters that match "s" only when ignoring case, titlecase, marks, all
# kinds of spaces.
MORE_TEXTS = [
    "I'LL we'Ve it'\u017f IT'\u017fx don'T 'Tis 'sun's",
    "\u01c5emal e\u0301a\u0308\u0323 \u0301x HELLOworld HelloWORLD \u00aa\u02b0b CamelCaseIDsAre",
    "a\u00a0b\u2003c\u3000\n\n \u2028d\u0085e \t \r\n\r\n x  \n ",
    "1234567 \uff11\uff12\uff13\uff14 \u00bd\u00b2 \u2166 12a34 \u0967\u0968\u0969\u0966",
    "<|endoftext|>a<|fim_prefix|> <|endofprompt|>\n<|begin_of_text|><|eot_id|><|reserved_special_token_7|>",
    "path/to/file.c//\r\n/ http://x.y/?q=1&r=2/\n\n   ",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea \ufe0f\u20e3 \ue000\U0010fffd\u0000\u0007",
    " ", "  ", "\n", " \n", "\n ", "x ", "x  ", "\r", "'", "'s", " 's", "''s",
]

MEGATRON_V2 = (  # from Megatron-LM's TikTokenizer
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_3 = (  # from Meta's Llama 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def bytes_of_letters():
    """GPT-2's table of bytes: the byte of each character."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def ranks(count, skipped=()):
    letters = bytes_of_letters()
    source = json.loads((GOLDEN / "llama3.tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"] for token in source["added_tokens"]}
    ordered = sorted((id, token) for token, id in source["model"]["vocab"].items() if token not in special)
    tokens = [bytes(letters[c] for c in token) for _, token in ordered]
    tokens += [b"\xf5" + rank.to_bytes(3, "big") for rank in range(len(tokens), count)]
    numbers = [rank for rank in range(len(tokens) + len(skipped)) if rank not in skipped]
    return dict(zip(tokens, numbers))


def llama3():
    named = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
             "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>",
             "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
    named += [f"<|reserved_special_token_{i}|>" for i in range(3, 248)]
    return {"name": "llama3", "pat_str": LLAMA_3, "mergeable_ranks": ranks(128000),
            "special_tokens": {name: 128000 + i for i, name in enumerate(named)}}


def megatron():
    return {"name": "megatron", "pat_str": MEGATRON_V2, "mergeable_ranks": ranks(0), "special_tokens": {}}


def published(name, count, skipped=()):
    public.load_tiktoken_bpe = lambda *_, **__: ranks(count, skipped)
    return getattr(public, name)()


def fnv1a(ids):
    value = 2166136261
    for id in ids:
        for byte in id.to_bytes(4, "little"):
            value = (value ^ byte) * 16777619 % 2**32
    return value


def main():
    reference = json.loads((GOLDEN / "reference.json").read_text(encoding="utf-8"))
    texts = [item["text"] for item in reference["llama3"]] + MORE_TEXTS
    golden = {"tiktoken": tiktoken.__version__, "more_texts": MORE_TEXTS, "encodings": {}}
    for settings in [
        published("r50k_base", 50256),
        published("p50k_base", 50280, skipped=(50256,)),
        published("cl100k_base", 100256),
        published("o200k_base", 199998),
        llama3(),
        megatron(),
    ]:
        encoding = tiktoken.Encoding(**settings)
        ids = [encoding.encode(text, allowed_special="all") for text in texts]
        for text, of_text in zip(texts, ids):
            assert encoding.decode(of_text) == text
        golden["encodings"][settings["name"]] = {
            "ranks": len(settings["mergeable_ranks"]),
            "vocab_size": encoding.n_vocab,
            "hashes": [[len(of_text), fnv1a(of_text)] for of_text in ids],
        }
    (GOLDEN / "tiktoken.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")


main()
