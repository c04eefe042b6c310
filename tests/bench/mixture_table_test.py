#!/usr/bin/env python3
"""Tests of scripts/mixture_table.py and scripts/gpu_mixtures.sh, with programs that only print results. Needs no GPU.

  tests/bench/mixture_table_test.py
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import mixture_table as table  # noqa: E402

OUT_OF_MEMORY = "primus: error: the GPU is out of memory: 90 GiB of 79"

PRIMUS = r"""#!/bin/sh
# Prints the results of primus.
case "$*" in
  *"benchmark decode"*lfm2*) echo "{oom}" >&2; exit 1 ;;
  *"benchmark train"*kimi*) sleep 60 ;;
  *"benchmark train"*mixtral*) echo "{oom}" >&2; exit 1 ;;
  *"benchmark train"*) echo '{{"tokens_per_second": 1200, "model_flops_per_second": 4e14, "parameters": 1073741824,
    "memory_bytes": {{"persistent": 10737418240, "stash": 1073741824, "scratch": 0, "device_used": 12884901888}},
    "ceiling": {{"share": 0.75, "model_flops_per_second": 5e14}}}}' ;;
  *--dry-run*) echo '{{"memory_bytes": {{"total": 11811160064, "program": 1073741824,
    "device_with_equal_shares_of_experts": 8926258176}}}}' ;;
  *capacity_margin=0.5*) echo "{oom}" >&2; exit 1 ;;
  *"train pretrain"*)
    for word; do case $word in exp_name=*) name=${{word#*=}} ;; workspace=*) workspace=${{word#*=}} ;; esac; done
    run=$workspace/w/u/$name
    mkdir -p "$run/traces/1" "$run/logs/pre_trainer/rank-0"
    for step in 1 2 3 4 5 6 7 8 9 10; do
      echo '{{"tokens_per_second_per_device":1000,"elapsed_time_per_iteration_ms":100,"tflops_per_device":4,"memory_used_bytes":11000000000}}'
    done >"$run/metrics.jsonl"
    case $name in margin-none) microseconds=200000 ;; *) microseconds=250000 ;; esac
    echo '{{"primus": {{"rank": 0, "first_step": 9, "last_step": 10}}, "traceEvents": [
      {{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": '$microseconds'}},
      {{"ph": "X", "cat": "communication", "name": "all_gather", "ts": 0, "dur": 9, "args": {{"group": "experts", "bytes": 4294967296}}}},
      {{"ph": "X", "cat": "communication", "name": "all_reduce", "ts": 0, "dur": 9, "args": {{"group": "data", "bytes": 5}}}}]}}' \
      >"$run/traces/1/rank-0.json" ;;
  *--ceiling*) echo '{{"results": [{{"case": "batch 1, reading 512", "tokens_per_second": 5, "share_of_composed": 0.5}}]}}' ;;
  *"benchmark decode"*) echo '{{"results": [
    {{"case": "batch 1, context 512", "tokens_per_second": 50, "share_of_copy_ceiling": 0.625}},
    {{"case": "batch 8, context 512", "tokens_per_second": 80, "share_of_copy_ceiling": 1.3}}]}}' ;;
esac
"""
BENCH = r"""#!/bin/sh
# Prints the results of gpu_bench, or a part of them.
case "$*" in
  *--delta*) cat <<'LINES'
{"operator":"delta rule backward, 16/32 heads of 128, bf16","microseconds":2000.0,"rate":45.0,"unit":"TFLOP/s"}
{"operator":"delta rule, 16/32 heads of 128, bf16","microseconds":500.0,"rate":63.0,"unit":"TFLOP/s"}
{"operator":"delta rule, 32 heads of 128, by channel, bf16","microseconds":800.0,"rate":41.0,"unit":"TFLOP/s"}
{"operator":"delta rule, 64 x 1 token, 16/32 heads of 128, bf16","microseconds":180.0,"rate":826.0,"unit":"GB/s"}
{"operator":"delta rule, 64 x 1 token, 32 heads of 128, by channel, bf16","microseconds":240.0,"rate":660.0,"unit":"GB/s"}
LINES
  exit 1 ;;
  *) cat <<'LINES'
{"operator":"8 experts, top 2, even, y","microseconds":1,"rate":600.0,"unit":"TFLOP/s"}
{"operator":"8 experts, top 2, even, d_W in bf16","microseconds":1,"rate":300.0,"unit":"TFLOP/s"}
{"operator":"8 experts, top 2, skewed, y","microseconds":1,"rate":100.0,"unit":"TFLOP/s"}
{"operator":"dense 16384 x 28672 x 4096 bf16, y","microseconds":1,"rate":640.0,"unit":"TFLOP/s"}
{"operator":"dense d_W in bf16","microseconds":1,"rate":600.0,"unit":"TFLOP/s"}
{"operator":"8 experts, top 2, down, even, y","microseconds":1,"rate":500.0,"unit":"TFLOP/s"}
{"operator":"router 8192 x 128, d_x","microseconds":87.0,"rate":440.0,"unit":"GB/s"}
LINES
  ;;
