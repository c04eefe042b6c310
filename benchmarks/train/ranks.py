#!/usr/bin/env python3
"""Measures the overhead of ranks on one machine, in pairs of runs.

    benchmarks/train/ranks.py [rate|start|memory|before PRIMUS] [--pairs N] [--steps N] [--ranks N] [--level LEVEL] [WORD...]

rate (the default): N one-thread processes compared with one process of N threads. Both train the 124M Llama
with the same global batch, alternating, --pairs times (5); a rate is steps/s after the first three steps.
start: seconds from the start of `primus train --nproc N` to the beginning of its first step, compared with
one process; tiny Llama.
memory: the memory planned per rank, and the peak of the largest process, for the 124M Llama with 1, 2 and 4
processes; with --level optim_grads_params also how persistent memory falls with the number of ranks.
before PRIMUS: one process of this build compared with one of another build, PRIMUS; measured like rate.

Prints each pair, and the median, minimum and maximum, with the machine and the date. WORDs are added to all
commands ("bf16=false"). Keep the machine idle during the measurement: the script prints how busy it was before the
start.

With --at-least, the median must reach a ratio. If it does not, twice as many pairs are added, because other
load may have disturbed a few; then the median of all decides. With --within, a process must use the planned
memory, and all ranks together the persistent memory of one process. Exit code: 1 if such a limit is violated.
"""
import argparse, datetime, json, os, pathlib, platform, statistics, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRIMUS = ROOT / "build/bin/primus"
EXPERIMENT = ROOT / "examples/native/configs/CPU/llama_124M-pretrain.yaml"
TINY = ROOT / "examples/native/configs/CPU/llama_tiny-pretrain.yaml"
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
WARM_UP = 3


def command(primus, experiment, folder, words):
    return [primus, "train", "pretrain", "--config", experiment, f"workspace={folder}", "work_group=w", "user_name=u",
            "exp_name=run", "eval_iters=0", "disable_last_saving=true", *words]


def run(words):
    result = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{result.stderr}")
    return result.stdout


def metrics(folder):
    return [json.loads(line) for line in (pathlib.Path(folder) / "w/u/run/metrics.jsonl").read_text().splitlines()]


def ranks_of(count, arguments):
    return ["--nproc", str(count), f"data_parallel_sharding_strategy={arguments.level}"] if count > 1 else []


def rate(ranks, threads, arguments, primus=PRIMUS):
    """Steps/s of a run, without its first steps."""
    with tempfile.TemporaryDirectory() as folder:
        run(command(primus, EXPERIMENT, folder, [
            f"train_iters={WARM_UP + arguments.steps}", f"micro_batch_size={arguments.micro_batch}",
            f"global_batch_size={arguments.micro_batch * arguments.ranks}", f"num_threads={threads}", *arguments.words,
            *ranks_of(ranks, arguments)]))
        seconds = [line["elapsed_time_per_iteration_ms"] / 1000 for line in metrics(folder)][WARM_UP:]
    return len(seconds) / sum(seconds)


def start(ranks, arguments):
    """Seconds from process start to the beginning of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        words = command(PRIMUS, TINY, folder, ["train_iters=1", f"global_batch_size={8 * arguments.ranks}", "micro_batch_size=8",
                                               "num_threads=1", *arguments.words, *ranks_of(ranks, arguments)])
        file = pathlib.Path(folder) / "w/u/run/metrics.jsonl"
        began = time.monotonic()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        while process.poll() is None and not (file.exists() and file.read_text().endswith("\n")):
            time.sleep(0.002)
        after_step = time.monotonic() - began
        if process.wait() != 0:
            sys.exit(process.stderr.read())
        return after_step - metrics(folder)[0]["elapsed_time_per_iteration_ms"] / 1000


def memory(ranks, arguments):
    """(persistent, total) planned per rank, and the peak of the largest process, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        words = command(PRIMUS, EXPERIMENT, folder, [
            "train_iters=1", f"micro_batch_size={arguments.micro_batch}", f"global_batch_size={ranks * arguments.micro_batch}",
            "seq_length=256", "num_threads=1", *arguments.words, *ranks_of(ranks, arguments)])
        plan = json.loads(run([*words, "--dry-run", "--json"]))["memory_bytes"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        peak = 0
        while process.poll() is None:
            for pid in family_of(process.pid):
                peak = max(peak, peak_of(pid))
            time.sleep(0.01)
        output = process.stdout.read()
        if process.returncode != 0:
            sys.exit(output)
    # These runs save no checkpoints, so they need no copy for checkpoints.
    return plan["persistent"], plan["total"] + plan["program"] - plan["checkpoint_copy"], peak


def family_of(pid):
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid] + [one for child in children for one in family_of(int(child))]


