"""The causes of incidents: for each, words, the real runs that it changes, and the evidence that it adds.

An evidence function gets the Incident (incident.py) and adds lines to the files that an operator would have. In the
truth, the rank and node are those of the real fault, unless the cause is of the whole job (no_rank, no_node).
"""
import messages as m


class Cause:
    def __init__(self, identifier, words, runs, evidence=None, rank=True, node=True, scheduler=None, least_nodes=1,
                 no_run=False, least_ranks=1):
        self.identifier, self.words, self.runs, self.evidence = identifier, words, runs, evidence
        self.rank, self.node, self.scheduler, self.least_nodes = rank, node, scheduler, least_nodes
        self.no_run, self.least_ranks = no_run, least_ranks


def kernel(make):
    """Evidence in the kernel log of the node: lines of make(rng, gpu, pid), just before the fault."""
    def add(i):
        i.kernel(i.node, -i.rng.uniform(0.05, 2), make(i.rng, i.gpu, i.pid))
        if i.rng.random() < 0.5 and i.ranks > 1:
            i.nccl_peers("NET/IB : Got completion from peer {peer} with status=12 opcode=32552 len=32549 vendor err 129 (Recv) hca mlx5_%d" % i.rng.randrange(8))
    return add


def gpu_error(make, name, text):
    """As kernel(), with the error of the GPU's runtime in the output of the rank."""
    def add(i):
        kernel(make)(i)
        if "abort" not in i.source or i.rng.random() < 0.3:
            return
        i.output(f"error: {'hip' if name.startswith('hip') else 'cuda'}: {i.rng.choice(['cannot finish the work of a stream', 'cannot wait for an event'])}: {text} ({name})")
    return add


def job_oom(i):
    i.scheduler_or("slurm")
    if i.scheduler == "kubernetes":
        i.kernel(i.node, -0.1, m.oom(i.rng, i.pid, f"/kubepods.slice/kubepods-burstable.slice/pod{i.uid}"))
        i.pod_state(i.node, "OOMKilled", 137)
    else:
        i.kernel(i.node, -0.1, m.oom(i.rng, i.pid, f"/system.slice/slurmstepd.scope/job_{i.job}/step_0"))
        i.output(f"slurmstepd: error: Detected 1 oom_kill event in StepId={i.job}.0. Some of the step tasks have been OOM Killed.",
                 f"srun: error: {i.host(i.node)}: task {i.node}: Out Of Memory")
        i.state = "OUT_OF_MEMORY"


def machine_oom(i):
    i.kernel(i.node, -0.1, m.oom(i.rng, i.pid))


def gpu_memory(i):
    i.replace_errors(f"cuda: out of device memory: {i.rng.randrange(200, 9000) / 100} GiB asked for, "
                     f"{i.rng.randrange(20, 900)} MiB of 79.1 GiB free", "out of memory: the run needs")


def throttled(reason, low, high):
    def add(i):
        i.file(f"nvidia-smi/{i.host(i.node)}.txt",
               m.smi(i.gpu, True, reason, i.rng.randrange(low, high), i.rng.randrange(300, 1100)))
        for other in range(i.nodes):
            if other != i.node:
                i.file(f"nvidia-smi/{i.host(other)}.txt", m.smi(i.gpu, True, "none", i.rng.randrange(50, 68), 1980))
    return add


def hot_cpu(i):
    for at in range(0, 12, 3):
        i.kernel(i.node, at + 0.2, m.cpu_hot(i.rng))


def link(flaps):
    def add(i):
        card, lines = m.port_down(i.rng, i.rng.randrange(2, 6) if flaps else 1)
        i.kernel(i.node, -i.rng.uniform(0.5, 4), lines)
        i.nccl(i.rank, f"NET/IB : mlx5_{card}:1 Got async event : port error")
        i.nccl_peers("NET/IB : Got completion from peer {peer} with status=12 opcode=129 len=1048576 vendor err 129 (Recv) localGid ::ffff:192.168.6.3 remoteGids::ffff:192.168.6.5 hca mlx5_%d" % card)
    return add


