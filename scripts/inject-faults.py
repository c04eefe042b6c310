#!/usr/bin/env python3
"""Injects faults into supervised runs ('primus train pretrain --supervise'), and checks their recovery.

usage: inject-faults.py [--program build/bin/primus] [--injections 100] [--ranks 1,2] [--kinds ...] [--seed 1]

Each run trains a toy model for a fixed number of steps, while faults hit it at random moments of a phase (start, step,
save, commit). At the end, the losses of all steps and the final weights must be bit for bit those of an undisturbed
run, and no process may remain. The script prints a table of kinds and phases: injected and recovered faults, median
and longest time from the fault to the next completed step. Exit code 1: at least one run was not recovered.

With --nodes N, each run has N machines with one rank each, and a spare: processes on this machine with a supervisor
each. The kinds are then rank, agent, spare, leader, stop and stop-agent (the faults of NODE_KINDS). A killed
supervisor is started again by this script, as a user would do: that of a node at once, so it becomes the next spare;
that of the leader after the end of its ranks.

Only Python's standard library and Linux are needed.
"""
import argparse
import glob
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = ["num_layers=2", "hidden_size=24", "ffn_hidden_size=48", "num_attention_heads=2", "seq_length=16",
         "micro_batch_size=2", "global_batch_size=4", "lr_warmup_iters=2", "bf16=false", "num_threads=1",
         "reduce_gradients_each_microbatch=false", "data_parallel_sharding_strategy=optim"]
PHASES = ["start", "step", "save", "commit"]
# Kinds of faults: the signal, and the process that gets it.
KINDS = {
    "kill": (signal.SIGKILL, "rank"), "segv": (signal.SIGSEGV, "rank"), "abort": (signal.SIGABRT, "rank"),
    "bus": (signal.SIGBUS, "rank"), "xcpu": (signal.SIGXCPU, "rank"), "kill-job": (signal.SIGKILL, "job"),
    "segv-job": (signal.SIGSEGV, "job"), "stop": (signal.SIGSTOP, "rank"),
    "kill-supervisor": (signal.SIGKILL, "supervisor"),
}
# Kinds of faults of several machines. "agent" is the supervisor of a node with ranks, but not of the leader.
NODE_KINDS = {
    "rank": (signal.SIGKILL, "rank"), "agent": (signal.SIGKILL, "agent"), "spare": (signal.SIGKILL, "spare"),
    "leader": (signal.SIGKILL, "leader"), "stop": (signal.SIGSTOP, "rank"), "stop-agent": (signal.SIGSTOP, "agent"),
}
PATIENCE = 90  # seconds without progress after which a run counts as not recovered


def children(pid):
    found = []
    for task in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(task) as file:
                found += [int(word) for word in file.read().split()]
        except OSError:
            pass  # the thread has ended
    return found


def descendants(pid):
    found = [pid]
    for one in found:
        found += children(one)
    return found[1:]


def is_program(pid, program):
    try:
        return os.path.samefile(f"/proc/{pid}/exe", program)
    except OSError:
        return False


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def rank_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for word in file.read().split(b"\0"):
                if word.startswith(b"RANK="):
                    return int(word[5:])
    except OSError:
        pass
    return None


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


