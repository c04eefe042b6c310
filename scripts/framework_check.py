"""Shared by check-megatron-run.py, check-torchtitan-run.py and check-maxtext-run.py: running programs. Shared by the last
two: the command line, the output folder and the texts."""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(words, folder, env, what):
    """Returns the standard output. If the program fails, ends this one with the program's last lines."""
    done = subprocess.run([str(word) for word in words], cwd=folder, env=env, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"{what} ended with exit code {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def write_texts(primus, folder, env, vocabulary, tokens, sequences, documents):
    """Trains a tokenizer, and writes `sequences` equal texts of `tokens` tokens: tokenized for the native engine, and to
    the file `documents` with one more token each."""
    draw = random.Random(7)
    words = ["".join(draw.choices("abdegiklmnoprstu", k=draw.randint(3, 7))) for _ in range(800)]
    (folder / "corpus.txt").write_text(" ".join(draw.choices(words, k=40000)))
    run([primus, "data", "train-tokenizer", "--input", "corpus.txt", "--vocab-size", vocabulary, "--output", "tokenizer"],
        folder, env, "primus data train-tokenizer")
    entries = json.loads((folder / "tokenizer/tokenizer.json").read_text())["model"]["vocab"]
    # Uses only words for which the vocabulary has a token " word", so that each word of the text is one token.
    words = [token[1:] for token in entries if token[0] == "\u0120" and token[1:].isalpha() and len(token) > 3][:tokens]
    text = "".join(f" {word}" for word in words)
    documents.parent.mkdir(exist_ok=True)
    for file, line in ((documents, f"{text} {words[0]}"), (folder / "native.jsonl", text)):
        file.write_text((json.dumps({"text": line}) + "\n") * sequences)
    run([primus, "data", "tokenize", "--input", "native.jsonl", "--output-prefix", "native", "--tokenizer-model", "tokenizer"],
        folder, env, "primus data tokenize")


def main(description, framework, tolerance, compare, devices={"cpu": 1e-5}):
    """Runs compare(arguments, folder), which returns whether the curves agree. Returns the exit code.

    `framework` is the name of the option for its checkout, and `tolerance` the help text of --tolerance.
    `devices` are the devices that can be tested, with their default tolerances."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--" + framework, type=pathlib.Path, required=True)
    parser.add_argument("--python", type=pathlib.Path, required=True)
    parser.add_argument("--primus", type=pathlib.Path, default=ROOT / "build/bin/primus")
    parser.add_argument("--tolerance", type=float, help=tolerance)
    if len(devices) > 1:
        parser.add_argument("--device", choices=list(devices), default="cpu")
    parser.add_argument("--folder", type=pathlib.Path, help="an empty folder in which all files are kept")
    parser.add_argument("--quiet", action="store_true", help="print one line")
    args = parser.parse_args()
    args.primus = args.primus.absolute()
    args.tolerance = args.tolerance or devices[getattr(args, "device", "cpu")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or pathlib.Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        same = compare(args, folder)
        if not same:
            print("FAILED: the curves differ")
        return 0 if same else 1
