#!/usr/bin/env python3
"""The table of mixtures of experts in docs/performance.md: aims, predictions and results.

  scripts/mixture_table.py table [--parts "PART..."] [FILE]...     prints the table, or its rows of these parts, with the
                                               results of these files of JSON lines (benchmarks/mixtures/results.jsonl
                                               by default); exits 1 if a result is missing
  scripts/mixture_table.py record FILE ROW KIND REPORT     adds the result in the file REPORT to FILE
  scripts/mixture_table.py update              writes the table into docs/performance.md
  scripts/mixture_table.py check               exits 1 if docs/performance.md has another table
  scripts/mixture_table.py predictions         prints each prediction with its arithmetic

benchmarks/mixtures/rows.toml has the rows: aims, the last measurements before, and predictions with their arithmetic, which
were written before the run. scripts/gpu_mixtures.sh measures, and results.jsonl has its newest run. KIND is

  machine        the GPU and its driver           failed         the log of a program that failed
  train          benchmark train --json           peer           torch_moe.py
  forecast       train --dry-run --json           decode         benchmark decode --json
  peer_decode    transformers_generate.py         bench          gpu_bench --json
  peer_delta     fla_delta_rule.py                mesh           a mesh of gpu_ranks.sh
  experiments    check-upstream-experiments.py --hardware --record

A later result of a value replaces an earlier one. Exits 2 if a file cannot be read.
"""
import datetime
import json
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = ROOT / "benchmarks/mixtures/rows.toml"
RESULTS = ROOT / "benchmarks/mixtures/results.jsonl"
DOCUMENT = ROOT / "docs/performance.md"
BEGIN, END = "<!-- scripts/mixture_table.py update: begin -->\n", "<!-- end -->\n"
GIB = 2**30


class Unusable(Exception):
    """A file or an argument that cannot be used."""


class Failed(str):
    """Why a value is missing."""


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip()[:160] if lines else "no output"


def reason_of(log):
    if re.search(r"out of memory|OutOfMemory|\bOOM\b|do(es)? not fit", log, re.I):
        return "out of memory"
    if "not started: the time" in log:
        return "no time was left"
    stopped = re.search(r"stopped after \d+ s", log)
    return stopped[0] if stopped else last_line(log)


def parsed(kind, text):
    """The part of a report that the table needs. A report that cannot be read is a failure."""
    if kind == "machine":
        return {"machine": last_line(text)}
    if kind == "failed":
        return {"failed": reason_of(text)}
    if kind == "peer":
        found = re.search(r": (\d+) tok/s ([\d.]+) TFLOP/s mem ([\d.]+)", text)
        return {"rate": float(found[1]), "gib": float(found[3])} if found else {"failed": reason_of(text)}
    if kind == "peer_decode":
        rates = {batch: float(rate) for batch, rate in re.findall(r"batch (\d+) .*?([\d.]+) tokens/s", text)}
        failures = {batch: reason_of(why) for batch, why in re.findall(r"batch (\d+): failed: (.*)", text)}
        return {"rates": rates, "failures": failures, "failed": "" if rates or failures else reason_of(text)}
    if kind == "peer_delta":
        times = {name: float(time) for name, time in re.findall(r"PEER fla (\w+): forward ([\d.]+) ms", text)}
        return {"milliseconds": times, "failed": "" if len(times) == 2 else reason_of(text)}
    if kind == "bench":
        return {"operators": [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]}
    try:
        report = json.loads(text)
        if kind == "train":
            memory = report["memory_bytes"]
            return {"rate": report["tokens_per_second"], "flops": report["model_flops_per_second"],
                    "composed": report["ceiling"]["share"], "parameters": report["parameters"],
                    "planned": memory["persistent"] + memory["stash"] + memory["scratch"], "used": memory["device_used"]}
        if kind == "forecast":
            return {"total": report["memory_bytes"]["total"] + report["memory_bytes"]["program"]}
        if kind == "decode":
            wanted = ("case", "tokens_per_second", "share_of_copy_ceiling", "share_of_composed")
            return {"results": [{key: r[key] for key in wanted if key in r} for r in report["results"]]}
        if kind in ("mesh", "experiments"):
            return report
    except (ValueError, KeyError, TypeError) as error:
        return {"failed": f"the report cannot be read: {error!r}"[:160]}
    raise Unusable(f"no kind is called '{kind}'; kinds: see --help")


