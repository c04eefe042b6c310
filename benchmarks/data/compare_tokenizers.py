#!/usr/bin/env python3
"""Compares the speed of tokenizing with Hugging Face tokenizers, on the same texts at the same time.

  python3 benchmarks/data/compare_tokenizers.py --build build --tokenizer tokenizer.json --text english.txt --text code.txt

Needs `pip install tokenizers` and a build with -DPRIMUS_BENCHMARKS=ON. Each text is cut into documents of 4000
characters; both sides encode them one after another in one thread, and count CPU time. The ids must be the same.
Then `primus data tokenize` runs on the text as JSON lines, with one worker and with two.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def documents_of(path):
    text = path.read_text(encoding="utf-8")
    return [text[i : i + 4000] for i in range(0, len(text), 4000)]


def peer_speed(tokenizer, documents):
    """MB/s, best of three, and the number of tokens."""
    best, tokens = float("inf"), 0
    for _ in range(3):
        begin = time.process_time()
        tokens = sum(len(tokenizer.encode(d, add_special_tokens=False).ids) for d in documents)
        best = min(best, time.process_time() - begin)
    return sum(len(d.encode()) for d in documents) / best / 1e6, tokens


def run(*command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def end_to_end(primus, tokenizer, documents, folder, repeat):
    """MB/s from JSON lines to .bin/.idx: by CPU time with one worker, and by wall time with one and two."""
    lines = folder / "text.jsonl"
    with lines.open("w", encoding="utf-8") as out:
        for _ in range(repeat):
            for document in documents:
                out.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
    megabytes = lines.stat().st_size / 1e6

    def once(workers):
        before, begin = os.times(), time.monotonic()
        run(primus, "data", "tokenize", "-i", str(lines), "-o", str(folder / "out"), "-t", tokenizer,
            "--workers", str(workers), "--json")
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return cpu, time.monotonic() - begin

    one = [once(1) for _ in range(3)]
    two = [once(2) for _ in range(3)]
    return (megabytes / min(cpu for cpu, _ in one), megabytes / min(wall for _, wall in one),
            megabytes / min(wall for _, wall in two))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--tokenizer", action="append", required=True, help="tokenizer.json; may be repeated")
    parser.add_argument("--text", action="append", required=True, type=pathlib.Path)
    parser.add_argument("--repeat", default=4, type=int, help="copies of the text in the JSON lines")
    args = parser.parse_args()

    import tokenizers

    bench, primus = str(args.build / "bin/data_bench"), str(args.build / "bin/primus")
    print(f"tokenizers {tokenizers.__version__}; MB/s per core, best of three")
    print("| tokenizer | text | primus | Hugging Face | ratio | data tokenize, CPU | wall, 1 worker | 2 workers |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.tokenizer:
        peer = tokenizers.Tokenizer.from_file(name)
        for path in args.text:
            documents = documents_of(path)
            ours = run(bench, "encode", name, str(path))
            speed, tokens = peer_speed(peer, documents)
            assert tokens == ours["tokens"], f"{tokens} tokens, and {ours['tokens']} here"
            with tempfile.TemporaryDirectory() as folder:
                cpu, wall, two = end_to_end(primus, name, documents, pathlib.Path(folder), args.repeat)
            print(f"| {pathlib.Path(name).parent.name} {peer.get_vocab_size()} | {path.stem} | {ours['mb_per_s']:.1f} "
                  f"| {speed:.1f} | {ours['mb_per_s'] / speed:.1f} | {cpu:.1f} | {wall:.1f} "
                  f"| {two:.1f} ({two / wall:.2f}x) |", flush=True)


if __name__ == "__main__":
    main()
