#!/usr/bin/env python3
"""Makes offline runs of Weights & Biases from folders of Primus runs.

    pip install wandb
    wandb_offline.py [--project NAME] [--dir FOLDER] RUN...
    wandb sync FOLDER/wandb/offline-run-*

The record of a run is its metrics.jsonl; nothing here touches it, and training needs no wandb. The same folder
always gets the same id. Project and name are the experiment's wandb_project and wandb_exp_name, or
work_group_user_name and exp_name, as in AMD's Primus.
"""
import argparse
import hashlib
import json
import pathlib

import wandb
import yaml


def lines_of(file):
    """The whole lines of a file that training may be writing."""
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def numbers_of(line, prefix=""):
    """Numbers by name. NaN and infinities are strings in these files."""
    named = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
    for key, value in line.items():
        value = named.get(value, value) if isinstance(value, str) else value
        if key != "iteration" and isinstance(value, (int, float)):
            yield prefix + key, value


def make(folder, project, target):
    experiment = {}
    if (folder / "experiment.yaml").exists():
        experiment = yaml.safe_load((folder / "experiment.yaml").read_text(encoding="utf-8"))
    modules = experiment.get("modules", {})
    settings = dict(next(iter(modules.values()), {}).get("overrides", {}))
    group, user = experiment.get("work_group", "primus"), experiment.get("user_name", "primus")
    steps = {}
    for line in lines_of(folder / "metrics.jsonl"):
        steps.setdefault(line["iteration"], {}).update(numbers_of(line))
    for line in lines_of(folder / "evaluations.jsonl"):
        steps.setdefault(line["iteration"], {}).update(numbers_of(line, line["data_set"] + "/"))
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
    parser.add_argument("--project", help="of W&B, over the experiment's")
    parser.add_argument("--dir", default=".", help="where wandb/ is made (default: here)")
    parser.add_argument("runs", nargs="+", metavar="RUN", type=pathlib.Path, help="folders of runs")
    arguments = parser.parse_args()
    for folder in arguments.runs:
        if not (folder / "metrics.jsonl").exists():
            parser.error(f"'{folder}' is no run: it has no metrics.jsonl")
        make(folder, arguments.project, arguments.dir)


if __name__ == "__main__":
    main()
