#!/usr/bin/env python3
"""Changes one thing in the sources at a time, and prints the changes that no test notices.

    scripts/mutation_test.py [--count 100] [--seed 1] [--minutes M] [--only PATH]... [--list]

A mutant is one small change of a source file: an operator or a constant changed, a condition negated, a statement
removed. `--count` of them are drawn with a seed from src/engine, src/lm/train, src/lm/data and src/lm/checkpoint
(--only: from these folders or files). Each is built, and the tests that reach its folder run until one fails:

  killed     a test failed, or ran for longer than five times what it takes on the unchanged sources
  survived   every test passed: a test is missing, or the change makes no difference (docs/mutations.md)
  refused    the compiler did not take it; it does not count towards --count

Everything happens in a copy of the tracked files below --folder, with a build folder of its own. It has the flags of the
release preset, so that ccache has all but the tests already (they know their folder); only the programs that the sample
needs are built. The working tree is only read. Results are in results.json there, one entry a mutant, and the next call goes on
where the last one stopped: a mutant is known by its file's content, its place and its change.

    nice -n 10 scripts/mutation_test.py --minutes 40       as many as fit
    scripts/mutation_test.py --slow                        the survivors again, by tests that take minutes
    scripts/mutation_test.py --only src/lm/data --count 30
    scripts/mutation_test.py --list --count 10             shows mutants, and does nothing

Exit code: 0 when the run is complete, whatever survived; 1 when the unchanged sources do not pass; 2 for bad arguments.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Test programs of a folder and the tests of them that reach it (a filter of GoogleTest, empty: all), those that take the
# least time first: a mutant runs them until one fails. All together take seconds on a core of their own.
TRAINING = ("lm_train_test", "Goldens/Families.NothingChangesABit/*:Heads/*:Cases/*:Steps/*:Evaluation.*:LateResult.StepsThat*:"
            "MixtureOfExperts.*:MtpRuns.ReportSaveAndGoOn:Models/Invariants.TrainingMovesTheLoss/*:LoadedModel.*:"
            "Models/Invariants.RecomputationChangesNothing/mixture_fp32:Measure.*:MemoryFit.*:TrainingS*:StepSeconds.*:"
            "Models/Invariants.DeferringWeightGradientsChangesNothing/*_fp32")
TESTS = {
    "src/engine": [("engine_test", ""), TRAINING],
    "src/lm/train": [TRAINING, ("cli_test", "Train.TheSameCommandContinues:Train.KeepsWhatItLearned*:Train.ResumesOnly*:"
                                "Train.ContinuesWithoutOptimizerState:Train.ADryRun*:Train.NothingLeft*:EvalLoss.*")],
    "src/lm/data": [("lm_data_test", "")],
    "src/lm/checkpoint": [("lm_checkpoint_test", "")],
}
# What a survivor of them runs with --slow. The rest (whole programs killed at random) finds more at many times the cost.
SLOW_TESTS = {
    "src/engine": [("lm_train_test", ""), ("lm_train_pipelines_test", ""), ("lm_train_ranks_test", "")],
    "src/lm/train": [("lm_train_test", ""), ("cli_test", "Train.*"), ("cli_runs_test", "-Benchmarks*:Chat*:Completion*"),
                     ("lm_train_pipelines_test", ""), ("lm_train_ranks_test", "")],
    "src/lm/data": [("cli_test", "Data*:Train.*:FullDisk.*"), ("cli_runs_test", "-Benchmarks*:Chat*:Completion*")],
    "src/lm/checkpoint": [("cli_test", "Train.*"), ("lm_train_ranks_test", "")],
}

# (name, pattern, replacements). clang-format puts blanks around binary operators, and around nothing else that looks
# like one: templates, pointers and references are out of reach.
SWAPS = [
    ("comparison", r"(?<= )(<=|>=|==|!=|<|>)(?= )",
     {"<": ["<="], "<=": ["<"], ">": [">="], ">=": [">"], "==": ["!="], "!=": ["=="]}),
    ("arithmetic", r"(?<= )(\+|-|\*|/|%)(?= )", {"+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["*"]}),
    ("logic", r"(?<= )(&&|\|\|)(?= )", {"&&": ["||"], "||": ["&&"]}),
    ("assignment", r"(?<= )(\+=|-=)(?= )", {"+=": ["-="], "-=": ["+="]}),
    ("increment", r"(\+\+|--)(?=\w)", {"++": ["--"], "--": ["++"]}),
    ("constant", r"(?<![\w.'])(\d+)(?![\w.'])", None),
    ("boolean", r"\b(true|false)\b", {"true": ["false"], "false": ["true"]}),
]
# A statement on a line of its own that is no declaration: a call, or an assignment to what exists.
STATEMENT = re.compile(r"^\s+(?:(?:\+\+|--)?[A-Za-z_][\w.:\[\]]*(?:->[\w.:]+)*(?:\(.*\)|\s(?:[-+*/|&]?=)\s.*)|"
                       r"(?:\+\+|--)[\w.\->\[\]]+);$")
NO_STATEMENT = re.compile(r"^\s+(?:return|throw|break|continue|using|case|delete|static_assert|PRIMUS_CHECK|assert)\b")
CONDITION = re.compile(r"^(\s*(?:\} else )?if \()(.*)(\)(?: \{|.*;)?)$")


def blanked(text):
    """The text with comments, strings, preprocessor lines and compile-time declarations as blanks of equal length."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|'
                         r"^#[^\n]*(?:\\\n[^\n]*)*|^\s*(?:static_assert|template|using|namespace)\b[^\n]*",
                         re.MULTILINE | re.DOTALL)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def closing(line, begin):
    """Where the parenthesis that opened before `begin` closes, or None: not on this line."""
    depth = 1
    for at in range(begin, len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if depth == 0:
            return at
    return None


def mutants_of(path):
    """All mutants of a file: dicts of file, line, kind, old and new line."""
    text = (ROOT / path).read_text()
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    lines, codes = text.split("\n"), blanked(text).split("\n")
    found = []

    def add(number, kind, new):
        key = hashlib.sha256(f"{path}:{digest}:{number}:{new}".encode()).hexdigest()[:16]
        found.append({"key": key, "file": path, "line": number + 1, "kind": kind, "old": lines[number], "new": new})

    for number, (line, code) in enumerate(zip(lines, codes)):
        if not code.strip():
            continue
        for kind, pattern, replacements in SWAPS:
            for match in re.finditer(pattern, code):
                old = match[1]
                news = replacements[old] if replacements else [str(int(old) + 1)] + ([str(int(old) - 1)] * (old != "0"))
                for new in news:
                    add(number, kind, line[:match.start(1)] + new + line[match.end(1):])
        condition = CONDITION.match(code)
        if condition and ";" not in condition[2]:
            begin = condition.end(1)
            end = closing(code, begin)
            if end is not None:
                add(number, "condition", f"{line[:begin]}!({line[begin:end]}){line[end:]}")
        complete = number == 0 or re.search(r"[;{}:]\s*$", codes[number - 1]) or not codes[number - 1].strip()
        if complete and STATEMENT.match(code) and not NO_STATEMENT.match(code):
            add(number, "statement", re.match(r"\s*", line)[0] + ";")
    return found


def tracked_files():
    return subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True,
                          text=True).stdout.rstrip("\0").split("\0")


