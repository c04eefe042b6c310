#!/usr/bin/env python3
"""Renders the experiments that AMD Primus publishes for each framework, and lets the frameworks read the
result.

    scripts/check-backends.py PRIMUS [--megatron DIR] [--torchtitan DIR] [--maxtext DIR] [--python PYTHON]
                              [--primus build/bin/primus] [--only NAME] [--own-presets] [--list]

PRIMUS is a checkout of github.com/AMD-AGI/Primus; the others are checkouts at the commits of
presets/backends/pins.yaml. PYTHON has the packages that their settings import: PyTorch for Megatron-LM and
TorchTitan, JAX for MaxText. For a framework without a checkout, experiments are only rendered. Each
experiment is
  rendered   'primus train pretrain --dry-run' printed a command, or refused a feature that the framework lacks
  accepted   Megatron-LM: by its argument parser and its validate_args; TorchTitan: by its ConfigManager; MaxText: by its pyconfig
  native     'primus config validate' with framework=native accepted it
Experiments for Megatron-Bridge are only read natively, because Primus does not start Megatron-Bridge. In their row,
"refused by name" counts the refusals of the native engine.
Exit code: 0 if each refusal is for a known reason and all rendered experiments were accepted.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

# Each driver reads a list of jobs from standard input and prints a list of errors ("" means none).
DRIVERS = {
    "megatron": r"""
import argparse, json, os, sys
sys.path.insert(0, sys.argv[1])
import torch
class Device:
    major, minor, total_memory, multi_processor_count, name = 9, 0, 80 << 30, 132, "none"
torch.cuda.get_device_properties = lambda *a: Device
torch.cuda.get_device_capability = lambda *a: (9, 0)
from megatron.training.arguments import add_megatron_arguments, validate_args
results = []
for job in json.load(sys.stdin):
    try:
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        os.environ.update(job["environment"])
        parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
        add_megatron_arguments(parser)
        def fail(message):
            raise ValueError(message)
        parser.error = fail
        args = parser.parse_args(job["arguments"])
        model = args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size
        experts = (args.expert_tensor_parallel_size or 1) * args.expert_model_parallel_size * args.pipeline_model_parallel_size
        world = model
        while world % 8 or world % experts:
            world += model
        args.rank, args.local_rank, args.world_size = 0, 0, world
        validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
        results.append("")
    except BaseException as error:
        results.append(f"{type(error).__name__}: {str(error)[:300]}")
json.dump(results, sys.__stdout__)
""",
    "torchtitan": r"""
import json, os, sys, types
root = sys.argv[1]
for name, path in (("torchtitan", root + "/torchtitan"), ("torchtitan.config", root + "/torchtitan/config")):
    module = types.ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module
from torchtitan.config.manager import ConfigManager
results = []
for job in json.load(sys.stdin):
    try:
        with open("check.toml", "w") as file:
            file.write(job["file"])
        ConfigManager().parse_args(["--job.config_file", "check.toml"])
        results.append("")
    except BaseException as error:
        results.append(f"{type(error).__name__}: {str(error)[:300]}")
json.dump(results, sys.__stdout__)
""",
    "maxtext": r"""
import json, os, sys
sys.path.insert(0, sys.argv[1] + "/src")
import jax
devices = jax.devices() * 8
for name in ("devices", "local_devices"):
    setattr(jax, name, lambda *a, **k: devices)
for name in ("device_count", "local_device_count"):
    setattr(jax, name, lambda *a, **k: 8)
from maxtext.configs import pyconfig
results = []
for job in json.load(sys.stdin):
    try:
        with open("check.yml", "w") as file:
            file.write(job["file"])
        pyconfig.initialize(["train", os.path.abspath("check.yml"), "skip_jax_distributed_system=true"])
        results.append("")
    except BaseException as error:
        results.append(f"{type(error).__name__}: {str(error)[:300]}")