def peak_of(pid):
    try:
        line = next(l for l in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if l.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0
    return int(line.split()[1]) * 1024


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each run")
    parser.add_argument("--ranks", type=int, default=2, help="number of one-thread processes, compared with one process of as many threads")
    parser.add_argument("--micro-batch", type=int, default=1, help="sequences of one rank's microbatch")
    parser.add_argument("--at-least", type=float, metavar="RATIO", help="rate, before: the required median")
    parser.add_argument("--within", type=float, metavar="SHARE", help="memory: the allowed difference, such as 0.02")
    parser.add_argument("--level", default="no_shard", help="data_parallel_sharding_strategy of the processes")
    parser.add_argument("words", nargs="*", metavar="rate|start|memory|before PRIMUS, WORD",
                        help="what to measure, and settings for all runs, as on the command line")
    arguments = parser.parse_intermixed_args()
    arguments.what = arguments.words.pop(0) if arguments.words and "=" not in arguments.words[0] else "rate"
    if arguments.what not in ("rate", "start", "memory", "before"):
        parser.error(f"{arguments.what}: rate, start, memory or before")
    if arguments.what == "before":
        if not arguments.words or not os.access(arguments.words[0], os.X_OK):
            parser.error("before needs the other build's program")
        arguments.before = pathlib.Path(arguments.words.pop(0)).resolve()
    if arguments.at_least and arguments.what not in ("rate", "before"):
        parser.error("--at-least is for rate and before")
    if arguments.within and arguments.what != "memory":
        parser.error("--within is for memory")
    if min(arguments.pairs, arguments.steps, arguments.micro_batch) < 1 or arguments.ranks < 2:
        parser.error("--pairs, --steps and --micro-batch are at least 1, --ranks at least 2")
    print(f"{processor()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before, "
          f"{datetime.date.today().isoformat()}")
    if arguments.what == "memory":
        return measure_memory(arguments)
    first, second = {
        "rate": (lambda: rate(1, arguments.ranks, arguments), lambda: rate(arguments.ranks, 1, arguments)),
        "start": (lambda: start(1, arguments), lambda: start(arguments.ranks, arguments)),
        "before": (lambda: rate(1, arguments.ranks, arguments, arguments.before),
                   lambda: rate(1, arguments.ranks, arguments)),
    }[arguments.what]
    names = {"rate": (f"one process with {arguments.ranks} threads", f"{arguments.ranks} processes"),
             "start": ("one process", f"{arguments.ranks} processes"), "before": ("before", "now")}[arguments.what]
    unit = "s" if arguments.what == "start" else "steps/s"
    ratios, seconds = [], []

    def measure(pairs):
        for pair in range(pairs):
            # The order alternates, so that a machine that becomes slower favors neither side.
            if pair % 2 == 0:
                a = first()
                b = second()
            else:
                b = second()
                a = first()
            ratios.append(b / a)
            seconds.append(b)
            print(f"pair {len(ratios)}: {names[1]} {b:.3f} {unit}, {names[0]} {a:.3f} {unit}, ratio {b / a:.3f}", flush=True)
        values = seconds if arguments.what == "start" else ratios
        print(f"median {'of ' + names[1] if arguments.what == 'start' else 'ratio'} {statistics.median(values):.3f} "
              f"(from {min(values):.3f} to {max(values):.3f})")

    measure(arguments.pairs)
    if arguments.at_least and statistics.median(ratios) < arguments.at_least:
        measure(2 * arguments.pairs)
        if statistics.median(ratios) < arguments.at_least:
            sys.exit(f"{names[1]}: {statistics.median(ratios):.3f} of the rate of {names[0]}, and {arguments.at_least} is asked for")


def measure_memory(arguments):
    alone = None
    wrong = []
    for ranks in (1, 2, 4):
        persistent, planned, peak = memory(ranks, arguments)
        alone = alone or persistent
        share = persistent * ranks / alone
        print(f"{ranks} ranks: planned {planned / 2**20:.0f} MiB, of which {persistent / 2**20:.0f} MiB are kept from step to step "
              f"({share:.3f} of one rank's over {ranks}); peak of a process {peak / 2**20:.0f} MiB, "
              f"{peak / planned:.3f} of the plan", flush=True)
        if arguments.within and abs(peak / planned - 1) > arguments.within:
            wrong.append(f"a process of {ranks} took {peak / planned:.3f} of its plan")
        # Only at this level do all ranks together keep exactly one copy of the state.
        if arguments.within and arguments.level == "optim_grads_params" and abs(share - 1) > arguments.within:
            wrong.append(f"{ranks} ranks keep {share:.3f} of what one keeps")
    if wrong:
        sys.exit("; ".join(wrong))


main()
