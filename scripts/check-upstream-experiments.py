#!/usr/bin/env python3
"""Validates the experiments that AMD Primus publishes with this program, and prints the outcome for each kind
of them.

    scripts/check-upstream-experiments.py PATH [--primus build/bin/primus] [--list] [--dry-run] [--meshes] [--hardware]
        [--own-presets] [--match TEXT]

PATH is a checkout of github.com/AMD-AGI/Primus. Each experiment is validated
  as it is         for the engine that it is written for
  native           with framework=native
  native, reduced  with framework=native, fp8 and fp4 off, and parallel sizes of 1
A refusal counts as "a feature to come" if every problem is a value, a model or an engine that is reported as
not supported yet, and as "other" otherwise: an unknown key, a missing preset, a syntax error. --list prints
the problems of each file, --dry-run also plans a step of each reduced experiment, and --own-presets repeats
everything with PRIMUS_PRESETS set to the presets of PATH. --meshes instead plans a step of each Megatron
experiment whose layers, sequences or experts are divided over ranks, natively and otherwise unchanged, on the
smallest sufficient number of 8, 16, ... 1024 ranks. --hardware plans each Megatron experiment natively on hosts with
eight of the GPUs that its folder is named after (MI300X, MI325X, MI355X), on the minimum number that its mesh
allows, and prints which of them fit, and what the others lack. With --record FILE, --hardware uses only the experiments
with the mixtures DeepSeek-V2-Lite, gpt-oss 20B, Qwen3-30B-A3B, Mixtral 8x7B and LFM2-8B-A1B, plans experiments with fp8
again with fp8=null if fp8 is refused, and adds both numbers of experiments that fit to FILE
(scripts/mixture_table.py). --match TEXT uses only files with this text in
their path. Exit code: 0 if each refusal is for a known reason, 1 otherwise.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

REDUCED = [
    "framework=native", "fp8=null", "fp4=null", "tensor_model_parallel_size=1", "pipeline_model_parallel_size=1",
    "context_parallel_size=1", "expert_model_parallel_size=1", "expert_tensor_parallel_size=null",
    "virtual_pipeline_model_parallel_size=null", "num_layers_per_virtual_pipeline_stage=null",
    "pipeline_model_parallel_layout=null",
]
MODES = {"as it is": [], "native": ["framework=native"], "native, reduced": REDUCED}


def experiments(root):
    """(engine, file) of every experiment below examples/ and tests/."""
    found = []
    for folder in ("examples", "tests"):
        for path in sorted((root / folder).rglob("*.yaml")):
            text = path.read_text(errors="replace")
            engine = re.search(r"^\s+framework:\s*([a-z_]+)", text, re.M)
            if re.search(r"^modules:", text, re.M) and engine:
                found.append((engine.group(1), path))
    return found


def run(primus, words, env):
    done = subprocess.run([primus] + words, capture_output=True, text=True, env=env, timeout=600)
    return done.returncode, done.stdout, done.stderr


def validate(primus, path, overrides, env):
    """The outcome, and the problems as (kind, message)."""
    code, out, err = run(primus, ["config", "validate", "--config", str(path), "--json"] + overrides, env)
    try:
        verdict = json.loads(out)
    except ValueError:
        return "other", [("failure", f"exit code {code}: {err.strip()[:200]}")]
    if verdict["valid"]:
        return "accepted", []
    problems = [(p["kind"], f"{p['location'].split('/')[-1]}: {p['error']}") for p in verdict["problems"]]
    named = all(kind == "unsupported" for kind, _ in problems)
    return ("a feature to come" if named else "other"), problems


def table(title, rows):
    outcomes = ["accepted", "a feature to come", "other"]
    print(f"\n{title}\n| engine | files | mode | " + " | ".join(outcomes) + " |\n|---|---|---|---|---|---|")
    for (engine, mode), counts in rows.items():
        print(f"| {engine} | {sum(counts.values())} | {mode} | " + " | ".join(str(counts[o]) for o in outcomes) + " |")


def is_planned(code, err):
    """Returns whether a dry run printed a plan. Exit code 1 without an error means that the run does not fit."""
    return code == 0 or (code == 1 and "error:" not in err)


def plan_meshes(args, found):
    """Prints the number of multi-rank experiments that dry-run natively, and why others do not."""
    axes = "tensor_model", "pipeline_model", "context", "expert_model"
    asked, planned, reasons = collections.Counter(), collections.Counter(), collections.Counter()
    worlds = [8 << i for i in range(8)]

    def plan(path):
        env = dict(os.environ, PRIMUS_TOKENIZED_DATA_PATH=os.environ.get("PRIMUS_TOKENIZED_DATA_PATH", "data"))
        for world in worlds:
            code, _, err = run(args.primus, ["train", "pretrain", "--config", str(path), "--framework", "native",
                                             "--dry-run", "--world", str(world)], env)
            if is_planned(code, err):
                return world, ""
        return None, err

    paths, axes_of = [], {}
    for engine, path in found:
        if engine != "megatron" or "examples" not in path.parts:
            continue
        own = [axis for axis in axes
               if re.search(rf"^\s+{axis}_parallel_size:\s*(\$\{{\w+:)?([2-9]|1\d)", path.read_text(), re.M)]
        if own:
            paths.append(path)
            axes_of[path] = own
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for path, (world, err) in zip(paths, pool.map(plan, paths)):
            for axis in axes_of[path] + ["any"]:
                asked[axis] += 1
                planned[axis] += world is not None
            if world is None:
                problems = {p for p in re.findall(r"error: (.*)", err) if not p.startswith("the settings have ")}
                reasons.update(problems or {err.strip()[-200:]})
            if args.list:
                print(f"{path.relative_to(args.path)} | {world or 'refused: ' + err.strip()[:300]}")
    print("| shared | files | dry-run natively |\n|---|---|---|")
    for axis in [*axes, "any"]:
        print(f"| {axis} | {asked[axis]} | {planned[axis]} |")
    print("\n| files | refused, perhaps among other things, because |\n|---|---|")
    for reason, count in reasons.most_common():
        print(f"| {count} | {reason} |")


GIB = 1 << 30


def plan_on_hosts(primus, path, overrides=()):
    """(GPU, ranks, forecast or None, error) of an experiment on the minimum sufficient number of hosts with
    eight GPUs."""
    gpu = next((part for part in path.parts if re.fullmatch(r"MI\d+X?", part)), "MI300X").rstrip("X") + "X"
    env = dict(os.environ, PRIMUS_TOKENIZED_DATA_PATH=os.environ.get("PRIMUS_TOKENIZED_DATA_PATH", "data"))
    command = "posttrain" if re.search(r"^\s+post_trainer:", path.read_text(errors="replace"), re.M) else "pretrain"
    first = ""
    for world in (8, 16, 32, 64, 128, 256, 512, 1024):
        _, out, err = run(primus, ["train", command, "--config", str(path), "--framework", "native", "--dry-run",
                                   "--json", "--hardware", gpu.lower(), "--world", str(world), *overrides], env)
        answer = json.loads(out) if out.startswith("{") else {}
        if "memory_bytes" in answer:
            return gpu, world, answer, err
        if "error" in answer:  # with --json, standard output also contains errors
            err = f"error: {answer['error']}\n{err}"
        first = first or err
        if "does not divide" not in err and "global_batch_size" not in err:
            break
    return gpu, 0, None, first


def plan_hardware(args, found):
    """Prints which experiments fit on hosts with the GPUs that they are written for."""
    paths = [path for engine, path in found if engine == "megatron" and "examples" in path.parts]
    counts = collections.defaultdict(collections.Counter)
    lacking, refused = [], collections.Counter()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        results = pool.map(lambda path: plan_on_hosts(args.primus, path), paths)
        for path, (gpu, world, forecast, err) in zip(paths, results):
            name = path.relative_to(args.path / "examples")
            if forecast is None:
                problems = [p for p in re.findall(r"error: (.*)", err) if not p.startswith("the settings have ")]
                refused[(problems or [err.strip()[-120:]])[0][:150]] += 1
                continue
            memory, mesh = forecast["memory_bytes"], forecast["mesh"]
            kind = ("one host" if world == 8 else "several hosts") + (
                ", experts over ranks" if mesh["expert"] * mesh["expert_tensor"] > 1 else "")
            room = forecast["hardware"]["memory_bytes"]["for_the_run"]
            need = memory["persistent"] + memory["stash"] + memory["scratch"]
            expected = memory.get("device_with_equal_shares_of_experts", need)
            verdict = ("fits" if memory["fits"] else "fits with equal shares of experts" if expected <= room
                       else "does not fit")
            counts[kind][verdict] += 1
            if args.list or verdict != "fits":
                lacking.append(f"| {name} | {world} x {gpu} | {room / GIB:.0f} | {need / GIB:.0f} | {expected / GIB:.0f} | {verdict} |")
    verdicts = ["fits", "fits with equal shares of experts", "does not fit"]
    print("| | planned | " + " | ".join(verdicts) + " |\n|---|---|---|---|---|")
    for kind, row in sorted(counts.items()):
        print(f"| {kind} | {sum(row.values())} | " + " | ".join(str(row[v]) for v in verdicts) + " |")
    print("\n| experiment | GPUs | GiB for the run | GiB needed | GiB with equal shares | |\n|---|---|---|---|---|---|")
    print("\n".join(lacking))
    print("\n| files | not planned, because |\n|---|---|")
    for reason, count in refused.most_common():
        print(f"| {count} | {reason} |")


MIXTURES = re.compile("deepseek_v2_lite|gpt_oss_20b|qwen3_30b_a3b|mixtral_8x7b|lfm2_8b", re.I)


def record_mixtures(args, found):
    """Counts the experiments with mixtures that fit, as published and without fp8, and adds the numbers to a file."""
    paths = [path for engine, path in found
             if engine == "megatron" and "examples" in path.parts and MIXTURES.search(path.name)]

    def plan(path):
        published = plan_on_hosts(args.primus, path)[2]
        in_bf16 = published or plan_on_hosts(args.primus, path, ["fp8=null"])[2]
        return [bool(forecast and forecast["memory_bytes"]["fits"]) for forecast in (published, in_bf16)]

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        fits = list(pool.map(plan, paths))
    for path, (published, in_bf16) in zip(paths, fits):
        if not published:
            print(f"{path.relative_to(args.path)}: " + ("fits only with fp8=null" if in_bf16 else "does not fit, or is refused"))
    numbers = {"of": len(paths), "fit": sum(p for p, _ in fits), "fit_without_fp8": sum(b for _, b in fits)}
    print(f"of {numbers['of']} experiments, {numbers['fit']} fit, and {numbers['fit_without_fp8']} with fp8=null if fp8 is refused")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as report:
        json.dump(numbers, report)
        report.flush()
        table = pathlib.Path(__file__).resolve().parent / "mixture_table.py"
        subprocess.run([sys.executable, table, "record", args.record, "experiments", "experiments", report.name], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--primus", default=str(pathlib.Path(__file__).resolve().parent.parent / "build/bin/primus"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--own-presets", action="store_true")
    parser.add_argument("--meshes", action="store_true")
    parser.add_argument("--hardware", action="store_true")
    parser.add_argument("--record", metavar="FILE", help="with --hardware: count only experiments with mixtures")
    parser.add_argument("--match", default="")
    args = parser.parse_args()
    if not (args.path / "examples").is_dir():
        sys.exit(f"{args.path} is no checkout of Primus: it has no folder examples")

    found = [(engine, path) for engine, path in experiments(args.path) if args.match in str(path)]
    if args.record and not args.hardware:
        parser.error("--record needs --hardware")
    if args.record:
        record_mixtures(args, found)
        return
    if args.hardware:
        plan_hardware(args, found)
        return
    if args.meshes:
        plan_meshes(args, found)
        return
    # Some experiments name their data only by a variable.
    environment = dict(os.environ)
    environment.setdefault("PRIMUS_TOKENIZED_DATA_PATH", "data")
    settings = [("With the presets of this program", environment)]
    if args.own_presets:
        settings.append(("With this project's presets", dict(environment, PRIMUS_PRESETS=str(args.path / "primus/configs"))))
    bad = 0
    for title, env in settings:
        rows = collections.OrderedDict()
        reasons = collections.Counter()
        accepted = []
        loads = collections.defaultdict(set)
        jobs = [(engine, path, mode) for engine, path in found for mode in MODES
                if mode == "as it is" or engine == "megatron"]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            results = pool.map(lambda job: validate(args.primus, job[1], MODES[job[2]], env), jobs)
            for (engine, path, mode), (outcome, problems) in zip(jobs, results):
                rows.setdefault((engine, mode), collections.Counter())[outcome] += 1
                if outcome == "accepted" and "examples" in path.parts:
                    loads[mode].add(path)
                if outcome == "accepted" and mode == "native, reduced":
                    accepted.append(path)
                bad += outcome == "other"
                for kind, message in {(k, re.sub(r"^[^ ]*: ", "", m)) for k, m in problems}:
                    reasons[(mode, kind, message)] += 1
                if args.list and outcome != "accepted":
                    for kind, message in problems:
                        print(f"{mode} | {path.relative_to(args.path)} | {kind} | {message}")
        table(title, rows)
        published = sum("examples" in path.parts for _, path in found)
        print(f"\nOf {published} files below examples/, {len(loads['as it is'])} load for the engine that they are written "
              f"for, {len(loads['native'])} of Megatron's natively, and {len(loads['as it is'] | loads['native'])} one way or "
              "the other.")
        print("\nWhat is refused most often\n| files | mode | kind | problem |\n|---|---|---|---|")
        for (mode, kind, message), count in reasons.most_common(40):
            print(f"| {count} | {mode} | {kind} | {message} |")
        if args.dry_run:
            failed = []
            # The presets of AMD Primus leave the vocabulary size to tokenizers that are not available here.
            vocabulary = ["vocab_size=131072"] if "PRIMUS_PRESETS" in env else []
            for path in accepted:
                code, _, err = run(args.primus, ["train", "pretrain", "--config", str(path), "--dry-run", "--json"]
                                   + REDUCED + ["mock_data=true"] + vocabulary, env)
                if not is_planned(code, err):
                    failed.append((path, " ".join(re.findall(r"error: (.*)", err)) or err.strip()))
            print(f"\n{len(accepted) - len(failed)} of {len(accepted)} reduced experiments dry-run natively")
            for path, err in failed:
                print(f"  {path.relative_to(args.path)}: {err[:300]}")
            bad += len(failed)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
