#!/usr/bin/env python3
"""Measures the overhead of the launcher and whether measurements repeat, and checks the limits below.

  benchmarks/launch/overhead.py [--program build/bin/primus] [--rounds 15] [--skip slurm,preflight,repeat]

    help       `primus --help`: at most 20 ms
    direct     `primus direct -- version` compared with `primus version`: 100 ms
    slurm      `primus slurm srun -N 1 -- direct -- version` compared with `srun -N 1 primus version`: 100 ms, on a private
               one-node Slurm on this machine (Debian's packages slurmctld slurmd slurm-client munge; skipped without them)
  preflight  `primus preflight --quick`: 30 s
  repeat     the figures of `primus benchmark gemm`, three times: within 5 %, or the report says that the machine is noisy

Compared commands alternate. The median counts; the CPU time is shown too, because other load on the machine
changes it little. Prints a Markdown table, with the load of the machine before and after. Exit code: 1 if a
limit is exceeded.
"""
import argparse
import getpass
import json
import os
import pathlib
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

MILLI = 1000


def run(command, environment=None):
    """Wall and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, processor, result


def take_turns(commands, rounds, environment=None):
    """Medians of both kinds of seconds for each command; for the last two also the median difference."""
    samples = [[] for _ in commands]
    for _ in range(rounds):
        for list_, command in zip(samples, commands):
            list_.append(run(command, environment)[:2])
    medians = [tuple(statistics.median(s[i] for s in list_) for i in (0, 1)) for list_ in samples]
    difference = statistics.median(b[0] - a[0] for a, b in zip(samples[0], samples[-1]))
    return medians, difference


class Slurm:
    """A controller and one node on this machine, as in tests/cli/slurm_test.cpp."""

    PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    TOOLS = ["munged", "slurmctld", "slurmd", "srun", "sinfo"]

    @classmethod
    def missing(cls):
        return [tool for tool in cls.TOOLS if not shutil.which(tool, path=cls.PATH)]

    def __init__(self, folder):
        self.daemons = []
        self.folder = folder
        for name in ("state", "spool", "munge", "tmp"):
            (folder / name).mkdir()
        folder.chmod(0o711)
        (folder / "munge").chmod(0o711)
        key = folder / "munge/key"
        key.write_bytes(b"k" * 1024)
        key.chmod(0o600)
        munge = folder / "munge/socket"
        self.start("munged", "--foreground", "--force", f"--socket={munge}", f"--key-file={key}",
                   f"--pid-file={folder}/munge/pid", f"--log-file={folder}/munge/log",
                   f"--seed-file={folder}/munge/seed", "--num-threads=2")
        name = socket.gethostname().split(".")[0]
        (folder / "slurm.conf").write_text(f"""ClusterName=primusoverhead
SlurmctldHost={name}(127.0.0.1)
SlurmUser={getpass.getuser()}
SlurmdUser={getpass.getuser()}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
TmpFS={folder}/tmp
SlurmctldPort={free_port()}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={name} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=n1 Default=YES MaxTime=INFINITE State=UP
""")
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": self.PATH}
        wait_until(munge.exists, "munge does not start")
        self.start("slurmctld", "-D", "-c")
        self.start("slurmd", "-D", "-N", "n1")
        wait_until(lambda: self.state() == "idle", "Slurm's node does not come up")

    def start(self, tool, *arguments):
        environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        with open(self.folder / f"{tool}.out", "wb") as out:
            self.daemons.append(subprocess.Popen([shutil.which(tool, path=self.PATH), *arguments], stdout=out, stderr=out,
                                                 stdin=subprocess.DEVNULL, env=environment))

    def state(self):
        return subprocess.run(["sinfo", "-h", "-o", "%T"], env=self.environment, capture_output=True,
                              text=True).stdout.strip()

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until(condition, complaint):
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            sys.exit(complaint)
        time.sleep(0.1)


class Table:
    def __init__(self):
        self.lines, self.kept = [], True

    def add(self, what, figure, limit, kept, remark=""):
        self.kept &= kept
        self.lines.append(f"| {what} | {figure} | {limit} | {'yes' if kept else 'NO'} | {remark} |")
        print(self.lines[-1], flush=True)


def gemm_repeats(program, table):
    shapes = ["512x512x512", "1024x1024x1024"]
    command = [program, "benchmark", "gemm", "--device", "cpu", "--seconds", "1", "--json"]
    for shape in shapes:
        command += ["--shape", shape]
    reports = [json.loads(run(command)[2].stdout) for _ in range(3)]
    worst = 0
    for lines in zip(*(report["results"] for report in reports)):
        medians = [line["seconds"]["median"] for line in lines]
        worst = max(worst, (max(medians) - min(medians)) / statistics.median(medians))
    noisy = sum(report["noisy"] for report in reports)
    table.add("`benchmark gemm`, three runs: largest difference of a median", f"{100 * worst:.1f} %",
              "5 %, or the reports say so", worst <= 0.05 or noisy > 0,
              f"{noisy} of 3 reports say that the machine is noisy")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/bin/primus")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--skip", default="")
    args = parser.parse_args()
    program = os.path.abspath(args.program)
    skipped = set(args.skip.split(","))
    for name in list(os.environ):
        if name.startswith("SLURM_") or name in ("RANK", "WORLD_SIZE", "NNODES", "NODE_RANK"):
            del os.environ[name]

    table = Table()
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| what | median | limit | kept | |\n|---|---:|---:|---|---|", flush=True)

    (seconds, processor), = take_turns([[program, "--help"]], args.rounds)[0]
    table.add("`primus --help`", f"{MILLI * seconds:.1f} ms", "20 ms", seconds <= 0.020,
              f"{MILLI * processor:.1f} ms of the processor")

    both, difference = take_turns([[program, "version"], [program, "direct", "--", "version"]], args.rounds)
    table.add("`primus direct` over the bare command", f"{MILLI * difference:.1f} ms", "100 ms", difference <= 0.1,
              f"{MILLI * both[0][0]:.1f} ms bare; {MILLI * (both[1][1] - both[0][1]):.1f} ms more of the processor")

    if "slurm" not in skipped:
        if missing := Slurm.missing():
            print(f"| `primus slurm srun` over bare srun | not run | 100 ms | | there is no {', '.join(missing)} |")
        else:
            with tempfile.TemporaryDirectory() as folder:
                slurm = Slurm(pathlib.Path(folder))
                try:
                    both, difference = take_turns(
                        [["srun", "-N", "1", "--ntasks-per-node=1", program, "version"],
                         [program, "slurm", "srun", "-N", "1", "--", "direct", "--", "version"]],
                        args.rounds, slurm.environment)
                finally:
                    slurm.stop()
            table.add("`primus slurm srun -- direct` over bare `srun`", f"{MILLI * difference:.1f} ms", "100 ms",
                      difference <= 0.1, f"{MILLI * both[0][0]:.0f} ms bare")

    if "preflight" not in skipped:
        seconds, processor, result = run([program, "preflight", "--quick"])
        table.add("`primus preflight --quick`, one node", f"{seconds:.1f} s", "30 s", seconds <= 30,
                  f"{processor:.1f} s of the processor, exit code {result.returncode}")
    if "repeat" not in skipped:
        gemm_repeats(program, table)
    print(f"\nload afterwards {os.getloadavg()[0]:.1f}")
    return 0 if table.kept else 1


if __name__ == "__main__":
    sys.exit(main())
