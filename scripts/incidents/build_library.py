"""Builds the library of real runs, four at a time."""
import concurrent.futures
import json
import os
import random
import shutil
import sys

from faults import FAULTS, Starter


def keep_seed(library, seed):
    """Writes the seed into the library, and refuses a library whose runs have another seed."""
    path = os.path.join(library, "seed")
    if os.path.exists(path):
        with open(path) as file:
            known = file.read().strip()
    else:
        has_runs = any(os.path.exists(os.path.join(library, name, "meta.json")) for name in os.listdir(library))
        known = "unknown" if has_runs else str(seed)
    if known != str(seed):
        sys.exit(f"the runs in '{library}' have the seed '{known}', not '{seed}': name another folder with --library, "
                 "or remove this one")
    with open(path, "w") as file:
        file.write(f"{seed}\n")


def build(program, library, seed, only=None, workers=4):
    os.makedirs(library, exist_ok=True)
    keep_seed(library, seed)
    starter = Starter(os.path.abspath(program), library)
    starter.prepare()
    jobs = []
    for kind, (count, make) in FAULTS.items():
        for number in range(count):
            name = f"{kind}-{number}"
            if (only and kind not in only) or os.path.exists(os.path.join(library, name, "meta.json")):
                continue
            jobs.append((name, make))

    def one(job):
        name, make = job
        try:
            make(starter.named(name), random.Random(f"{seed} {name}"))
            with open(os.path.join(library, name, "meta.json")) as file:
                meta = json.load(file)
            if meta.get("step") == 0:
                raise RuntimeError("the fault came before the first step")
            if "pid" in meta and not name.startswith("slow") and not any(meta["exit_codes"]):
                raise RuntimeError("the fault had no effect")
            return None
        except Exception as error:  # a run that cannot be made is reported, and is not in the library
            shutil.rmtree(os.path.join(library, name), ignore_errors=True)
            return f"{name}: {type(error).__name__}: {error}"

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        problems = [text for text in pool.map(one, jobs) if text]
    os.remove(starter.older)  # as large as the program
    for text in problems:
        print("the library lacks a run: " + text, file=sys.stderr)
    return problems
