"""The kinds of faults that scripts/inject-faults.py injects, and the results that are right for each.

A kind has actions of scripts/faults/shim.c for each setup: '1' and '2' are the ranks of a run on one machine, 'nodes'
is a run on two machines and a spare, and 'slurm' is a run on two nodes of Slurm. In the actions, VICTIM is the rank
that the fault hits, AGENT is 'supervisor-1', and LEADER is 'supervisor-0' (on one machine the only supervisor).
"""

STEP_CAUSES = {"killed", "crashed", "lost rank"}


class Kind:
    """names: causes of a detection that are right. ends: {(exit code, cause of the end)} if the run may end; it must
    then be complete after the same command. setups: in which the kind is possible. slow: takes ten seconds or more.
    then: what the script does after the fault: a function of the trial. victim: 'any' rank, or 'first'. lower: the
    newest checkpoint is damaged, so an older one is right. away: a node is away when the job ends, and cannot tell its
    exit code. unseen: no supervisor that lives can detect it, or it may have no effect. early: further ends that are
    right before the run begins (phase start)."""

    def __init__(self, actions, names=(), ends=(), setups="1 2", slow=False, then=None, victim="any", lower=False,
                 second=None, options=(), not_in="", away=False,
                 unseen=False, early=()):
        self.actions, self.names, self.ends = actions, set(names), set(ends)
        self.setups, self.slow, self.then, self.victim = setups.split(), slow, then, victim
        self.away, self.unseen, self.early = away, unseen, set(early)
        self.lower, self.second, self.options, self.not_in = lower, second, list(options), not_in.split()


def signal_of(number, **more):
    return Kind(f"VICTIM=signal:{number}", STEP_CAUSES, setups=more.pop("setups", "1 2 nodes slurm"), **more)


def slurm(then, names=STEP_CAUSES | {"lost node", "error"}, **more):
    """The script does the fault while rank 0 waits. A start of the job may end without a record."""
    return Kind("self=await:30000", names, then=then, setups="slurm", victim="first", unseen=True, **more)


def damage(text, **more):
    latest = "C=$FAULT_RUN/checkpoints&&N=$(cat+$C/latest)&&"
    return Kind(f"self=sh:{latest}{text.replace(' ', '+')};self=signal:9", STEP_CAUSES, setups="1 2", victim="first",
                **more)


STOPPED = {(0, "stopped"), (0, "finished"), (143, "stopped"), (138, "stopped")}

