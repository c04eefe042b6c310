#!/usr/bin/env python3
"""Reads event files of the native writer with the real TensorBoard.

Optional (pip install tensorboard); the native tests check the bytes without it. Usage:

    check_tensorboard.py BUILD/tests/lm_events_test

The test program writes a run that was killed at iteration 300 and resumed from 200; TensorBoard must show one curve,
iterations 201 to 250 from the second process, and nothing after 200 from the first process.
"""
import os
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main(test_program):
    with tempfile.TemporaryDirectory() as workspace:
        subprocess.run(
            [test_program, "--gtest_filter=TrainingMonitor.WritesARunForTensorboard", "--gtest_brief=1"],
            env={**os.environ, "PRIMUS_TENSORBOARD_CHECK": workspace},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        folder = os.path.join(workspace, "amd/root/check/tensorboard")
        events = EventAccumulator(folder, size_guidance={"scalars": 0})
        events.Reload()

        tags = set(events.Tags()["scalars"])
        expected = {"lm loss", "learning-rate", "batch-size", "loss-scale", "grad-norm", "iteration-time", "throughput",
                    "throughput/tokens-per-second", "throughput/data-wait-share", "throughput/mfu"}
        assert expected <= tags, f"missing tags: {expected - tags}"

        losses = {event.step: event.value for event in events.Scalars("lm loss")}
        assert sorted(losses) == list(range(1, 251)), f"steps {min(losses)}..{max(losses)}, {len(losses)} of them"
        assert len(events.Scalars("lm loss")) == 250, "a step appears twice"
        for step, value in losses.items():
            want = 3.0 / step if step <= 200 else 100.0 + step
            assert abs(value - want) <= 1e-6 * want, f"step {step}: {value}, expected {want}"
        assert events.file_version == 2.0
        print(f"TensorBoard reads {len(tags)} tags, {len(losses)} iterations: ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
