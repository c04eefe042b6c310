#!/usr/bin/env python3
"""Injects faults into supervised runs ('primus train pretrain --supervise'), and judges what follows.

usage: inject-faults.py [--program build/bin/primus] [--trials 100] [--seed 1] [--setups 1,2,nodes] [--jobs 1]
                        [--kinds ...] [--phases ...] [--slow] [--json FILE] [--list]

Each trial trains a toy model for 60 steps with one or two ranks, or on two machines and a spare (processes on this
machine with a supervisor each), and injects one fault at an exact point of a phase (scripts/faults/shim.c). The outcome
is right in three cases:
  recovered    the losses of all steps and the final weights are bit for bit those of an undisturbed run, after the
               supervisor has detected a fault of a right name
  unaffected   the same, without a restart, if the fault need not be detected
  ended        the run ended with a right name and exit code, and the same command then completed it, bit for bit
and if no process remains, and no checkpoint that was complete at the time of the fault was ignored. The script prints a
table of kinds and phases, and the trials with a wrong outcome. Exit code 1: there is one, or in more than a fifth of
the trials a part of the fault did not happen (too late), so the script does not test what it says.

Trials with equal setup, kind, phase and seed inject at the same point. The machine's speed may change which process
acts first. Only Python's standard library, a C compiler and Linux are needed.
"""
import argparse
import concurrent.futures
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from faults.kinds import KINDS, PHASES  # noqa: E402
from faults.trial import SOURCE, Reference, Trial, processes_with  # noqa: E402

RIGHT = ("recovered", "unaffected", "ended")


def names(text, known, what):
    found = text.split(",") if text else list(known)
    for name in found:
        if name not in known:
            sys.exit(f"there is no {what} '{name}': choose of {', '.join(known)}")
    return found


def order(setups, kinds, phases, seed):
    """All possible trials once. Each run of len(kinds) trials has each kind once, and about equally many of each
    phase and setup."""
    kinds = list(kinds)
    random.Random(seed).shuffle(kinds)
    found = []
    for part in range(len(phases) * len(setups)):
        for i, kind in enumerate(kinds):
            phase, setup = phases[(i + part) % len(phases)], setups[(i + part // len(phases)) % len(setups)]
            if Trial.possible(setup, kind, phase):
                found.append((setup, kind, phase))
    return found


def show(results, kinds, phases):
    width = max(len(kind) for kind in kinds) + 1
    print("right / all trials by kind and phase ('-': impossible, '.': not tried)")
    print(" " * width + "".join(f"{phase[:10]:>11}" for phase in phases))
    for kind in kinds:
        if not any(r["kind"] == kind for r in results):
            continue
        cells = []
        for phase in phases:
            some = [r for r in results if r["kind"] == kind and r["phase"] == phase and r["outcome"] != "too late"]
            possible = any(Trial.possible(setup, kind, phase) for setup in ("1", "2", "nodes"))
            right = sum(r["outcome"] in RIGHT for r in some)
            cells.append(f"{right}/{len(some)}" if some else "." if possible else "-")
        print(f"{kind:<{width}}" + "".join(f"{cell:>11}" for cell in cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=os.path.join(SOURCE, "build/bin/primus"))
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--setups", default="1,2,nodes", help="1 or 2 ranks on one machine; nodes: two machines and a spare")
    parser.add_argument("--kinds", help="kinds of faults; see --list")
    parser.add_argument("--phases", help="of: " + ", ".join(PHASES))
    parser.add_argument("--slow", action="store_true", help="also kinds that take ten seconds or more, such as hangs")
    parser.add_argument("--jobs", type=int, default=1, help="trials at the same time")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no trial after this time")
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("--keep", help="keep the runs and logs in this folder")
    parser.add_argument("--list", action="store_true", help="show kinds, phases and setups")
    options = parser.parse_args()
    if options.list:
        for phase, text in PHASES.items():
            print(f"phase {phase:<12} {text}")
        for kind, what in KINDS.items():
            print(f"kind  {kind:<24} setups {', '.join(what.setups)}{'; slow' if what.slow else ''}")
        return
    options.program = os.path.abspath(options.program)
    setups = names(options.setups, ["1", "2", "nodes"], "setup")
    phases = names(options.phases, PHASES, "phase")
    kinds = names(options.kinds, KINDS, "kind of fault")
    if not options.kinds and not options.slow:
        kinds = [kind for kind in kinds if not KINDS[kind].slow]
    trials = order(setups, kinds, phases, options.seed)
    if not trials:
        sys.exit("none of these kinds is possible in these phases and setups")
    options.folder = options.keep or tempfile.mkdtemp(prefix="primus-faults-")
    os.makedirs(options.folder, exist_ok=True)
    options.shim = os.path.join(options.folder, "shim.so")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-fno-builtin", "-o", options.shim,
                    os.path.join(SOURCE, "scripts/faults/shim.c"), "-ldl", "-lm"], check=True)
    reference = Reference(options.program, options.folder)
    results, lock, end = [], threading.Lock(), time.monotonic() + 60 * options.minutes

    def one(number):
        if time.monotonic() > end:
            return
        setup, kind, phase = trials[number % len(trials)]
        seed = options.seed + number // len(trials)
        trial = Trial(options, setup, kind, phase, seed)
        outcome = trial.execute(reference)
        with lock:
            results.append({"setup": setup, "kind": kind, "phase": phase, "seed": seed, "outcome": outcome,
                            "causes": trial.causes, "seconds": round(trial.seconds, 2)})
            if outcome not in RIGHT + ("too late",):
                print(f"WRONG: --setups {setup} --kinds {kind} --phases {phase} --seed {seed}: {outcome}", flush=True)
                if os.path.exists(trial.log):
                    with open(trial.log, errors="replace") as file:
                        lines = [line for line in file if "iteration" not in line]
                    print("  " + "  ".join(lines[-12:]), flush=True)

    def stop(number, _):  # ends the processes of all trials
        for pid in processes_with("FAULT_SESSION=" + options.folder):
            os.kill(pid, signal.SIGKILL)
        print(f"stopped by signal {number} after {len(results)} trials", flush=True)
        shutil.rmtree(options.folder, ignore_errors=True)
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(one, number) for number in range(options.trials)]:
            done.result()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"seed": options.seed, "results": results}, file, indent=1)
    show(results, kinds, phases)
    count = {name: sum(r["outcome"] == name for r in results) for name in RIGHT + ("too late",)}
    wrong = len(results) - sum(count.values())
    total = sum(r["seconds"] for r in results)
    print(f"{len(results) - count['too late']} faults, seed {options.seed}: {count['recovered']} recovered, "
          f"{count['unaffected']} unaffected, {count['ended']} ended with the right name and completed by the same "
          f"command, {wrong} wrong; {count['too late']} more were too late; "
          f"{total / max(1, len(results)):.1f} s a trial")
    idle = 5 * count["too late"] > len(results)
    if idle:
        print(f"WRONG: in {count['too late']} of {len(results)} trials, a part of the fault did not happen")
    if not options.keep:
        shutil.rmtree(options.folder, ignore_errors=True)
    sys.exit(1 if wrong or idle or not results else 0)


if __name__ == "__main__":
    main()
