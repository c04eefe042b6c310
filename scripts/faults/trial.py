"""One trial: a supervised run of a toy model, one fault of a kind in a phase, and the judgement of what followed."""
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

from faults.kinds import KINDS, STOPPED

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STEPS, SAVE, EVALUATE = 60, 10, 25
MODEL = ["num_layers=2", "hidden_size=24", "ffn_hidden_size=48", "num_attention_heads=2", "seq_length=16",
         "micro_batch_size=2", "global_batch_size=8", "lr_warmup_iters=2", "bf16=false", "num_threads=1",
         "reduce_gradients_each_microbatch=false", "data_parallel_sharding_strategy=optim", f"train_iters={STEPS}",
         f"save_interval={SAVE}", "keep_latest=3", f"eval_interval={EVALUATE}", "eval_iters=1",
         "distributed_timeout_minutes=1"]
LIMIT = 100  # seconds for a run; a run that takes longer has failed
SLOW_LIMIT = 250  # the same for slow kinds


def command(program, folder, name, setup, data):
    found = [program, "train", "pretrain", "--config",
             os.path.join(SOURCE, "examples/native/configs/CPU/llama_tiny-pretrain.yaml"), "workspace=" + folder,
             "work_group=w", "user_name=u", "exp_name=" + name, "--nproc", "2" if setup == "2" else "1"] + MODEL
    if data:
        found += ["mock_data=false", "data_path=" + data]
    return found


def write_data(path):
    with open(path, "w") as file:
        file.write("\n".join(f"line {i} of a text with the number {i * i}" for i in range(600)) + "\n")


def run_of(folder, name):
    return os.path.join(folder, "w", "u", name)


def events_of(run, file="rank-00000"):
    found = []
    try:
        with open(os.path.join(run, "events", file + ".jsonl"), "rb") as lines:
            for line in lines:
                try:
                    found.append(json.loads(line))
                except ValueError:
                    pass  # a torn line
    except OSError:
        pass
    return found


def losses_of(run):
    found = {}
    with open(os.path.join(run, "metrics.jsonl")) as file:
        for line in file:
            record = json.loads(line)
            found[record["iteration"]] = (record["lm_loss"], record["grad_norm"])
    return found


def weights_of(run):
    found = {}
    for path in sorted(glob.glob(os.path.join(run, f"checkpoints/iter_{STEPS:07}/**/*.safetensors"), recursive=True)):
        with open(path, "rb") as file:
            found[os.path.relpath(path, run)] = file.read()
    return found


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def free_port(number):
    """A port that no other trial gets, below those that the system gives to sockets."""
    first, ports = 10000, 22000
    for i in range(ports):
        port = first + (7 * number + i) % ports
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise SystemExit(f"no port from {first} to {first + ports - 1} is free")


