#!/usr/bin/env python3
"""Injects faults into supervised runs ('primus train pretrain --supervise'), and judges what follows.

usage: inject-faults.py [--program build/bin/primus] [--trials 100] [--seed 1] [--skip 0] [--setups 1,2,nodes]
                        [--jobs 1] [--minutes M] [--kinds ...] [--phases ...] [--slow] [--json FILE] [--list]

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
acts first. A seed determines the order of all trials. Each run of the script prints the number of the next trial, and
'--skip NUMBER' continues there, so two runs have no trial in common.

Only Python's standard library, a C compiler and Linux are needed; '--shim FILE' uses a shim.so that was compiled before
('cc -O1 -shared -fPIC -fno-builtin -o shim.so scripts/faults/shim.c -ldl -lm'). Cut networks and full disks are errors
of wrapped functions, so neither network namespaces nor mounts are needed, nor root.
"""
import argparse
import collections
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


def class_of(outcome):
    return outcome if outcome in RIGHT + ("too late",) else "wrong"


def write_json(options, results, began):
    """All results, with counts by kind, phase and outcome. The file is complete at any time."""
    counts = {}
    for result in results:
        cell = counts.setdefault(result["kind"], {}).setdefault(result["phase"], {})
        name = class_of(result["outcome"])
        cell[name] = cell.get(name, 0) + 1
    with open(options.json + ".part", "w") as file:
        json.dump({"seed": options.seed, "skip": options.skip, "jobs": options.jobs,
                   "seconds": round(time.monotonic() - began, 1),
                   "outcomes": collections.Counter(class_of(r["outcome"]) for r in results),
                   "counts": counts, "results": results}, file, indent=1)
    os.replace(options.json + ".part", options.json)


def lines_of(trial):
    """The last lines of the supervisors of a trial."""
    if not os.path.exists(trial.log):
        return []
    with open(trial.log, errors="replace") as file:
        return [line.rstrip("\n") for line in file if "iteration" not in line][-40:]


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
    parser.add_argument("--skip", type=int, default=0, help="begin with this trial of the order that --seed determines")
    parser.add_argument("--shim", help="use this compiled scripts/faults/shim.c")
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
    if options.shim:
        options.shim = os.path.abspath(options.shim)
    else:
        options.shim = os.path.join(options.folder, "shim.so")
        compiler = os.environ.get("CC", "cc")
        if not shutil.which(compiler):
            sys.exit(f"there is no C compiler '{compiler}': set CC, or give a compiled shim with --shim")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-fno-builtin", "-o", options.shim,
                        os.path.join(SOURCE, "scripts/faults/shim.c"), "-ldl", "-lm"], check=True)
    reference = Reference(options.program, options.folder)
    results, lock, began, following = [], threading.Lock(), time.monotonic(), options.skip

    def one(number):
        nonlocal following
        if time.monotonic() > began + 60 * options.minutes:
            return
        following = max(following, number + 1)
        setup, kind, phase = trials[number % len(trials)]
        seed = options.seed + number // len(trials)
        trial = Trial(options, setup, kind, phase, seed, number)
        outcome = trial.execute(reference)
        with lock:
            results.append({"number": number, "setup": setup, "kind": kind, "phase": phase, "seed": seed,
                            "outcome": outcome, "causes": trial.causes, "seconds": round(trial.seconds, 2)})
            if class_of(outcome) == "wrong":
                results[-1]["log"] = lines_of(trial)
                print(f"WRONG: --setups {setup} --kinds {kind} --phases {phase} --seed {seed}: {outcome}", flush=True)
                print("  " + "\n  ".join(results[-1]["log"][-12:]), flush=True)

    def stop(number, _):  # ends the processes of all trials
        print(f"stopped by signal {number} after {len(results)} trials; trials that ran are not counted; "
              f"next: --skip {following}", flush=True)
        if options.json:
            write_json(options, list(results), began)
        for pid in processes_with("FAULT_SESSION=" + options.folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(options.folder, ignore_errors=True)
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(one, number) for number in
                     range(options.skip, options.skip + options.trials)]:
            done.result()
    if options.json:
        write_json(options, results, began)
    show(results, kinds, phases)
    count = collections.Counter(class_of(r["outcome"]) for r in results)
    wrong = count["wrong"]
    total = sum(r["seconds"] for r in results)
    print(f"{len(results) - count['too late']} faults, seed {options.seed}: {count['recovered']} recovered, "
          f"{count['unaffected']} unaffected, {count['ended']} ended with the right name and completed by the same "
          f"command, {wrong} wrong; {count['too late']} more were too late; "
          f"{total / max(1, len(results)):.1f} s a trial; {len(results)} trials in {time.monotonic() - began:.0f} s; "
          f"next: --skip {following}")
    idle = 5 * count["too late"] > len(results)
    if idle:
        print(f"WRONG: in {count['too late']} of {len(results)} trials, a part of the fault did not happen")
    if not options.keep:
        shutil.rmtree(options.folder, ignore_errors=True)
    sys.exit(1 if wrong or idle or not results else 0)


if __name__ == "__main__":
    main()
