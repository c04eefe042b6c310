"""Messages of drivers, the kernel, NCCL, Slurm and Kubernetes, as the real software writes them.

The forms come from public reports: NVIDIA/NVSentinel #155, leptonai/gpud #46, #1160 and #1174,
NVIDIA/open-gpu-kernel-modules #1150 and #1355 (Xid), stackhpc/ansible-slurm-appliance #287 (driver versions),
ROCm/legacy-rocm-build #4021 and #6273 (amdgpu), NVIDIA/nccl #905, #1698, #1710 and #1814 (network),
reportportal/kubernetes #203 (out of memory), radiasoft/devops #134 (memory errors), oxidecomputer/crucible #1844
(disks), chrisknewman/tusas #149, ZettaAI/zetta_utils #671, facebookincubator/submitit #1708 and
SystemsGenetics/GEMmaker #242 (Slurm), kubernetes/kubernetes #112927 and #96186 (Kubernetes).
"""

BUSES = ["1b", "43", "52", "61", "9d", "c3", "d1", "df"]


def bus(gpu):
    return BUSES[gpu % 8]


def xid(gpu, number, text):
    return f"NVRM: Xid (PCI:0000:{bus(gpu)}:00): {number}, {text}"


def ecc(rng, gpu, pid):
    return rng.choice([
        [xid(gpu, 48, f"pid={pid}, name=primus, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition {rng.randrange(12)}, subpartition {rng.randrange(2)}."),
         xid(gpu, 63, f"pid={pid}, name=primus, Row Remapper: New row marked for remapping, reset gpu to activate."),
         xid(gpu, 45, f"pid={pid}, name=primus, Ch 00000008")],
        [xid(gpu, 94, f"pid={pid}, name=primus, Contained: FBHUB Error: 0x{rng.randrange(1 << 16):x}. RST: No, D-RST: No"),
         xid(gpu, 63, f"pid={pid}, name=primus, Row Remapper: New row marked for remapping, reset gpu to activate.")],
        [xid(gpu, 95, f"pid={pid}, name=primus, Uncontained: LTC TAG (0x{rng.randrange(16):x},0x0). RST: Yes, D-RST: No"),
         xid(gpu, 45, f"pid={pid}, name=primus, Ch 0000000c")],
        [xid(gpu, 64, f"pid={pid}, name=primus, Row Remapper: Failed to remap row, reset gpu"),
         xid(gpu, 48, f"pid={pid}, name=primus, DBE (double bit error) ECC Error")]])


def amd_ecc(rng, gpu, pid):
    card = f"amdgpu 0000:{bus(gpu)}:00.0: amdgpu:"
    number = rng.randrange(1, 40)
    return [f"amdgpu 0000:{bus(gpu)}:00.0: {{{number}}}[Hardware Error]: Accelerator Check Architecture events logged",
            f"amdgpu 0000:{bus(gpu)}:00.0: {{{number}}}[Hardware Error]: aca entry[00].STATUS=0xbea0000000000108",
            f"{card} {rng.randrange(1, 4)} uncorrectable hardware errors detected in umc block",
            f"{card} GPU reset begin!"]


def amd_reset(rng, gpu, pid):
    card = f"amdgpu 0000:{bus(gpu)}:00.0: amdgpu:"
    first = rng.randrange(1000, 900000)
    return [f"{card} ring comp_1.0.{rng.randrange(4)} timeout, signaled seq={first}, emitted seq={first + 3}",
            f"{card}  Process primus pid {pid} thread primus pid {pid}", f"{card} GPU reset begin!",
            f"{card} GPU reset succeeded, trying to resume"]


