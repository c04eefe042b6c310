"""The library of real runs: toy runs of the real program, into which real faults were injected.

Each entry of the library is a folder with 'run' (the run's folder as the program left it), 'console.txt' (the output of
all its nodes) and 'meta.json': nodes, ranks of a node, the rank and node of the fault, its step, its time, the process
that it hit, and the program's exit code.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXPERIMENT = os.path.join(SOURCE, "examples/native/configs/CPU/llama_tiny-pretrain.yaml")
MODEL = ["num_layers=2", "hidden_size=24", "ffn_hidden_size=48", "num_attention_heads=2", "seq_length=16",
         "micro_batch_size=1", "global_batch_size=12", "lr_warmup_iters=2", "bf16=false", "num_threads=1",
         "reduce_gradients_each_microbatch=false", "data_parallel_sharding_strategy=optim", "keep_latest=2",
         "eval_interval=350", "eval_iters=1"]
# Lets calls on files of checkpoints fail with an errno, or lets syncs of them last long.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
static int hit(int fd) {
  const char* mine = getenv("INCIDENT_RANK");
  const char* rank = getenv("RANK");
  if (mine && rank && strcmp(mine, rank)) return 0;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size <= 0) return 0;
  path[size] = 0;
  return strstr(path, getenv("INCIDENT_PATH")) != NULL;
}
#define FAIL(call) \
  if (getenv("INCIDENT_ERRNO") && hit(fd)) { errno = atoi(getenv("INCIDENT_ERRNO")); return -1; } call
ssize_t write(int fd, const void* p, size_t n) {
  static ssize_t (*real)(int, const void*, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "write");
  FAIL(return real(fd, p, n));
}
ssize_t pwrite64(int fd, const void* p, size_t n, off64_t at) {
  static ssize_t (*real)(int, const void*, size_t, off64_t);
  if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
  FAIL(return real(fd, p, n, at));
}
ssize_t pwrite(int fd, const void* p, size_t n, off_t at) { return pwrite64(fd, p, n, at); }
ssize_t writev(int fd, const struct iovec* v, int n) {
  static ssize_t (*real)(int, const struct iovec*, int);
  if (!real) real = dlsym(RTLD_NEXT, "writev");
  FAIL(return real(fd, v, n));
}
int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  if (getenv("INCIDENT_SLEEP") && hit(fd)) usleep(1000000 * atof(getenv("INCIDENT_SLEEP")));
  return real(fd);
}
int fdatasync(int fd) { return fsync(fd); }
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def descendants(pid):
    found = [pid]
    for one in found:
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children") as file:
                    found += [int(word) for word in file.read().split()]
        except OSError:
            pass
    return found[1:]


def rank_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for word in file.read().split(b"\0"):
                if word.startswith(b"RANK="):
                    return int(word[5:])
    except OSError:
        pass
    return None


class RealRun:
    """One run of the program on one or several nodes, which are processes of this machine."""

    def __init__(self, program, library, name, nodes=1, per_node=1, steps=3000, supervise=False, spares=0, more=(),
                 save=200, environment=None, programs=None, node_more=None, address="127.0.0.1", port=None):
        self.program, self.nodes, self.per_node = program, nodes, per_node
        self.folder = os.path.join(library, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.run = os.path.join(self.folder, "w", "u", "run")
        self.console = os.path.join(self.folder, "console.txt")
        self.meta = {"nodes": nodes, "per_node": per_node, "supervise": supervise, "spares": spares}
        self.command = ["train", "pretrain", "--config", EXPERIMENT, "workspace=" + self.folder, "work_group=w",
                        "user_name=u", "exp_name=run", f"train_iters={steps}", f"save_interval={save}",
                        "--nproc", str(per_node)] + MODEL + list(more)
        if supervise:
            self.command += ["--supervise"]
        self.port, self.address, self.spares = port or free_port(), address, spares
        self.environment = dict(os.environ, PRIMUS_JOB_TOKEN="token", **(environment or {}))
        self.programs, self.node_more = programs or {}, node_more or {}
        self.agents = []

    def start(self):
        for node in range(self.nodes + self.spares):
            command = [self.programs.get(node, self.program)] + self.command + self.node_more.get(node, [])
            if self.nodes > 1:
                command += ["--nnodes", str(self.nodes + self.spares), "--node_rank", str(node), "--master_addr",
                            self.address, "--master_port", str(self.port)]
                if self.spares:
                    command += ["--spares", str(self.spares)]
            with open(self.console, "a") as log:
                self.agents.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))
        return self

    def wait(self, seconds=60):
        end = time.monotonic() + seconds
        codes = []
        for agent in self.agents:
            try:
                codes.append(agent.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                for pid in descendants(agent.pid) + [agent.pid]:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except OSError:
                        pass
                codes.append(agent.wait())
        self.meta["exit_codes"] = codes
        return self

    def step(self):
        try:
            with open(os.path.join(self.run, "metrics.jsonl"), "rb") as file:
                file.seek(max(0, os.path.getsize(file.name) - 4096))
                lines = file.read().split(b"\n")
            return json.loads(lines[-2])["iteration"]
        except (OSError, ValueError, IndexError, KeyError):
            return 0

    def reach(self, step, seconds=40):
        end = time.monotonic() + seconds
        while self.step() < step and time.monotonic() < end and any(a.poll() is None for a in self.agents):
            time.sleep(0.002)

    def pid(self, rank):
        found = [one for agent in self.agents for one in descendants(agent.pid) if self.is_program(one)]
        if self.per_node * self.nodes == 1:  # the only rank is the process itself, or the child of its supervisor
            return (found or [None])[0] if self.meta["supervise"] else self.agents[0].pid
        return ([one for one in found if rank_of(one) == rank] or [None])[0]

    def is_program(self, pid):
        try:
            return os.path.samefile(f"/proc/{pid}/exe", self.program) or \
                any(os.path.samefile(f"/proc/{pid}/exe", one) for one in self.programs.values())
        except OSError:
            return False

    def hit(self, rank, number):
        pid = self.pid(rank)
        self.meta.update(rank=rank, node=rank // self.per_node, time=time.time(), step=self.step(), pid=pid)
        if pid is None:
            self.wait(0)  # leaves no process behind
            raise RuntimeError(f"rank {rank} has no process")
        os.kill(pid, number)
        return self

    def save(self):
        target = os.path.join(self.folder, "run")
        if os.path.isdir(self.run):
            shutil.rmtree(os.path.join(self.run, "tensorboard"), ignore_errors=True)
            # Evidence needs no weights: a checkpoint keeps its small files.
            for folder, _, names in os.walk(self.run):
                for name in names:
                    if name.endswith(".safetensors") or name.startswith("tokenizer"):
                        os.remove(os.path.join(folder, name))
            os.rename(self.run, target)
        else:
            os.makedirs(target)
        shutil.rmtree(os.path.join(self.folder, "w"), ignore_errors=True)
        self.meta.setdefault("time", time.time())
        with open(os.path.join(self.folder, "meta.json"), "w") as file:
            json.dump(self.meta, file)