def folder_of(path):
    return next(folder for folder in TESTS if path.startswith(folder + "/"))


def draw(only, seed):
    """Every mutant there is, in the order in which they are tried."""
    paths = [p for p in tracked_files() if p.endswith(".cpp") and any(p.startswith(f + "/") for f in TESTS)]
    if only:
        paths = [p for p in paths if any(p == o or p.startswith(o.rstrip("/") + "/") for o in only)]
    every = [mutant for path in sorted(paths) for mutant in mutants_of(path)]
    random.Random(seed).shuffle(every)
    return every


class Scratch:
    """A copy of the tracked files, and its build."""

    def __init__(self, folder, jobs):
        self.source = folder / "source"
        self.build = folder / "source" / "build"
        self.jobs = jobs
        self.environment = dict(os.environ, CCACHE_BASEDIR=str(self.source), CCACHE_NOHASHDIR="1",
                                GTEST_FAIL_FAST="1", GTEST_COLOR="no")

    def update(self):
        """Makes the copy equal to the tracked files; what is equal already keeps its time stamp."""
        wanted = [p for p in tracked_files() if (ROOT / p).is_file()]
        for path in wanted:
            to = self.source / path
            content = (ROOT / path).read_bytes()
            if not to.is_file() or to.read_bytes() != content:
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(content)
                shutil.copymode(ROOT / path, to)
        known = set(wanted)
        for top in {p.split("/")[0] for p in wanted if "/" in p}:
            for to in (self.source / top).rglob("*"):
                if to.is_file() and str(to.relative_to(self.source)) not in known:
                    to.unlink()
        if not (self.build / "build.ninja").exists():
            self.run(["cmake", "--preset", "release", "-DPRIMUS_TESTS=ON"], 600)

    def run(self, command, timeout):
        """(exit code or None after the timeout, output). A command that takes too long is ended with its children."""
        with subprocess.Popen(command, cwd=self.source, env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as process:
            try:
                output, _ = process.communicate(timeout=timeout)
                return process.returncode, output
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return None, ""
            except BaseException:  # Ctrl-C, or a signal: nothing of it stays behind
                os.killpg(process.pid, signal.SIGKILL)
                raise

    def compile(self, programs):
        return self.run(["ninja", "-C", "build", f"-j{self.jobs}", *programs], 3600)

    def test(self, test, timeout):
        program, tests = test
        return self.run([str(self.build / "tests" / program), *([f"--gtest_filter={tests}"] if tests else [])], timeout)


def test_mutant(scratch, mutant, tests, seconds):
    """Fills in what became of the mutant."""
    file = scratch.source / mutant["file"]
    original = file.read_text()
    lines = original.split("\n")
    assert lines[mutant["line"] - 1] == mutant["old"]
    lines[mutant["line"] - 1] = mutant["new"]
    began = time.monotonic()
    try:
        file.write_text("\n".join(lines))
        mutant["result"] = "survived"
        for test in tests:
            program = test[0]
            code, output = scratch.compile([program])
            if code != 0:
                mutant["result"] = "refused"
                mutant["by"] = next((l for l in output.split("\n") if "error" in l), "")[-200:]
                return
            code, output = scratch.test(test, 60 + 5 * seconds[test])
            if code != 0:
                mutant["result"] = "killed"
                failed = re.search(r"\[  FAILED  \] (\S+)", output)
                reason = "ran too long" if code is None else failed[1] if failed else f"exit code {code}"
                mutant["by"] = f"{program}: {reason}"
                return
    finally:
        file.write_text(original)
        mutant["seconds"] = round(mutant.get("seconds", 0) + time.monotonic() - began)


def show(mutant):
    print(f"{mutant['file']}:{mutant['line']}: {mutant['kind']}\n  - {mutant['old'].strip()}\n  + {mutant['new'].strip()}")


def save(results, path):
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    os.replace(temporary, path)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="mutants to test, earlier results included")
    parser.add_argument("--seed", type=int, default=1, help="what the sample is drawn with")
    parser.add_argument("--minutes", type=float, help="start no further mutant after so many minutes")
    parser.add_argument("--only", action="append", default=[], metavar="PATH", help="a folder or file to take mutants of")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "mutation", help="where the copy is kept")
    parser.add_argument("--slow", action="store_true", help="test the survivors again, by slow programs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilations")
    parser.add_argument("--list", action="store_true", help="show the mutants and stop")
    options = parser.parse_args()

    every = draw(options.only, options.seed)
    if not every:
        parser.error(f"no sources to change in {' '.join(options.only)}: folders with tests are {', '.join(TESTS)}")
    if options.list:
        for mutant in every[:options.count]:
            show(mutant)
        print(f"{min(options.count, len(every))} of {len(every)} mutants")
        return 0

    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results_file = folder / "results.json"
    known = json.loads(results_file.read_text()) if results_file.exists() else {}
    scratch = Scratch(folder, options.jobs)
    scratch.update()
    end = time.monotonic() + options.minutes * 60 if options.minutes else None

    # What a mutant runs next: its tests, or, where it survived them and is tried again, the slow ones.
    def tests_of(mutant):
        earlier = known.get(mutant["key"])
        folder_name = folder_of(mutant["file"])
        if not earlier:
            return TESTS[folder_name] + (SLOW_TESTS[folder_name] if options.slow else [])
        if options.slow and earlier["result"] == "survived" and not earlier.get("slow"):
            return SLOW_TESTS[folder_name]
        return []

    sample = {mutant["key"]: tests_of(mutant) for mutant in every[:2 * options.count]}
    wanted = list(dict.fromkeys(test for tests in sample.values() for test in tests))
    programs = sorted({program for program, _ in wanted})
    print(f"building {', '.join(programs)} of the unchanged sources in {scratch.build}", flush=True)
    began = time.monotonic()
    code, output = scratch.compile(programs) if programs else (0, "")
    print(f"  took {time.monotonic() - began:.0f} s", flush=True)
    seconds = {}
    for test in wanted if code == 0 else []:
        began = time.monotonic()
        code, output = scratch.test(test, 3600)
        seconds[test] = time.monotonic() - began
        print(f"  {' '.join(test)} takes {seconds[test]:.0f} s", flush=True)
        if code != 0:
            break
    if code != 0:
        print(output[-4000:], "\nThe unchanged sources do not build, or do not pass.", sep="\n")
        return 1

    tested = []
    for mutant in every[:2 * options.count]:
        if len(tested) >= options.count:
            break
        tests = sample[mutant["key"]]
        mutant = known.get(mutant["key"], mutant)
        if tests:
            if end and time.monotonic() > end:
                if "result" not in mutant:
                    continue
            else:
                test_mutant(scratch, mutant, tests, seconds)
                mutant["slow"] = options.slow
                known[mutant["key"]] = mutant
                save(known, results_file)
                print(f"{mutant['result']:<9} {mutant['file']}:{mutant['line']} {mutant['kind']}  {mutant.get('by', '')}",
                      flush=True)
        if mutant["result"] != "refused":
            tested.append(mutant)

    survivors = [mutant for mutant in tested if mutant["result"] == "survived"]
    print(f"\n{len(tested)} mutants, {len(tested) - len(survivors)} killed, {len(survivors)} survived; all results: "
          f"{results_file}")
    for mutant in sorted(survivors, key=lambda m: (m["file"], m["line"])):
        show(mutant)
    return 0


if __name__ == "__main__":
    sys.exit(main())
