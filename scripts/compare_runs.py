#!/usr/bin/env python3
"""Compares the metrics of two runs that differ only by their device, step by step.

  scripts/compare_runs.py FOLDER OTHER --first X --later X [--norms X] [--steps N] [--answers] [--loose WORD]...

Errors of losses and metrics are relative to the larger of 1 and the value, errors of gradient norms to the norm. --first
limits the errors of the first step, and --later those of the following steps, in which the updates of the optimizer
amplify rounding. --norms is the limit of gradient norms, if it differs. Times, speeds and memory are not compared, and
neither are metrics whose name contains WORD. --steps: each run must have this number of steps.

--answers: the runs learn from answers that they generate. If rounding has changed the choice of a token, the steps from
there on are not compared. The first two steps must have equal answers.

Prints the largest error and where it is. Exits 1 if an error is above its limit, or if steps or metrics are missing.
"""
import argparse
import json
import math
import pathlib
import re
import sys

TIMES = re.compile(r"second|tflops|mfu|data_wait|memory|elapsed|retries|loss_scale|reward_wait")
# How far rounding alone separates sampler and trainer.
ROUNDING = re.compile(r"sampling_logp_difference")
# Compares generated answers as a whole: equal only if all answers are equal.
ANSWERS = re.compile(r"^reward$|^completions/|^rewards/(?!model)|^episodes/|^dynamic_sampling/")


class Differs(Exception):
    """The runs differ, or cannot be compared."""


def flat(record, prefix=""):
    """Yields the numbers of a record with their names."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            for i, entry in enumerate(value):
                yield f"{prefix}{name}[{i}]", entry
        else:
            yield prefix + name, value


def steps_of(folder, left_out):
    steps = {}
    try:
        lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
    except OSError as error:
        raise Differs(f"a run has no metrics: {error}") from error
    for line in lines:
        record = dict(flat(json.loads(line)))
        steps[record["iteration"]] = {
            name: float(value) for name, value in record.items()
            if not TIMES.search(name) and not ROUNDING.search(name) and not any(word in name for word in left_out)
        }
    return steps


def error_of(name, value, other):
    if math.isnan(value) or math.isnan(other):
        return 0.0 if math.isnan(value) and math.isnan(other) else math.inf
    if value == other:
        return 0.0
    scale = max(abs(value), abs(other)) if name == "grad_norm" else max(1.0, abs(value), abs(other))
    return abs(value - other) / scale


def names_compared(step, other, first):
    if step.keys() != other.keys():
        raise Differs(f"step {step['iteration']:g} has other metrics: {sorted(step.keys() ^ other.keys())}")
    names = set(step)
    # While the rewards of a pair are equal up to rounding, rounding decides which one is larger.
    if first and abs(step.get("rewards/margins", 1)) < 1e-2:
        names.discard("rewards/accuracies")
    return sorted(names)


def compare(steps, others, options):
    """Returns what was compared, in words."""
    if steps.keys() != others.keys():
        raise Differs(f"one run has {len(steps)} steps, the other one {len(others)}")
    if options.steps is not None and len(steps) != options.steps:
        raise Differs(f"the runs have {len(steps)} steps instead of {options.steps}")
    largest = {"first": (0.0, ""), "later": (0.0, ""), "norms": (0.0, "")}
    limits = {"first": options.first, "later": options.later, "norms": options.norms}
    note = f"{len(steps)} steps"
    for number in sorted(steps):
        first = number == min(steps)
        step, other = steps[number], others[number]
        names = names_compared(step, other, first)
        if options.answers and any(error_of(n, step[n], other[n]) > options.first for n in names if ANSWERS.search(n)):
            if number < min(steps) + 2:
                raise Differs(f"the answers of step {number} differ")
            note = f"{number - min(steps)} of {len(steps)} steps, until rounding changed a token"
            break
        for name in names:
            kind = "first" if first else "later"
            if name == "grad_norm" and options.norms is not None:
                kind = "norms"
            found = error_of(name, step[name], other[name])
            if found >= largest[kind][0]:
                largest[kind] = (found, f"{name} of step {number}: {step[name]:.7g} and {other[name]:.7g}")
    for kind, (found, where) in largest.items():
        if found > 0 and found > limits[kind]:
            raise Differs(f"{found:.2g} is above {limits[kind]:g}: {where}")
    found, where = max(largest.values())
    return f"{note}; largest error {found:.1e}" + (f" ({where.split(':')[0]})" if found > 0 else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("other")
    parser.add_argument("--first", type=float, required=True)
    parser.add_argument("--later", type=float, required=True)
    parser.add_argument("--norms", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--answers", action="store_true")
    parser.add_argument("--loose", action="append", default=[])
    options = parser.parse_args()
    try:
        print(compare(steps_of(options.folder, options.loose), steps_of(options.other, options.loose), options))
    except Differs as error:
        print(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
