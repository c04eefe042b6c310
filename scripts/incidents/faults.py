"""The real faults of the library: each function starts real runs, and injects one kind of fault."""
import os
import re
import shutil
import signal
import socket
import subprocess
import time

from real_runs import RealRun, SHIM

SHAPES = [(1, 1), (1, 2), (1, 4), (1, 4), (2, 2), (2, 2), (3, 1), (4, 1)]


def shape(rng, least=1):
    return rng.choice([one for one in SHAPES if one[0] * one[1] >= least])


def signalled(number, least=1):
    def make(start, rng):
        nodes, per_node = shape(rng, least)
        run = start(nodes=nodes, per_node=per_node).start()
        run.reach(rng.randrange(150, 900))
        run.hit(rng.randrange(nodes * per_node), number).wait().save()
    return make


def supervised(number):
    def make(start, rng):
        nodes, per_node = rng.choice([(1, 1), (1, 2), (1, 3)])
        run = start(nodes=nodes, per_node=per_node, supervise=True, more=["--max-restarts", "0"]).start()
        run.reach(rng.randrange(150, 900))
        run.hit(rng.randrange(nodes * per_node), number).wait().save()
    return make


def stopped_by_request(start, rng):
    nodes, per_node = shape(rng)
    run = start(nodes=nodes, per_node=per_node).start()
    run.reach(rng.randrange(150, 900))
    run.meta.update(time=time.time(), step=run.step())
    for agent in run.agents:
        agent.send_signal(signal.SIGTERM)
    run.wait().save()


def whole_job_killed(start, rng):
    nodes, per_node = shape(rng)
    run = start(nodes=nodes, per_node=per_node).start()
    run.reach(rng.randrange(150, 900))
    run.meta.update(time=time.time(), step=run.step())
    for agent in run.agents:
        agent.kill()
    run.wait().save()


def node_killed(start, rng):
    nodes, per_node = rng.choice([(2, 1), (2, 2), (3, 1)])
    run = start(nodes=nodes, per_node=per_node).start()
    run.reach(rng.randrange(150, 900))
    node = rng.randrange(1, nodes)
    run.meta.update(time=time.time(), step=run.step(), node=node, rank=node * per_node)
    run.agents[node].kill()
    run.wait(90).save()


def node_lost(start, rng):
    """A node and its supervisor are lost, no spare takes the place, and the leader gives up after a minute."""
    nodes, per_node = rng.choice([(2, 1), (3, 1), (2, 2)])
    run = start(nodes=nodes, per_node=per_node, supervise=True).start()
    run.reach(rng.randrange(150, 900))
    node = rng.randrange(1, nodes)
    run.meta.update(time=time.time(), step=run.step(), node=node, rank=node * per_node)
    run.agents[node].kill()
    run.wait(110).save()


def crash_loop(start, rng):
    per_node = rng.choice([1, 2, 3])
    run = start(per_node=per_node, supervise=True, save=100000).start()
    rank = rng.randrange(per_node)
    run.reach(100)
    run.hit(rank, rng.choice([signal.SIGSEGV, signal.SIGABRT]))
    first, last = dict(run.meta), run.meta["pid"]
    end = time.monotonic() + 40
    while run.agents[0].poll() is None and time.monotonic() < end:
        pid = run.pid(rank)
        if pid and pid != last:
            time.sleep(0.9)
            last = pid
            try:
                os.kill(pid, signal.SIGSEGV)
            except ProcessLookupError:
                pass  # the job ended this rank itself
        time.sleep(0.05)
    run.meta.update(first)
    run.wait().save()


def slow_rank(start, rng):
    nodes, per_node = rng.choice([(1, 2), (1, 4), (1, 3), (2, 2)])
    run = start(nodes=nodes, per_node=per_node, steps=100000,
                more=["hidden_size=96", "ffn_hidden_size=384", "seq_length=64"]).start()
    run.reach(60)
    rank = rng.randrange(nodes * per_node)
    pid = run.pid(rank)
    run.meta.update(rank=rank, node=rank // per_node, time=time.time(), step=run.step(), pid=pid)
    end = time.monotonic() + 14
    try:
        while time.monotonic() < end:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)
    except OSError:
        pass
    for agent in run.agents:
        agent.send_signal(signal.SIGTERM)
    run.wait().save()