def card(i):
    number, lines = m.card_failed(i.rng)
    i.kernel(i.node, -i.rng.uniform(0.5, 4), lines)
    i.nccl(i.rank, f"NET/IB : mlx5_{number}:1 Got async event : local catastrophic error")
    i.nccl_peers("NET/IB : Got completion from peer {peer} with status=12 opcode=32552 len=32549 vendor err 129 (Recv) hca mlx5_%d" % number)


def storage_hang(i):
    i.kernel(i.node, -i.rng.uniform(1, 5), m.nfs_hang(i.rng, i.pid)[:1])
    i.kernel(i.node, 122, m.nfs_hang(i.rng, i.pid)[-3:])


def time_limit(i):
    i.scheduler_or("slurm", only=True)
    i.cancelled(" DUE TO TIME LIMIT", "TIMEOUT")
    i.output(before=True, *["srun: Job step aborted: Waiting up to 32 seconds for job step to finish."])


def preempted(i):
    i.scheduler_or("slurm")
    if i.scheduler == "kubernetes":
        i.kube(i.node, 0, "Normal", "Preempted", f"Preempted by pod {i.uid} on node {i.host(i.node)}")
    else:
        i.cancelled(" DUE TO PREEMPTION", "PREEMPTED")


def by_user(i):
    i.scheduler_or("slurm", only=True)
    i.cancelled("", "CANCELLED by 1000")


def node_failed(i):
    i.scheduler_or("slurm")
    if i.scheduler == "kubernetes":
        i.kube_node(i.node, 40, "NodeNotReady", f"Node {i.host(i.node)} status is now: NodeNotReady")
        i.kube(i.node, 340, "Normal", "TaintManagerEviction", f"Marking for deletion Pod training/{i.pod(i.node)}")
        return
    i.output(f"srun: error: Node failure on {i.host(i.node)}",
             f"slurmstepd: error: *** STEP {i.job}.0 ON {i.host(0)} CANCELLED AT {i.iso(30)} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***")
    i.controller(20, f"error: Nodes {i.host(i.node)} not responding")
    i.controller(300, f"error: Nodes {i.host(i.node)} not responding, setting DOWN")
    i.state = "NODE_FAIL"


def power(i):
    node_failed(i)
    at = i.stamp(-1, "%m/%d/%Y | %H:%M:%S")
    i.file(f"ipmi/{i.host(i.node)}.sel", f"   1 | {at} | Power Supply #0x74 | Power Supply AC lost | Asserted\n"
           f"   2 | {at} | Power Supply #0x75 | Power Supply AC lost | Asserted\n"
           f"   3 | {i.stamp(0, '%m/%d/%Y | %H:%M:%S')} | Power Unit #0x71 | AC lost | Asserted\n")


def machine_check(i):
    i.kernel(i.node, -0.2, m.machine_check(i.rng))
    node_failed(i)


def evicted(i):
    i.scheduler_or("kubernetes", only=True)
    what, unit = i.rng.choice([("memory", "100Mi"), ("ephemeral-storage", "8588476Ki")])
    i.kube(i.node, 0, "Warning", "Evicted", f"The node was low on resource: {what}. Threshold quantity: {unit}, available: {i.rng.randrange(9999)}Ki. Container trainer was using {i.rng.randrange(10 ** 8)}Ki, request is 0, has larger consumption of {what}. ")
    i.kube(i.node, 1, "Normal", "Killing", "Stopping container trainer")
    i.pod_state(i.node, "Evicted", 137)


def image_pull(i):
    i.scheduler_or("kubernetes", only=True)
    image = f"registry.example.org/ml/primus:{i.rng.randrange(30)}.{i.rng.randrange(9)}"
    why = i.rng.choice([f"rpc error: code = NotFound desc = failed to pull and unpack image \"{image}\": failed to resolve reference \"{image}\": {image}: not found",
                        f"rpc error: code = Unknown desc = failed to pull and unpack image \"{image}\": failed to resolve reference \"{image}\": pull access denied, repository does not exist or may require authorization: authorization failed: no basic auth credentials"])
    i.kube(i.node, 0, "Normal", "Pulling", f"Pulling image \"{image}\"")
    i.kube(i.node, 2, "Warning", "Failed", f"Failed to pull image \"{image}\": {why}")
    i.kube(i.node, 2, "Warning", "Failed", "Error: ErrImagePull")
    i.kube(i.node, 14, "Normal", "BackOff", f"Back-off pulling image \"{image}\"")
    i.kube(i.node, 14, "Warning", "Failed", "Error: ImagePullBackOff")
    i.pod_state(i.node, "ImagePullBackOff", None)