esac
"""
PYTHON = r"""#!/bin/sh
# Prints the results of the peers. Other programs run.
case "$*" in
  - | -\ * | -c\ * | */mixture_table.py\ * | scripts/*) exec PYTHON3 "$@" ;;
  *torch_moe.py*" 6 4096 2 "*) echo "PEER moe L6 S4096 B2 ACC4 bf16 compile=1: 1000 tok/s 357.0 TFLOP/s mem 12.0 GiB loss 9.1" ;;
  *torch_moe.py*) echo "PEER moe L6 S4096 B4 ACC2 bf16 compile=1: OOM" ;;
  *fla_delta_rule.py*) echo "PEER fla: not here (No module named 'fla')" ;;
  *transformers_generate.py*qwen3_30B*) echo "qwen3_30B_A3B layers 48 batch 1 eager default: 100.00 ms, 10.0 tokens/s"
    echo "qwen3_30B_A3B batch 8: failed: OutOfMemoryError: CUDA out of memory" ;;
  *transformers_generate.py*) echo "ModuleNotFoundError: No module named 'transformers'" >&2; exit 1 ;;
  *) exec PYTHON3 "$@" ;;
esac
"""


def line(row, kind, **values):
    return {"row": row, "kind": kind, "at": "2026-11-28T00:00:00Z", **values}


class Reports(unittest.TestCase):
    def test_a_peer_that_ran_out_of_memory_says_so(self):
        self.assertEqual(table.parsed("peer", "PEER moe L6: OOM\n"), {"failed": "out of memory"})
        self.assertEqual(table.parsed("failed", OUT_OF_MEMORY), {"failed": "out of memory"})

    def test_a_report_that_was_cut_off_is_a_failure(self):
        self.assertIn("cannot be read", table.parsed("train", '{"tokens_per_second": 1')["failed"])
        self.assertIn("cannot be read", table.parsed("decode", "")["failed"])
        self.assertIn("cannot be read", table.parsed("train", '{"tokens_per_second": 1}')["failed"])

    def test_an_unknown_kind_is_refused(self):
        with self.assertRaisesRegex(table.Unusable, "no kind is called 'trian'"):
            table.parsed("trian", "{}")

    def test_a_later_success_replaces_a_failure(self):
        values, failures = table.values_of([line("a", "failed", failed="out of memory"),
                                            line("a", "train", rate=2, composed=0.5, parameters=1, planned=1, used=1)])
        self.assertEqual(table.measured("a:composed", values, failures), 50)
        self.assertEqual(table.measured("a:peer:rate", values, failures), "out of memory")

    def test_meshes_divide_by_their_baselines(self):
        values, _ = table.values_of([line("margin-1.5", "mesh", rate=98.0, beside=100.0, memory_used=11.0, equal_shares=10.0,
                                          bytes_per_step=0, row_bytes_per_step=4)])
        self.assertEqual(values, {"margin-1.5:rate": 0.98, "margin-1.5:memory": 1.1})

    def test_a_line_that_was_cut_off_is_ignored(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "lines"
            path.write_text(json.dumps(line("a", "failed", failed="x")) + '\n{"row": "b", "ki')
            stderr, sys.stderr = sys.stderr, open(os.devnull, "w")
            try:
                self.assertEqual([r["row"] for r in table.read_records([path])], ["a"])
            finally:
                sys.stderr.close()
                sys.stderr = stderr


class Tables(unittest.TestCase):
    ROW = {"part": "train", "work": "work", "aim": 2, "sense": "at least", "digits": 1, "unit": " %", "why": "",
           "cells": [{"name": "one", "value": "a:composed", "predicted": 3}, {"name": "two", "value": "b:composed", "before": 1}]}

    def lines(self, records, **changes):
        return table.table([{**self.ROW, **changes}], records)

    def train(self, row, share):
        return line(row, "train", rate=1, composed=share, parameters=0, planned=0, used=0)

    def test_a_missing_row_is_visible_and_counted(self):
        lines, missing = self.lines([])
        self.assertEqual(missing, 2)
        self.assertEqual(lines[-1], "| work: one, two | at least 2 % | none, 1 % | 3 %, none | not run |  |")

    def test_a_missed_aim_names_the_part(self):
        lines, missing = self.lines([self.train("a", 0.03), self.train("b", 0.01)])
        self.assertEqual((missing, lines[-1]),
                         (0, "| work: one, two | at least 2 % | none, 1 % | 3 %, none | 3.0, 1.0 % | missed: two |"))

    def test_a_part_that_failed_is_not_met(self):
        lines, missing = self.lines([self.train("a", 0.03), line("b", "failed", failed="out of memory")])
        self.assertEqual((missing, lines[-1].split(" | ")[-2:]), (1, ["3.0 %, none", "two: out of memory |"]))

    def test_directions(self):
        for sense, aim, value, expected in (("at most", 3, 3.1, False), ("at most", 3, 3, True), ("within", 0.03, 0.96, False),
                                            ("within", 0.03, 1.02, True), ("at least", 1.1, 1.1, True)):
            self.assertEqual(table.met({"sense": sense, "aim": aim}, value), expected, (sense, value))


class TheDocument(unittest.TestCase):
    def test_agrees_with_the_rows_and_results(self):
        done = subprocess.run([ROOT / "scripts/mixture_table.py", "check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_each_row_has_an_arithmetic_and_each_value_one_row(self):
        keys = [cell["value"] for row in table.read_rows() for cell in row["cells"]]
        self.assertEqual(len(keys), len(set(keys)))
        for row in table.read_rows():
            self.assertGreater(len(row["why"]), 20, row["work"])


class TheRun(unittest.TestCase):
    """scripts/gpu_mixtures.sh measures in a copy of the scripts, in which programs only print results."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        for name in ("scripts", "benchmarks"):
            shutil.copytree(ROOT / name, root / name)
        for path, text in (("build/bin/primus", PRIMUS.format(oom=OUT_OF_MEMORY)), ("build/bin/gpu_bench", BENCH),
                           ("bin/python3", PYTHON.replace("PYTHON3", sys.executable)),
                           ("bin/nvidia-smi", "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 580.1'\n")):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
            (root / path).chmod(0o755)
        environment = dict(os.environ, PATH=f"{root / 'bin'}:{os.environ['PATH']}", LIMIT="20")
        environment.pop("RECORDS", None)
        # The row kimi takes longer than its share of the time.
        script = root / "scripts/gpu_peers.sh"
        script.write_text(script.read_text().replace("within 120 ", "within 1 "))
        cls.done = subprocess.run([root / "scripts/gpu_mixtures.sh", root / "out"], capture_output=True, text=True,
                                  env=environment, timeout=60)
        cls.records = table.read_records([root / "out/mixtures.jsonl"])
        cls.values, cls.failures = table.values_of(cls.records)
        # A run without any time starts nothing.
        cls.late = subprocess.run([root / "scripts/gpu_mixtures.sh", root / "late", "experts"], capture_output=True,
                                  text=True, env=dict(environment, LIMIT="0"), timeout=60)
        cls.late_values, cls.late_failures = table.values_of(table.read_records([root / "late/mixtures.jsonl"]))

        cls.ranks = subprocess.run([root / "scripts/gpu_mixtures.sh", root / "ranks"], capture_output=True, text=True,
                                   env=dict(environment, GPUS="2"), timeout=60)
        cls.rank_values, cls.rank_failures = table.values_of(table.read_records([root / "ranks/mixtures.jsonl"]))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def value(self, key):
        return table.measured(key, self.values, self.failures)

    def test_measures_training_beside_the_peer(self):
        self.assertAlmostEqual(self.value("moe:peer:rate"), 1.2)
        self.assertAlmostEqual(self.value("moe:peer:memory"), 9 / 12)  # 11 GiB planned, 2 bytes for each of 2^30 weights
        self.assertAlmostEqual(self.value("moe:forecast"), 1.0)
        self.assertEqual(self.value("deepseek:composed"), 75)

    def test_names_what_ran_out_of_memory_or_time(self):
        self.assertEqual(self.value("moe4:peer:rate"), "peer: out of memory")
        self.assertEqual(self.value("moe4:composed"), 75)
        self.assertEqual(self.value("mixtral:composed"), "out of memory")
        self.assertEqual(self.value("kimi:composed"), "stopped after 1 s")
        self.assertEqual(self.value("lfm2_8B_A1B:copy:8"), "out of memory")

    def test_measures_generation_and_its_peer(self):
        self.assertEqual(self.value("qwen3_30B_A3B:copy:1"), 62.5)
        self.assertEqual(self.value("qwen3_30B_A3B:peer:1"), 5)
        self.assertEqual(self.value("qwen3_30B_A3B:peer:8"), "peer: out of memory")
        self.assertIn("No module named 'transformers'", self.value("gpt_oss_20B:peer:1"))
        self.assertIsNone(self.value("qwen3_30B_A3B:copy:64"))
        self.assertEqual(self.value("llama3.1_8B-512:composed"), 50)

    def test_measures_operators_until_they_fail(self):
        self.assertEqual(self.value("delta:head:backward_over_forward"), 4)
        self.assertEqual(self.value("delta:channel:forward"), 0.8)
        self.assertIn("No module named 'fla'", self.value("delta:peer:head"))
        self.assertAlmostEqual(self.value("experts:8/2:y"), 100 * 600 / 640)
        self.assertAlmostEqual(self.value("experts:8/2:d_W in bf16"), 50)
        self.assertEqual(self.value("experts:router-8192x128:d_x"), 87)

    def test_prints_the_table_and_fails_because_values_are_missing(self):
        self.assertEqual(self.done.returncode, 1, self.done.stderr)
        self.assertIn("GPU and driver: NVIDIA H100 80GB HBM3, 580.1", self.done.stdout)
        self.assertIn("| 1.20, none | of 4: peer: out of memory |", self.done.stdout)
        self.assertIn("values are missing", self.done.stderr)

    def test_the_table_has_only_the_rows_of_the_requested_parts(self):
        self.assertNotIn("prompt", self.ranks.stdout)
        self.assertIn("| 0.800, 0.800, none, 0.800, 0.800 | missed: all rows kept, margin 1.5, 1.5 by all-to-all, overlapped; margin 0.5: out of memory |", self.ranks.stdout)
        self.assertIn("3 values are missing", self.ranks.stderr)

    def test_measures_experts_over_ranks(self):
        self.assertEqual(self.ranks.returncode, 1)
        for margin in ("1000", "1.5"):
            # Two steps take 0.2 s by data parallelism and 0.25 s over ranks.
            self.assertAlmostEqual(self.rank_values.get(f"margin-{margin}:rate", 0), 0.8, msg=self.ranks.stdout + self.ranks.stderr)
            self.assertAlmostEqual(self.rank_values[f"margin-{margin}:memory"], 1.1)
            self.assertAlmostEqual(self.rank_values[f"margin-{margin}:bytes"], 1)
        self.assertEqual(table.measured("margin-0.5:rate", self.rank_values, self.rank_failures), "out of memory")

    def test_starts_nothing_after_the_end(self):
        self.assertEqual(self.late.returncode, 1)
        for key in ("experts:8/2:y", "experts:router-8192x128:y"):
            self.assertEqual(table.measured(key, self.late_values, self.late_failures), "no time was left", key)


if __name__ == "__main__":
    unittest.main()