KINDS = {
    # Signals to ranks, to the process that starts them, and to supervisors.
    "kill": signal_of(9), "segv": signal_of(11), "abort": signal_of(6), "bus": signal_of(7), "fpe": signal_of(8),
    "cpu-limit": signal_of(24),
    "kill-all": Kind("rank-1=signal:9;rank-0=signal:9", STEP_CAUSES, setups="2 nodes slurm"),
    "kill-launcher": Kind("launcher-0=signal:9", STEP_CAUSES, setups="2 nodes"),
    "segv-launcher": Kind("launcher-0=signal:11", STEP_CAUSES, setups="2"),
    "kill-rank-and-launcher": Kind("rank-1=signal:9;launcher-0=signal:9", STEP_CAUSES, setups="2"),
    "kill-supervisor": Kind("LEADER=signal:9", STEP_CAUSES | {"lost node"}, then="start-leader", setups="1 2 nodes",
                            unseen=True),
    "stop": Kind("VICTIM=signal:19", {"hang", "lost rank"}, slow=True, setups="1 2 nodes"),
    "pause": Kind("VICTIM=signal:19", then="continue-victim", setups="1 2 nodes"),
    "pause-supervisor": Kind("LEADER=signal:19", then="continue-leader", setups="1 2 nodes"),
    # Processes that end without an error, hang or are slow.
    "exit-0": Kind("VICTIM=exit:0", {"early exit", "lost rank"}, setups="1 2 nodes slurm"),
    "exit-1": Kind("VICTIM=exit:1", {"lost rank", "error"}, {(1, "refused")}, setups="1 2"),
    "exit-3": Kind("VICTIM=exit:3", {"error", "lost rank"}, setups="1 2 nodes slurm"),
    # Ranks wait for others up to five minutes at the start, which is too long for a trial.
    "hang": Kind("VICTIM=hang", {"hang", "lost rank"}, slow=True, not_in="start"),
    # Before the first step, a rank that computes may tokenize data, so the supervisor does not call it a hang.
    "spin": Kind("VICTIM=spin", {"hang", "lost rank"}, slow=True, setups="2", not_in="start restart first"),
    "slow": Kind("VICTIM=slow:1000", setups="1 2 nodes"),
    # Numbers.
    "nan-loss": Kind("self=nan-log", {"NaN"}, victim="first", setups="1 2 nodes slurm"),
    "nan-activation": Kind("self=nan-exp", {"NaN"}, victim="first"),
    # Files and memory.
    "disk-full": Kind("self=sh:echo+4096>$FAULT_FOLDER/free;self=disk-full", {"disk full"}, then="free-space",
                      victim="first", setups="1 2 nodes", early={(2, "refused")}),
    "write-error": Kind("self=write-error", {"error", "lost rank"}, victim="first"),
    "file-limit": Kind("self=file-limit", {"file size limit"}, {(2, "file size limit")}, victim="first"),
    # Without memory for a thread before the first step, the job is refused. A job that needs no more memory continues.
    "memory-limit": Kind("VICTIM=memory", STEP_CAUSES | {"out of memory", "error"}, {(2, "refused")}, unseen=True),
    "open-files": Kind("VICTIM=open-files", {"error", "lost rank"}, {(2, "refused")}),
    "read-only": Kind("self=read-only", {"error", "lost rank"}, {(2, "refused")}, victim="first"),
    "truncated": damage("truncate -s 100 $C/$N/model.safetensors", lower=True),
    "flipped": damage("F=$C/$N/optimizer.safetensors&&printf X|dd of=$F bs=1 seek=9000 conv=notrunc status=none",
                      lower=True),
    "no-latest": damage("rm $C/latest", lower=True),
    "empty-latest": damage("truncate -s 0 $C/latest", lower=True),
    "no-checkpoint": damage("rm -r $C/$N", lower=True),
    "leftover": damage("mkdir $C/.tmp-iter_0000099.1.1&&cp $C/$N/model.safetensors $C/.tmp-iter_0000099.1.1/"),
    "block-files": Kind("LEADER=block:2000", setups="1 2 nodes"),
    "missing-data": Kind("self=sh:mv+$FAULT_FOLDER/data.txt+$FAULT_FOLDER/away.txt;self=signal:9", STEP_CAUSES,
                         {(1, "refused"), (2, "refused")}, then="return-data", victim="first",
                         options=["data"]),
    # Clocks, connections, output.
    "clock-forward": Kind("VICTIM=clock:3600"), "clock-back": Kind("VICTIM=clock:-3600"),
    "clock-supervisor": Kind("LEADER=clock:-3600", setups="1 2 nodes"),
    "sockets": Kind("VICTIM=sockets", {"lost rank", "error"}, setups="2 nodes"),
    "blocked-output": Kind("self=wait:1", then="unblock-output"),
    # Requests to stop, and several faults.
    "term": Kind("LEADER=signal:15", ends=STOPPED, setups="1 2 nodes"),
    "usr1": Kind("LEADER=signal:10", ends=STOPPED),
    "term-rank": Kind("VICTIM=signal:15", STEP_CAUSES | {"error"}, ends=STOPPED),
    # If the request arrives before the end of the killed job is known, the exit code is that of the job.
    "kill-then-term": Kind("self=wait:1;VICTIM=signal:9", STEP_CAUSES,
                           ends=STOPPED | {(137, "stopped"), (3, "stopped")}, then="term-leader",
                           setups="1 2 nodes"),
    "kill-twice": Kind("VICTIM=signal:9", STEP_CAUSES, second="self=signal:9", setups="1 2 nodes"),
    # Machines.
    "kill-agent": Kind("AGENT=signal:9", {"lost node"}, then="start-agent", setups="nodes"),
    # If both are lost at the same moment, the leader has no majority left.
    "kill-agent-for-good": Kind("AGENT=signal:9;supervisor-2=signal:9", {"lost node"},
                                {(3, "lost node"), (3, "lost leader")}, setups="nodes"),
    "kill-spare": Kind("supervisor-2=signal:9", then="start-spare", setups="nodes"),
    "kill-rank-and-agent": Kind("AGENT=signal:9;rank-0=signal:9", STEP_CAUSES | {"lost node"}, then="start-agent",
                                setups="nodes"),
    # The run must not end before the node is missed, after ten seconds.
    "stop-agent": Kind("self=pace:14000;AGENT=signal:19", {"lost node"}, slow=True, then="continue-agent-late",
                       setups="nodes", away=True),
    "pause-agent": Kind("AGENT=signal:19", then="continue-agent", setups="nodes"),
    "agent-sockets": Kind("AGENT=sockets", {"lost node"}, setups="nodes"),
    "leader-sockets": Kind("LEADER=sockets", {"lost node"}, setups="nodes"),
    "agent-partition": Kind("self=pace:14000;AGENT=partition", {"lost node"}, slow=True, then="end-agent",
                            setups="nodes", away=True),
    "agent-files": Kind("AGENT=block:12000;VICTIM=signal:9", STEP_CAUSES, slow=True, setups="nodes"),
    "leader-files": Kind("LEADER=block:12000;VICTIM=signal:9", STEP_CAUSES, slow=True, setups="nodes"),
    "term-agent": Kind("AGENT=signal:15", ends=STOPPED, setups="nodes"),
    "stuck-agent": Kind("AGENT=keep;rank-0=signal:9", STEP_CAUSES, slow=True, then="release-agent", setups="nodes"),
    # Slurm: its processes, its nodes, and what users and administrators tell it.
    "kill-task": Kind("LEADER=signal:9", STEP_CAUSES | {"lost node"}, setups="slurm", unseen=True),
    "kill-other-task": Kind("AGENT=signal:9", STEP_CAUSES | {"lost node"}, setups="slurm", unseen=True),
    "kill-srun": slurm("kill-srun"), "term-srun": slurm("term-srun"),
    "kill-stepd": slurm("kill-stepd"), "kill-slurmd": slurm("kill-slurmd"),
    "kill-controller": slurm("kill-controller"),
    "kill-node": slurm("kill-node", slow=True), "kill-first-node": slurm("kill-first-node", slow=True),
    "requeue": slurm("requeue"), "warn": slurm("warn"), "cancel": slurm("cancel", ends=STOPPED),
    "drain": slurm("drain"), "suspend": slurm("suspend"),
}

SETUPS = ("1", "2", "nodes", "slurm")

PHASES = {
    "start": "the process loads, before it is ready for its first step",
    "first": "in the first step",
    "step": "in a step",
    "collective": "a rank waits for others in a step",
    "evaluation": "in an evaluation",
    "save": "in a save for which training waits",
    "background": "in a save in the background",
    "commit": "the files are written, and get their names",
    "restart": "in the start that follows another fault",
    "end": "after the last step",
}
