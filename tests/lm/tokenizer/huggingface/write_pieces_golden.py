#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/pieces.jsonl: how the tokenizers library (0.23) normalizes and splits hostile texts.

Each line has a normalizer or pre-tokenizer of tokenizer.json, and texts with their results. The texts are random. Their characters
are of classes that published splitting expressions distinguish, including characters of Unicode 15 and 16.
"""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import BPE

OUT = Path(__file__).resolve().parents[3] / "golden/tokenizers/pieces.jsonl"

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + "?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + "?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


SPLITS = [
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    split(CL100K),
    split(CL100K.replace("{1,3}", "")),
    split(O200K),
    split(CL100K, "Removed", True),
    split(CL100K.replace("{1,3}", "{1,2}")),
    {"type": "Sequence", "pretokenizers": [split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK_V3)]},
    split(r"\d{1,3}(?=(?:\d{3})*\b)"),
    split(r"(?<=\B)\p{Nd}|\b"),
    split(r"\w+|[^\w\s]+"),
    split(r"[\W]+", "MergedWithPrevious"),
    split(r"\W+|\D", "MergedWithNext"),
    split(r"[\D\S]", "Contiguous"),
    split(r"[^\p{L}\p{M}]+|[\p{Lu}\p{Lt}]"),
    split(r"[\P{L}]+"),
    split(r"\p{^Lu}+"),
    split(r"\p{Han}+|\p{Hiragana}|\P{Latin}"),
    split(r"[\p{Katakana}\p{Cyrillic}\p{Common}]+"),
    split(r"\p{C}|\p{Cn}+|\p{S}\p{Letter}"),
    split(r"\p{Emoji}+|\p{Upper}"),
    split(r"(?i)\u00E9+|k|[^\S\r\n]+"),
    split(r"\x{e9}+|[]\x{1F600}-\x{1FAFF}]"),
    {"type": "Digits", "individual_digits": True},
    {"type": "Digits", "individual_digits": False},
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "Whitespace"},
    {"type": "WhitespaceSplit"},
]

NORMALIZERS = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"]
# Marks, letters and compositions. Some belong to newer Unicode versions than that of the library's normalizers.
NORMALIZED = [chr(c) for c in (0x7FD, 0x897, 0x8D3, 0xC3C, 0x1133B, 0x1611E, 0x16121, 0x105D2, 0x105C9, 0x1ABF, 0x11938)]
NORMALIZED += [chr(c) for c in (0x32FF, 0x1E030, 0x1CCD6, 0x301, 0x307, 0x323, 0x334, 0x345, 0x41, 0x73, 0x1E4EE, 0xAC00)]
NORMALIZED += [chr(c) for c in (0x1161, 0x11A8, 0xFDFA, 0x3A3, 0x130, 0xA7CB, 0xA7DC, 0x1C89, 0x10D50, 0x16EA0, 0x1EDD)]

CHARACTERS = (
    list("aZé'sStTdD019 \t\n\r.,!/-_$+<^`|~\"()[]@#")
    + "² ³ ¹ ¼ ½ ⁵ ① ⅓ ٣ Ⅷ \u0301 \u20dd \u200d \u200c \u00a0 \u3000 \u180e \u0085 \u2028 ſ K Ⓐ ｶ ・ 、 。 ー".split()
    + list("\u00a0\u3000\u180e\u0085\u2028 日本語ひカ한글абЖǅʰ€😀🩷🫨🩵")
    # Characters of Unicode 15 to 17.
    + [chr(c) for c in (0x0CF3, 0x1E030, 0x1D2C0, 0x1E4D0, 0x1E4F0, 0x2EBF0, 0x31EF, 0x2FFC, 0xA7CB, 0xA7DA, 0x1C89)]
    + [chr(c) for c in (0x1C8A, 0x10D40, 0x10D50, 0x10D70, 0x1CCF0, 0x1CC00, 0x116D0, 0x1FAE9, 0x1F8B2, 0x0897)]
    + [chr(c) for c in (0x11DE0, 0x20C1, 0x1171E, 0x10FFFF, 0xE000, 0x2E5D, 0x2E43, 0x166D, 0x11F43, 0x1B4E, 0x1FADF)]
)


def texts(count, seed, characters=None):
    characters = characters or CHARACTERS
    random.seed(seed)
    for _ in range(count):
        pool = random.sample(characters, random.choice((3, 6, 12, len(characters))))
        yield "".join(random.choice(pool) for _ in range(random.randint(1, 24)))


def tokenizer_of(pre_tokenizer, normalizer=None):
    whole = json.loads(Tokenizer(BPE()).to_str())
    whole["pre_tokenizer"], whole["normalizer"] = pre_tokenizer, normalizer
    return Tokenizer.from_str(json.dumps(whole))


def pieces_of(pre_tokenizer, text):
    return [text[begin:end] for _, (begin, end) in pre_tokenizer.pre_tokenize_str(text)]


def main(count=40, out=OUT):
    with open(out, "w", encoding="utf-8") as file:
        for number, description in enumerate(SPLITS):
            pre_tokenizer = tokenizer_of(description).pre_tokenizer
            cases = [[text, pieces_of(pre_tokenizer, text)] for text in texts(count, number)]
            file.write(json.dumps({"pre_tokenizer": description, "cases": cases}, ensure_ascii=False) + "\n")
        for number, name in enumerate(NORMALIZERS):
            normalizer = tokenizer_of(None, {"type": name}).normalizer
            cases = [[text, normalizer.normalize_str(text)] for text in texts(count, number, NORMALIZED)]
            file.write(json.dumps({"normalizer": {"type": name}, "cases": cases}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
