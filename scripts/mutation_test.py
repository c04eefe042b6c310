#!/usr/bin/env python3
"""Makes one small change to the sources at a time, and prints the changes that no test detects.

    scripts/mutation_test.py [--count 100] [--seed 1] [--at COMMIT] [--slow] [--only PATH]... [--programs NAME,...]
                             [--tests FILTER]
    scripts/mutation_test.py --hand FILE [--programs NAME,...]
    scripts/mutation_test.py --list [--count 100]

A mutant is one small change of a source file: a changed operator or constant, a negated condition, a removed
statement. `--count` of them are drawn with a seed from src/engine, src/lm/train, src/lm/data and
src/lm/checkpoint, from each folder in proportion to its lines (--only: from these folders or files). Changed
sources give another sample: --at draws from the sources of a commit and finds the same changes in the current
ones; lines changed since then are omitted. --hand: uses the mutants in a TOML file.

All mutants are written into one copy of the tree, each with a switch (mutant_switch.h), and built once. Then
each test runs separately without a mutant, to measure its time and the mutants that it reaches. For each
mutant, the tests that reach it run, the fastest first, until one fails:

  killed     a test failed, or timed out twice, the second time after all others have ended: it used five times its usual
             CPU time (at least 2 s, and 10 s of wall time), or was idle for that long
  survived   every test that reaches it passed: a test is missing, or the change makes no difference (docs/mutations.md)
  unreached  no test reaches it
  refused    the compiler rejected it; another one is drawn

--slow: runs the slow programs for the remaining mutants. --programs: these programs instead of the default
ones. --tests: only tests that match this GoogleTest filter, measured again; for a test that has just been
written.

Everything is written below --folder: a copy of the tracked files, its build with the flags of the release
preset, and results.json, from which the next call resumes. The working tree is only read. Mutants run at nice
19. Exit code: 0 when the run is complete, even if mutants survived; 1 if the unchanged sources do not build or a
test fails on them; 2 for bad arguments.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import mutants

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src/engine", "src/lm/train", "src/lm/data", "src/lm/checkpoint")
QUICK = ("engine_test", "lm_checkpoint_test", "lm_data_test", "lm_train_test", "cli_test")
SLOW = ("lm_train_ranks_test", "lm_train_pipelines_test", "lm_train_tuning_test", "cli_runs_test", "cli_tuning_test", "cli_trace_test",
        "fault_stop_test", "fault_ranks_test", "fault_rank_kills_test", "fault_kill_test", "fault_interference_test")
RECORD_BYTES = 4096  # kMutants of mutant_switch.h
MEMORY = 8 << 30  # stops mutants that allocate without end
LEAST = 10  # minimum time limit of a test, in seconds
CLOCK = os.sysconf("SC_CLK_TCK")
STOP = threading.Event()  # set by SIGTERM or Ctrl-C


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def tracked_files(commit=None):
    listed = git("ls-tree", "-r", "-z", "--name-only", commit) if commit else git("ls-files", "-z")
    return listed.rstrip("\0").split("\0")


def drawn(only, seed, commit=None):
    """All mutants in the order in which they are tried, and all mutants of each file."""
    groups, lines, by_file = {}, {}, {}
    for path in sorted(tracked_files(commit)):
        folder = next((f for f in FOLDERS if path.startswith(f + "/") and path.endswith(".cpp")), None)
        if folder and (not only or any(path == o or path.startswith(o.rstrip("/") + "/") for o in only)):
            text = git("show", f"{commit}:{path}") if commit else (ROOT / path).read_text()
            by_file[path] = mutants.mutants_of(path, text)
            groups.setdefault(folder, []).extend(by_file[path])
            lines[folder] = lines.get(folder, 0) + text.count("\n")
    shares = {f: n / sum(lines.values()) for f, n in lines.items()}
    return mutants.in_shares(groups, shares, seed), by_file


def drawn_at(commit, only, seed, count):
    """The first `count` mutants of a commit, located in the current sources."""
    order, before = drawn(only, seed, commit)
    _, now = drawn(only, seed)
    sample = []
    for number, mutant in enumerate(mutants.apart(order, count), 1):
        again = mutants.found_again(mutant, before[mutant.file], now.get(mutant.file, []))
        if again:
            sample.append(again)
        else:
            say(f"changed   number {number}, {mutant.file}:{mutant.line} {mutant.kind}: {mutant.new.strip()[:100]}")
    return sample


class Copy:
    """A copy of the tracked files with the mutants inserted, and its build."""

    def __init__(self, folder, jobs):
        self.source = folder / "source"
        self.build = self.source / "build"
        self.jobs = jobs

    def update(self, numbered):
        """Writes the files and the mutants; unchanged files keep their timestamps."""
        by_file = {}
        for number, mutant in numbered:
            by_file.setdefault(mutant.file, []).append((number, mutant))
        wanted = {p for p in tracked_files() if (ROOT / p).is_file()}
        contents = {p: (ROOT / p).read_bytes() for p in wanted}
        contents["src/" + mutants.SWITCH] = (ROOT / "scripts" / "mutant_switch.h").read_bytes()
        for path, own in by_file.items():
            contents[path] = mutants.written(contents[path].decode(), own).encode()
        for path, content in contents.items():
            to = self.source / path
            if not to.is_file() or to.read_bytes() != content:
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(content)
            if path in wanted:
                shutil.copymode(ROOT / path, to)
        for top in {p.split("/")[0] for p in wanted if "/" in p}:
            for to in (self.source / top).rglob("*"):
                if to.is_file() and str(to.relative_to(self.source)) not in contents:
                    to.unlink()

    def run(self, command):
        return subprocess.run(command, cwd=self.source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", env=dict(os.environ, CCACHE_BASEDIR=str(self.source), CCACHE_NOHASHDIR="1"))

    def compile(self, programs):
        """The output of a failed build; otherwise None."""
        if not (self.build / "build.ninja").exists():
            configured = self.run(["cmake", "--preset", "release", "-DPRIMUS_TESTS=ON"])
            if configured.returncode != 0:
                return configured.stdout
        built = self.run(["ninja", "-C", "build", "-k0", f"-j{self.jobs}", *programs])
        return re.sub(r"\x1b\[[\d;]*[mK]", "", built.stdout) if built.returncode != 0 else None


def refused_by(output, sample):
    """The mutants of the sample that the errors of a failed build refer to."""
    places = {(m.file, line): m for m in sample for line in m.lines}
    refused, pending = [], []
    for line in output.split("\n"):
        # The locations of one message: "required from" and "in expansion of" precede its error.
        found = re.match(r"(?:.*?[ ,]from |\.\./)?(?:\.\./)?(\S*?)(src/\S+\.cpp):(\d+)[:,]", line)
        if found and (found[2], int(found[3])) in places:
            pending.append(places[found[2], int(found[3])])
        if re.match(r"\[\d+/\d+\]|FAILED:|ninja:", line):
            pending = []
        if "error:" in line:
            refused += pending
        if "error:" in line or "note:" in line:
            pending = []
    return {m.key: m for m in refused}


class Tests:
    """Runs tests of the copy, each in a separate process and temporary folder."""

    def __init__(self, copy):
        self.copy = copy

    def names(self, program, wanted):
        command = [str(self.copy.build / "tests" / program), "--gtest_list_tests"]
        if wanted:
            command.append(f"--gtest_filter={wanted}")
        listed = subprocess.run(command, cwd=self.copy.source, check=True, capture_output=True, text=True).stdout
        suite, found = "", []
        for line in listed.split("\n"):
            name = line.split("#")[0].rstrip()
            if name and not name.startswith(" ") and name.endswith("."):
                suite = name
            elif name.startswith("  ") and "DISABLED_" not in suite + name:
                found.append(f"{program} {suite}{name.strip()}")
        return found

    def run(self, test, number, limit):
        """(passed, timed out, CPU seconds, reached mutants, output)"""
        program, name = test.split(" ")
        # Without a mutant, a test runs with normal priority; mutants run with the lowest priority.
        command = ["nice", "-n19"] if number else []
        with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder, \
                tempfile.NamedTemporaryFile(prefix="reached-") as record:
            record.write(bytes(RECORD_BYTES))
            record.flush()
            environment = dict(os.environ, PRIMUS_MUTANT=str(number), PRIMUS_MUTANT_RECORD=record.name, TMPDIR=folder,
                               GTEST_COLOR="no")
            process = subprocess.Popen(command + [str(self.copy.build / "tests" / program), f"--gtest_filter={name}"],
                                       cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
            output = []
            reader = threading.Thread(target=self.read, args=(process.stdout, output), daemon=True)
            reader.start()
            try:
                late, seconds = self.watch(process, limit)
            finally:
                self.end(process, record.name)
            reader.join(1)
            reached = [i for i, byte in enumerate(pathlib.Path(record.name).read_bytes()) if byte]
            return process.returncode == 0 and not late, late, seconds, reached, "".join(output)

    @staticmethod
    def watch(process, limit):
        """Waits for the end. Returns (whether it timed out, CPU seconds). A process times out if it uses more
        CPU time than the limit, or is idle for that long, so other load on the machine does not matter. There is no
        timeout in the first ten seconds."""
        began = idle_since = time.monotonic()
        used = 0.0
        pause = 0.01
        while process.poll() is None:
            if STOP.is_set():
                raise InterruptedError("stopped")
            everyone = {}
            for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
                try:
                    everyone[int(stat.parent.name)] = stat.read_text().rpartition(")")[2].split()
                except OSError:
                    pass  # the process has ended
            ticks, running, family = 0, False, [process.pid]
            for pid in family:
                family += [child for child, fields in everyone.items() if int(fields[1]) == pid]
                ticks += sum(map(int, everyone[pid][11:15])) if pid in everyone else 0
                for task in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
                    try:
                        running = running or task.read_text().rpartition(")")[2].split()[0] in "RD"
                    except OSError:
                        pass
            now = time.monotonic()
            if running or ticks / CLOCK > used:
                idle_since = now
            used = max(used, ticks / CLOCK)
            if now - began > LEAST and used > limit or now - idle_since > max(limit, LEAST):
                return True, used
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
        return False, used

    @staticmethod
    def read(stream, lines):
        """Reads the entire stream, so that the writer does not block, but keeps only its beginning."""
        for line in stream:
            if len(lines) < 1000:
                lines.append(line[:1000])

    @staticmethod
    def end(process, token):
        """Kills what the test started, including processes outside its process group: the record's name is in
        their environment."""
        if process.poll() == 0:
            return  # the test ended cleanly
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        for other in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if token.encode() in (other / "environ").read_bytes():
                    os.kill(int(other.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                pass


def say(text):
    print(text, flush=True)


def show(mutant):
    say(f"{mutant.file}:{mutant.line}: {mutant.kind}\n  - {mutant.old.strip()}\n  + {mutant.new.strip()}")


class Store:
    """A JSON file that is written atomically."""

    def __init__(self, path):
        self.path = path
        self.content = json.loads(path.read_text()) if path.exists() else {}
        self.lock = threading.Lock()

    def put(self, key, value):
        with self.lock:
            self.content[key] = value
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text(json.dumps(self.content, indent=1) + "\n")
            os.replace(temporary, self.path)


class Run:
    def __init__(self, options):
        self.options = options
        folder = options.folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self.copy = Copy(folder, options.jobs)
        self.tests = Tests(self.copy)
        self.results = Store(folder / "results.json")
        self.measured = Store(folder / "tests.json")
        self.digests = {}  # by program: digest of its content
        self.broken = []

    def build(self, candidates, count, programs):
        """The numbered sample of mutants that compile. Builds a quarter more than requested, to replace mutants that do
        not compile. A mutant keeps its number, so that only files with refused mutants change."""
        size = count + count // 4
        while True:
            drawn_so_far = mutants.apart(candidates, min(size, RECORD_BYTES - 1))
            numbered = [(n, m) for n, m in enumerate(drawn_so_far, 1)
                        if self.results.content.get(m.key, {}).get("result") != "refused"]
            if len(numbered) < count and len(drawn_so_far) == size:
                size += count - len(numbered)
                continue
            sample = [m for _, m in numbered]
            self.copy.update(numbered)
            say(f"building {', '.join(programs)} with {len(sample)} mutants in {self.copy.build}")
            output = self.copy.compile(programs)
            if output is None:
                return numbered[:count]
            refused = refused_by(output, sample)
            if not refused:
                # If no message names a mutant's line, refuses all mutants of the files that failed.
                objects = re.sub(r"CMakeFiles/\S*?\.dir/", "", output)
                files = set(re.findall(r"^FAILED: \S*?(src/\S+?\.cpp)\.o", objects, re.MULTILINE))
                refused = {m.key: m for m in sample if m.file in files}
            if not refused:
                say(output[-6000:])
                sys.exit("The unchanged sources do not build.")
            for key, mutant in refused.items():
                say(f"refused   {mutant.file}:{mutant.line} {mutant.kind}: {mutant.new.strip()[:100]}")
                self.results.put(key, {"result": "refused", "file": mutant.file, "line": mutant.line})

    def measure(self, programs, sample):
        """Time and reached mutants of each test without a mutant: {test: (seconds, mutants)}."""
        again = self.options.tests
        known = {}
        wanted = []
        for program in programs:
            content = (self.copy.build / "tests" / program).read_bytes()
            if program.startswith(("cli", "fault")):
                content += (self.copy.build / "bin" / "primus").read_bytes()
            digest = self.digests[program] = hashlib.sha256(content).hexdigest()[:16]
            for test in self.tests.names(program, again):
                entry = self.measured.content.get(test)
                if entry and entry["program"] == digest and entry["sample"] == sample and not again:
                    known[test] = entry
                else:
                    wanted.append((test, digest))

        def one(test, digest):
            passed, _, seconds, reached, output = self.tests.run(test, 0, 1200)
            entry = {"program": digest, "sample": sample, "seconds": round(seconds, 3), "reached": reached}
            return test, passed, entry, output

        failed = []
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self.options.parallel) as pool:
            for test, passed, entry, _ in pool.map(lambda w: one(*w), wanted):
                if passed:
                    known[test] = entry
                    self.measured.put(test, entry)
                else:
                    failed.append((test, entry["program"]))
        for test, digest in failed:  # runs the test again, while no other test runs
            test, passed, entry, output = one(test, digest)
            if passed:
                known[test] = entry
                self.measured.put(test, entry)
            else:
                say(f"{test} does not pass on the unchanged sources, and is left out:\n{output[-1500:]}")
                self.broken.append(test)
        say(f"{len(known)} tests measured, {len(wanted)} of them now, in {time.monotonic() - began:.0f} s")
        return known

    def examine(self, number, mutant, tests, entry, alone):
        """The result of a mutant, or None if a test timed out while others were running."""
        for test in tests:
            limit = max(2.0, 5 * entry[test]["seconds"])
            passed, late, *_ = self.tests.run(test, number, limit)
            if late and not alone:
                return None
            if not passed:
                return {"result": "killed", "by": test + (", ran too long" if late else "")}
        return {"result": "survived" if tests else "unreached"}

    def phase(self, numbered, programs):
        """Runs the remaining mutants of the sample on these programs."""
        digest = hashlib.sha256("".join(m.key for _, m in numbered).encode()).hexdigest()[:16]
        entry = self.measure(programs, digest)
        ran = {} if self.options.tests else {program: self.digests[program] for program in programs}
        jobs = []
        for number, mutant in numbered:
            known = self.results.content.get(mutant.key, {})
            if known.get("result") == "killed" or ran and ran.items() <= known.get("ran", {}).items():
                continue
            tests = sorted((t for t in entry if number in entry[t]["reached"]), key=lambda t: entry[t]["seconds"])
            jobs.append((number, mutant, tests))

        def finish(number, mutant, tests, alone):
            result = self.examine(number, mutant, tests, entry, alone)
            if result is None:
                return number, mutant, tests
            known = self.results.content.get(mutant.key, {})
            if result["result"] == "unreached" and known.get("result") == "survived":
                result["result"] = "survived"
            result.update(file=mutant.file, line=mutant.line, kind=mutant.kind, old=mutant.old, new=mutant.new,
                          ran=known.get("ran", {}) | ran)
            self.results.put(mutant.key, result)
            reason = result.get("by", f"{len(tests)} tests reach it")
            say(f"{result['result']:<9} {mutant.file}:{mutant.line} {mutant.kind}  {reason}")
            return None

        with concurrent.futures.ThreadPoolExecutor(self.options.parallel) as pool:
            late = [job for job in pool.map(lambda j: finish(*j, alone=False), jobs) if job]
        for job in late:
            finish(*job, alone=True)


def stop(number, _):
    STOP.set()
    sys.exit(128 + number)


def main():
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="number of mutants in the sample")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the sample")
    parser.add_argument("--at", metavar="COMMIT", help="draw the sample from this commit's sources")
    parser.add_argument("--only", action="append", default=[], metavar="PATH", help="a folder or file to mutate")
    parser.add_argument("--hand", type=pathlib.Path, metavar="FILE", help="the mutants of a TOML file instead of a sample")
    parser.add_argument("--slow", action="store_true", help="also run the slow programs for the remaining mutants")
    parser.add_argument("--programs", help="comma-separated test programs to run")
    parser.add_argument("--tests", metavar="FILTER", help="only these tests, measured again")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "mutation", help="the folder of the copy")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilations")
    parser.add_argument("--parallel", type=int, default=2, help="parallel tests")
    parser.add_argument("--list", action="store_true", help="show the mutants, compiled or not, and stop")
    options = parser.parse_args()
    if not 0 < options.count <= 3000:
        parser.error("--count is between 1 and 3000")

    try:
        if options.hand:
            candidates = mutants.by_hand(options.hand, lambda p: (ROOT / p).read_text())
        elif options.at:
            candidates = drawn_at(options.at, options.only, options.seed, options.count)
        else:
            candidates, _ = drawn(options.only, options.seed)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except subprocess.CalledProcessError as error:
        parser.error(error.stderr.strip())
    if not candidates:
        parser.error(f"no sources to change in {' '.join(options.only)}: mutants are drawn from {', '.join(FOLDERS)}")
    count = len(candidates) if options.hand or options.at else options.count
    if options.list:
        sample = mutants.apart(candidates, count)
        for mutant in sample:
            show(mutant)
        say(f"{len(sample)} of {len(candidates)} mutants")
        return 0

    run = Run(options)
    quick = options.programs.split(",") if options.programs else list(QUICK)
    slow = list(SLOW) if options.slow else []
    numbered = run.build(candidates, count, quick + slow)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    run.phase(numbered, quick)
    if slow:
        run.phase(numbered, slow)

    outcome = [(m, run.results.content[m.key]["result"]) for _, m in numbered]
    left = [(m, result) for m, result in outcome if result != "killed"]
    say(f"\n{len(outcome)} mutants, {len(outcome) - len(left)} killed, {len(left)} left; all results: {run.results.path}")
    for mutant, result in sorted(left, key=lambda pair: (pair[0].file, pair[0].line)):
        say(result)
        show(mutant)
    return 1 if run.broken else 0


if __name__ == "__main__":
    sys.exit(main())
