#!/usr/bin/env python3
"""Measures how `primus data tokenize` scales from one worker to two, compared with two one-worker processes
on half the data each.

  python3 benchmarks/data/scaling.py --build build --tokenizer tokenizer.json --text english.txt

Two independent processes show the maximum gain of this machine. A measurement counts only if other
processes used at most a few percent of the CPU during the measurement; the script waits for such a time. Prints the
best of several measurements.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time


def busy_seconds():
    """CPU time of all cores since boot, without idle time."""
    fields = [int(f) for f in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(limit, share):
    while time.monotonic() < limit:
        before = busy_seconds()
        time.sleep(0.5)
        if busy_seconds() - before < share * 0.5:
            return True
    return False


def measure(commands):
    """Wall time, CPU time, and the share of one core that other processes used, for commands run
    concurrently."""
    times, busy, begin = os.times(), busy_seconds(), time.monotonic()
    running = [subprocess.Popen(c, stdout=subprocess.DEVNULL) for c in commands]
    assert all(p.wait() == 0 for p in running)
    wall = time.monotonic() - begin
    now = os.times()
    cpu = now.children_user + now.children_system - times.children_user - times.children_system
    return wall, cpu, (busy_seconds() - busy - cpu) / wall


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--megabytes", default=100, type=int, help="size of the JSON lines, which repeat the text")
    parser.add_argument("--rounds", default=5, type=int, help="undisturbed measurements of each kind")
    parser.add_argument("--minutes", default=30, type=float, help="maximum time to wait for an idle machine")
    parser.add_argument("--noise", default=0.06, type=float, help="share of a core that other processes may use")
    parser.add_argument("--folder", default=None, help="the folder of the files, e.g. /dev/shm")
    args = parser.parse_args()

    text = args.text.read_text(encoding="utf-8")
    documents = [text[i : i + 4000] for i in range(0, len(text), 4000)]
    lines = "".join(json.dumps({"text": d}, ensure_ascii=False) + "\n" for d in documents)
    copies = max(2, args.megabytes * 10**6 // len(lines.encode()) // 2 * 2)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = pathlib.Path(name)
        (folder / "whole.jsonl").write_text(lines * copies, encoding="utf-8")
        (folder / "half.jsonl").write_text(lines * (copies // 2), encoding="utf-8")

        def command(source, output, workers):
            return [str(args.build / "bin/primus"), "data", "tokenize", "-i", str(folder / source), "-o",
                    str(folder / output), "-t", args.tokenizer, "--workers", str(workers), "--json"]

        kinds = {
            "one worker": [command("whole.jsonl", "a", 1)],
            "two workers": [command("whole.jsonl", "a", 2)],
            "two processes": [command("half.jsonl", "a", 1), command("half.jsonl", "b", 1)],
        }
        found = {kind: [] for kind in kinds}
        limit = time.monotonic() + 60 * args.minutes
        while any(len(f) < args.rounds for f in found.values()):
            kind = min(found, key=lambda k: len(found[k]))
            if not wait_for_quiet(limit, args.noise):
                break
            wall, cpu, others = measure(kinds[kind])
            if others < args.noise:
                found[kind].append((wall, cpu))
    base = min((wall for wall, _ in found["one worker"]), default=None)
    for kind, times in found.items():
        if not times or base is None:
            print(f"{kind}: the machine was never quiet")
            continue
        wall, cpu = min(t[0] for t in times), min(t[1] for t in times)
        print(f"{kind}: {wall:.2f} s, CPU {cpu:.2f} s, {base / wall:.2f}x ({len(times)} measurements, "
              f"walls {' '.join(f'{t[0]:.2f}' for t in times)})")


if __name__ == "__main__":
    main()
