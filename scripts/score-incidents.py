#!/usr/bin/env python3
"""Scores a program that diagnoses incidents against the truth of seed-incidents.py.

usage: score-incidents.py FOLDER [options]              a folder that seed-incidents.py has made
       score-incidents.py --count 500 --seed 1 [options]  makes each incident, and removes it again

The command (default: 'primus postmortem FOLDER --json') runs once for each incident, and must print one JSON object. Its
cause, rank and node are read from the keys that --cause-key, --rank-key and --node-key name; a dot separates levels, and a
number is an index of a list. tests/safe/incidents/causes.json maps each cause of seed-incidents.py to the names that the
command may give it, the best name first; 'keys' in that file may name the three keys:

  {"keys": {"cause": "cause", "rank": "rank", "node": "node"}, "causes": {"gpu-lost": ["gpu_lost"], ...}}

A cause that the file lacks counts as a miss and is reported. Ranks and nodes count only where the truth has one. A node
counts as right if the names are equal up to the domain. The script prints the shares by cause, and then each miss.
Exit code 1: a share is below --least-causes, --least-ranks or --least-nodes.
"""
import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

SCRIPTS = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(SCRIPTS)
UNKNOWN = ("", "unknown", "none", None)


def seeder():
    spec = importlib.util.spec_from_file_location("seed_incidents", os.path.join(SCRIPTS, "seed-incidents.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def look_up(value, key):
    for word in key.split("."):
        if isinstance(value, list) and word.isdigit() and int(word) < len(value):
            value = value[int(word)]
        elif isinstance(value, dict):
            value = value.get(word)
        else:
            return None
    return value


def diagnose(command, folder, limit):
    """Returns the command's JSON object, and an error text or None."""
    words = [word.replace("FOLDER", folder) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {limit:g} s"
    except OSError as error:
        sys.exit(f"cannot run '{words[0]}': {error.strerror}: --command names another program")
    try:
        found = json.loads(done.stdout)
        return (found, None) if isinstance(found, dict) else ({}, "the output is no JSON object")
    except ValueError:
        return {}, f"exit code {done.returncode}, no JSON: {done.stderr.decode(errors='replace').strip()[:200]}"


def same_node(one, other):
    return str(one).split(".")[0] == str(other).split(".")[0]


class Scores:
    def __init__(self, mapping, keys):
        self.mapping, self.keys = mapping, keys
        self.rows, self.misses, self.seconds, self.unmapped = {}, [], [], set()

    def add(self, truth, answer, error, seconds):
        row = self.rows.setdefault(truth["cause"], {what: [0, 0] for what in ("cause", "rank", "node", "unknown")})
        self.seconds.append(seconds)
        given = {what: look_up(answer, self.keys[what]) for what in self.keys}
        names = self.mapping.get(truth["cause"])
        if not names:
            self.unmapped.add(truth["cause"])
        right = {"cause": bool(names) and not error and given["cause"] in names}
        if truth["rank"] is not None:
            right["rank"] = str(given["rank"]) == str(truth["rank"])
        if truth["node"] is not None:
            right["node"] = given["node"] is not None and same_node(given["node"], truth["node"])
        for what, good in right.items():
            row[what][0] += good
            row[what][1] += 1
        if not right["cause"]:
            row["unknown"][0] += given["cause"] in UNKNOWN
            row["unknown"][1] += 1
        if not all(right.values()):
            self.misses.append((truth, given, error, [what for what, good in right.items() if not good]))

    def share(self, what):
        good = sum(row[what][0] for row in self.rows.values())
        return good, sum(row[what][1] for row in self.rows.values())

    def show(self):
        def cell(pair):
            return f"{pair[0]}/{pair[1]}" if pair[1] else "-"
        print(f"{'cause':<22} {'causes':>9} {'ranks':>9} {'nodes':>9}")
        for cause, row in sorted(self.rows.items()):
            print(f"{cause:<22} {cell(row['cause']):>9} {cell(row['rank']):>9} {cell(row['node']):>9}")
        for what in ("cause", "rank", "node", "unknown"):
            good, of = self.share(what)
            label = {"unknown": "wrong causes that were given as unknown"}.get(what, "right " + what + "s")
            print(f"{label}: {good} of {of}" + (f", {100 * good / of:.1f} %" if of else ""))
        seconds = sorted(self.seconds)
        if seconds:
            print(f"time of an answer: median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s")
        for truth, given, error, wrong in self.misses:
            print(f"miss {truth['id']} ({', '.join(wrong)}): cause {truth['cause']}, rank {truth['rank']}, node "
                  f"{truth['node']}, run {truth['run']}; given: {error or json.dumps(given)}")
        if self.unmapped:
            print("causes without a name in the mapping: " + ", ".join(sorted(self.unmapped)))


def read_mapping(path, arguments):
    mapping = {}
    if os.path.exists(path):
        with open(path) as file:
            mapping = json.load(file)
    else:
        print(f"there is no {path}: a cause is right if the command gives its name in truth.json", file=sys.stderr)
        mapping["causes"] = {cause.identifier: [cause.identifier] for cause in seeder().CAUSES}
    keys = dict({"cause": "cause", "rank": "rank", "node": "node"}, **mapping.get("keys", {}))
    for what in keys:
        keys[what] = getattr(arguments, what + "_key") or keys[what]
    return {cause: [names] if isinstance(names, str) else names for cause, names in mapping.get("causes", {}).items()}, keys


def incidents(arguments):
    """Yields folders and truths, of a folder or made one by one."""
    if arguments.folder:
        with open(os.path.join(arguments.folder, "truth.json")) as file:
            for truth in json.load(file):
                yield os.path.join(arguments.folder, "incidents", truth["id"]), truth
        return
    seed = seeder()
    causes = seed.prepare(arguments)
    with tempfile.TemporaryDirectory(prefix="primus-incidents-") as folder:
        for number in range(arguments.count):
            path = os.path.join(folder, f"{number:05d}")
            yield path, seed.make(arguments.library, arguments.seed, number, path, causes)
            if arguments.keep and path in arguments.missed:
                shutil.copytree(path, os.path.join(arguments.keep, f"{number:05d}"))
            shutil.rmtree(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", help="folder that seed-incidents.py has made")
    seeder().options(parser)
    parser.add_argument("--command", help="command that diagnoses; FOLDER in it is replaced by the path of the incident")
    parser.add_argument("--causes-file", default=os.path.join(SOURCE, "tests/safe/incidents/causes.json"))
    for what in ("cause", "rank", "node"):
        parser.add_argument(f"--{what}-key", help=f"key of the {what} in the command's JSON")
        parser.add_argument(f"--least-{what}s", type=float, default=0, help="percent")
    parser.add_argument("--keep", help="copy missed incidents that are made one by one to this folder")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one answer")
    arguments = parser.parse_args()
    arguments.missed = set()
    command = shlex.split(arguments.command) if arguments.command else [
        os.path.abspath(arguments.program), "postmortem", "FOLDER", "--json"]
    scores = Scores(*read_mapping(arguments.causes_file, arguments))
    for folder, truth in incidents(arguments):
        begin = time.monotonic()
        answer, error = diagnose(command, folder, arguments.limit)
        before = len(scores.misses)
        scores.add(truth, answer, error, time.monotonic() - begin)
        if len(scores.misses) > before:
            arguments.missed.add(folder)
    scores.show()
    for what in ("cause", "rank", "node"):
        good, of = scores.share(what)
        least = getattr(arguments, f"least_{what}s")
        if of and 100 * good < least * of:
            sys.exit(f"only {100 * good / of:.1f} % of the {what}s are right; {least:g} % are required")


if __name__ == "__main__":
    main()