json.dump(results, sys.__stdout__)
""",
}


# A framework whose experiments the native engine runs.
NATIVE_ONLY = "megatron_bridge"


def call(words, env, **options):
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=1800, **options)
    return done.returncode, done.stdout, done.stderr


def render(primus, path, env):
    code, out, err = call([primus, "train", "pretrain", "--config", str(path), "--dry-run", "--json", "--nproc", "8"], env)
    try:
        result = json.loads(out)
    except ValueError:
        return None, [("failure", f"exit code {code}: {err.strip()[-300:]}")]
    if "command" in result:
        return result, []
    # The result has a single problem or a list of problems.
    problems = result.get("problems", [result])
    return None, [(p.get("kind", "?"), p.get("error", "?")) for p in problems]


def native(primus, path, env):
    code, out, err = call([primus, "config", "validate", "--config", str(path), "--json", "framework=native"], env)
    try:
        verdict = json.loads(out)
    except ValueError:
        return [("failure", f"exit code {code}: {err.strip()[-300:]}")]
    return [] if verdict["valid"] else [(p["kind"], p["error"]) for p in verdict["problems"]]


def experiments_of(checkout, framework):
    """The experiments, which have a module with this framework. The folders also contain launcher settings."""
    return [p for p in sorted((checkout / "examples" / framework / "configs").rglob("*.yaml"))
            if f"framework: {framework}" in p.read_text()]


def read_natively(primus, checkout, framework, env):
    """Prints the row of a framework that Primus does not start. Returns notes, and whether a refusal has no known
    reason."""
    paths = experiments_of(checkout, framework)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda p: native(primus, p, env), paths))
    accepted = sum(not problems for problems in results)
    named = sum(bool(problems) and all(kind == "unsupported" for kind, _ in problems) for problems in results)
    other = len(paths) - accepted - named
    print(f"| {framework} | {len(paths)} | - | {named} | {other} | - | {accepted} |")
    notes = [f"{framework} {path.parent.name}/{path.name}: {kind}: {text}"
             for path, problems in zip(paths, results) for kind, text in problems]
    return notes, other > 0


def read_by(framework, checkout, python, jobs, folder):
    env = dict(os.environ, JAX_PLATFORMS="cpu")
    done = subprocess.run([python, "-c", DRIVERS[framework], str(checkout.resolve())], input=json.dumps(jobs), text=True,
                          capture_output=True, env=env, cwd=folder, timeout=3600)
    text = done.stdout[done.stdout.rfind('["') if '["' in done.stdout else done.stdout.rfind("[") :]
    try:
        return json.loads(text)
    except ValueError:
        sys.exit(f"{framework}: its reader failed: {done.stderr[-1500:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=pathlib.Path)
    for framework in DRIVERS:
        parser.add_argument(f"--{framework}", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", choices=[*DRIVERS, NATIVE_ONLY], help="only this framework")
    parser.add_argument("--primus", default=str(pathlib.Path(__file__).resolve().parent.parent / "build/bin/primus"))
    parser.add_argument("--own-presets", action="store_true", help="with the presets of the checkout")
    parser.add_argument("--list", action="store_true", help="print the refused experiments and the reasons")
    args = parser.parse_args()
    env = dict(os.environ)
    if args.own_presets:
        env["PRIMUS_PRESETS"] = str((args.checkout / "primus/configs").resolve())
    failed = False
    print("| framework | experiments | rendered | refused by name | other | accepted there | native |")
    print("|---|---|---|---|---|---|---|")
    notes = []
    for framework in [args.only] if args.only else [*DRIVERS, NATIVE_ONLY]:
        if framework == NATIVE_ONLY:
            more, bad = read_natively(args.primus, args.checkout, framework, env)
            notes += more
            failed |= bad
            continue
        paths = experiments_of(args.checkout, framework)
        with ThreadPoolExecutor(2) as pool:
            rendered = list(pool.map(lambda p: render(args.primus, p, env), paths))
            natives = list(pool.map(lambda p: native(args.primus, p, env), paths))
        counts = collections.Counter()
        jobs = []
        for path, (job, problems), own in zip(paths, rendered, natives):
            # This script provides no data for post-training, so the error "there is no data" is expected.
            named = bool(problems) and all(kind == "unsupported" or "there is no data" in text for kind, text in problems)
            counts["rendered" if job else "named" if named else "other"] += 1
            counts["native"] += not own
            notes += [f"{framework} {path.parent.name}/{path.name}: {kind}: {text}" for kind, text in problems]
            if job:
                command = job["command"]
                # The arguments follow -m, or Megatron-LM's program, which may follow with_parts.py.
                start = max(i for i, word in enumerate(command[:5]) if word.endswith(".py") or word == "-m") + 1
                jobs.append({"path": path, "arguments": command[start:], "environment": job["environment"],
                             "file": next(iter(job["files"].values()), "")})
        checkout = getattr(args, framework)
        accepted = "not read"
        if checkout:
            folder = pathlib.Path(os.environ.get("TMPDIR", "/tmp"))
            errors = read_by(framework, checkout, args.python, [dict(j, path=str(j["path"])) for j in jobs], folder)
            accepted = sum(not error for error in errors)
            failed |= accepted < len(jobs)
            notes += [f"{framework} {j['path'].parent.name}/{j['path'].name}: THERE: {e}" for j, e in zip(jobs, errors) if e]
        failed |= counts["other"] > 0
        print(f"| {framework} | {len(paths)} | {counts['rendered']} | {counts['named']} | {counts['other']} | {accepted} | "
              f"{counts['native']} |")
    if args.list:
        print("\n".join(notes))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
