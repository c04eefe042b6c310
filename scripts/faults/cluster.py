"""A Slurm of a controller and two nodes on this machine, run by the current user with its own munge, ports and folders.

Needs Debian's packages slurmctld, slurmd, slurm-client and munge. The tests of 'primus slurm' use the same settings."""
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "scancel", "sinfo")
NODES = ("n1", "n2")


def missing():
    """Programs that the cluster needs and that are not installed."""
    return [name for name in PROGRAMS if not shutil.which(name, path=PATH)]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


def text_of(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


class Cluster:
    def __init__(self, environment, first_job):
        """environment: variables of all processes of the cluster, by which they are found. first_job: the number of the
        first job. A job's port depends on its number, so clusters at the same time need different numbers."""
        self.first_job = first_job
        self.folder = tempfile.mkdtemp(prefix="primus-slurm-")  # a short path, because a socket's name has a limit
        os.chmod(self.folder, 0o711)
        for name in ("state", "spool-n1", "spool-n2", "tmp-n1", "tmp-n2", "munge", "home"):
            os.mkdir(self.at(name))
        os.chmod(self.at("munge"), 0o711)
        with open(os.open(self.at("munge/key"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(os.urandom(1024))
        self.environment = dict(os.environ, **environment, PATH=PATH, SLURM_CONF=self.at("slurm.conf"),
                                HOME=self.at("home"))
        self.daemons = {}
        self.write_settings()
        self.begin("munged", ["munged", "--foreground", "--force", "--socket=" + self.at("munge/socket"),
                              "--key-file=" + self.at("munge/key"), "--pid-file=" + self.at("munge/pid"),
                              "--log-file=" + self.at("munge/log"), "--seed-file=" + self.at("munge/seed"),
                              "--num-threads=2"])
        self.wait_until(lambda: os.path.exists(self.at("munge/socket")), 10)
        self.begin("slurmctld", ["slurmctld", "-D", "-c"])
        for node in NODES:
            self.begin_node(node)
        if not self.wait_until(self.idle, 60):
            said = self.words("sinfo") + self.tail("slurmctld.log") + self.tail("slurmd-n1.log")
            self.end()
            raise SystemExit("the Slurm cluster did not start:\n" + said)

    def at(self, name):
        return os.path.join(self.folder, name)

    def write_settings(self):
        host = socket.gethostname().split(".")[0]
        user = pwd.getpwuid(os.getuid()).pw_name
        port, *ports = free_ports(1 + len(NODES))
        lines = [
            "ClusterName=primusfaults", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmUser={user}", f"SlurmdUser={user}",
            "AuthType=auth/munge", "CredType=cred/munge", "AuthInfo=socket=" + self.at("munge/socket"),
            "StateSaveLocation=" + self.at("state"), "SlurmdSpoolDir=" + self.at("spool-%n"),
            "SlurmctldPidFile=" + self.at("slurmctld.pid"), "SlurmdPidFile=" + self.at("slurmd-%n.pid"),
            "SlurmctldLogFile=" + self.at("slurmctld.log"), "SlurmdLogFile=" + self.at("slurmd-%n.log"),
            "TmpFS=" + self.at("tmp-%n"), f"SlurmctldPort={port}", "ProctrackType=proctrack/linuxproc",
            f"FirstJobId={self.first_job}", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none", "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU", "SchedulerType=sched/backfill",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1", "MpiDefault=none",
            "ReturnToService=2", "SlurmctldTimeout=30", "SlurmdTimeout=5", "KillWait=5", "MinJobAge=300",
            "SwitchType=switch/none", "SlurmdParameters=config_overrides"]
        lines += [f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=2000 "
                  "State=UNKNOWN" for node, port in zip(NODES, ports)]
        lines.append("PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO")
        with open(self.at("slurm.conf"), "w") as file:
            file.write("\n".join(lines) + "\n")

    def begin(self, name, command):
        def ends_with_this_script():
            ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG

        with open(self.at(name + ".out"), "ab") as out:
            self.daemons[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                  env=self.environment, start_new_session=True,
                                                  preexec_fn=ends_with_this_script)

    def begin_node(self, node):
        self.begin("slurmd-" + node, ["slurmd", "-D", "-N", node])

    def kill(self, name):
        self.daemons[name].kill()
        self.daemons[name].wait()

    def stepds(self, node):
        """The slurmstepd processes of the node, which have its log open."""
        found = []
        log = self.at(f"slurmd-{node}.log")
        for name in os.listdir("/proc"):
            if not name.isdigit() or not text_of(f"/proc/{name}/cmdline").startswith(b"slurmstepd:"):
                continue
            try:
                files = [os.readlink(f"/proc/{name}/fd/{fd}") for fd in os.listdir(f"/proc/{name}/fd")]
            except OSError:
                continue
            if log in files:
                found.append(int(name))
        return found

    def kill_node(self, node):
        """Kills all processes of the node at once, as a power failure does. The slurmstepd processes end first, because
        they would report how their tasks end."""
        mark = b"SLURMD_NODENAME=" + node.encode()
        tasks = [int(name) for name in os.listdir("/proc") if name.isdigit()
                 and mark in text_of(f"/proc/{name}/environ").split(b"\0")
                 and b"SLURM_CONF=" + self.at("slurm.conf").encode() in text_of(f"/proc/{name}/environ").split(b"\0")]
        self.kill("slurmd-" + node)
        for pid in self.stepds(node) + tasks:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def words(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=60,
                              stdin=subprocess.DEVNULL)
        return done.stdout.strip() or done.stderr.strip()

    def idle(self):
        return self.words("sinfo", "-h", "-o", "%T %D") == f"idle {len(NODES)}"

    def job(self, number):
        """The fields of a job, such as JobState and ExitCode."""
        said = self.words("scontrol", "show", "job", str(number), "--oneliner")
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def tail(self, name):
        return f"\n{name}:\n" + text_of(self.at(name))[-3000:].decode(errors="replace")

    @staticmethod
    def wait_until(condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def end(self):
        for name in sorted(self.daemons, reverse=True):  # the nodes before the controller and munge
            self.daemons[name].terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
