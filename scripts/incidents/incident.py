"""Makes one incident: a real run of the library with other hosts, paths and times, and the evidence of its cause."""
import datetime
import glob
import json
import os
import re
import time

import messages as m

EPOCH = re.compile(r"(?<![\d.])(1[789]\d{8})(\.\d+)?(?![\d])")
STAMP = re.compile(r"\[(\d{8} \d\d:\d\d:\d\d)\]")
LINE_RANK = re.compile(r"\[rank-(\d+)/")
FILE_RANK = re.compile(r"rank-0*(\d+)")


BEFORE = re.compile(r'"before":\d+')


def linked(text):
    """Corrects the offsets of earlier lines ('before'), because names of other lengths have moved the lines."""
    rows, at, last = [], 0, None
    for line in text.splitlines(keepends=True):
        if last is not None:
            line = BEFORE.sub(f'"before":{last}', line, count=1)
        rows.append(line)
        if not line.startswith(('{"event":"step"', '{"event":"phase"')):
            last = at
        at += len(line.encode(errors="surrogateescape"))
    return "".join(rows)


class Incident:
    def __init__(self, library, name, rng):
        self.rng, self.source = rng, os.path.join(library, name)
        self.meta, self.console = {"nodes": rng.choice([1, 2, 4]), "per_node": 8, "time": 1795888000.0}, ""
        self.has_run = name != "none"
        if self.has_run:
            with open(os.path.join(self.source, "meta.json")) as file:
                self.meta = json.load(file)
            with open(os.path.join(self.source, "console.txt"), errors="replace") as file:
                self.console = file.read()
        self.nodes, self.per_node = self.meta["nodes"], self.meta["per_node"]
        self.ranks = self.nodes * self.per_node
        self.rank = self.meta.get("rank")
        if self.rank is None:
            self.rank = rng.randrange(self.ranks)
        self.node = self.meta.get("node", self.rank // self.per_node)
        self.gpu = self.rank % self.per_node if self.per_node > 1 else rng.randrange(8)
        self.pid = self.meta.get("pid") or rng.randrange(20000, 400000)
        self.real_time = self.fault_time()
        self.delta = -rng.randrange(300 * 86400)
        self.skews = [0.0] * self.nodes
        if self.nodes > 1 and rng.random() < 0.4:
            self.skews = [0.0] + [round(rng.uniform(-40, 40), 3) for _ in range(self.nodes - 1)]
        self.names()
        self.kernels = {node: [] for node in range(self.nodes)}
        self.kubes, self.controllers, self.nccls, self.tail, self.head = [], [], {}, [], []
        self.files, self.pods, self.state = {}, {}, "FAILED"
        self.scheduler = rng.choice(["slurm", "slurm", "kubernetes", "plain"])

    def fault_time(self):
        """The time of the fault by the clock of this machine."""
        if not self.has_run or "pid" in self.meta or self.meta["nodes"] > 1 and "step" in self.meta and "rank" not in self.meta:
            return self.meta["time"]
        last = 0.0
        for path in glob.glob(os.path.join(self.source, "run/events/rank-00000.jsonl")):
            with open(path, "rb") as file:
                for line in file.read().split(b"\n")[-40:]:
                    try:
                        event = json.loads(line)
                    except ValueError:
                        continue
                    if event.get("event") in ("fault", "step"):
                        last = event["time"]
        return last or self.meta["time"]

    def names(self):
        rng = self.rng
        form = rng.choice(["gpu{:03d}", "node-{:02d}-" + str(rng.randrange(40)), "n{:04d}", "hgx-{:02d}.dc1.example.org",
                           "ip-10-0-" + str(rng.randrange(256)) + "-{}", "cn{:d}"])
        first = rng.randrange(1, 90)
        self.hosts = [form.format(first + number) for number in range(self.nodes)]
        self.job, self.uid = rng.randrange(10000, 9999999), "%08x-%04x-4cb4-8a3e-%012x" % (rng.getrandbits(32), rng.getrandbits(16), rng.getrandbits(48))
        self.base = rng.choice(["/lustre/projects/", "/mnt/nfs/", "/scratch/", "/fsx/"]) + rng.choice(["llm", "nlp7", "pretrain"])
        self.experiment = rng.choice(["llama-7b", "moe-a", "ablation-lr", "run"]) + "-" + str(rng.randrange(100))
        self.network = f"10.{rng.randrange(256)}.{rng.randrange(256)}"

    # Names and times of the incident.
    def host(self, node):
        return self.hosts[node]

    def pod(self, node):
        return f"{self.experiment}-workers-0-{node}-{self.uid[:5]}"

    def at(self, offset, node=None):
        return self.real_time + self.delta + offset + (self.skews[node] if node is not None else 0)

    def stamp(self, offset, form, node=None):
        return datetime.datetime.fromtimestamp(self.at(offset, node), datetime.timezone.utc).strftime(form)

    def iso(self, offset):
        return self.stamp(offset, "%Y-%m-%dT%H:%M:%S")

    def scheduler_or(self, default, only=False):
        if only or self.scheduler == "plain":
            self.scheduler = default

    # Evidence.
    def kernel(self, node, offset, lines):
        self.kernels[node] += [(self.at(offset + 0.00002 * n, node), text) for n, text in enumerate(lines)]

    def output(self, *lines, before=False):
        (self.head if before else self.tail).extend(lines)

    def controller(self, offset, text):
        self.controllers.append(f"[{self.stamp(offset, '%Y-%m-%dT%H:%M:%S.%f')[:-3]}] {text}")

    def kube(self, node, offset, kind, reason, text):
        self.kubes.append((self.at(offset), kind, reason, "pod/" + self.pod(node), text))

    def kube_node(self, node, offset, reason, text):
        self.kubes.append((self.at(offset), "Normal", reason, "node/" + self.host(node), text))

    def pod_state(self, node, state, code):
        self.pods[node] = (state, code)

    def nccl(self, rank, text):
        node = rank // self.per_node
        self.nccls.setdefault(node, []).append(m.nccl(self.host(node), self.pid if rank == self.rank else 30000 + rank,
                                                      rank % self.per_node, text))

    def nccl_peers(self, text):
        """The others see the fault, too: an error of theirs that looks like a cause."""
        peer = f"{self.network}.{10 + self.node}<{self.rng.randrange(32768, 60999)}>"
        others = [rank for rank in range(self.ranks) if rank // self.per_node != self.node]
        for rank in others[:3]:
            self.nccl(rank, text.replace("{peer}", peer))

    def file(self, name, text):
        self.files[name] = text

    def cancelled(self, why, state):
        self.state = state
        at = self.iso(0)
        self.output(f"slurmstepd: error: *** JOB {self.job} ON {self.host(0)} CANCELLED AT {at}{why} ***",
                    f"slurmstepd: error: *** STEP {self.job}.0 ON {self.host(0)} CANCELLED AT {at}{why} ***", before=True)

    def replace_errors(self, text, marker):
        """Replaces the text of the program's error, which this machine without GPUs cannot have."""
        self.error = (marker, text)

    # Writing.
    def rewrite(self, text, skew=0.0, host=None):
        text = text.replace(os.path.join(self.source, "w/u/run"), f"{self.base}/team/me/{self.experiment}")
        text = text.replace("exp_name=run", "exp_name=" + self.experiment).replace(self.source, self.base)
        text = re.sub(r"/[^\s\"']*/bin/primus", "/opt/primus/bin/primus", text)
        text = re.sub(r"/[^\s\"']*/build/(bin|lib/primus)", r"/opt/primus/\1", text)
        text = re.sub(r"/[^\s\"']*/llama_tiny-pretrain.yaml", "/home/me/experiment.yaml", text)
        text = text.replace("127.0.0.1", self.network + ".10")
        text = self.with_hosts(text, host or self.host(0))
        if getattr(self, "error", None):
            marker, new = self.error
            text = re.sub(re.escape(marker) + r"[^\n\"]*(\n *hint: build[^\n]*)?", new, text)
        text = EPOCH.sub(lambda hit: self.shifted(hit, skew), text)
        return STAMP.sub(lambda hit: "[" + self.shifted_stamp(hit.group(1), skew) + "]", text)

    def with_hosts(self, text, host):
        """Replaces this machine's name by the names of the nodes."""
        here = re.escape(os.uname().nodename)
        def node(number):
            return self.host(min(int(number), self.nodes - 1))
        text = re.sub(rf"\bnode (\d+) \({here}\)", lambda hit: f"node {hit.group(1)} ({node(hit.group(1))})", text)
        text = re.sub(rf"--exclude={here}\b", "--exclude=" + self.host(self.node), text)
        rows = []
        for line in text.split("\n"):
            found = re.search(r'"node":(\d+)', line)
            own = node(found.group(1)) if found else host
            rows.append(line.replace(f'"{os.uname().nodename}"', f'"{own}"'))
        return "\n".join(rows)

    def shifted(self, hit, skew):
        digits = len(hit.group(2) or "") - 1
        value = float(hit.group(0)) + self.delta + skew
        return f"{value:.{digits}f}" if digits > 0 else str(int(value))

    def shifted_stamp(self, text, skew):
        moment = datetime.datetime.strptime(text, "%Y%m%d %H:%M:%S") + datetime.timedelta(seconds=self.delta + skew)
        return moment.strftime("%Y%m%d %H:%M:%S")

    def skew_of(self, rank):
        return self.skews[min(rank // self.per_node, self.nodes - 1)]

    def write_run(self, folder):
        root = os.path.join(self.source, "run")
        drop_debug = self.rng.random() < 0.8
        for path in sorted(glob.glob(root + "/**/*", recursive=True)):
            name = os.path.relpath(path, root)
            if os.path.isdir(path) or (drop_debug and name.endswith(("debug.log", "output.log"))):
                continue
            found = FILE_RANK.search(name)
            rank = int(found.group(1)) if found else 0
            target = os.path.join(folder, EPOCH.sub(lambda hit: self.shifted(hit, 0), name))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(path, errors="surrogateescape") as file:
                text = self.rewrite(file.read(), self.skew_of(rank), self.host(min(rank // self.per_node, self.nodes - 1)))
            if name.startswith("events/rank-"):
                text = linked(self.with_job(text))
            with open(target, "w", errors="surrogateescape") as file:
                file.write(text)

    def with_job(self, text):
        """Names the scheduler of this incident, as the program does below Slurm and Kubernetes."""
        if self.scheduler == "slurm":
            return text.replace('"scheduler":"local"', f'"scheduler":"slurm","id":"{self.job}","step":"0"')
        if self.scheduler == "kubernetes":
            return text.replace('"scheduler":"local"', f'"scheduler":"kubernetes","id":"{self.experiment}","namespace":"training","kind":"jobset"')
        return text

    def output_text(self):
        lines = []
        for line in self.console.splitlines():
            found = LINE_RANK.search(line)
            lines.append(self.rewrite(line, self.skew_of(int(found.group(1))) if found else 0, self.host(0)))
        if self.head:  # the scheduler's message comes before what the program says of its end
            at = next((n for n, line in enumerate(lines) if re.search(r"^(error|stopp)|SIGTERM|stopped after", line)), len(lines))
            lines[at:at] = self.head
        return "\n".join(lines + self.tail) + "\n"

    def kernel_text(self, node):
        rows = list(self.kernels[node])
        for _ in range(self.rng.randrange(4, 25)):
            rows.append((self.at(self.rng.uniform(-7200, 60), node), self.rng.choice(m.NOISE)))
        if self.rng.random() < 0.15:  # an old trouble of another process, which is no cause
            rows.append((self.at(-self.rng.uniform(40000, 90000), node), self.rng.choice(
                [m.xid(self.rng.randrange(8), 13, "pid=911, name=python3, Graphics Exception: ESR 0x57c730=0xc04000b 0x57c734=0x24 0x57c728=0x1f81fb60 0x57c72c=0x1174"),
                 "Memory cgroup out of memory: Killed process 4711 (node_exporter) total-vm:1149468kB, anon-rss:64992kB, file-rss:0kB, shmem-rss:0kB, UID:65534 pgtables:372kB oom_score_adj:986",
                 "mlx5_core 0000:43:00.0 mlx5_1: Port: 1 Link DOWN"])))
        rows.sort(key=lambda row: row[0])
        form = self.rng.choice(["dmesg", "journal", "iso"])
        def show(moment):
            at = datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)
            if form == "dmesg":
                return at.strftime("[%a %b %e %H:%M:%S %Y] ")
            if form == "journal":
                return at.strftime(f"%b %d %H:%M:%S {self.host(node)} kernel: ")
            return at.strftime(f"%Y-%m-%dT%H:%M:%S.%f+00:00 {self.host(node)} kernel: ")
        def dated(moment, text):  # some messages contain the time themselves
            return text.replace("1795880000", str(int(moment) - 60)).replace("1795880040", str(int(moment) - 20))
        return "".join(show(moment) + dated(moment, text) + "\n" for moment, text in rows)

    def write_scheduler(self, folder):
        if self.scheduler == "kubernetes":
            rows = [(self.at(-400 + node), "Normal", "Scheduled", "pod/" + self.pod(node),
                     f"Successfully assigned training/{self.pod(node)} to {self.host(node)}") for node in range(self.nodes)]
            rows = sorted(rows + self.kubes)
            self.put(folder, "kubernetes/events.txt", "LAST SEEN              TYPE      REASON                 OBJECT    MESSAGE\n" + "".join(
                f"{datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')}   {kind:<9} {reason:<22} {what}   {text}\n"
                for at, kind, reason, what, text in rows))
            self.put(folder, "kubernetes/pods.txt", "NAME   READY   STATUS   RESTARTS   AGE   IP   NODE\n" + "".join(
                f"{self.pod(node)}   0/1   {self.pods.get(node, ('Error', 1))[0]}   0   7m   {self.network}.{10 + node}   {self.host(node)}\n"
                for node in range(self.nodes)))
        if self.scheduler == "slurm":
            code = {"TIMEOUT": "0:15", "OUT_OF_MEMORY": "0:125", "NODE_FAIL": "1:0"}.get(self.state, "0:15" if self.state[0] in "CP" else "3:0")
            self.put(folder, "sacct.txt", "JobID|JobName|State|ExitCode|Start|End|NodeList\n" + "".join(
                f"{self.job}{part}|{self.experiment}|{self.state if part != '.batch' or self.state[0] != 'C' else 'CANCELLED'}|{code}|{self.iso(-420)}|{self.iso(35)}|{','.join(self.hosts)}\n"
                for part in ["", ".batch", ".0"]))
            if self.controllers:
                self.put(folder, "slurmctld.log", "\n".join(self.controllers) + "\n")

    def put(self, folder, name, text):
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", errors="surrogateescape") as file:
            file.write(text)

    def aftermath(self):
        """Errors that follow from the end of the job on other nodes, and look like causes."""
        for node in range(self.nodes):
            if node != self.node and self.rng.random() < 0.3:
                self.kernel(node, self.rng.uniform(1, 15), [m.xid(gpu, 45, f"pid={40000 + gpu}, name=primus, Ch {gpu:08x}")
                                                           for gpu in range(self.rng.randrange(1, 4))])
        if self.scheduler == "kubernetes" and self.rng.random() < 0.5:
            self.kube(self.rng.randrange(self.nodes), self.rng.uniform(5, 30), "Warning", "BackOff",
                      f"Back-off restarting failed container trainer in pod {self.pod(0)}_training({self.uid})")

    def write(self, folder):
        os.makedirs(folder)
        if self.has_run and self.rank is not None and "pid" in self.meta:
            self.aftermath()
        if self.has_run:
            self.write_run(folder)
            name = {"slurm": f"slurm-{self.job}.out", "kubernetes": f"kubernetes/{self.pod(0)}.log"}.get(self.scheduler, "console.log")
            text = self.output_text()
            if self.rng.random() < 0.2:  # output of an earlier attempt, which ended well
                text = f"[{self.stamp(-90000, '%Y%m%d %H:%M:%S')}][rank-0/{self.ranks}][INFO]     [----training_log.cpp:17] :  iteration       10/      50 | consumed samples:          120\n" + f"stopped after iteration 10, loss 5.4271 in the last step, 0.9 s\nrun the same command again to continue\n" + text
            self.put(folder, name, text)
        self.write_scheduler(folder)
        for node in range(self.nodes):
            if self.kernels[node] or self.rng.random() < 0.6:
                self.put(folder, f"kernel/{self.host(node)}.log", self.kernel_text(node))
        for node, lines in self.nccls.items():
            self.put(folder, f"nccl/nccl.{self.host(node)}.log", "\n".join(lines) + "\n")
        for name, text in self.files.items():
            self.put(folder, name, text)
        self.damage(folder)

    def damage(self, folder):
        """Truncates or removes some files: of the ranks, only those other than rank 0 and the rank of the fault."""
        logs = sorted(glob.glob(folder + "/logs/*/rank-*/*.log") + glob.glob(folder + "/events/rank-*.jsonl"))
        logs = [path for path in logs if int(FILE_RANK.search(path[len(folder):]).group(1)) not in (0, self.rank)]
        for name, share in (("warnings.jsonl", 0.1), ("evaluations.jsonl", 0.2), ("sacct.txt", 0.2)):
            path = os.path.join(folder, name)
            if self.rng.random() < share and os.path.exists(path):
                os.remove(path)
        for path in logs:
            if self.rng.random() < 0.1:
                os.remove(path)
            elif self.rng.random() < 0.1 and os.path.getsize(path) > 200:
                os.truncate(path, os.path.getsize(path) - self.rng.randrange(1, 150))
