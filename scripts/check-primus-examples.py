#!/usr/bin/env python3
"""Runs every `primus-cli ...` example of AMD Primus's documents with --dry-run, and counts the outcomes.

  scripts/check-primus-examples.py [CHECKOUT] [--program build/bin/primus] [--verbose] [--match TEXT]
  scripts/check-primus-examples.py --self-test [--program build/bin/primus]

CHECKOUT is a checkout of AMD Primus, PRIMUS_UPSTREAM by default. Without either, the check is skipped (exit
code 77). ./test.sh runs it, too. The commands run in a copy of its documents, shell scripts and examples, so
the checkout is not changed. srun, sbatch, docker and torchrun are replaced by stubs that do nothing, so that
missing tools do not hide missing features, and nodes have eight GPUs, as in the documents. Files that the
reader must supply (--config config.yaml) are replaced by an experiment of AMD Primus. Examples with
placeholders ("<image>", "...", a variable that the document does not set) and commands without a mode are
counted but not run.

A command is `planned` if it exits with 0 and its plan contains all requested items (plan_check.py):
the chain of modes, their options and variables, and the exact command in the last process. If a plan lacks an item, the
exit code is 1, regardless of the counts. `planned` means that all files came from AMD Primus;
`planned with a stand-in` means that a file was replaced. Other commands are `refused`, listed by the first
sentence of their error; a refusal may be correct. The exit code is 1 if fewer commands are planned than
before (RECORDED), otherwise 0. --self-test shows that the check detects programs that do nothing, repeat their
arguments, or drop a single word.
"""
import argparse
import collections
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import plan_check

LIMIT = 300  # seconds per command
SKIPPED = 77
FOLDERS = ["README.md", "docs", "docs_deprecated", "skills", "runner", "examples", "primus/configs"]
# Counts for commit fd1eeab of AMD Primus, on a machine without GPUs. Raise them when more examples run.
RECORDED = {"planned": 166, "planned with a stand-in": 43}
STAND_INS = ["srun", "sbatch", "docker", "torchrun", "python3"]
EXPERIMENT = "examples/megatron/configs/MI300X/llama2_7B-BF16-pretrain.yaml"
MODES = {"direct", "container", "slurm"}
START = re.compile(r"^(?:[A-Z_][A-Z_0-9]*=\S+\s+)*(?:(?:sudo|bash)\s+)?(?:\S*/)?primus-cli\s")
EXPORT = re.compile(r"^(?:export\s+)?([A-Z_][A-Z_0-9]*)=(\S+|\"[^\"]*\"|'[^']*')\s*$")
GAP = re.compile(r"<[^<>]*>|\.\.\.|\[(?![0-9,-]+\])[^\]]*\]|path/to/|…|\$\(")


def commands_of(text, is_script):
    """Pairs of a command and the variables that the document or shell script sets before it."""
    variables = {}
    in_code = is_script
    lines = iter(text.splitlines())
    for line in lines:
        line = line.strip()
        if line.startswith("```") and not is_script:
            in_code = not in_code
            continue
        if not in_code:
            continue
        while line.endswith("\\"):
            line = line[:-1].rstrip() + " " + next(lines, "").strip()
        if set_here := EXPORT.match(line):
            variables[set_here[1]] = set_here[2].strip("\"'")
        line = re.sub(r"^\$ ", "", line)
        if START.match(line):
            yield line, dict(variables)


def words_of(command, variables):
    """The arguments of the program, or None if a placeholder remains."""
    own = {}
    while assignment := re.match(r"([A-Z_][A-Z_0-9]*)=(\S+)\s+", command):
        own[assignment[1]] = assignment[2]
        command = command[assignment.end():]
    everything = {**variables, **own}
    unknown = False

    def value(match):
        nonlocal unknown
        name, default = match[1] or match[3], match[2]
        if name not in everything and default is None:
            unknown = True
        return everything.get(name, default or "")

    command = re.sub(r"\$\{([A-Z_a-z][A-Z_a-z0-9]*)(?::-([^}]*))?\}|\$([A-Z_a-z][A-Z_a-z0-9]*)", value, command)
    command = re.split(r"\s(?:2>&1|\||>|&&|;|2>)", command)[0]
    if unknown or GAP.search(command):
        return None
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return None
    start = next(i for i, word in enumerate(words) if word.endswith("primus-cli"))
    return words[start + 1:]


