#!/usr/bin/env python3
"""Creates offline Weights & Biases runs from folders of Primus runs.

    pip install wandb
    wandb_offline.py [--project NAME] [--dir FOLDER] RUN...
    wandb sync FOLDER/wandb/offline-run-*

A run is read from its metrics.jsonl, which is not changed; training does not need wandb. The same folder
always gets the same run id. Project and name are the experiment's wandb_project and wandb_exp_name, or
work_group_user_name and exp_name, as in AMD Primus.
"""
import argparse
import hashlib
import json
import pathlib
import sys

try:
    import wandb
    import yaml
except ModuleNotFoundError as error:
    print(f"error: there is no Python module '{error.name}'\n  hint: pip install wandb", file=sys.stderr)
    sys.exit(2)


def lines_of(file):
    """The complete lines of a file that training may still be writing. Damaged lines are reported and
    skipped."""
    if not file.exists():
        return
    for number, text in enumerate(file.read_bytes().split(b"\n")[:-1], 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if isinstance(line, dict) and type(line.get("iteration")) is int and line["iteration"] >= 0:
            yield line
        else:
            print(f"warning: {file}:{number} is damaged, and is left out", file=sys.stderr)


def numbers_of(line, prefix=""):
    """Numbers by name. These files store NaN and infinities as strings."""
    named = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
    for key, value in line.items():
        value = named.get(value, value) if isinstance(value, str) else value
        if key != "iteration" and isinstance(value, (int, float)) and not isinstance(value, bool):
            yield prefix + key, value


def mapping(value):
    """Empty settings of an experiment are null."""
    return value if isinstance(value, dict) else {}


def make(folder, project, target):
    experiment = {}
    if (folder / "experiment.yaml").exists():
        try:
            experiment = mapping(yaml.safe_load((folder / "experiment.yaml").read_bytes()))
        except yaml.YAMLError as error:
            print(f"warning: {folder}/experiment.yaml is damaged, and is left out: {error}", file=sys.stderr)
    module = mapping(next(iter(mapping(experiment.get("modules")).values()), None))
    settings = mapping(module.get("overrides"))
    group, user = experiment.get("work_group", "primus"), experiment.get("user_name", "primus")
    steps = {}
    for line in lines_of(folder / "metrics.jsonl"):
        steps.setdefault(line["iteration"], {}).update(numbers_of(line))
    for line in lines_of(folder / "evaluations.jsonl"):
        steps.setdefault(line["iteration"], {}).update(numbers_of(line, f"{line.get('data_set')}/"))
    run = wandb.init(
        mode="offline",
        id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16],
        project=project or settings.get("wandb_project") or f"{group}_{user}",
        entity=settings.get("wandb_entity"),
        name=settings.get("wandb_exp_name") or experiment.get("exp_name", folder.name),
        config=settings,
        dir=target,
        settings=wandb.Settings(silent=True, x_disable_stats=True),
    )
    for iteration in sorted(steps):
        run.log(steps[iteration], step=iteration)
    print(f"{folder}: {len(steps)} steps in {pathlib.Path(run.dir).parent}")
    run.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", help="W&B project, instead of the experiment's")
    parser.add_argument("--dir", default=".", help="the folder in which wandb/ is created (default: the current one)")
    parser.add_argument("runs", nargs="+", metavar="RUN", type=pathlib.Path, help="folders of runs")
    arguments = parser.parse_args()
    for folder in arguments.runs:
        if not (folder / "metrics.jsonl").exists():
            parser.error(f"'{folder}' is no run: it has no metrics.jsonl")
        make(folder, arguments.project, arguments.dir)


if __name__ == "__main__":
    main()
