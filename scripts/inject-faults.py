#!/usr/bin/env python3
"""Injects faults into supervised runs ('primus train pretrain --supervise'), and judges what follows.

usage: inject-faults.py [--program build/bin/primus] [--trials 100] [--seed 1] [--skip 0] [--setups 1,2,nodes,slurm]
                        [--jobs 1] [--minutes M] [--kinds ...] [--phases ...] [--slow] [--json FILE] [--add FILE]
                        [--list]

Each trial trains a toy model for 60 steps with one or two ranks, on two machines and a spare (processes on this
machine with a supervisor each), or in a job on two nodes of a Slurm that the script starts (--setups slurm; needs
Debian's packages slurmctld, slurmd, slurm-client and munge), and injects one fault at an exact point of a phase
(scripts/faults/shim.c). The outcome is right in three cases:
  recovered    the losses of all steps and the final weights are bit for bit those of an undisturbed run, after the
               supervisor has detected a fault of a right name
  unaffected   the same, without a restart, if the fault need not be detected
  ended        the run ended with a right name and exit code, and the same command then completed it, bit for bit
and if no process remains, and no checkpoint that was complete at the time of the fault was ignored. The script prints a
table of kinds and phases, and the trials with a wrong outcome. Exit code 1: there is one, or a trial failed by an error
of the script, or in more than a fifth of the trials a part of the fault did not happen (too late), so the script does
not test what it says.

Trials with equal setup, kind, phase and seed inject at the same point. The machine's speed may change which process
acts first. A seed determines the order of all trials. Each run of the script prints the number of the next trial, and
'--skip NUMBER' continues there, so two runs have no trial in common. '--add FILE' adds the results that an earlier run
has written with --json: the table and --json have all results, and no trial is repeated that the file has, unless it
failed by an error of the script. A note says if the results are of several builds of the program. Examples:

  inject-faults.py --slow --trials 6000 --seed 3 --jobs 8 --minutes 7 --json one.json
  inject-faults.py --slow --trials 6000 --seed 3 --jobs 8 --minutes 7 --add one.json --json two.json   # continues
  inject-faults.py --trials 0 --add two.json --add other.json --json all.json                          # adds up

A trial that the script ends itself, because of --minutes or a signal, is not judged and not counted.

Only Python's standard library, a C compiler and Linux are needed; '--shim FILE' uses a shim.so that was compiled before
('cc -O1 -shared -fPIC -fno-builtin -o shim.so scripts/faults/shim.c -ldl -lm'). Cut networks and full disks are errors
of wrapped functions, so neither network namespaces nor mounts are needed, nor root.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from faults.cluster import Cluster, missing  # noqa: E402
from faults.kinds import KINDS, PHASES, SETUPS  # noqa: E402
from faults.slurm_trial import SlurmTrial  # noqa: E402
from faults.trial import SOURCE, Reference, Trial, processes_with  # noqa: E402

RIGHT = ("recovered", "unaffected", "ended")
ERROR = "error of the trial: "  # begins the outcome of a trial in which the script failed
GRACE = 20  # seconds after --minutes in which trials may end


def names(text, known, what):
    found = text.split(",") if text else list(known)
    for name in found:
        if name not in known:
            sys.exit(f"there is no {what} '{name}': choose of {', '.join(known)}")
    return found


def order(setups, kinds, phases, seed):
    """All possible trials once. Each run of len(kinds) trials has each kind once, and about equally many of each
    phase and setup."""
    kinds = [kind for kind in kinds if any(Trial.possible(setup, kind, phase) for setup in setups for phase in phases)]
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
            some = [r for r in results if r["kind"] == kind and r["phase"] == phase and
                    class_of(r["outcome"]) not in ("too late", "error")]
            possible = any(Trial.possible(setup, kind, phase) for setup in SETUPS)
            right = sum(r["outcome"] in RIGHT for r in some)
            cells.append(f"{right}/{len(some)}" if some else "." if possible else "-")
        print(f"{kind:<{width}}" + "".join(f"{cell:>11}" for cell in cells))


def class_of(outcome):
    if outcome.startswith(ERROR):
        return "error"
    return outcome if outcome in RIGHT + ("too late",) else "wrong"


def is_error(result):
    return class_of(result["outcome"]) == "error"


def hash_of(program):
    """The first digits of the SHA-256 of the program; None if it cannot be read."""
    try:
        with open(program, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()[:16]
    except OSError:
        return None


def note_of_programs(results):
    """A line that says which programs the results are of; empty if they are of one program."""
    count = collections.Counter(result.get("program") or "unknown" for result in results)
    if len(count) < 2:
        return ""
    return (f"note: the results are of {len(count)} programs: " +
            ", ".join(f"{trials} trials of {program}" for program, trials in count.most_common()))


def identity(result):
    return tuple(result[name] for name in ("setup", "kind", "phase", "seed"))


def read_results(paths):
    """The results of files that --json has written, each trial once. An error of the script replaces no outcome."""
    found = {}
    for path in paths:
        try:
            with open(path) as file:
                for result in json.load(file)["results"]:
                    if identity(result) not in found or not is_error(result):
                        found[identity(result)] = result
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"--add: '{path}' has no results of this script: {error!r}")
    return found


def lines_of(trial):
    """The last lines of the supervisors of a trial."""
    if not trial or not os.path.exists(trial.log):
        return []
    with open(trial.log, errors="replace") as file:
        return [line.rstrip("\n") for line in file if "iteration" not in line][-40:]


def describe(result):
    return (f"--setups {result['setup']} --kinds {result['kind']} --phases {result['phase']} --seed {result['seed']}: "
            f"{result['outcome']}")


class Session:
    """The trials of one run of this script, their processes, and the results."""

    def __init__(self, options, trials):
        self.options, self.trials = options, trials
        self.earlier = read_results(options.add)
        self.results, self.lock, self.began = [], threading.RLock(), time.monotonic()
        self.following = options.skip  # the number of the next trial
        self.running = 0
        self.reference = Reference(options.program, options.folder)
        self.program = hash_of(options.program)

    def one(self, number):
        setup, kind, phase = self.trials[number % len(self.trials)]
        seed = self.options.seed + number // len(self.trials)
        with self.lock:
            late = time.monotonic() > self.began + 60 * self.options.minutes
            earlier = self.earlier.get((setup, kind, phase, seed))
            if self.options.over or late or earlier and not is_error(earlier):
                return
            self.following = max(self.following, number + 1)
            self.running += 1
        result = {"number": number, "setup": setup, "kind": kind, "phase": phase, "seed": seed}
        try:
            result |= self.result_of(result)
        finally:
            with self.lock:
                self.running -= 1
        with self.lock:
            if self.options.over:
                return  # the script has ended the trial's processes
            self.earlier.pop(identity(result), None)  # an error of the script
            self.results.append(result | {"program": self.program})
            if "log" in result:
                print("WRONG: " + describe(result), flush=True)
                print("  " + "\n  ".join(result["log"][-12:]), flush=True)

    def result_of(self, what):
        """Executes a trial. An error of the script in it is an outcome, so that the other trials continue."""
        trial, began = None, time.monotonic()
        try:
            trial = (SlurmTrial if what["setup"] == "slurm" else Trial)(
                self.options, what["setup"], what["kind"], what["phase"], what["seed"], what["number"])
            outcome = trial.execute(self.reference)
            result = {"outcome": outcome, "causes": trial.causes, "codes": trial.codes(),
                      "seconds": round(trial.seconds, 2)}
            return result | ({"log": lines_of(trial)} if class_of(outcome) == "wrong" else {})
        except Exception as error:
            lines = traceback.format_exc().splitlines()
            if hasattr(trial, "folder"):
                trial.kill_all()
            return {"outcome": f"{ERROR}{type(error).__name__}: {error}", "causes": [], "codes": {},
                    "seconds": round(time.monotonic() - began, 2), "log": lines}

    def run(self):
        last = self.options.skip + self.options.trials
        end = self.began + 60 * self.options.minutes + GRACE
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            futures = [pool.submit(self.one, number) for number in range(self.options.skip, last)]
            for future in futures:
                try:
                    future.result(max(0, end - time.monotonic()))
                except concurrent.futures.TimeoutError:
                    self.end(f"after {self.options.minutes:g} minutes")
                except SystemExit as error:
                    print(error)
                    self.end("because of this error", 1)
        self.end("")

    def all_results(self):
        return list(self.earlier.values()) + self.results

    def end(self, why, code=None):
        """Ends all processes, shows and writes the results, and ends the script. why: trials that still run are ended
        because of this."""
        with self.lock:
            self.options.over = True  # no trial starts a process any more
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if self.running:
            print(f"{self.running} trials were ended {why}; they are not counted")
        self.kill_all()
        if self.options.json:
            self.write()
        right = self.summary()
        for cluster in self.options.all_clusters:
            cluster.end()
        self.kill_all()  # those that a trial was about to start
        if not self.options.keep:
            shutil.rmtree(self.options.folder, ignore_errors=True)
        sys.stdout.flush()
        os._exit(code if code is not None else 0 if right else 1)  # threads may still wait for ended processes

    def kill_all(self):
        for pid in processes_with("FAULT_SESSION=" + self.options.folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        end = time.monotonic() + 5
        while processes_with("FAULT_SESSION=" + self.options.folder) and time.monotonic() < end:
            time.sleep(0.05)

    def write(self):
        """All results, with counts by kind, phase and outcome."""
        results, counts = self.all_results(), {}
        for result in results:
            cell = counts.setdefault(result["kind"], {}).setdefault(result["phase"], {})
            name = class_of(result["outcome"])
            cell[name] = cell.get(name, 0) + 1
        with open(self.options.json + ".part", "w") as file:
            json.dump({"seed": self.options.seed, "skip": self.options.skip, "next": self.following,
                       "jobs": self.options.jobs, "seconds": round(time.monotonic() - self.began, 1),
                       "outcomes": collections.Counter(class_of(r["outcome"]) for r in results),
                       "counts": counts, "results": results}, file, indent=1)
        os.replace(self.options.json + ".part", self.options.json)

    def summary(self):
        """Shows the results. Returns whether all are right."""
        results = self.all_results()
        show(results, list(dict.fromkeys([trial[1] for trial in self.trials] + [r["kind"] for r in results])),
             list(PHASES))
        for result in results:
            if class_of(result["outcome"]) in ("wrong", "error"):
                print("WRONG: " + describe(result))
        count = collections.Counter(class_of(r["outcome"]) for r in results)
        setups = collections.Counter(r["setup"] for r in results if class_of(r["outcome"]) not in ("too late", "error"))
        total = sum(r["seconds"] for r in results)
        print(f"{len(results) - count['too late'] - count['error']} faults "
              f"({', '.join(f'{setup}: {setups[setup]}' for setup in SETUPS if setups[setup])}), seed "
              f"{self.options.seed}: {count['recovered']} recovered, {count['unaffected']} unaffected, "
              f"{count['ended']} ended with the right name and completed by the same command, {count['wrong']} wrong; "
              f"{count['too late']} more were too late; " +
              (f"{count['error']} more failed by an error of the script; " if count["error"] else "") +
              f"{total / max(1, len(results)):.1f} s a trial; "
              f"{len(self.results)} trials in {time.monotonic() - self.began:.0f} s; next: --skip {self.following}" +
              (f", or the same command with --add {self.options.json}" if self.options.json else ""))
        if note_of_programs(results):
            print(note_of_programs(results))
        idle = 5 * count["too late"] > len(results)
        if idle:
            print(f"WRONG: in {count['too late']} of {len(results)} trials, a part of the fault did not happen")
        return bool(results) and not idle and not count["wrong"] and not count["error"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=os.path.join(SOURCE, "build/bin/primus"))
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--setups", default="1,2,nodes", help="1 or 2 ranks on one machine; nodes: two machines and a "
                        "spare; slurm: a job on two nodes of Slurm")
    parser.add_argument("--kinds", help="kinds of faults; see --list")
    parser.add_argument("--phases", help="of: " + ", ".join(PHASES))
    parser.add_argument("--slow", action="store_true", help="also kinds that take ten seconds or more, such as hangs")
    parser.add_argument("--jobs", type=int, default=1, help="trials at the same time")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no trial after this time, and end those that "
                        f"run {GRACE} s later")
    parser.add_argument("--skip", type=int, default=0, help="begin with this trial of the order that --seed determines")
    parser.add_argument("--shim", help="use this compiled scripts/faults/shim.c")
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("--add", action="append", default=[], metavar="FILE",
                        help="add the results that an earlier run has written with --json, and repeat only trials that "
                        "failed by an error of the script; may be repeated")
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
    setups = names(options.setups, SETUPS, "setup")
    if "slurm" in setups and missing():
        sys.exit(f"--setups slurm: there is no {', '.join(missing())}: install slurmctld slurmd slurm-client munge")
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
    options.all_clusters, options.over = [], False
    session = Session(options, trials)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: session.end(f"by signal {number}", 128 + number))
    if "slurm" in setups and options.trials > 0:
        options.clusters = queue.Queue()
        for i in range(options.jobs):
            first_job = 1 + 1000 * i + os.getpid() % 1000
            options.all_clusters.append(Cluster({"FAULT_SESSION": options.folder}, first_job))
            options.clusters.put(options.all_clusters[-1])
    session.run()


if __name__ == "__main__":
    main()