class Run:
    def __init__(self, arguments, folder, name, ranks, steps):
        self.arguments, self.ranks, self.steps = arguments, ranks, steps
        self.folder = os.path.join(folder, "w", "u", name)
        self.log = open(os.path.join(folder, name + ".log"), "a")
        self.command = [
            arguments.program, "train", "pretrain", "--config",
            os.path.join(SOURCE, "examples/native/configs/CPU/llama_tiny-pretrain.yaml"), "workspace=" + folder,
            "work_group=w", "user_name=u", "exp_name=" + name, f"train_iters={steps}", "save_interval=10",
            "keep_latest=2", "eval_interval=35", "eval_iters=1", "--nproc", str(ranks)] + MODEL
        self.process = None
        self.restarts = 0  # of the supervisor, by this script

    def start(self, supervise=True):
        more = ["--supervise", "--max-restarts", "100000"] if supervise else []
        self.process = subprocess.Popen(self.command + more, stdout=self.log, stderr=self.log)

    def ended(self):
        return self.process.poll() is not None

    # Processes with a supervisor.
    def supervisors(self):
        return [self.process.pid]

    def everything(self):
        return [pid for supervisor in self.supervisors() for pid in descendants(supervisor)]

    def kill(self):
        self.process.kill()
        self.process.wait()

    # The process that `--supervise` started: rank 0 itself, or the process that starts the ranks.
    def job(self, supervisor=None):
        found = [pid for pid in children(supervisor or self.process.pid)
                 if is_program(pid, self.arguments.program) and name_of(pid) != "primus-guard"]
        return found[0] if found else None

    def target(self, of, rank):
        if of == "supervisor":
            return self.process.pid
        job = self.job()
        if job is None or of == "job" or self.ranks == 1:
            return job
        found = [pid for pid in children(job) if rank_of(pid) == rank]
        return found[0] if found else None

    def events(self):
        try:
            with open(os.path.join(self.folder, "events", "rank-00000.jsonl"), "rb") as file:
                lines = file.read().split(b"\n")
        except OSError:
            return []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                pass  # a torn line
        return found

    def last_event(self):
        try:
            with open(os.path.join(self.folder, "events", "rank-00000.jsonl"), "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 4096))
                tail = file.read().split(b"\n")
        except OSError:
            return {}
        for line in reversed(tail):
            try:
                return json.loads(line)
            except ValueError:
                pass
        return {}

    def latest(self):
        try:
            with open(os.path.join(self.folder, "checkpoints", "latest")) as file:
                return file.read().strip()
        except OSError:
            return ""

    def losses(self):
        found = {}
        with open(os.path.join(self.folder, "metrics.jsonl")) as file:
            for line in file:
                record = json.loads(line)
                found[record["iteration"]] = (record["lm_loss"], record["grad_norm"])
        return found

    def weights(self):
        found = {}
        for path in sorted(glob.glob(os.path.join(self.folder, f"checkpoints/iter_{self.steps:07}/**/*.safetensors"),
                                     recursive=True)):
            with open(path, "rb") as file:
                found[os.path.relpath(path, self.folder)] = file.read()
        return found


class NodesRun(Run):
    """A run on several machines, which are processes on this one, with a spare."""

    def __init__(self, arguments, folder, name, ranks, steps):
        super().__init__(arguments, folder, name, 1, steps)
        self.ranks = ranks
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.agents = {}

    def start_agent(self, node):
        self.agents[node] = subprocess.Popen(
            self.command + ["--supervise", "--max-restarts", "100000", "--spares", "1", "--nnodes",
                            str(self.ranks + 1), "--node_rank", str(node), "--master_addr", "127.0.0.1",
                            "--master_port", str(self.port)], stdout=self.log, stderr=self.log)
        if node == 0:
            self.process = self.agents[0]

    def start(self, supervise=True):
        for node in range(self.ranks + 1):
            self.start_agent(node)

    def supervisors(self):
        return [agent.pid for agent in self.agents.values() if agent.poll() is None]

    def kill(self):
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.kill()
            agent.wait()

    # Returns the number of a node with or without ranks, or None.
    def node(self, with_ranks, rng=random):
        found = [node for node, agent in self.agents.items()
                 if node > 0 and agent.poll() is None and (self.job(agent.pid) is not None) == with_ranks]
        return rng.choice(found) if found else None

    def target(self, of, rank):
        if of == "leader":
            return self.process.pid
        if of in ("agent", "spare"):
            node = self.node(of == "agent")
            return None if node is None else self.agents[node].pid
        for pid in self.supervisors():
            for one in descendants(pid):
                if rank_of(one) == rank and is_program(one, self.arguments.program):
                    return one
        return None

    # Starts a killed supervisor again. Returns an error text, or None.
    def restart(self, pid):
        node = [node for node, agent in self.agents.items() if agent.pid == pid][0]
        self.agents[node].wait()
        if node == 0:
            ranks = [one for one in self.everything() if rank_of(one) is not None]
            end = time.monotonic() + 15
            while any(state_of(one) not in ("", "Z") for one in ranks):
                if time.monotonic() > end:
                    return "ranks remain after the leader was killed"
                time.sleep(0.001)
        self.start_agent(node)
        return None


def wait_for(condition, run):
    """Returns the condition's value when it is true; None if the run ends or PATIENCE passes first."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        if run.ended():
            return None
        time.sleep(0.001)
    return None


def reach(run, phase, rng, of, rank):
    """Waits until the run is in the phase; returns the process to hit, or None if the run has ended."""
    saved = run.latest()
    if phase == "start":
        target = wait_for(lambda: run.target(of, rank), run)
        time.sleep(rng.random() * 0.5)
        return target
    # A new checkpoint first: three faults in a row without one are a crash loop.
    if not wait_for(lambda: run.latest() != saved, run):
        return None
    if phase == "step":
        time.sleep(rng.random() * 0.1)
    if phase == "save":
        if not wait_for(lambda: glob.glob(os.path.join(run.folder, "checkpoints", ".tmp-*")), run):
            return None
        time.sleep(rng.random() * 0.01)
    return run.target(of, rank)


def inject(run, kind, phase, rng):
    """Injects one fault, and lets a stopped supervisor continue afterwards: it notices that it was replaced, and becomes
    the next spare. Returns as inject_once()."""
    stopped = []
    try:
        return inject_once(run, kind, phase, rng, stopped)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def inject_once(run, kind, phase, rng, stopped):
    """Injects one fault. Returns the seconds until the next completed step, 'ended', or an error text."""
    number, of = (NODE_KINDS if run.arguments.nodes else KINDS)[kind]
    rank = rng.randrange(run.ranks)
    target = reach(run, phase, rng, of, rank)
    if target is None or run.ended():
        return "ended"
    before = descendants(target) if of in ("agent", "leader") else run.everything()
    hit = time.time()
    try:
        os.kill(target, number)
        if kind == "stop-agent":
            stopped.append(target)
    except ProcessLookupError:
        return "ended"
    if of in ("agent", "leader", "spare") and number == signal.SIGKILL:
        end = time.monotonic() + 5
        while any(state_of(pid) not in ("", "Z") for pid in (before if of != "spare" else [])):
            if time.monotonic() > end:
                return f"processes remain after the {of} was killed"
            time.sleep(0.001)
        problem = run.restart(target)
        if problem:
            return problem
    if of == "supervisor":
        run.process.wait()
        end = time.monotonic() + 5
        while any(state_of(pid) not in ("", "Z") for pid in before):
            if time.monotonic() > end:
                return "processes remain after the supervisor was killed"
            time.sleep(0.001)
        run.start()
    def recovered():
        event = run.last_event()
        return event.get("time", 0) > hit + 0.001 and event.get("event") == "step" and event
    if of == "spare":  # the job does not notice
        event = wait_for(recovered, run)
        return event["time"] - hit if event else ("ended" if run.process.poll() == 0 else "no step")
    # A step that ended just after the signal is not a recovery: the job must have begun again.
    def began():
        return [e for e in run.events() if e["event"] == "begin" and e["time"] > hit]
    if not wait_for(began, run):
        return "ended" if run.process.poll() == 0 else f"no restart, exit code {run.process.poll()}"
    event = wait_for(recovered, run)
    return event["time"] - hit if event else ("ended" if run.process.poll() == 0 else "no step after the restart")


class Table:
    def __init__(self):
        self.rows = {}

    def add(self, kind, phase, result):
        row = self.rows.setdefault((kind, phase), {"times": [], "failures": []})
        if isinstance(result, float):
            row["times"].append(result)
        elif result != "ended":
            row["failures"].append(result)

    def injected(self):
        return sum(len(row["times"]) + len(row["failures"]) for row in self.rows.values())

    def failures(self):
        return [text for row in self.rows.values() for text in row["failures"]]

    def show(self):
        print(f"{'fault':<16} {'phase':<7} {'injected':>8} {'recovered':>9} {'median s':>9} {'longest s':>9}")
        for (kind, phase), row in sorted(self.rows.items()):
            times = row["times"]
            count = len(times) + len(row["failures"])
            if count:
                print(f"{kind:<16} {phase:<7} {count:>8} {len(times):>9} "
                      f"{statistics.median(times) if times else 0:>9.2f} {max(times, default=0):>9.2f}")
                for text in sorted(set(row["failures"])):
                    print(f"  not recovered: {text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=os.path.join(SOURCE, "build/bin/primus"))
    parser.add_argument("--injections", type=int, default=100)
    parser.add_argument("--ranks", default="1,2", help="the ranks of the first run, the second run and so on; then again from the first number")
    parser.add_argument("--nodes", type=int, default=0, help="machines with one rank each, and a spare (at least 2)")
    parser.add_argument("--kinds", help="kinds of faults, of: " + ", ".join(KINDS) + "; with --nodes, of: " +
                        ", ".join(NODE_KINDS) + " (stop and stop-agent take 10 s each, and are not in the default)")
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--steps", type=int, default=200, help="steps of each run")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run after this time")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.program = os.path.abspath(arguments.program)
    known = NODE_KINDS if arguments.nodes else KINDS
    arguments.kinds = arguments.kinds or ",".join(kind for kind in known if not kind.startswith("stop"))
    kinds, phases = arguments.kinds.split(","), arguments.phases.split(",")
    kind_of_run = NodesRun if arguments.nodes else Run
    if arguments.nodes:
        arguments.ranks = str(arguments.nodes)
    worlds = [int(word) for word in arguments.ranks.split(",")]
    for kind in kinds:
        if kind not in known:
            sys.exit(f"there is no kind of fault '{kind}': choose of {', '.join(known)}")
    if arguments.nodes == 1:
        sys.exit("--nodes needs at least 2 machines")
    rng = random.Random(arguments.seed)
    table, runs, broken = Table(), 0, []
    with tempfile.TemporaryDirectory(prefix="primus-faults-") as folder:
        whole = {}
        end = time.monotonic() + 60 * arguments.minutes
        while table.injected() < arguments.injections and time.monotonic() < end:
            ranks = worlds[runs % len(worlds)]
            if ranks not in whole:
                whole[ranks] = Run(arguments, folder, f"whole{ranks}", ranks, arguments.steps)
                whole[ranks].start(supervise=False)
                if whole[ranks].process.wait() != 0:
                    sys.exit(f"the undisturbed run failed: {whole[ranks].log.name}")
            runs += 1
            run = kind_of_run(arguments, folder, f"run{runs}", ranks, arguments.steps)
            run.start()
            everything, problem = set(), None
            while not run.ended() and not problem and table.injected() < arguments.injections:
                kind, phase = rng.choice(kinds), rng.choice(phases)
                everything.update(run.everything())
                result = inject(run, kind, phase, rng)
                table.add(kind, phase, result)
                if isinstance(result, str) and result != "ended":
                    problem = f"{kind} in {phase}: {result}"
            if not problem:
                everything.update(run.everything())
                try:
                    code = run.process.wait(PATIENCE)
                    for agent in getattr(run, "agents", {}).values():
                        code = agent.wait(PATIENCE) or code
                    if code != 0:
                        problem = f"exit code {code}"
                    elif run.losses() != whole[ranks].losses():
                        problem = "other losses than the undisturbed run"
                    elif run.weights() != whole[ranks].weights() or not run.weights():
                        problem = "other weights than the undisturbed run"
                    elif any(state_of(pid) not in ("", "Z") and is_program(pid, arguments.program)
                             for pid in everything):
                        problem = "processes remain"
                except subprocess.TimeoutExpired:
                    problem = "the run does not end"
            if problem:
                run.kill()
                broken.append(f"run {runs} with {ranks} ranks: {problem}")
                with open(run.log.name) as file:
                    lines = [line for line in file if "iteration" not in line]
                    sys.stderr.write(f"{broken[-1]}\n  " + "  ".join(lines[-30:]) + "\n")
            elif runs % 10 == 0:
                print(f"{table.injected()} injections in {runs} runs", file=sys.stderr)
    table.show()
    print(f"{table.injected()} faults in {runs} runs of {arguments.steps} steps, seed {arguments.seed}; "
          f"{runs - len(broken)} runs equal the undisturbed run bit for bit, {len(broken)} do not")
    for text in broken:
        print("  " + text)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