def driver(i):
    i.kernel(i.node, -1, m.mismatch(i.rng))
    i.replace_errors("the NVIDIA driver shows no GPU (system has unsupported display driver / cuda driver combination): check that it is loaded and new enough, and CUDA_VISIBLE_DEVICES", "cannot find the device plug-in")
    i.file(f"nvidia-smi/{i.host(i.node)}.txt", "Failed to initialize NVML: Driver/library version mismatch\n")


def loader(i):
    if i.rng.random() < 0.5:
        i.console = i.rng.choice([
            "primus: error while loading shared libraries: libstdc++.so.6: cannot open shared object file: No such file or directory\n",
            "primus: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by primus)\n",
            "primus: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.36' not found (required by primus)\n"])


def crashed(i):
    i.kernel(i.node, 0, m.segfault(i.rng, i.pid))


def disk(make):
    return lambda i: i.kernel(i.node, -0.3, make(i.rng))


def poisoned(i):
    i.kernel(i.node, -0.1, m.poisoned_memory(i.rng, i.pid))


LOST = "unspecified launch failure"
GPU = ["abort", "hang", "kill"]
CAUSES = [
    Cause("host-memory-job", "the memory of a host's job was exhausted, and the kernel killed a rank", ["kill", "kill-supervised"], job_oom),
    Cause("host-memory-machine", "the memory of a host was exhausted, and the kernel killed a rank", ["kill", "kill-supervised"], machine_oom),
    Cause("host-memory-refused", "the run needs more memory than the host gives", ["too-much-memory"], None, rank=False, node=False),
    Cause("gpu-memory", "the run needs more memory than the GPU has", ["too-much-memory"], gpu_memory, rank=False, node=False),
    Cause("gpu-lost", "a GPU fell off the bus (Xid 79)", GPU, gpu_error(m.lost, "cudaErrorUnknown", "unknown error")),
    Cause("gpu-ecc", "uncorrectable memory errors of an NVIDIA GPU (Xid 48, 63, 64, 94, 95)", GPU, gpu_error(m.ecc, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered")),
    Cause("gpu-ecc-amd", "uncorrectable memory errors of an AMD GPU (RAS)", GPU, kernel(m.amd_ecc)),
    Cause("gpu-nvlink", "an NVLink of a GPU failed (Xid 74, 145, 149)", GPU, gpu_error(m.nvlink, "cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error detected during the execution")),
    Cause("gpu-gsp", "the GPU's system processor did not answer (Xid 119)", ["hang"], kernel(m.gsp)),
    Cause("gpu-program", "a kernel of the program used wrong memory or instructions (Xid 13, 31)", ["abort"], gpu_error(m.illegal, "cudaErrorIllegalAddress", "an illegal memory access was encountered")),
    Cause("gpu-reset-amd", "the driver reset an AMD GPU whose ring hung", GPU, kernel(m.amd_reset)),
    Cause("gpu-thermal", "a GPU was slowed down by heat", ["slow-rank"], throttled("HW Thermal Slowdown", 89, 97)),
    Cause("gpu-power", "a GPU was slowed down by the power brake", ["slow-rank"], throttled("HW Power Brake Slowdown", 50, 70)),
    Cause("cpu-thermal", "the processor's clock was lowered by heat", ["slow-rank"], hot_cpu),
    Cause("slow-rank", "a rank was slow because its process was held up on its machine", ["slow-rank"]),
    Cause("rank-hang", "a rank's process stopped, and its peers waited", ["hang", "hang-supervised"]),
    Cause("link-flap", "the port of a network card went down and up again", ["hang", "abort"], link(True), least_nodes=2),
    Cause("link-down", "the port of a network card went down", ["hang", "abort"], link(False), least_nodes=2),
    Cause("network-card", "a network card failed", ["hang", "abort"], card, least_nodes=2),
    Cause("storage-hang", "a file server did not answer a rank", ["hang"], storage_hang),
    Cause("storage-slow", "saving was slow because the storage was slow", ["slow-saves"], None, rank=False, node=False),
    Cause("disk-full", "the disk of the run's folder was full", ["disk-full"], None, rank=False, node=False),
    Cause("quota", "the user's quota was used up", ["quota"], None, rank=False, node=False),
    Cause("permission", "a rank may not write to the run's folder", ["denied"], None, rank=False, node=False),
    Cause("read-only", "the file system became read-only", ["read-only"], disk(m.read_only), rank=False, node=False),
    Cause("io-error", "a disk returned input/output errors", ["io-error"], disk(m.disk_errors), rank=False, node=False),
    Cause("nan", "the loss or a gradient became NaN", ["nan", "nan-supervised"], None, rank=False, node=False),
    Cause("divergence", "the loss grew, or had a spike, and did not come back", ["spike"], None, rank=False, node=False),
    Cause("bad-data", "a line of the training data is damaged or of another form", ["bad-data"], None, rank=False, node=False),
    Cause("config-key", "a setting is unknown or has a wrong value", ["unknown-key"], None, rank=False, node=False, no_run=True),
    Cause("config-mesh", "the parallel sizes do not fit the number of ranks", ["mesh"], None, rank=False, node=False, no_run=True),
    Cause("no-data", "the training data does not exist", ["no-data"], None, rank=False, node=False, no_run=True),
    Cause("no-library", "a library or plug-in is missing or too old", ["no-plugin"], loader, rank=False, node=False, no_run=True),
    Cause("driver-mismatch", "the versions of the GPU driver's module and libraries differ", ["no-plugin"], driver, rank=False, no_run=True),
    Cause("port-in-use", "the port of the job is used by another process", ["port"], None, rank=False, node=False, no_run=True),
    Cause("unknown-host", "the name of the master's host cannot be resolved", ["unknown-host"], None, rank=False, node=False, no_run=True),
    Cause("time-limit", "the scheduler's time limit ended the job", ["request", "job-killed"], time_limit, rank=False, node=False),
    Cause("preemption", "the scheduler preempted the job", ["request", "job-killed"], preempted, rank=False, node=False),
    Cause("cancelled", "a user cancelled the job", ["request", "job-killed"], by_user, rank=False, node=False),
    Cause("node-failure", "a node stopped answering", ["node-killed", "node-lost"], node_failed, rank=False),
    Cause("power-loss", "a node lost its power", ["node-killed", "node-lost"], power, rank=False),
    Cause("machine-check", "a processor reported a fatal machine check", ["node-killed"], machine_check, rank=False),
    Cause("host-memory-error", "the memory of a host has an uncorrectable error", ["bus"], poisoned),
    Cause("eviction", "Kubernetes evicted a pod", ["node-killed", "job-killed"], evicted, rank=False),
    Cause("image-pull", "the container's image cannot be pulled", ["none"], image_pull, rank=False, node=False, no_run=True),
    Cause("crash", "a rank crashed (SIGSEGV)", ["segv"], crashed),
    Cause("abort", "a rank aborted (SIGABRT), without another trace", ["abort"]),
    Cause("killed", "a user or program killed a rank (SIGKILL), and the kernel logged nothing", ["kill", "kill-supervised"]),
    Cause("crash-loop", "a rank crashed again and again before a checkpoint", ["crash-loop"], crashed),
    Cause("checkpoint-damaged", "the checkpoint to continue from is damaged", ["damaged"], None, rank=False, node=False),
    Cause("settings-differ", "a rank has other settings than its peers", ["settings"], None),
    Cause("versions-differ", "a rank runs another version of the program", ["version"], None),
    Cause("none", "the run finished without a fault", ["finished"], None, rank=False, node=False),
]
