"""A trial in a job of two nodes of Slurm, which is queued again after a fault that ends it ('sbatch --requeue').

Rank 0 waits at the point of the fault until the script has done it, so the fault is at an exact point here, too."""
import os
import signal
import subprocess
import time

from faults.trial import Trial, command, processes_with

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE")


class Job:
    """A job of Slurm, with the functions of subprocess.Popen that a trial uses."""

    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.returncode = None
        self.state = ""
        self.requeued = 0  # how often it was queued again
        self.looked = 0.0

    def poll(self):
        if self.returncode is not None or time.monotonic() < self.looked + 0.3:
            return self.returncode
        self.looked = time.monotonic()
        fields = self.cluster.job(self.number)
        self.state = fields.get("JobState", "")
        restarts = int(fields.get("Restarts", "0"))
        if self.state == "PENDING" and restarts > self.requeued:
            # Slurm waits two minutes, until the nodes have forgotten the job. A start in the second of the end would
            # fail: a node refuses a credential of the second in which it revoked the job's last one.
            self.requeued = restarts
            self.cluster.words("scontrol", "update", f"JobId={self.number}", "StartTime=now+3")
        if self.state in ENDED:
            code, killed = (int(part) for part in fields.get("ExitCode", "0:0").split(":"))
            self.returncode = 143 if self.state == "CANCELLED" else 128 + killed if killed else code
            if self.state == "NODE_FAIL" and self.returncode == 0:
                self.returncode = 3
        return self.returncode

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("job", seconds)
            time.sleep(0.1)

    def kill(self):
        self.cluster.words("scancel", str(self.number))


class SlurmTrial(Trial):
    def __init__(self, options, setup, kind, phase, seed, number):
        super().__init__(options, setup, kind, phase, seed, number)
        self.cluster = options.clusters.get()

    def execute(self, reference):
        try:
            outcome = super().execute(reference)
            # The supervisors of an attempt that Slurm has ended record no fault.
            again = outcome == "unaffected" and self.supervisors[0].requeued > 0
            return "recovered" if again else outcome
        finally:
            self.make_ready()
            self.options.clusters.put(self.cluster)

    def make_ready(self):
        """Ends jobs, and starts the daemons that a fault has ended."""
        cluster = self.cluster
        for job in cluster.words("squeue", "-h", "-o", "%A").split():
            cluster.words("scancel", "--signal=KILL", job)
            cluster.words("scancel", job)
        for name, daemon in list(cluster.daemons.items()):
            if daemon.poll() is not None and name.startswith("slurmd-"):
                cluster.begin_node(name[len("slurmd-"):])
        if not cluster.wait_until(cluster.idle, 30):
            cluster.words("scontrol", "update", "NodeName=n1,n2", "State=RESUME")
        if not cluster.wait_until(cluster.idle, 30):
            raise SystemExit("the Slurm cluster is not idle after a trial:\n" + cluster.words("sinfo", "-R") +
                             cluster.tail("slurmctld.log"))

    def start(self, node=0):
        if node != 0:
            return  # the job has all nodes
        if self.options.over:
            raise SystemExit("the script ends")
        words = command(self.options.program, self.options.folder, self.run_name, self.setup, self.data)
        words = [word for word in words[1:] if word not in ("--nproc", "1")]
        words += ["--supervise", f"async_save={'false' if self.phase == 'save' else 'true'}"]
        submit = [self.options.program, "slurm", "sbatch", "-N", "2", "--requeue", "--open-mode=append",
                  "--output=" + self.log, "--export=ALL,LD_PRELOAD=" + self.options.shim, "--", "direct", "--env",
                  "GPUS_PER_NODE=1", "--"] + words
        environment = dict(self.cluster.environment, FAULT_FOLDER=self.folder, FAULT_RUN=self.run,
                           FAULT_SESSION=self.options.folder)
        done = subprocess.run(submit, capture_output=True, text=True, env=environment, cwd=self.cluster.folder,
                              stdin=subprocess.DEVNULL)
        sign = "Submitted batch job "
        if sign not in done.stdout:
            raise SystemExit("the job was not submitted:\n" + done.stdout + done.stderr)
        self.supervisors[0] = Job(self.cluster, int(done.stdout.split(sign)[1].split()[0]))

    def after(self):
        act = getattr(self, "do_" + (self.kind.then or "nothing").replace("-", "_"))
        act()
        with open(os.path.join(self.folder, "go"), "w"):
            pass  # rank 0 continues, if it lives
        self.follow_up()

    def follow_up(self):
        """Starts a node or a daemon again, when the job has left it."""
        job, cluster = self.supervisors[0], self.cluster
        for name, daemon in list(cluster.daemons.items()):
            if daemon.poll() is None:
                continue
            if name == "slurmctld":
                time.sleep(1)
                cluster.begin("slurmctld", ["slurmctld", "-D"])
            elif self.kind.then == "kill-slurmd":
                time.sleep(1)
                cluster.begin_node(name[len("slurmd-"):])
            else:  # the node returns after Slurm has noticed its loss
                before = job.requeued
                self.wait_until(lambda: job.poll() is not None or job.requeued > before, self.limit)
                cluster.begin_node(name[len("slurmd-"):])

    def signal_processes(self, name, number):
        """Signals the processes of the job with this name."""
        for pid in processes_with("FAULT_FOLDER=" + self.folder):
            try:
                with open(f"/proc/{pid}/comm") as file:
                    if file.read().strip() == name:
                        os.kill(pid, number)
            except OSError:
                pass

    def do_nothing(self):
        pass

    def do_kill_srun(self):
        self.signal_processes("srun", signal.SIGKILL)

    def do_term_srun(self):
        self.signal_processes("srun", signal.SIGTERM)

    def do_kill_stepd(self):
        for pid in self.cluster.stepds("n2"):
            os.kill(pid, signal.SIGKILL)

    def do_kill_slurmd(self):
        self.cluster.kill("slurmd-n2")

    def do_kill_controller(self):
        # The controller writes new jobs to its state file every five seconds, and would not know the job otherwise.
        path = self.cluster.at("state/job_state")
        saved = os.path.getmtime(path) if os.path.exists(path) else 0
        self.wait_until(lambda: os.path.exists(path) and os.path.getmtime(path) > saved, 8)
        self.cluster.kill("slurmctld")

    def do_kill_node(self):
        self.cluster.kill_node("n2")

    def do_kill_first_node(self):
        self.cluster.kill_node("n1")

    def do_requeue(self):
        self.cluster.words("scontrol", "requeue", str(self.supervisors[0].number))

    def do_warn(self):
        """The signal that Slurm sends before the time limit."""
        self.cluster.words("scancel", "--batch", "--signal=USR1", str(self.supervisors[0].number))

    def do_cancel(self):
        self.cluster.words("scancel", str(self.supervisors[0].number))

    def do_drain(self):
        """An administrator drains a node for maintenance after the job."""
        self.cluster.words("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=trial")
        self.cluster.words("scontrol", "update", "NodeName=n2", "State=RESUME")

    def do_suspend(self):
        number = str(self.supervisors[0].number)
        self.cluster.words("scontrol", "suspend", number)
        time.sleep(3)
        self.cluster.words("scontrol", "resume", number)