def stand_in_files(words, folder):
    """The files that the reader must supply."""
    command_at = words.index("--") if "--" in words else 0
    for at, (option, name) in enumerate(zip(words, words[1:])):
        file = folder / name
        if option not in ("--config", "--patch", "--script") or file.exists() or not name or name.startswith("-"):
            continue
        if not str(file.resolve()).startswith(str(folder)):
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        if option == "--config" and at > command_at:
            shutil.copy(folder / EXPERIMENT, file)
        else:
            file.write_text("main: {debug: false}\n" if option == "--config" else "#!/bin/sh\n")
        yield file


def reason_of(error):
    line = next((text for text in error.splitlines() if "error: " in text), error.strip()[:200])
    line = line[line.index("error: ") + 7:] if "error: " in line else line
    return line


def surroundings(folder):
    """The environment of the commands: stubs of tools first on PATH, nodes with eight GPUs."""
    tools = folder / "bin"
    tools.mkdir()
    for tool in STAND_INS:
        (tools / tool).write_text("#!/bin/sh\nexit 0\n")
        (tools / tool).chmod(0o755)
    return {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(folder), "NO_COLOR": "1", "PRIMUS_JOB_TOKEN": "example",
            "GPUS_PER_NODE": "8"}


# For --self-test: commands that use many options and no file of AMD Primus.
SAMPLES = [
    "direct --env A=1 --log_file run.log -- preflight --quick --expected-gpus 8",
    "direct --patch fix.sh -- benchmark gemm --M 4096 --N 4096 --K 1024",
    "direct --script job.py -- --steps 10",
    "container --image a/b:1 --volume /tmp --env B=2 --shm-size 64g -- --numa -- benchmark memory --sizes 16M",
    "slurm srun -N 2 -p gpu -t 1:00:00 -- direct --env GPUS_PER_NODE=8 -- preflight --quick",
    "slurm sbatch --nodes=4 --job-name x -- container --image a/b:1 -- direct --numa -- preflight --tests gemm",
    "direct --help",
]


def problems_of(program, words, plan, asks_help):
    """The errors in a program's output."""
    if asks_help:
        return [] if "Usage:" in plan else ["no help"]
    return plan_check.missing(words, plan, program)


