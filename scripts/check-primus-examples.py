#!/usr/bin/env python3
"""Runs every `primus-cli ...` example of AMD Primus's documents with --dry-run, and counts what comes of it.

  scripts/check-primus-examples.py [CHECKOUT] [--program build/bin/primus] [--verbose] [--match TEXT]

CHECKOUT is a checkout of Primus's repository, PRIMUS_UPSTREAM by default: where both are missing, the check is
skipped (exit code 77). ./test.sh runs it, too. Nothing in it is changed: the commands run in a copy of its documents, shell scripts and examples. srun, sbatch, docker and torchrun are stand-ins that do nothing, so that what is
missing on this machine does not hide what is missing in the program, and nodes have eight GPUs, as the
documents' have. Files that an example leaves to its reader (--config config.yaml) are stood in for by one of
Primus's own experiments. Examples with gaps to fill in ("<image>", "...", a variable that the document does not set) are counted, and not run. Nor are commands
without a mode.

A command is `planned` where it ends with 0 with the files that Primus has, `planned with a stand-in` where one
of its files was stood in for, and `refused` otherwise, by the first sentence of its error. What is refused may
be right. The exit code is 1 where fewer are planned than were last (RECORDED), 0 otherwise.
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

LIMIT = 300  # seconds for a command
SKIPPED = 77
FOLDERS = ["README.md", "docs", "docs_deprecated", "skills", "runner", "examples", "primus/configs"]
# Of commit fd1eeab of Primus, on a machine without GPUs. Who makes more of them run raises the numbers.
RECORDED = {"planned": 148, "planned with a stand-in": 46}
STAND_INS = ["srun", "sbatch", "docker", "torchrun", "python3"]
EXPERIMENT = "examples/megatron/configs/MI300X/llama2_7B-BF16-pretrain.yaml"
MODES = {"direct", "container", "slurm"}
START = re.compile(r"^(?:[A-Z_][A-Z_0-9]*=\S+\s+)*(?:(?:sudo|bash)\s+)?(?:\S*/)?primus-cli\s")
EXPORT = re.compile(r"^(?:export\s+)?([A-Z_][A-Z_0-9]*)=(\S+|\"[^\"]*\"|'[^']*')\s*$")
GAP = re.compile(r"<[^<>]*>|\.\.\.|\[(?![0-9,-]+\])[^\]]*\]|path/to/|…|\$\(")


def commands_of(text, is_script):
    """Pairs of a command and the variables set before it in the document, or in the shell script."""
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
    """The words behind the program's name, or None where something is left to fill in."""
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
    """Files that the reader is to have."""
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", default=os.environ.get("PRIMUS_UPSTREAM"))
    parser.add_argument("--program", default="build/bin/primus")
    parser.add_argument("--verbose", action="store_true", help="show every command and what came of it")
    parser.add_argument("--match", default="", help="only commands with this text")
    args = parser.parse_args()
    program = os.path.abspath(args.program)
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
        tools = pathlib.Path(temporary) / "bin"
        tools.mkdir()
        for tool in STAND_INS:
            (tools / tool).write_text("#!/bin/sh\nexit 0\n")
            (tools / tool).chmod(0o755)
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": temporary, "NO_COLOR": "1",
                       "PRIMUS_JOB_TOKEN": "example", "GPUS_PER_NODE": "8"}

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
        for words, document in found.items():
            if not (set(words) & MODES) and "--help" not in words:
                others += 1
                continue
            made = list(stand_in_files(list(words), folder))
            # -h may also be a value, or an option of the program behind "--".
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
            if result.returncode == 0:
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
    fewer = [f"{planned[kind]} are {kind}, {count} were before" for kind, count in RECORDED.items()
             if planned[kind] < count]
    if fewer and not args.match:
        sys.exit("error: " + "; ".join(fewer))


if __name__ == "__main__":
    main()
