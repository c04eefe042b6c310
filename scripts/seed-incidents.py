#!/usr/bin/env python3
"""Makes folders of incidents with known causes, to measure how often a diagnosis finds them.

usage: seed-incidents.py --out FOLDER [--count 500] [--seed 1] [--library FOLDER] [--library-seed 1] [--causes a,b] [--list]

The first call builds a library of real runs: toy runs of the real program, into which real faults are injected (some
minutes; needs root for a small file system, and gcc for a library that fails system calls). Each incident is one of these
runs with other hosts, paths and times, with the files that an operator would have (output of the job, kernel logs, NCCL's
warnings, events of Slurm or Kubernetes), harmless lines, clocks that differ, errors that follow from the cause, and
sometimes truncated or missing files. FOLDER/incidents has the folders, and FOLDER/truth.json the causes, ranks, nodes,
steps and times. The same seed and library give the same folders.

Causes that need a GPU, a network card or a broken machine cannot be injected here: their runs are real losses, hangs or
slow ranks, and the messages of drivers and the kernel have the form of the real software (incidents/messages.py).
"""
import argparse
import json
import os
import random
import sys

SCRIPTS = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(SCRIPTS)
sys.path.insert(0, os.path.join(SCRIPTS, "incidents"))
sys.dont_write_bytecode = True
from build_library import build  # noqa: E402
from causes import CAUSES  # noqa: E402
from incident import Incident  # noqa: E402


def candidates(library, cause):
    """The runs of the library that a cause can use."""
    if cause.runs == ["none"]:
        return ["none"]
    found = []
    for name in sorted(os.listdir(library)):
        path = os.path.join(library, name, "meta.json")
        if name.rsplit("-", 1)[0] in cause.runs and os.path.exists(path):
            with open(path) as file:
                if json.load(file)["nodes"] >= cause.least_nodes:
                    found.append(name)
    return found


def make(library, seed, number, folder, causes):
    """Makes incident `number` of a seed in `folder`; returns its truth. The result depends only on seed and number."""
    rng = random.Random(f"{seed} {number}")
    order = list(range(len(causes)))
    random.Random(f"{seed} order {number // len(causes)}").shuffle(order)
    cause = causes[order[number % len(causes)]]  # each cause comes equally often
    name = rng.choice(candidates(library, cause))
    incident = Incident(library, name, rng)
    if cause.evidence:
        cause.evidence(incident)
    incident.write(folder)
    known = incident.has_run and not cause.no_run
    return {"id": os.path.basename(folder), "cause": cause.identifier, "words": cause.words,
            "rank": incident.rank if cause.rank else None,
            "node": incident.host(incident.node) if cause.node else None,
            "step": incident.meta.get("step") if known else None, "time": round(incident.at(0), 3), "run": name}


def choose(text):
    if not text:
        return CAUSES
    known = {cause.identifier: cause for cause in CAUSES}
    for word in text.split(","):
        if word not in known:
            sys.exit(f"there is no cause '{word}': --list prints all causes")
    return [known[word] for word in text.split(",")]


def prepare(arguments):
    """Builds the library if it is missing, and returns the causes that it has runs for."""
    build(arguments.program, arguments.library, arguments.library_seed, workers=arguments.jobs)
    causes = choose(arguments.causes)
    missing = [cause.identifier for cause in causes if not candidates(arguments.library, cause)]
    if missing:
        print("without a run in the library, and therefore left out: " + ", ".join(missing), file=sys.stderr)
    return [cause for cause in causes if cause.identifier not in missing]


def options(parser):
    parser.add_argument("--program", default=os.path.join(SOURCE, "build/bin/primus"))
    parser.add_argument("--library", default=os.path.expanduser("~/.cache/primus/incidents"),
                        help="folder of the real runs, built if it is missing")
    parser.add_argument("--library-seed", type=int, default=1,
                        help="chooses shapes, ranks and moments of the real runs; a library has one seed")
    parser.add_argument("--causes", help="only these causes, separated by commas")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=4, help="real runs at the same time")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options(parser)
    parser.add_argument("--out", help="folder of the incidents, which must not exist")
    parser.add_argument("--list", action="store_true", help="print the causes")
    arguments = parser.parse_args()
    if arguments.list:
        for cause in CAUSES:
            print(f"{cause.identifier:<22} {cause.words}")
        return
    if not arguments.out or os.path.exists(arguments.out):
        sys.exit("--out must name a folder that does not exist")
    causes, truths = prepare(arguments), []
    for number in range(arguments.count):
        folder = os.path.join(arguments.out, "incidents", f"{number:05d}")
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        truths.append(make(arguments.library, arguments.seed, number, folder, causes))
    with open(os.path.join(arguments.out, "truth.json"), "w") as file:
        json.dump(truths, file, indent=1)
    print(f"{len(truths)} incidents of {len(causes)} causes in {arguments.out}")


if __name__ == "__main__":
    main()