def processes_with(word):
    """Processes whose environment has the word, and that have not ended."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if word.encode() in file.read().split(b"\0"):
                    pid = int(path.split("/")[2])
                    if state_of(pid) not in ("", "Z", "X"):
                        found.append(pid)
        except OSError:
            pass
    return found


class Reference:
    """Undisturbed runs, one for each number of ranks and each kind of data."""

    def __init__(self, program, folder):
        self.program, self.folder, self.known, self.lock = program, folder, {}, threading.Lock()

    def get(self, ranks, data):
        with self.lock:
            key = (ranks, bool(data))
            if key not in self.known:
                name = f"whole{ranks}{'d' if data else ''}"
                copy = os.path.join(self.folder, name + ".txt")
                if data:
                    write_data(copy)
                done = subprocess.run(command(self.program, self.folder, name, str(ranks), copy if data else ""),
                                      capture_output=True, text=True)
                if done.returncode != 0:
                    raise SystemExit("the undisturbed run failed:\n" + done.stdout[-2000:] + done.stderr[-2000:])
                run = run_of(self.folder, name)
                self.known[key] = (losses_of(run), weights_of(run))
            return self.known[key]


class Trial:
    def __init__(self, options, setup, kind, phase, seed, number):
        self.number = number  # of this trial; no other trial of the script has it
        self.options, self.setup, self.name, self.phase, self.seed = options, setup, kind, phase, seed
        self.kind = KINDS[kind]
        self.rng = random.Random(f"{setup} {kind} {phase} {seed}")
        self.ranks = 1 if setup == "1" else 2
        self.victim = self.rng.randrange(self.ranks) if self.kind.victim == "any" else 0
        self.limit = SLOW_LIMIT if self.kind.slow else LIMIT
        self.seconds, self.detail, self.causes = 0.0, "", []
        self.supervisors, self.again = {}, set()  # again: nodes whose supervisor this script started again
        self.reading = threading.Event()

    @staticmethod
    def possible(setup, kind, phase):
        if setup not in KINDS[kind].setups or phase in KINDS[kind].not_in:
            return False
        return setup != "1" or phase != "collective"  # one rank waits for no other

    # ---- The plan of the shim ---------------------------------------------------------------------

    def point(self):
        """Event, hook and count of the phase."""
        step = f'"event":"step","step":%d,'
        n = self.rng.randint
        # After a damaged checkpoint, a run continues from an older one, if there is one.
        first = 4 if self.kind.lower else 2
        away = self.rng.choice([i for i in range(first * SAVE - 8, STEPS - 3) if i % SAVE not in (0, 9)])
        saved = n(first, 4) * SAVE
        return {
            "start": ("-", "open", n(1, 12)),
            "first": ('"event":"begin"', "clock", n(1, 12)),
            "step": (step % away, "clock", n(1, 12)),
            "collective": (step % away, "futex", n(1, 3)),
            "evaluation": ('"event":"evaluation_start","step":%d,' % (EVALUATE * first // 2), "clock", n(1, 4)),
            "save": ('"event":"checkpoint","step":%d,' % saved, "pwrite", n(1, 4)),
            "background": ('"event":"checkpoint","step":%d,' % saved, "open", n(1, 6)),
            "commit": ('"event":"checkpoint","step":%d,' % saved, "rename", n(1, 2)),
            "restart": ("-", "open", n(1, 12)),
            "end": (step % STEPS, "clock", n(1, 30)),
        }[self.phase]

    def actions(self, text):
        victim = "self" if self.victim == 0 else f"rank-{self.victim}"
        return text.replace("VICTIM", victim).replace("AGENT", "supervisor-1").replace("LEADER", "supervisor-0")

    def plan(self):
        event, hook, count = self.point()
        lines, needed, self.expected = [], "-", {}
        if self.phase == "restart":
            lines.append('before - rank-0 "event":"step","step":%d, clock 2 self=signal:9' %
                         (self.rng.randint(2, 8) + (30 if self.kind.lower else 20)))
            needed = "before"
        lines.append(f"fault {needed} rank-0 {event} {hook} {count} {self.actions(self.kind.actions)}")
        if self.kind.second:
            lines.append(f"second fault rank-0 - open {self.rng.randint(1, 12)} {self.actions(self.kind.second)}")
        for line in lines:
            token, actions = line.split()[0], line.split()[-1]
            self.expected[token] = [f"delivered-{token}-{i}" for i in range(len(actions.split(";")))]
            open(os.path.join(self.folder, line.split()[0]), "w").close()
        with open(os.path.join(self.folder, "plan"), "w") as file:
            file.write("\n".join(lines) + "\n")

    def fired(self, token="fault"):
        return not os.path.exists(os.path.join(self.folder, token))

    def missing(self):
        """Faults that did not happen at all, and actions that did not reach their process."""
        found = [token for token in self.expected if not self.fired(token)]
        for token, files in self.expected.items():
            if token not in found:
                found += [name for name in files if not os.path.exists(os.path.join(self.folder, name))]
        return found

    # ---- Processes --------------------------------------------------------------------------------

    def start(self, node=0):
        if self.options.over:
            raise SystemExit("the script ends")
        words = command(self.options.program, self.options.folder, self.run_name, self.setup, self.data)
        words += ["--supervise", f"async_save={'false' if self.phase == 'save' else 'true'}"]
        if self.kind.slow:  # a hang outside of steps is found after this time
            words.append("distributed_timeout_minutes=1")
        if self.setup == "nodes":
            words += ["--spares", "1", "--nnodes", "3", "--node_rank", str(node), "--master_addr", "127.0.0.1",
                      "--master_port", str(self.port), "--node-wait", "0.1"]
        environment = dict(os.environ, LD_PRELOAD=self.options.shim, FAULT_FOLDER=self.folder, FAULT_RUN=self.run,
                           FAULT_SESSION=self.options.folder)
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env=environment)
        self.supervisors[node] = process
        threading.Thread(target=self.drain, args=(process,), daemon=True).start()

    def drain(self, process):
        with process.stdout as pipe:
            while True:
                self.reading.wait()
                chunk = os.read(pipe.fileno(), 4096)
                if not chunk:
                    return
                with open(self.log, "ab") as file:
                    file.write(chunk)

    def process(self, role):
        try:
            with open(os.path.join(self.folder, role)) as file:
                return int(file.read())
        except (OSError, ValueError):
            return 0

    def tell(self, role, number):
        pid = self.process(role)
        try:
            if pid:
                os.kill(pid, number)
        except ProcessLookupError:
            pass

    def wait_until(self, condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def start_again(self, node):
        try:
            self.supervisors[node].wait(self.limit)
        except subprocess.TimeoutExpired:
            return  # the run does not end
        if node == 0:  # its ranks end first, as the supervisor's lock demands
            self.wait_until(lambda: not any(state_of(self.process(f"{role}-{i}")) not in ("", "Z")
                                            for role in ("rank", "launcher") for i in range(self.ranks)), 10)
        self.again.add(node)
        self.start(node)

    def after(self):
        """Does what a user does after the fault, and ends the cause of the fault."""
        then = self.kind.then or ""
        victim = f"rank-{self.victim}"
        if then == "continue-victim":
            time.sleep(1.5)
            self.tell(victim, signal.SIGCONT)
        elif then in ("continue-leader", "continue-agent"):
            time.sleep(2)
            self.tell("supervisor-0" if then == "continue-leader" else "supervisor-1", signal.SIGCONT)
        elif then == "continue-agent-late":
            time.sleep(14)
            self.tell("supervisor-1", signal.SIGCONT)
        elif then in ("start-leader", "start-agent", "start-spare"):
            self.start_again({"start-leader": 0, "start-agent": 1, "start-spare": 2}[then])
        elif then == "free-space":
            # When the supervisor has seen the full disk, space is freed.
            self.wait_until(lambda: self.supervisors[0].poll() is not None or
                            any("needs_free_bytes" in event["facts"] for event in events_of(self.run, "supervisor")),
                            20)
            with open(os.path.join(self.folder, "free"), "w") as file:
                file.write("1000000000000")
        elif then == "return-data":
            self.wait_until(lambda: self.supervisors[0].poll() is not None, 30)
            if os.path.exists(os.path.join(self.folder, "away.txt")):
                os.rename(os.path.join(self.folder, "away.txt"), self.data)
        elif then == "unblock-output":
            self.reading.clear()
            time.sleep(2)
            self.reading.set()
        elif then == "term-leader":
            time.sleep(self.rng.random() * 0.8)
            self.tell("supervisor-0", signal.SIGTERM)
        elif then == "end-agent":
            self.wait_until(lambda: self.supervisors[0].poll() is not None, self.limit)
            self.supervisors[1].kill()
        elif then == "release-agent":
            self.wait_until(lambda: self.supervisors[0].poll() is not None, 60)
            for role in ("rank-1", "launcher-1"):
                self.tell(role, signal.SIGKILL)

    def wait(self, limit):
        end = time.monotonic() + limit
        for node, process in sorted(self.supervisors.items()):
            try:
                process.wait(5 if node in self.again and node > 0 else max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                if node not in self.again or node == 0:
                    return False
                # It was started again when the job had ended, and waits for a leader.
                process.kill()
                process.wait()
        return True

    def kill_all(self):
        for _ in range(50):
            left = processes_with("FAULT_FOLDER=" + self.folder)
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not left:
                return
            time.sleep(0.02)

    # ---- The trial --------------------------------------------------------------------------------

    def execute(self, reference):
        """Returns 'recovered', 'unaffected', 'ended', 'too late' (a part of the fault did not happen) or, if the
        outcome is wrong, a text."""
        self.run_name = f"{self.setup}-{self.name}-{self.phase}-{self.seed}"
        self.folder = os.path.join(self.options.folder, "t-" + self.run_name)
        self.run = run_of(self.options.folder, self.run_name)
        self.log = self.folder + ".log"
        os.makedirs(self.folder)
        self.data = ""
        if "data" in self.kind.options:
            self.data = os.path.join(self.folder, "data.txt")
            write_data(self.data)
        self.port = free_port(self.number)
        self.plan()
        self.reading.set()
        result = self.watch(reference)
        self.kill_all()
        self.seconds = time.monotonic() - self.began
        if result in ("recovered", "unaffected", "ended", "too late") and not self.options.keep:
            shutil.rmtree(self.run, ignore_errors=True)
            shutil.rmtree(self.folder, ignore_errors=True)
        return result

    def watch(self, reference):
        whole = reference.get(self.ranks, self.data)
        self.began = time.monotonic()  # without the undisturbed run, which the first trials wait for
        for node in range(3 if self.setup == "nodes" else 1):
            self.start(node)
        leader = self.supervisors[0]
        self.wait_until(lambda: self.fired() or leader.poll() is not None, self.limit)
        fault = self.fired()
        if fault:
            self.after()
        if not self.wait(self.limit):
            return "the run does not end"
        left = []
        if not self.wait_until(lambda: not processes_with("FAULT_FOLDER=" + self.folder), 4):
            left = processes_with("FAULT_FOLDER=" + self.folder)
        if left:
            return f"processes {left} remain"
        problem = self.judge_end()
        if problem:
            return problem
        if self.detail == "ended":  # the same command completes the run
            for node in range(3 if self.setup == "nodes" else 1):
                self.start(node)
            if not self.wait(self.limit):
                return "the run does not end after its second start"
            codes = [process.returncode for process in self.supervisors.values()]
            if any(codes):
                return f"the second start ends with exit codes {codes}"
        problem = self.judge_numbers(whole) or self.judge_times()
        if problem:
            return problem
        if not fault or self.missing():
            return "too late"
        if self.detail or self.causes:
            return self.detail or "recovered"
        # After the last step, the run may be over before anything notices the fault.
        if self.kind.names and not self.kind.unseen and not self.at_end():
            return f"not detected, instead of {' or '.join(sorted(self.kind.names))}"
        return "unaffected"

    def at_end(self):
        """Whether the fault came too late for a detection. The run writes the lines of steps up to 10 ms late, so a
        fault that waits for a line may come several steps later. A request to stop counts for the next step that
        begins, and the run does not stop before its last step is done."""
        if self.phase == "end":
            return True
        last = STEPS - 2 if self.kind.ends == STOPPED else STEPS
        ends = [event["time"] for event in events_of(self.run, f"rank-{self.victim:05}")
                if event["event"] == "step" and event["step"] == last]
        return bool(ends) and self.moment() >= ends[-1]

    def moment(self):
        """The time of the first action of the fault, in seconds since 1970."""
        times = []
        for name in self.expected["fault"]:
            with open(os.path.join(self.folder, name)) as file:
                times.append(float(file.read()))
        return min(times)

    def codes(self):
        """The exit codes of the newest supervisor of each node."""
        return {node: process.returncode for node, process in self.supervisors.items()}

    def judge_times(self):
        """The recorded time of the whole run is that of the supervisor's process, whatever the clocks say."""
        times = [r["facts"]["times"]["wall"] for r in events_of(self.run, "supervisor") if "times" in r["facts"]]
        passed = time.monotonic() - self.began
        recorded = times[-1] if times else 0
        least = 0.5 * passed if self.name.startswith("clock-") else 0
        return "" if least <= recorded <= passed + 0.1 else f"{recorded:.1f} of {passed:.1f} s are recorded"

    def judge_end(self):
        records = events_of(self.run, "supervisor")
        allowed = set(self.kind.names)
        if self.phase == "restart":
            allowed |= {"killed", "lost rank"}
        self.causes = [r["cause"] for r in records if r["event"] == "supervise_detection"]
        codes = self.codes()
        ends = [r["cause"] for r in records if r["event"] == "supervise_end"]
        code = codes[0]
        ends_right = self.kind.ends | (self.kind.early if self.phase == "start" else set())
        complete = os.path.isdir(os.path.join(self.run, f"checkpoints/iter_{STEPS:07}"))
        if code != 0 or (ends and ends[-1] != "finished") or not complete:
            if (code, ends[-1] if ends else "") not in ends_right:
                return f"ended with exit code {code} ({', '.join(ends)}) after {self.causes}"
            self.detail = "ended"
        wrong = [cause for cause in self.causes if cause not in allowed | {end for _, end in ends_right}]
        if wrong:
            return f"named '{wrong[0]}', not {' or '.join(sorted(allowed)) or 'unaffected'}"
        others = [c for node, c in codes.items() if node != 0 and c not in (code, -signal.SIGKILL)
                  and not (c == 3 and self.kind.away)]
        if others:
            return f"exit codes {codes} of the supervisors"
        return ""

    def judge_numbers(self, whole):
        try:
            if losses_of(self.run) != whole[0]:
                return "other losses than the undisturbed run"
        except OSError:
            return "no losses are recorded"
        if not whole[1] or weights_of(self.run) != whole[1]:
            return "other weights than the undisturbed run"
        try:
            with open(os.path.join(self.folder, "saved")) as file:
                saved = int(file.read().strip()[-7:])
        except (OSError, ValueError):
            saved = 0
        newest = max((e["step"] for e in events_of(self.run) if e["event"] == "begin"), default=0)
        if self.causes and newest < saved and not self.kind.lower:
            return f"continued from step {newest}, although step {saved} was saved"
        return ""
