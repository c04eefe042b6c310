"""Compares the plan that `primus --dry-run MODE ... -- COMMAND` prints with the words that requested it.

missing(words, plan, program) lists requested items that the plan lacks: a mode of the chain, an option of
Slurm, the container or the launcher, a variable, a patch, and the command, which the last process must run
unchanged. The exit code alone would not distinguish a program that plans from a program that does nothing.
"""
import os
import re
import shlex

MODES = ["direct", "container", "slurm", "k8s"]
GROUPS = ["train", "benchmark", "preflight", "version", "node_smoke", "data", "config", "deps", "model", "doctor"]
STEP = re.compile(r"^\d+\. (\w+), ")
# The Slurm short options that the examples use.
LETTERS = {"N": "nodes", "n": "ntasks", "p": "partition", "t": "time", "J": "job-name", "w": "nodelist", "x": "exclude",
           "A": "account", "c": "cpus-per-task", "G": "gpus", "q": "qos", "o": "output", "e": "error"}
# Launcher options that the check recognizes in the plan, by the effect of the option.
SWITCHES = {"--debug", "--dry-run", "--dry_run", "--clean", "--numa", "--no-numa", "--single", "--silent",
            "--privileged-set"}
GLOBAL = {"--config"}


class Step:
    """One program of the chain: its notes, its variables, its words."""

    def __init__(self, name):
        self.name, self.lines = name, []

    def words(self, program):
        """Parses the line that starts a program; for a batch script, the words of its srun."""
        for line in reversed(self.lines):
            if line.startswith("   | srun "):
                return shlex.split(line[5:].removesuffix(" &"))
        tools = ("srun", "sbatch", "docker", "podman", "apptainer", "torchrun", "python3", "kubectl")
        for line in reversed(self.lines):
            words = self.split(line)
            if words and (words[0] in tools or words[0] == program):
                return words
        return []

    def all_words(self):
        return [word for line in self.lines for word in self.split(line.removeprefix("   | ").removesuffix(" &"))]

    @staticmethod
    def split(line):
        try:
            return shlex.split(line)
        except ValueError:
            return []


def steps_of(plan):
    steps = []
    for line in plan.splitlines():
        if match := STEP.match(line):
            steps.append(Step(match[1]))
        elif steps:
            steps[-1].lines.append(line)
    return steps


def chain_of(words):
    """Pairs of a mode and its options, and the command."""
    parts = [[]]
    for word in words:
        if word == "--":
            parts.append([])
        else:
            parts[-1].append(word)
    chain, command = [], []
    for number, part in enumerate(parts):
        at = next((i for i, word in enumerate(part) if word in MODES), None)
        if number == 0 or (at == 0 and number < 3):
            options = part[:at] + part[at + 1:]
            chain.append((part[at], options))
        elif chain[-1][0] == "slurm" and part and part[0].startswith("-") and number + 1 < len(parts):
            chain.append(("container", part))  # slurm's default is a container
        elif chain[-1][0] == "container" and part and part[0].startswith("-") and number + 1 < len(parts):
            chain.append(("direct", part))
        else:
            command = part
    if not command:  # the command does not follow a "--"
        mode, options = chain[-1]
        at = next((i for i, word in enumerate(options) if word in GROUPS and (i == 0 or options[i - 1] not in GLOBAL)),
                  len(options))
        chain[-1], command = (mode, options[:at]), options[at:]
    if chain[-1][0] == "slurm":
        chain.append(("container", []))
    if chain[-1][0] == "container":
        chain.append(("direct", []))
    return chain, command


def options_of(options):
    """Pairs of a name and a value (None: no value)."""
    given, at = [], 0
    while at < len(options):
        word = options[at]
        at += 1
        if word in ("srun", "sbatch"):
            continue
        if re.match(r"^-[A-Za-z]", word):
            name, value = "--" + LETTERS.get(word[1], word[1]), word[2:] or None
        else:
            name, _, value = word.partition("=")
            value = value if "=" in word else None
        if value is None and name not in SWITCHES and at < len(options) and not options[at].startswith("-"):
            value = options[at]
            at += 1
        given.append((name, value))
    return given


def holds(words, part):
    return any(words[i:i + len(part)] == part for i in range(len(words) - len(part) + 1))


def missing(words, plan, program):
    try:
        chain, command = chain_of(list(words))
    except (IndexError, TypeError):
        return ["this check cannot read the command"]
    steps = steps_of(plan)
    names = ["process" if mode == "direct" else mode for mode, _ in chain]
    if [step.name for step in steps] != names:
        return [f"the chain is {' > '.join(names)}, and the plan has {' > '.join(s.name for s in steps) or 'none'}"]
    lost = []
    for number, ((mode, options), step) in enumerate(zip(chain, steps)):
        argv, everything = step.words(program), step.all_words()
        for name, value in options_of(options):
            if not option_is_there(mode, name, value, step, argv, everything):
                lost.append(f"{mode}: {name}{'' if value is None else ' ' + value}")
        # The step must contain the arguments of all launchers further down the chain.
        for _, inner in chain[number + 1:]:
            lost += [f"{mode}: {word} for the launcher within" for word in inner if word not in everything]
        if mode == "slurm" and ("sbatch" in options) != ("with the batch script:" in "\n".join(step.lines)):
            lost.append("slurm: sbatch")
        if mode != "direct" and not holds(argv if mode == "container" else everything, command):
            lost.append(f"{mode}: the command")
    process = steps[-1].words(program)
    script = dict(options_of(chain[-1][1])).get("--script")
    if script and script != "primus/cli/main.py":
        start = process.index(script) + 1 if script in process else None
    else:
        start = 1 if process and process[0] == program else None
        while start is not None and process[start:start + 1] == ["--debug"]:
            start += 1
    rest = list(command)
    while rest and rest[0] == "--debug":
        rest.pop(0)
    if start is None or process[start:start + len(rest)] != rest:
        lost.append("the process does not run the command: " + shlex.join(command))
    return lost


def option_is_there(mode, name, value, step, argv, everything):
    text = "\n".join(step.lines)
    if name in ("--dry-run", "--dry_run", "--debug", "--config"):
        return True  # an option of the launcher on this machine; "--debug" only changes the log
    if mode == "slurm":
        return name + ("" if value is None else "=" + value) in everything
    if mode == "k8s":
        return value is None or value in text
    if mode == "container":
        if name in ("--image", "-i"):
            return value in argv
        if name in ("--volume", "--v", "--bind"):
            host, _, inside = value.partition(":")
            return any(w.startswith(os.path.abspath(host)) or (inside and w.endswith(":" + inside)) for w in argv)
        if name in ("--env", "--e"):
            return value in argv or value.partition("=")[0] in argv
        if name == "--clean":
            return "removed" in text
        if name in ("--log_file", "--log-file"):
            return value in argv
        if name == "--privileged-set":
            return "--privileged" in argv
        return name + ("" if value is None else "=" + value) in argv or holds(argv, [name] + ([value] if value else []))
    if name == "--env":
        variable = value.partition("=")[0]
        return "=" not in value or holds(everything, ["export", value]) or f"export {variable}=<redacted>" in text
    if name == "--patch":
        return f"patch {value}" in text
    if name == "--hooks":
        return "hook" in text
    if name in ("--log_file", "--log-file"):
        return f"output to {value}" in text
    if name == "--numa":
        return "--numa" in argv or "__numa" in argv or "numa" not in text and "--nproc" not in argv
    if name == "--single":
        return "--nproc" not in argv and "torchrun" not in argv
    if name == "--script":
        return value in argv or value == "primus/cli/main.py"
    return name in SWITCHES
