#!/usr/bin/env python3
"""Tests the scripts that inject faults and make incidents, without running the program."""
import argparse
import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts")
sys.dont_write_bytecode = True


def load(path):
    folder = os.path.dirname(os.path.join(SCRIPTS, path))
    name = os.path.basename(path)[:-3].replace("-", "_")
    specification = importlib.util.spec_from_file_location(name, os.path.join(SCRIPTS, path))
    module = importlib.util.module_from_spec(specification)
    with mock.patch.object(sys, "path", [folder] + sys.path), \
            mock.patch.dict(sys.modules):  # both scripts have a module 'faults'
        specification.loader.exec_module(module)
    return module


class FakeTrial:
    """A trial of which every second one fails, unless the script has been mended."""

    mended = False

    def __init__(self, options, setup, kind, phase, seed, number):
        self.number, self.causes, self.seconds, self.log = number, ["crashed"], 1.0, "none"

    def execute(self, reference):
        if self.number % 2 and not self.mended:
            raise KeyError("times")
        return "recovered"

    def codes(self):
        return {0: 0}


class Ended(Exception):
    pass


class InjectFaults(unittest.TestCase):
    def setUp(self):
        self.script = load("inject-faults.py")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def session(self, trials, add=(), program=b"one"):
        """Runs fake trials. Returns the output, the results and the exit code."""
        path = os.path.join(self.folder, "program")
        with open(path, "wb") as file:
            file.write(program)
        options = argparse.Namespace(program=path, folder=self.folder, add=list(add), skip=0, trials=trials, minutes=1,
                                     seed=1, jobs=1, json=os.path.join(self.folder, f"{program.decode()}.json"),
                                     keep=True, over=False, all_clusters=[])
        possible = self.script.order(["1"], ["kill"] if "kill" in self.script.KINDS else list(self.script.KINDS)[:1],
                                     list(self.script.PHASES), 1)
        out = io.StringIO()
        with mock.patch.object(self.script, "Trial", FakeTrial), mock.patch("os._exit", side_effect=Ended) as end, \
                mock.patch("signal.signal"), mock.patch.object(FakeTrial, "possible", lambda *_: True, create=True), \
                contextlib.redirect_stdout(out), self.assertRaises(Ended):
            self.script.Session(options, possible).run()
        with open(options.json) as file:
            return out.getvalue(), json.load(file), end.call_args.args[0]

    def test_an_error_in_a_trial_does_not_end_the_others(self):
        text, written, code = self.session(4)
        self.assertEqual(written["outcomes"], {"recovered": 2, "error": 2})
        self.assertEqual(written["results"][1]["outcome"], "error of the trial: KeyError: 'times'")
        self.assertIn("2 faults (1: 2)", text)
        self.assertIn("2 more failed by an error of the script", text)
        self.assertEqual(code, 1)

    def test_a_trial_with_an_error_of_the_script_is_repeated(self):
        self.session(4)
        file = os.path.join(self.folder, "one.json")
        with mock.patch.object(FakeTrial, "mended", True):
            _, written, code = self.session(4, [file])
        self.assertEqual((written["outcomes"], code), ({"recovered": 4}, 0))
        self.assertEqual([result["number"] for result in written["results"]], [0, 2, 1, 3])  # each once
        text, again, _ = self.session(4, [file])  # no trial is left
        self.assertIn("0 trials in", text)
        self.assertEqual(again["outcomes"], {"recovered": 4})

    def test_an_error_of_the_script_replaces_no_outcome(self):
        _, first, _ = self.session(1)
        failed = first["results"][0] | {"outcome": "error of the trial: KeyError: 'times'"}
        other = os.path.join(self.folder, "failed.json")
        with open(other, "w") as file:
            json.dump({"results": [failed]}, file)
        right = os.path.join(self.folder, "one.json")
        for files in ([right, other], [other, right]):
            found = self.script.read_results(files)
            self.assertEqual([result["outcome"] for result in found.values()], ["recovered"])

    def test_sums_of_several_programs_are_noted(self):
        text, first, _ = self.session(1)
        self.assertNotIn("programs", text)
        text, _, code = self.session(0, [os.path.join(self.folder, "one.json")], b"two")
        self.assertNotIn("programs", text)  # all results are of the first
        self.assertEqual(code, 0)
        other = first["results"][0] | {"seed": 2, "program": "5e3f"}
        old = {key: value for key, value in other.items() if key != "program"} | {"seed": 3}
        with open(os.path.join(self.folder, "other.json"), "w") as file:
            json.dump({"results": [other, old]}, file)
        text, _, _ = self.session(0, [os.path.join(self.folder, "one.json"), os.path.join(self.folder, "other.json")],
                                  b"two")
        self.assertIn("note: the results are of 3 programs: 1 trials of", text)
        self.assertIn("1 trials of 5e3f", text)
        self.assertIn("1 trials of unknown", text)


