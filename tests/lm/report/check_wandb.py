#!/usr/bin/env python3
"""Checks scripts/wandb_offline.py: reads its offline run back from the file that wandb writes.

Optional (pip install wandb). Usage: check_wandb.py
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from wandb.proto import wandb_internal_pb2

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "scripts" / "wandb_offline.py"
EXPERIMENT = """work_group: team
user_name: ann
exp_name: try
modules:
  pre_trainer:
    framework: native
    overrides: {lr: 0.5, wandb_project: ours}
"""


def records_of(path):
    """Yields the records of a .wandb file: a log in LevelDB's format after a header of 7 bytes."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def main():
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        run.mkdir()
        (run / "experiment.yaml").write_text(EXPERIMENT)
        (run / "metrics.jsonl").write_text(
            '{"iteration":1,"lm_loss":2.5,"skipped":true}\n{"iteration":2,"lm_l\n[]\n'
            '{"iteration":2,"lm_loss":1.25}\n{"iteration":3,"lm_')
        (run / "evaluations.jsonl").write_text('{"iteration":2,"data_set":"validation","lm_loss":1.5}\n')
        made = subprocess.run([sys.executable, SCRIPT, "--dir", folder, run], check=True, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True)
        for number in (2, 3):
            assert f"metrics.jsonl:{number} is damaged" in made.stderr, made.stderr
        (file,) = pathlib.Path(folder).glob("wandb/offline-run-*/run-*.wandb")
        steps, names = [], set()
        for record in records_of(file):
            if record.HasField("run"):
                names.add((record.run.project, record.run.display_name))
            if record.HasField("history"):
                items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                assert "skipped" not in items, items
                steps.append((items["_step"], items["lm_loss"], items.get("validation/lm_loss")))
        assert names == {("ours", "try")}, names
        assert steps == [(1, 2.5, None), (2, 1.25, 1.5)], steps
        (run / "experiment.yaml").write_text("modules: {pre_trainer: {overrides: null}}\n")
        subprocess.run([sys.executable, SCRIPT, "--dir", folder, run], check=True, stdout=subprocess.DEVNULL)
    print("W&B reads what the script writes")


if __name__ == "__main__":
    main()