def self_test(program, run):
    """Checks that a correct program passes, and that programs fail if they do nothing, repeat their arguments or drop a
    word."""
    failures = []

    def verdicts(candidate, dropped=None):
        for sample in SAMPLES:
            words = shlex.split(sample)
            asks_help = "--help" in words
            given = words if dropped is None else words[:dropped] + words[dropped + 1:]
            result = run(candidate, given, asks_help)
            # A stub may print its own name in place of the program's name. So the check of the stub's output expects
            # the stub's name.
            yield sample, words, result.returncode != 0 or problems_of(program if dropped is not None else candidate,
                                                                       words, result.stdout, asks_help)

    for sample, _, problems in verdicts(program):
        if problems:
            failures.append(f"{sample}: {problems}")
    for stub in ("/bin/true", "/bin/echo"):
        failures += [f"{stub} passes: {sample}" for sample, _, problems in verdicts(stub) if not problems]
    dropped_ones = 0
    for dropped in range(max(len(shlex.split(sample)) for sample in SAMPLES)):
        for sample, words, problems in verdicts(program, dropped):
            if dropped >= len(words) or words[dropped] in ("srun", "--help", "direct", "--"):
                continue  # the sample has no such word, or the command means the same without the word
            if words[dropped] == "container" and dropped > 0:
                continue  # slurm starts a container by default
            dropped_ones += 1
            if not problems:
                failures.append(f"without '{words[dropped]}' it passes: {sample}")
    for failure in failures:
        print(failure)
    print(f"{len(SAMPLES)} commands pass; a program that does nothing, one that repeats its words, and {dropped_ones} that "
          f"drop one: {'FAILED' if failures else 'all found'}")
    sys.exit(1 if failures else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", default=os.environ.get("PRIMUS_UPSTREAM"))
    parser.add_argument("--program", default="build/bin/primus")
    parser.add_argument("--verbose", action="store_true", help="show every command and its outcome")
    parser.add_argument("--self-test", action="store_true", help="test that this check detects wrong programs")
    parser.add_argument("--match", default="", help="only commands with this text")
    args = parser.parse_args()
    program = os.path.abspath(args.program)
    if args.self_test:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary).resolve()
            environment = surroundings(folder)
            for name in ("fix.sh", "job.py"):
                (folder / name).write_text("")

            def run(candidate, words, asks_help):
                command = [candidate, *words] if asks_help else [candidate, "--dry-run", *words]
                return subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=LIMIT)

            self_test(program, run)
    if not args.checkout:
        print("skipped: PRIMUS_UPSTREAM names no checkout of AMD's Primus (github.com/AMD-AGI/Primus)")
        sys.exit(SKIPPED)
    args.checkout = pathlib.Path(args.checkout)
    if not (args.checkout / "docs").is_dir():
        sys.exit(f"{args.checkout} is no checkout of Primus: it has no docs/")

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary).resolve() / "primus"
        folder.mkdir()
        for name in FOLDERS:
            source = args.checkout / name
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True, ignore_dangling_symlinks=True)
            elif source.exists():
                shutil.copy(source, folder / name)
        environment = surroundings(pathlib.Path(temporary))

        found = {}
        gaps = set()
        for document in sorted([*folder.rglob("*.md"), *folder.rglob("*.sh")]):
            for command, variables in commands_of(document.read_text(errors="replace"), document.suffix == ".sh"):
                words = words_of(command, variables)
                if words is None:
                    gaps.add(command)
                elif args.match in shlex.join(words):
                    found.setdefault(tuple(words), document.relative_to(folder))

        refused = collections.defaultdict(list)
        planned = dict.fromkeys(RECORDED, 0)
        others = 0
        wrong = []
        for words, document in found.items():
            if not (set(words) & MODES) and "--help" not in words:
                others += 1
                continue
            made = list(stand_in_files(list(words), folder))
            # -h may also be a value, or an option of the program after "--".
            asks_help = "--help" in words or words[-1] == "-h"
            command = [program, *words] if asks_help else [program, "--dry-run", *words]
            shown = "primus-cli " + shlex.join(words)
            try:
                result = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                        capture_output=True, text=True, timeout=LIMIT)
            except subprocess.TimeoutExpired:
                result = subprocess.CompletedProcess(command, 1, "", f"error: it did not end within {LIMIT} s")
            for file in made:
                file.unlink()
            problems = problems_of(program, words, result.stdout, asks_help) if result.returncode == 0 else []
            if problems:
                wrong.append((document, shown, problems))
            elif result.returncode == 0:
                kind = "planned with a stand-in" if made else "planned"
                planned[kind] += 1
                if args.verbose:
                    print(f"{kind}  {shown}")
            else:
                reason = reason_of(result.stderr)
                refused[re.sub(r"'[^']*'", "'...'", reason)].append((document, shown, reason))
                if args.verbose:
                    print(f"refused  {shown}\n         {reason}")

    kinds = ", ".join(f"{count} {kind}" for kind, count in planned.items())
    print(f"{len(found) - others} different commands: {kinds}, {sum(map(len, refused.values()))} refused; "
          f"{len(gaps)} more have gaps to fill in, {others} have no mode and no plan")
    for kind, examples in sorted(refused.items(), key=lambda item: -len(item[1])):
        document, shown, reason = examples[0]
        print(f"\n{len(examples):4}  {reason}\n      {document}: {shown[:160]}")
    for document, shown, problems in wrong:
        print(f"\nplanned without what it asks for: {'; '.join(problems)}\n      {document}: {shown}")
    if wrong:
        sys.exit(f"error: {len(wrong)} plans lack what was asked for")
    fewer = [f"{planned[kind]} are {kind}, {count} were before" for kind, count in RECORDED.items()
             if planned[kind] < count]
    if fewer and not args.match:
        sys.exit("error: " + "; ".join(fewer))


if __name__ == "__main__":
    main()