class Times(unittest.TestCase):
    def test_a_trial_begins_after_its_undisturbed_run(self):
        script = load("inject-faults.py")
        trial = script.Trial(argparse.Namespace(), "2", "clock-forward", "save", 1, 0)
        done = []

        class Reference:
            def get(self, ranks, data):
                time.sleep(0.05)
                done.append(time.monotonic())

        trial.data, trial.began = "", 0
        with mock.patch.object(trial, "start", side_effect=Ended), self.assertRaises(Ended):
            trial.watch(Reference())
        self.assertGreaterEqual(trial.began, done[0])

    def test_a_fault_may_be_overlooked_only_at_the_end(self):
        """A request to stop counts for the next step, and the last step does not stop for it."""
        script = load("inject-faults.py")
        steps = 60  # of a run
        with tempfile.TemporaryDirectory() as folder:
            def came_at_end(kind, when, phase="step"):
                trial = script.Trial(argparse.Namespace(), "2", kind, phase, 1, 0)
                trial.folder = trial.run = folder
                os.makedirs(os.path.join(folder, "events"), exist_ok=True)
                trial.plan()
                with open(os.path.join(folder, f"events/rank-{trial.victim:05}.jsonl"), "w") as file:
                    for step in range(1, steps + 1):
                        file.write(json.dumps({"event": "step", "step": step, "time": 1000.0 + step}) + "\n")
                with open(os.path.join(folder, "delivered-fault-0"), "w") as file:
                    file.write(f"{1000 + when:.9f}")
                return trial.at_end()

            self.assertFalse(came_at_end("term-rank", steps - 2.1))
            self.assertTrue(came_at_end("term-rank", steps - 1.9))
            self.assertFalse(came_at_end("kill", steps - 0.1))
            self.assertTrue(came_at_end("kill", steps + 0.1))
            self.assertTrue(came_at_end("kill", 1, "end"))


# The main thread blocks the signal of a hang, so that the kernel gives it to the other thread.
VICTIM = r"""
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static void* other(void* nothing) {
  usleep(600000);
  _exit(7);  /* this thread did not hang, and the main thread did */
  return nothing;
}
int main(void) {
  const union sigval hang = {.sival_int = 2};
  pthread_t thread;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN + 5);
  pthread_create(&thread, 0, other, 0);
  pthread_sigmask(SIG_BLOCK, &set, 0);
  sigqueue(getpid(), SIGRTMIN + 5, hang);
  usleep(200000);
  pthread_sigmask(SIG_UNBLOCK, &set, 0);
  _exit(8);
}
"""


@unittest.skipUnless(shutil.which("cc"), "there is no C compiler")
class Shim(unittest.TestCase):
    def execute(self, folder, text):
        """Compiles the program, and executes it with the shim. Returns its exit code."""
        source, shim, program = (os.path.join(folder, name) for name in ("victim.c", "shim.so", "primus"))
        with open(source, "w") as file:
            file.write(text)
        subprocess.run(["cc", "-o", program, source, "-pthread"], check=True)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-fno-builtin", "-o", shim,
                        os.path.join(SCRIPTS, "faults/shim.c"), "-ldl", "-lm"], check=True)
        environment = dict(os.environ, LD_PRELOAD=shim, FAULT_FOLDER=folder, FAULT_RUN=folder, RANK="1")
        return subprocess.run([program, "pretrain"], env=environment, timeout=60).returncode

    def test_a_rank_hangs_in_its_main_thread(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.execute(folder, VICTIM), 7)

    def test_the_time_of_a_fault_is_recorded(self):
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "fault"), "w").close()
            with open(os.path.join(folder, "plan"), "w") as file:
                file.write("fault - rank-1 - rename 1 self=exit:5\n")
            began = time.time()
            code = self.execute(folder, '#include <stdio.h>\nint main(void) { return rename("a", "b"); }\n')
            self.assertEqual(code, 5)
            with open(os.path.join(folder, "delivered-fault-0")) as file:
                self.assertTrue(began <= float(file.read()) <= time.time())


class Incidents(unittest.TestCase):
    def test_a_library_has_one_seed(self):
        keep_seed = load("incidents/build_library.py").keep_seed
        with tempfile.TemporaryDirectory() as folder:
            keep_seed(folder, 7)
            os.mkdir(os.path.join(folder, "killed-0"))
            with open(os.path.join(folder, "killed-0/meta.json"), "w") as file:
                file.write("{}")
            keep_seed(folder, 7)
            with self.assertRaisesRegex(SystemExit, "have the seed '7', not '8'"):
                keep_seed(folder, 8)
            os.remove(os.path.join(folder, "seed"))
            with self.assertRaisesRegex(SystemExit, "have the seed 'unknown', not '7'"):
                keep_seed(folder, 7)


if __name__ == "__main__":
    unittest.main()
