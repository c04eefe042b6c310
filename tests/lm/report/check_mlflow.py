#!/usr/bin/env python3
"""Reads files of 'primus report --mlflow' with MLflow's own client.

Optional (pip install mlflow-skinny); the native tests check the bytes without it. Usage:

    check_mlflow.py BUILD/tests/lm_report_test

The test program writes two runs of one experiment, the first of them twice: when it was stopped after step
2, and when it ended after step 3.
"""
import math
import os
import subprocess
import sys
import tempfile

# From version 3.7 on, MLflow reads files only with this variable; 'mlflow migrate-filestore' converts them to
# a database.
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"

from mlflow.tracking import MlflowClient  # noqa: E402


def main(test_program):
    with tempfile.TemporaryDirectory() as workspace:
        subprocess.run(
            [test_program, "--gtest_filter=Mlflow.WritesAStoreForItsClient", "--gtest_brief=1"],
            env={**os.environ, "PRIMUS_MLFLOW_CHECK": workspace},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        client = MlflowClient(f"file://{workspace}/mlruns")
        experiment = client.get_experiment_by_name("team_ann")
        assert experiment is not None, "no experiment"
        runs = client.search_runs([experiment.experiment_id])
        assert len(runs) == 2, f"{len(runs)} runs"
        (run,) = [run for run in runs if run.data.tags["primus.run_folder"].endswith("/run")]
        assert run.info.run_name == "try" and run.info.status == "FINISHED", run.info
        assert run.info.start_time == 998500 and run.info.end_time == 1000000, run.info
        assert run.data.params["lr"] == "0.5" and "save" not in run.data.params, run.data.params
        history = client.get_metric_history(run.info.run_id, "lm_loss")
        assert [(point.step, point.timestamp) for point in history] == [(1, 999000), (2, 999500), (3, 1000000)], history
        assert history[0].value == 1.0 and math.isnan(history[1].value) and history[2].value == 1 / 3, history
        assert run.data.metrics["validation/lm_loss"] == 0.75, run.data.metrics
        # The client continues the run.
        client.log_metric(run.info.run_id, "lm_loss", 0.25, step=4)
        client.set_tag(run.info.run_id, "note", "seen")
        assert client.get_run(run.info.run_id).data.metrics["lm_loss"] == 0.25
    print("MLflow reads what Primus writes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
