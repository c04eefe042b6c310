#!/usr/bin/env python3
"""Measures restarts of supervised runs: of a lost rank and of all ranks, from snapshots in memory and from the disk.

usage: restart-times.py [--program build/bin/primus] [--faults 5] [--hidden 512] [--layers 4] [--steps 10] [--ranks 2]
                        [--device cpu] [--folder FOLDER] [KEY=VALUE]...

Trains the same model four times with --supervise: with a checkpoint every N steps (--steps) and with a snapshot every N
steps, each with rank restarts and with --restart-all. A rank is killed (SIGKILL) a few steps after each save. Before
the kill, the files of the newest checkpoint leave the page cache, as on a machine that has not written them. The script
prints for each run the median and the longest time from the kill until the next completed step, and the pause of a step
for a save. Exit code 1: a restart did not come from the expected source, or was of the other kind.

On a GPU (--device cuda), all ranks restart, so the script measures only that. A model of 1.1 billion parameters:
restart-times.py --device cuda --hidden 2048 --layers 16 --steps 150 --faults 2 bf16=true num_attention_heads=16
seq_length=2048 max_position_embeddings=2048

Only Python's standard library and Linux are needed.
"""
import argparse
import glob
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATIENCE = 300  # seconds without progress after which the script gives up


def lines(path):
    try:
        with open(path) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except OSError:
        return []


def process_of_rank(supervisor, rank):
    """Returns the process of a rank below the supervisor, or 0."""
    waiting = [supervisor]
    while waiting:
        pid = waiting.pop()
        try:
            if pid != supervisor:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if f"RANK={rank}".encode() in file.read().split(b"\0"):
                        return pid
            for task in glob.glob(f"/proc/{pid}/task/*/children"):
                with open(task) as file:
                    waiting += [int(word) for word in file.read().split()]
        except OSError:
            pass  # the process has ended
    return 0


def folder_in_memory(pid):
    """Returns the folder for snapshots of a rank's job; empty: there is none."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        variables = dict(one.split(b"=", 1) for one in file.read().split(b"\0") if b"=" in one)
    return variables.get(b"PRIMUS_SNAPSHOT_FOLDER", b"").decode()


def forget(checkpoints):
    """Removes the checkpoints from the page cache."""
    for path in glob.glob(os.path.join(checkpoints, "iter_*", "*")):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def wait(condition, what):
    until = time.time() + PATIENCE
    while time.time() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    sys.exit(f"no progress: {what}")


def measure(options, folder, name, rung, settings, state, source):
    kind, name = name, name + ("-all" if rung == "job restart" else "-rank")
    workspace = os.path.join(folder, name)
    size = ["bf16=false", f"num_layers={options.layers}", f"hidden_size={options.hidden}", f"ffn_hidden_size={4 * options.hidden}",
            "num_attention_heads=8", "seq_length=64", "micro_batch_size=1", f"global_batch_size={options.ranks}",
            "lr_warmup_iters=2", "train_iters=1000000", "num_threads=1", f"device={options.device}", *options.settings]
    command = [options.program, "train", "pretrain", "--config",
               os.path.join(SOURCE, "examples/native/configs/CPU/llama_tiny-pretrain.yaml"), f"workspace={workspace}",
               "work_group=w", "user_name=u", f"exp_name={name}", *size, *settings, "--supervise", "--quiet"]
    if rung == "job restart":
        command += ["--restart-all"]
    if options.ranks > 1:
        command += ["--nproc", str(options.ranks)]
    log = open(os.path.join(folder, name + ".log"), "w")
    supervisor = subprocess.Popen(command, stdout=log, stderr=log)
    times, home = [], ""
    try:
        wait(lambda: glob.glob(f"{workspace}/**/rank-00000.jsonl", recursive=True) or supervisor.poll() is not None,
             "the run does not start")
        found = glob.glob(f"{workspace}/**/rank-00000.jsonl", recursive=True)
        if not found:
            sys.exit(f"the run ended: see {log.name}\n" + open(log.name).read())
        events, run = found[0], os.path.dirname(os.path.dirname(found[0]))
        for _ in range(options.faults):
            seen = len(lines(events))

            def saved():
                new = lines(events)[seen:]
                at = next((i for i, line in enumerate(new) if line["event"] == "checkpoint"
                           and line["facts"]["state"] == state), None)
                return at is not None and sum(line["event"] == "step" for line in new[at:]) >= 2
            wait(saved, "nothing is saved")
            forget(os.path.join(run, "checkpoints"))
            before = len(lines(events))
            began = time.time()
            victim = process_of_rank(supervisor.pid, options.ranks - 1)
            home = folder_in_memory(victim)
            os.kill(victim, signal.SIGKILL)

            def next_step():
                new = lines(events)[before:]
                start = next((i for i, line in enumerate(new) if line["event"] == "begin"), None)
                steps = [line for line in new[start:] if line["event"] == "step"] if start is not None else []
                return (new[start], steps[0]) if steps else None
            begin, step = wait(next_step, "no restart")
            if begin["facts"].get("state_from") != source:
                sys.exit(f"{name}: restarted from {begin['facts'].get('state_from')}, not {source}")
            times.append(step["time"] - began)
            actions = [line for line in lines(os.path.join(run, "events", "supervisor.jsonl"))
                       if line["event"] == "supervise_action"]
            if actions[-1]["facts"].get("rung") != rung:
                sys.exit(f"{name}: {actions[-1]['facts'].get('rung')} instead of {rung}")
    finally:
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
    steps = [line["facts"].get("elapsed_time_per_iteration_ms", 0) for line in lines(events) if line["event"] == "step"]
    size = 0
    if home:
        size = sum(os.path.getsize(path) for path in glob.glob(f"{home}/own/*/*/iter_*/*"))
        shutil.rmtree(home, ignore_errors=True)  # the guard of a supervisor that was killed removes it, too
    print(f"{kind:>7}, {rung:>12}: {len(times)} restarts, to the next completed step median {statistics.median(times):.2f} s, "
          f"longest {max(times):.2f} s; step median {statistics.median(steps):.0f} ms"
          + (f"; snapshots {size / 2**20:.0f} MiB" if size else ""), flush=True)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the run, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(SOURCE, "build", "bin", "primus"))
    parser.add_argument("--faults", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", help="run in this folder instead of the system's folder for temporary files")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="further keys of the experiment")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="restart-times-", dir=options.folder) as folder:
        for rung in ["job restart"] + (["rank restart"] if options.ranks > 1 and options.device == "cpu" else []):
            measure(options, folder, "disk", rung, [f"save_interval={options.steps}", "keep_latest=2"], "durable", "disk")
            measure(options, folder, "memory", rung, ["save_interval=1000000", f"snapshot_interval={options.steps}"],
                    "in memory", "memory")


if __name__ == "__main__":
    main()