def lost(rng, gpu, pid):
    return [xid(gpu, 79, f"pid={pid}, name=primus, GPU has fallen off the bus."),
            f"NVRM: GPU 0000:{bus(gpu)}:00.0: GPU has fallen off the bus.",
            xid(gpu, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")]


def nvlink(rng, gpu, pid):
    link = rng.randrange(18)
    return rng.choice([
        [xid(gpu, 74, f"pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link {link}(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
         xid(gpu, 45, f"pid={pid}, name=primus, Ch 00000002")],
        [xid(gpu, 145, f"RLW_RXPIPE Fatal XC1 i0 Link {link:02d} (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"),
         xid(gpu, 45, f"pid={pid}, name=primus, Ch 0000000c caused by previous Xid 145")],
        [xid(gpu, 149, f"NETIR_LINK_EVT Fatal XC0 i0 Link {link:02d} (0x026001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"),
         xid(gpu, 45, f"pid={pid}, name=primus, Ch 00000001 caused by previous Xid 149")]])


def gsp(rng, gpu, pid):
    return [xid(gpu, 119, f"pid={pid}, name=primus, Timeout after 6s of waiting for RPC response from GPU{gpu} GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x8).")] * rng.randrange(1, 4)


def illegal(rng, gpu, pid):
    return rng.choice([
        [xid(gpu, 31, f"pid={pid}, name=primus, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC{rng.randrange(7)} GPCCLIENT_T1_{rng.randrange(9)} faulted @ 0x7f{rng.randrange(1 << 28):08x}000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ")],
        [xid(gpu, 13, f"pid={pid}, name=primus, Graphics SM Warp Exception on (GPC {rng.randrange(7)}, TPC {rng.randrange(8)}, SM 0): Illegal Instruction Parameter"),
         xid(gpu, 43, f"pid={pid}, name=primus, Ch 00000008")]])


def oom(rng, pid, cgroup=None):
    rss = rng.randrange(90, 900) * 1000000
    constraint = (f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg={cgroup},task_memcg={cgroup},task=primus,pid={pid},uid=1000"
                  if cgroup else f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/user.slice,task=primus,pid={pid},uid=1000")
    return ["primus invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0", constraint,
            f"{'Memory cgroup out of memory' if cgroup else 'Out of memory'}: Killed process {pid} (primus) total-vm:{rss + 40000000}kB, anon-rss:{rss}kB, file-rss:52176kB, shmem-rss:92kB, UID:1000 pgtables:{rss // 512}kB oom_score_adj:0",
            f"oom_reaper: reaped process {pid} (primus), now anon-rss:0kB, file-rss:0kB, shmem-rss:92kB"]


def machine_check(rng):
    cpu, bank = rng.randrange(96), rng.randrange(5, 20)
    return [f"mce: [Hardware Error]: CPU {cpu}: Machine Check Exception: 5 Bank {bank}: be00000000800400",
            f"mce: [Hardware Error]: TSC {rng.randrange(1 << 44):x} ADDR {rng.randrange(1 << 34):x} MISC 86",
            "mce: [Hardware Error]: Machine check: Processor context corrupt",
            "Kernel panic - not syncing: Fatal machine check"]


def poisoned_memory(rng, pid):
    page, slot = rng.randrange(1 << 24), rng.randrange(2)
    return [f"EDAC MC{slot}: 1 UE memory read error on CPU_SrcID#{slot}_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x{page:x} offset:0x0 grain:32 -  err_code:0x0101:0x0090 ProcessorSocketId:0x{slot})",
            f"mce: Uncorrected hardware memory error in user-access at {page:x}000",
            f"Memory failure: 0x{page:x}: Sending SIGBUS to primus:{pid} due to hardware memory corruption",
            f"Memory failure: 0x{page:x}: recovery action for dirty LRU page: Recovered"]


def port_down(rng, flaps):
    card = rng.randrange(8)
    lines = []
    for _ in range(flaps):
        lines += [f"mlx5_core 0000:{BUSES[card]}:00.0 mlx5_{card}: Port: 1 Link DOWN",
                  f"mlx5_core 0000:{BUSES[card]}:00.0 mlx5_{card}: Port: 1 Link ACTIVE"]
    return card, lines if flaps > 1 else lines[:1]


def card_failed(rng):
    card = rng.randrange(8)
    device = f"mlx5_core 0000:{BUSES[card]}:00.0:"
    return card, [f"{device} poll_health:{rng.randrange(700, 900)}:(pid 0): device's health compromised - reached miss count",
                  f"{device} print_health_info:{rng.randrange(420, 520)}:(pid 0): assert_var[0] 0x00000000",
                  f"{device} mlx5_error_sw_reset:{rng.randrange(220, 280)}:(pid {rng.randrange(900, 9999)}): start"]


def nccl(host, pid, gpu, text, kind="WARN", place="transport/net_ib.cc:2244"):
    return f"{host}:{pid}:{pid + 211} [{gpu}] {place} NCCL {kind} {text}"


def nfs_hang(rng, pid):
    server = f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(2, 250)}"
    lines = rng.choice([[f"nfs: server {server} not responding, still trying"] * 2,
                        [f"Lustre: {rng.randrange(2000, 9000)}:0:(client.c:2295:ptlrpc_expire_one_request()) @@@ Request sent has timed out for slow reply: [sent 1795880000/real 1795880000]  req@00000000d8a1f0c4 x18{rng.randrange(10 ** 14):014d}/t0(0) o3->scratch-OST00{rng.randrange(99):02d}-osc-ffff9@{server}@o2ib:6/4 lens 488/440 e 0 to 1 dl 1795880040 ref 2 fl Rpc:X/0/ffffffff rc 0/-1"]])
    return lines + [f"INFO: task primus:{pid} blocked for more than 122 seconds.",
                    "      Not tainted 5.15.0-122-generic #132-Ubuntu",
                    "\"echo 0 > /proc/sys/kernel/hung_task_timeout_secs\" disables this message."]


def disk_errors(rng):
    sector = rng.randrange(1 << 30)
    return ["nvme nvme1: I/O 34 QID 13 timeout, aborting", "nvme nvme1: Abort status: 0x0",
            f"I/O error, dev nvme1n1, sector {sector} op 0x1:(WRITE) flags 0x4000 phys_seg 128 prio class 0",
            f"Buffer I/O error on device nvme1n1p1, logical block {sector // 8}"]


def read_only(rng):
    return disk_errors(rng)[2:] + ["Aborting journal on device nvme1n1p1-8.",
                                   "EXT4-fs error (device nvme1n1p1): ext4_journal_check_start:83: comm primus: Detected aborted journal",
                                   "EXT4-fs (nvme1n1p1): Remounting filesystem read-only"]


def cpu_hot(rng):
    cpu, count = rng.randrange(96), rng.randrange(1, 4000)
    return [f"mce: CPU{cpu}: Core temperature above threshold, cpu clock throttled (total events = {count})",
            f"mce: CPU{cpu}: Package temperature above threshold, cpu clock throttled (total events = {count + 9})"]


def segfault(rng, pid):
    ip = 0x560000000000 + rng.randrange(1 << 36)
    return [f"primus[{pid}]: segfault at {rng.randrange(64):x} ip {ip:016x} sp 00007ffd{rng.randrange(1 << 32):08x} error 4 in primus[{ip & ~0xfff:x}+1a2b000]"]


def mismatch(rng):
    new, old = rng.choice([("580.82.07", "570.158.01"), ("570.195.03", "570.124.06"), ("535.54.03", "530.30.02")])
    return [f"NVRM: API mismatch: the client has the version {new}, but",
            f"NVRM: this kernel module has the version {old}.  Please",
            "NVRM: make sure that this kernel module and all NVIDIA driver",
            "NVRM: components have the same version."]


def smi(gpu, busy, reason, temperature, clock):
    rows = ["==============NVSMI LOG==============", "", f"GPU 0000{'0000'}:{bus(gpu).upper()}:00.0",
            "    Clocks Event Reasons"]
    for name in ["Idle", "Applications Clocks Setting", "SW Power Cap", "HW Slowdown", "    HW Thermal Slowdown",
                 "    HW Power Brake Slowdown", "Sync Boost", "SW Thermal Slowdown"]:
        on = name.strip() == reason or (name == "HW Slowdown" and reason.startswith("HW"))
        rows.append(f"        {name:<28}: {'Active' if on else 'Not Active'}")
    return "\n".join(rows + ["    Temperature", f"        GPU Current Temp              : {temperature} C",
                             "    Clocks", f"        SM                            : {clock} MHz", ""])


NOISE = [
    "audit: type=1400 audit(1795880000.123:412): apparmor=\"STATUS\" operation=\"profile_load\" profile=\"unconfined\" name=\"docker-default\" pid=3210 comm=\"apparmor_parser\"",
    "workqueue: ib_cache_event_task [ib_core] hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND",
    "IPv6: ADDRCONF(NETDEV_CHANGE): lxc986df559cf1b: link becomes ready",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1_Ha#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0xee30a0 offset:0x0 grain:32 syndrome:0x0 -  area:DRAM err_code:0008:00c2 socket:1 ha:0 channel_mask:1 rank:0)",
    "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    "EXT4-fs (md127p3): re-mounted 0f3cd65a-338b-4574-bba3-ecef214e1917 r/w. Quota mode: none.",
    "systemd[1]: Starting Daily apt download activities...",
    "pcieport 0000:00:01.1: AER: Corrected error received: 0000:20:03.1",
]
