#!/usr/bin/env python3
"""Compares the ids of SentencePiece models with the sentencepiece package, on random texts.

  pip install sentencepiece
  python3 tests/lm/tokenizer/sentencepiece/compare_library.py [--texts 1000000] [--primus build/bin/primus]

Compares trained models, and models whose scores tie. The exit code is 1 if any ids differ. Ties of unigram models are
broken as in version 0.2.3 of the package and later. library_test.cpp compares with Debian's older library, except
where that breaks ties differently.
"""

import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import threading

import sentencepiece

ROOT = pathlib.Path(__file__).parents[4]
MARK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
UNIGRAM, BPE = 1, 2


def varint(value):
    out = b""
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    """Returns a field of a protocol buffer: a float, an integer or bytes."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(text, score=0.0, kind=NORMAL):
    return field(1, field(1, text.encode()) + field(2, score) + field(3, kind))


def model(kind, pieces, byte_fallback=False):
    roles = piece("<unk>", 0.0, UNKNOWN) + piece("<s>", 0.0, CONTROL) + piece("</s>", 0.0, CONTROL)
    byte_pieces = b"".join(piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256))
    trainer = field(2, field(3, kind) + field(35, int(byte_fallback)))
    return roles + (byte_pieces if byte_fallback else b"") + pieces + trainer


def short_pieces(score):
    """Returns pieces for all words of up to five letters a and b, some after a space; score(letters, count so far)."""
    words = [MARK]
    for length in range(1, 6):
        for bits in range(1 << length):
            word = "".join("b" if bits >> i & 1 else "a" for i in range(length))
            words += [word, MARK + word] if length < 4 else [word]
    return b"".join(piece(word, float(score(len(word), n))) for n, word in enumerate(words))


def models():
    for name in ("sp_bpe", "sp_unigram"):
        yield name, (ROOT / f"tests/golden/tokenizers/{name}.model").read_bytes()
    user = b"".join(piece(word, 0.0, USER) for word in ("ac", "c b", "bca"))
    yield "BPE, equal scores", model(BPE, short_pieces(lambda size, n: -(n % 3)), True)
    yield "unigram, equal sums", model(UNIGRAM, short_pieces(lambda size, n: -size))
    yield "unigram, equal but for rounding", model(UNIGRAM, short_pieces(lambda size, n: -0.1 * size), True)
    yield "BPE, user-defined", model(BPE, user + short_pieces(lambda size, n: -1.3 * (size + n % 2)))
    yield "unigram, user-defined", model(UNIGRAM, user + short_pieces(lambda size, n: -1.3 * (size + n % 2)))


def texts(processor, count):
    """Returns texts that make scores tie: pieces of the model, runs, and unknown characters."""
    rng = random.Random(20261122)
    own = [processor.id_to_piece(i).replace(MARK, " ") for i in range(processor.get_piece_size())]
    for _ in range(count):
        text = ""
        # Most texts are short, because the rounding error of the sums grows along a text.
        for _ in range(1 + rng.randrange(300 if rng.randrange(50) == 0 else 12)):
            kind = rng.randrange(8)
            if kind == 0:
                text += " "
            elif kind == 1:
                text += rng.choice("abcd") * (1 + rng.randrange(12))
            elif kind == 2:
                code = 1 + rng.randrange(rng.choice([0x100, 0x800, 0x3100, 0x10000, 0x110000]) - 1)
                text += "x" if 0xD800 <= code < 0xE000 else chr(code)
            elif kind == 3:
                text += rng.choice(own) * (1 + rng.randrange(6))
            elif kind == 4:
                text += "".join(chr(32 + rng.randrange(95)) for _ in range(1 + rng.randrange(10)))
            else:
                text += rng.choice(own)
        yield text


def tied(processor, *cuts):
    """Returns whether two cuts have equal sums of scores, up to rounding."""
    scores = [[processor.get_score(i) for i in ids] for ids in cuts]
    size = sum(abs(score) for cut in scores for score in cut)
    return abs(sum(scores[0]) - sum(scores[1])) <= sum(map(len, scores)) * size * 2**-24


def compare(name, content, count, primus):
    # The size of the package's bonus for user-defined pieces affects only ties after such a piece.
    ties_are_free = name == "unigram, user-defined"
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tokenizer.model"
        path.write_bytes(content)
        command = [primus, "data", "encode", "--jsonl", "--no-special-tokens", "--tokenizer", path]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ours:

            def feed():
                for text in texts(processor, count):
                    ours.stdin.write(json.dumps({"text": text}) + "\n")
                ours.stdin.close()

            feeder = threading.Thread(target=feed)
            feeder.start()
            different = compared = ties = 0
            for text, line in zip(texts(processor, count), ours.stdout):
                compared += 1
                expected, ids = processor.encode(text), json.loads(line)["ids"]
                if ids != expected and ties_are_free and tied(processor, ids, expected):
                    ties += 1
                elif ids != expected:
                    different += 1
                    if different == 1:
                        print(f"{name}: {text!r}\n  the package {expected}\n  Primus      {ids}")
            feeder.join()
    note = f", and {ties} in a tie behind a user-defined piece" if ties else ""
    print(f"{name}: {different} of {compared} texts differ{note}", flush=True)
    return different == 0 and compared == count


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--texts", type=int, default=10000, help="for each model (default: 10000)")
    arguments.add_argument("--primus", default=ROOT / "build/bin/primus")
    options = arguments.parse_args()
    print(f"sentencepiece {sentencepiece.__version__}")
    good = [compare(name, content, options.texts, options.primus) for name, content in models()]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
