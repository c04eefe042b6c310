#!/usr/bin/env python3
"""Exposed communication: the share of a run's steps in which only collectives ran, from its traces (docs/watching.md).

  scripts/exposed_communication.py RUN_FOLDER [--calls] [--kernels] | --step-seconds

Prints a line per traced rank: the time in which a collective ran but no kernel, as a share of the traced
steps, and the total time of collectives. --calls adds a line for each kind of collective and group, --kernels
one for each kernel and for copies, with their time per step. --step-seconds prints only the mean step time of
the first rank. Exits 2 if there is no trace.
"""

import json
import pathlib
import sys


def union(spans):
    """Spans [begin, end) in order, without overlaps."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def length(spans):
    return sum(end - begin for begin, end in spans)


def outside(spans, others):
    """The time of `spans` not covered by `others`; both are unions."""
    return length(union(spans + others)) - length(others)


def spans_of(trace, *kinds):
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    return [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in kinds]


def whole_time(trace):
    """Microseconds from the first to the last work of the traced steps."""
    work = spans_of(trace, "communication", "kernel", "copy")
    return max(end for _, end in work) - min(begin for begin, _ in work) if work else 0


def step_seconds(trace):
    about = trace["primus"]
    return whole_time(trace) / 1e6 / (about["last_step"] - about["first_step"] + 1)


def kernel_lines(trace):
    """The time of each kernel per step, longest first."""
    about, kinds = trace["primus"], {}
    steps = about["last_step"] - about["first_step"] + 1
    for e in trace["traceEvents"]:
        if e.get("ph") == "X" and e.get("cat") in ("kernel", "copy"):
            of_kind = kinds.setdefault(e["name"] if e["cat"] == "kernel" else "copy", [0, 0.0])
            of_kind[0] += 1
            of_kind[1] += e["dur"]
    return [
        f"  {name}: {count / steps:.0f} calls, {time / 1000 / steps:.2f} ms of a step"
        for name, (count, time) in sorted(kinds.items(), key=lambda kind: -kind[1][1])
    ]


def report(trace, calls):
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X"]

    def spans(*kinds):
        return spans_of(trace, *kinds)

    whole = whole_time(trace)
    if whole == 0:
        return ["no work in the trace"]
    work, collectives = union(spans("kernel")), union(spans("communication"))
    about = trace["primus"]
    lines = [
        f"rank {about['rank']}, steps {about['first_step']} to {about['last_step']}: exposed communication "
        f"{100 * outside(collectives, work) / whole:.1f} % of {whole / 1000:.1f} ms, collectives in all "
        f"{100 * length(collectives) / whole:.1f} %, kernels {100 * length(work) / whole:.1f} %"
    ]
    if calls:
        kinds = {}
        for e in events:
            if e.get("cat") == "communication":
                of = (e["name"], e.get("args", {}).get("group", ""))
                kinds.setdefault(of, []).append((e["ts"], e["ts"] + e["dur"]))
        for (name, group), of_kind in sorted(kinds.items()):
            merged = union(of_kind)
            lines.append(
                f"  {name} of {group}: {len(of_kind)} calls, {length(merged) / 1000:.1f} ms, "
                f"{outside(merged, work) / 1000:.1f} ms of it exposed"
            )
    return lines


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    known = ("--calls", "--kernels", "--step-seconds")
    unknown = [a for a in sys.argv[1:] if a.startswith("-") and a not in known]
    if len(names) != 1 or unknown:
        print(__doc__, file=sys.stderr)
        return 0 if unknown in (["-h"], ["--help"]) else 2
    files = sorted(pathlib.Path(names[0]).glob("traces/*/rank-*.json"))
    if not files:
        print(f"{names[0]} has no traces: train with profile=true", file=sys.stderr)
        return 2
    if "--step-seconds" in sys.argv:
        print(f"{step_seconds(json.loads(files[0].read_text())):.6f}")
        return 0
    for file in files:
        trace = json.loads(file.read_text())
        lines = report(trace, "--calls" in sys.argv)
        for line in lines + (kernel_lines(trace) if "--kernels" in sys.argv else []):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