def disk_full(start, rng):
    per_node = rng.choice([1, 2])
    run = start(per_node=per_node, save=100, supervise=False)
    os.makedirs(run.run)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", run.run], check=True)
    try:
        run.start().wait()
        run.meta["rank"], run.meta["node"] = 0, 0
        run.meta["step"] = run.step()
        kept = run.run + ".kept"
        shutil.copytree(run.run, kept)
    finally:
        subprocess.run(["umount", run.run], check=True)
    os.rmdir(run.run)
    os.rename(kept, run.run)
    run.save()


def failing_calls(number, path="checkpoints"):
    def make(start, rng):
        nodes, per_node = rng.choice([(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)])
        rank = rng.randrange(nodes * per_node)
        run = start(nodes=nodes, per_node=per_node, save=rng.randrange(100, 700), environment={
            "LD_PRELOAD": start.shim, "INCIDENT_ERRNO": str(number), "INCIDENT_PATH": path,
            "INCIDENT_RANK": str(rank)}).start().wait()
        run.meta.update(rank=rank, node=rank // per_node, step=run.step())
        run.save()
    return make


def slow_saves(start, rng):
    per_node = rng.choice([1, 2])
    rank = rng.randrange(per_node)
    run = start(per_node=per_node, steps=900, save=300, more=["async_save=false"], environment={
        "LD_PRELOAD": start.shim, "INCIDENT_SLEEP": "0.4", "INCIDENT_PATH": "checkpoints",
        "INCIDENT_RANK": str(rank)}).start().wait()
    run.meta.update(step=300)
    run.save()


def diverged(lr, steps=400, **options):
    def make(start, rng):
        per_node = rng.choice([1, 2, 4])
        run = start(per_node=per_node, steps=steps, **options, more=[f"lr={lr}", "min_lr=0", "lr_warmup_iters=100", "clip_grad=0"]).start().wait()
        run.meta["step"] = run.step()
        run.save()
    return make


def refused(*choices):
    def make(start, rng):
        per_node = rng.choice([1, 2])
        start(per_node=per_node, more=rng.choice(choices)).start().wait().save()
    return make


def bad_data(start, rng):
    run = start(per_node=rng.choice([1, 2]))
    path = os.path.join(run.folder, "part-00017.jsonl")
    with open(path, "wb") as file:
        for number in range(400):
            file.write(b'{"text": "a plain line of text, number %d"}\n' % number)
        file.write(rng.choice([b'{"text": "cut off', b'{"text": 7}\n', b'\xff\xfe\x00\x01 not text\n', b'{"txt": "a"}\n']))
    run.command.append("data_path=" + path)
    run.start().wait().save()


def too_much_memory(start, rng):
    run = start(per_node=rng.choice([1, 2]),
                more=["hidden_size=1024", "ffn_hidden_size=8192", f"num_layers={rng.choice([8, 12, 16])}"])
    run.programs = {0: start.limited}
    run.start().wait().save()


def port_in_use(start, rng):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = start(nodes=2, port=taken.getsockname()[1]).start()
        run.meta.update(node=0, rank=0)
        run.wait(25).save()


def unknown_host(start, rng):
    run = start(nodes=2, address=f"gpu-head-{rng.randrange(100)}.cluster.invalid").start()
    run.wait(25).save()


def other_settings(start, rng):
    node = rng.randrange(1, 3)
    run = start(nodes=3, node_more={node: rng.choice([["lr=0.0007"], ["seed=99"], ["hidden_size=32"]])}).start()
    run.meta.update(node=node, rank=node)
    run.wait(25).save()


def other_version(start, rng):
    node = rng.randrange(1, 3)
    run = start(nodes=3, programs={node: start.older}).start()
    run.meta.update(node=node, rank=node)
    run.wait(25).save()


def damaged_checkpoint(start, rng):
    per_node = rng.choice([1, 2])
    first = start(per_node=per_node, steps=300, save=300, more=["exit_interval=300"]).start().wait()
    checkpoint = os.path.join(first.run, "checkpoints", "iter_0000300")
    for folder, _, names in os.walk(checkpoint):
        for name in names:
            if name.endswith(".safetensors") and name.startswith(rng.choice(["model", "optimizer"])):
                path = os.path.join(folder, name)
                with open(path, "r+b") as file:
                    if rng.random() < 0.5:
                        file.truncate(os.path.getsize(path) // 2)
                    else:
                        file.seek(os.path.getsize(path) // 2)
                        file.write(b"\xa5" * 512)
    first.command = [word if not word.startswith("train_iters") else "train_iters=600" for word in first.command]
    first.agents = []
    first.meta["time"] = time.time()
    first.start().wait()
    if not any(first.meta["exit_codes"]):
        raise RuntimeError("the fault had no effect")
    first.meta["step"] = 300
    first.save()


def finished(start, rng):
    nodes, per_node = shape(rng)
    run = start(nodes=nodes, per_node=per_node, steps=300).start().wait()
    run.meta["step"] = 300
    run.save()


FAULTS = {
    "kill": (6, signalled(signal.SIGKILL)), "kill-supervised": (4, supervised(signal.SIGKILL)),
    "segv": (4, signalled(signal.SIGSEGV)), "abort": (6, signalled(signal.SIGABRT)),
    "bus": (3, signalled(signal.SIGBUS)), "hang": (6, signalled(signal.SIGSTOP, 2)),
    "request": (4, stopped_by_request), "job-killed": (4, whole_job_killed), "node-killed": (4, node_killed),
    "crash-loop": (3, crash_loop), "slow-rank": (6, slow_rank), "disk-full": (3, disk_full),
    "quota": (3, failing_calls(122)), "read-only": (3, failing_calls(30)), "io-error": (5, failing_calls(5)),
    "denied": (3, failing_calls(13)), "slow-saves": (2, slow_saves), "nan": (3, diverged("1000")),
    "spike": (3, diverged("30", steps=60)), "bad-data": (4, bad_data), "too-much-memory": (3, too_much_memory),
    "unknown-key": (3, refused(["learing_rate=1"], ["lr=abc"], ["micro_batch=2"], ["save_interval=-3"])),
    "mesh": (2, refused(["tensor_model_parallel_size=3"], ["pipeline_model_parallel_size=5"])),
    "no-data": (2, refused(["data_path=/data/corpus/train.jsonl"], ["data_path=/data/corpus/shard-*.bin"])),
    "no-plugin": (2, refused(["device=cuda"], ["device=hip"])),
    "hang-supervised": (3, supervised(signal.SIGSTOP)), "nan-supervised": (2, diverged("1000", supervise=True)),
    "node-lost": (2, node_lost),
    "port": (2, port_in_use), "unknown-host": (2, unknown_host), "settings": (3, other_settings),
    "version": (3, other_version), "damaged": (4, damaged_checkpoint), "finished": (3, finished),
}


class Starter:
    """Makes runs of the library; the files that some faults need are built here."""

    def __init__(self, program, library):
        self.program, self.library, self.name = program, library, ""
        self.shim = os.path.join(library, "shim.so")
        self.limited = os.path.join(library, "limited.sh")
        self.older = os.path.join(library, "older", "primus")

    def prepare(self):
        os.makedirs(os.path.dirname(self.older), exist_ok=True)
        with open(self.shim + ".c", "w") as file:
            file.write(SHIM)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", self.shim, self.shim + ".c", "-ldl"], check=True)
        with open(self.limited, "w") as file:
            file.write(f'#!/bin/bash\nulimit -v 700000\nexec {self.program} "$@"\n')
        os.chmod(self.limited, 0o755)
        version = re.search(rb"\d+\.\d+\.\d+", subprocess.run([self.program, "version"], check=True,
                                                               capture_output=True).stdout).group(0)
        with open(self.program, "rb") as file:
            content = file.read()
        with open(self.older, "wb") as file:
            file.write(content.replace(version, version[:-1] + (b"9" if version[-1:] != b"9" else b"8")))
        os.chmod(self.older, 0o755)

    def __call__(self, **options):
        return RealRun(self.program, self.library, self.name, **options)

    def named(self, name):
        one = Starter(self.program, self.library)
        one.name = name
        return one