def record(file, row, kind, report):
    line = {"row": row, "kind": kind, "at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            **parsed(kind, pathlib.Path(report).read_text(errors="replace"))}
    with open(file, "a") as out:
        out.write(json.dumps(line) + "\n")


def operators_of(lines):
    """Values of gpu_bench. The dense products that follow a group of experts have the same number of operations."""
    values, group, rates = {}, "", {}
    for line in lines:
        name, rate = line["operator"], line["rate"]
        # "delta rule, 64 x 1 token, ..." is decoding.
        if found := re.fullmatch(r"delta rule( backward)?, [\d/]+ heads of \d+(, by channel)?, bf16", name):
            values[f"delta:{'channel' if found[2] else 'head'}:{'backward' if found[1] else 'forward'}"] = line["microseconds"] / 1000
        elif found := re.fullmatch(r"(\d+ experts, top \d+(?:, down)?), even, (.*)", name):
            group = found[1]
            rates[found[2]] = rate
        elif found := re.fullmatch(r"dense (?:.*, )?(y|d_x|d_W|d_W in bf16)", name):
            if found[1] in rates:
                key = group.replace(" experts, top ", "/").replace(", ", "-")
                values[f"experts:{key}:{found[1]}"] = 100 * rates.pop(found[1]) / rate
        elif found := re.fullmatch(r"router (\d+) x (\d+), (\w+)", name):
            values[f"experts:router-{found[1]}x{found[2]}:{found[3]}"] = line["microseconds"]
    for gates in ("head", "channel"):
        forward, backward = (values.get(f"delta:{gates}:{way}") for way in ("forward", "backward"))
        if forward and backward:
            values[f"delta:{gates}:backward_over_forward"] = backward / forward
    return values


def values_of(records):
    """Every measured value by its key ROW:..., and the reasons of missing values by the beginning of their keys."""
    values, failures, ours, peers = {}, {}, {}, {}
    for r in records:
        row, kind = r["row"], r["kind"]
        if r.get("failed"):
            beginning = {"peer": f"{row}:peer", "peer_decode": f"{row}:peer", "peer_delta": f"{row}:peer",
                         "forecast": f"{row}:forecast"}.get(kind, row)
            failures[beginning] = Failed(r["failed"] if kind in ("failed", "train", "decode", "mesh") else f"peer: {r['failed']}")
        elif kind == "train":
            ours[row] = r
            values[f"{row}:rate"] = r["rate"]
            values[f"{row}:composed"] = 100 * r["composed"]
        elif kind == "peer":
            peers[row] = r
        elif kind == "forecast" and row in ours:
            values[f"{row}:forecast"] = ours[row]["used"] / r["total"]
        elif kind == "decode":
            for result in r["results"]:
                what = re.fullmatch(r"batch (\d+), (context|reading) (\d+)", result["case"])
                if what and what[2] == "context" and "share_of_copy_ceiling" in result:
                    values[f"{row}:copy:{what[1]}"] = 100 * result["share_of_copy_ceiling"]
                    ours[f"{row}:{what[1]}"] = result
                elif what and "share_of_composed" in result:
                    values[f"{row}:composed"] = 100 * result["share_of_composed"]
        elif kind == "peer_decode":
            for batch, rate in r["rates"].items():
                peers[f"{row}:{batch}"] = {"rate": rate}
            for batch, why in r["failures"].items():
                failures[f"{row}:peer:{batch}"] = Failed(f"peer: {why}")
        elif kind == "peer_delta":
            peers |= {f"delta:{gates}": time for gates, time in r["milliseconds"].items()}
        elif kind == "bench":
            values |= operators_of(r["operators"])
        elif kind == "mesh":
            values[f"{row}:rate"] = r["rate"] / r["beside"]
            values[f"{row}:memory"] = r["memory_used"] / r["equal_shares"]
            if r["bytes_per_step"] > 0:
                values[f"{row}:bytes"] = r["bytes_per_step"] / r["row_bytes_per_step"]
        elif kind == "experiments":
            values |= {f"{row}:{key}": r[key] for key in ("fit", "fit_without_fp8")}
    for row, peer in peers.items():
        if row.startswith("delta:"):
            if forward := values.get(f"{row}:forward"):
                values[f"delta:peer:{row[6:]}"] = peer / forward
        elif ":" in row and row in ours:
            model, batch = row.split(":")
            values[f"{model}:peer:{batch}"] = ours[row]["tokens_per_second"] / peer["rate"]
        elif row in ours:
            values[f"{row}:peer:rate"] = ours[row]["rate"] / peer["rate"]
            # Primus keeps 16 more bits per weight, which make the master weight exact in fp32.
            values[f"{row}:peer:memory"] = (ours[row]["planned"] - 2 * ours[row]["parameters"]) / GIB / peer["gib"]
    return values, failures


def measured(key, values, failures):
    """The value, or why it is missing."""
    if key in values:
        return values[key]
    parts = key.split(":")
    for length in range(len(parts), 0, -1):
        if (beginning := ":".join(parts[:length])) in failures:
            return failures[beginning]
    return None


def met(row, value):
    aim = row["aim"]
    if row["sense"] == "within":
        return abs(value - 1) <= aim
    return value >= aim if row["sense"] == "at least" else value <= aim


def number(row, value):
    return f"{value:.{row['digits']}f}"


def aim_of(row):
    unit = row.get("unit", "")
    if row["sense"] == "within":
        return f"1 within {100 * row['aim']:.0f} %"
    return f"{row['sense']} {row['aim']:g}{unit}"


def joined(texts, unit):
    """Texts separated by commas, with the unit after the last number. If all are equal, only one."""
    if len(set(texts)) == 1:
        texts = texts[:1]
    last = max((i for i, text in enumerate(texts) if text[0].isdigit()), default=-1)
    return ", ".join(text + unit if i == last else text for i, text in enumerate(texts))


def table(rows, records):
    """The lines of the table, and the number of missing values."""
    values, failures = values_of(records)
    machines, machine_of, machine = [], {}, ""
    for r in records:
        if r["kind"] == "machine":
            machine = f"{r['machine']}, {r['at'][:10]}"
            machines.append(machine)
        elif r["kind"] != "experiments":  # these are plans, which need no GPU
            machine_of[r["row"]] = machine
    machines = list(dict.fromkeys(machines))
    where = "; ".join(machines) or "not run on a GPU"
    # With results of several machines, a column names the machine of a row by its place in the list.
    if len(machines) > 1:
        where = "; ".join(f"[{i}] {m}" for i, m in enumerate(machines, 1))
    on, line = ("GPU | ", "---|") if len(machines) > 1 else ("", "")
    lines = [f"GPU and driver: {where}.", "", f"| work | aim | {on}before | predicted | result | aim met or missed |", f"|---|---|{line}---|---|---|---|"]
    missing = 0
    for row in rows:
        results, misses, reasons = [], [], {}
        for cell in row["cells"]:
            value = measured(cell["value"], values, failures)
            if value is None or isinstance(value, Failed):
                missing += 1
                results.append("not run" if value is None else "none")
                if value:
                    reasons.setdefault(value, []).append(cell["name"])
                continue
            results.append(number(row, value))
            if not met(row, value):
                misses.append(cell["name"])
        all_run = len([r for r in results if r not in ("not run", "none")]) == len(results)
        verdict = ("missed" + (f": {', '.join(misses)}" if len(row["cells"]) > len(misses) else "") if misses
                   else "met" if all_run else "")
        because = [why if len(of) == len(row["cells"]) else f"{', '.join(of)}: {why}" for why, of in reasons.items()]
        verdict = "; ".join(text for text in (verdict, *because) if text)
        before, predicted = ([f"{c[key]:g}" if key in c else "none" for c in row["cells"]] for key in ("before", "predicted"))
        names = ", ".join(c["name"] for c in row["cells"] if c["name"])
        shown = [joined(texts, row.get("unit", "")) for texts in (before, predicted, results)]
        if len(machines) > 1:
            places = {machines.index(m) + 1 for c in row["cells"] if (m := machine_of.get(c["value"].split(":")[0]))}
            shown.insert(0, ", ".join(f"[{place}]" for place in sorted(places)))
        lines.append(f"| {row['work']}{': ' if names else ''}{names} | {aim_of(row)} | {' | '.join(shown)} | {verdict.replace('|', '/')} |")
    return lines, missing


def read_rows(path=ROWS):
    rows = tomllib.loads(path.read_text())["rows"]
    for row in rows:
        for key in ("part", "work", "aim", "sense", "digits", "why", "cells"):
            if key not in row:
                raise Unusable(f"{path}: the row '{row.get('work', '?')}' has no '{key}'")
        if row["sense"] not in ("at least", "at most", "within"):
            raise Unusable(f"{path}: the row '{row['work']}' has sense '{row['sense']}' instead of at least, at most or within")
        for cell in row["cells"]:
            if "value" not in cell or "name" not in cell:
                raise Unusable(f"{path}: a cell of the row '{row['work']}' lacks a name or a value")
    return rows


def read_records(paths):
    records = []
    for path in paths:
        for number_of_line, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
            try:
                records.append(json.loads(line))
                records[-1]["row"], records[-1]["kind"], records[-1]["at"]
            except (ValueError, KeyError, TypeError):
                # A run that was cut off may leave a part of its last line.
                print(f"{path}:{number_of_line}: ignored, because it is no complete result", file=sys.stderr)
                records = [r for r in records if isinstance(r, dict) and {"row", "kind", "at"} <= r.keys()]
    return records


def documented(text, path):
    try:
        begin = text.index(BEGIN) + len(BEGIN)
        return begin, text.index(END, begin)
    except ValueError:
        raise Unusable(f"{path} has no place for the table: the lines {BEGIN.strip()} and {END.strip()}") from None


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    command, rest = arguments[0], arguments[1:]
    if command == "record" and len(rest) == 4:
        record(*rest)
        return 0
    if command == "predictions" and not rest:
        for row in read_rows():
            print(f"{row['work']}: " + ", ".join(f"{c['name']} {c.get('predicted', 'none')}".strip() for c in row["cells"]))
            print("  " + row["why"].strip().replace("\n", "\n  "))
        return 0
    if command not in ("table", "update", "check") or (rest and command != "table"):
        print(__doc__, file=sys.stderr)
        return 2
    rows = read_rows()
    if rest[:1] == ["--parts"]:
        parts = set(rest[1].split()) if len(rest) > 1 else set()
        if not parts or parts - {row["part"] for row in rows}:
            raise Unusable(f"--parts takes some of: {' '.join(dict.fromkeys(row['part'] for row in rows))}")
        rows, rest = [row for row in rows if row["part"] in parts], rest[2:]
    lines, missing = table(rows, read_records(rest or [RESULTS]))
    if command == "table":
        print("\n".join(lines))
        if missing:
            print(f"{missing} values are missing", file=sys.stderr)
        return 1 if missing else 0
    text = DOCUMENT.read_text()
    begin, end = documented(text, DOCUMENT)
    new = text[:begin] + "\n" + "\n".join(lines) + "\n\n" + text[end:]
    if command == "update":
        DOCUMENT.write_text(new)
    elif text != new:
        print(f"{DOCUMENT} differs from benchmarks/mixtures: run scripts/mixture_table.py update", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except (Unusable, OSError) as problem:
        print(f"mixture_table.py: {problem}", file=sys.stderr)
        code = 2
    sys.exit(code)
