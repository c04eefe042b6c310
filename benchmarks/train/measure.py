#!/usr/bin/env python3
"""Measures CPU training of the 124M Llama and prints the table of docs/performance.md.

    benchmarks/train/measure.py [--steps N] [--peer PYTHON] [--dtype TYPE] [--skip-run | --only-run] [--saves N] [--quickstart TEXT]
               [--primus PROGRAM]

For fp32 and bf16: tokens/s and the share of the GEMM peak measured in the same process; the cost per token at
half and double the micro-batch; with --peer (a Python with torch), PyTorch's step of the same model right
after ours, and the ratio. Then one real run: the time from process start to the beginning of the first step,
and the cost of a checkpoint for the steps around it, in wall and CPU time: the median of --saves checkpoints
and their spread, and the same sums without a checkpoint, which show the machine's noise. With --quickstart,
also the time and memory of `primus quickstart` on a text (./quickstart.sh leaves one in
build/quickstart/kjv.txt). --primus measures another build. Keep the machine idle during the measurement; only the CPU
times tolerate other load.
"""
import argparse, datetime, json, os, pathlib, re, statistics, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRIMUS = ROOT / "build/bin/primus"
EXPERIMENT = ROOT / "examples/native/configs/CPU/llama_124M-pretrain.yaml"
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}


def primus(*words):
    result = subprocess.run([PRIMUS, *words], capture_output=True, text=True, env=ENVIRONMENT)
    if result.returncode != 0:
        sys.exit(f"primus {' '.join(map(str, words))}\n{result.stderr}")
    return result.stdout


def benchmark(bf16, micro_batch, steps):
    return json.loads(primus("benchmark", "train", "--config", EXPERIMENT, "--steps", str(steps), "--json",
                             "device=cpu", f"bf16={'true' if bf16 else 'false'}", f"micro_batch_size={micro_batch}",
                             f"global_batch_size={micro_batch}"))


def peer(python, dtype):
    result = subprocess.run([python, ROOT / "benchmarks/peers/torch_llama_cpu.py", "--dtype", dtype, "--threads", "2"],
                            capture_output=True, text=True, env=ENVIRONMENT)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return json.loads(result.stdout)


def thread_times(process):
    """CPU time of each thread of a running process, in seconds."""
    times = {}
    for task in pathlib.Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
        try:
            times[task.parent.name] = int(task.read_text().split()[0]) / 1e9
        except (OSError, IndexError):  # the thread has just ended
            continue
    return times


def real_run(saves, interval=4):
    """A run with a checkpoint every `interval` steps: (seconds to the first step, seconds of a plain step,
    its CPU time, costs of saves in time and in CPU time (costs_of), CPU time of the threads that do not
    train)."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        # The run ends before the work that follows its last save is complete, so this save is not measured.
        iterations = (saves + 1) * interval + 2
        process = subprocess.Popen([PRIMUS, "train", "pretrain", "--config", EXPERIMENT, "--workspace", folder,
                                    "device=cpu", "bf16=false", f"train_iters={iterations}", f"save_interval={interval}",
                                    "global_batch_size=4", "keep_latest=2", "disable_last_saving=true", "eval_iters=0"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        metrics = pathlib.Path(folder) / "primus/root/llama_124M-pretrain/metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
            time.sleep(0.005)
        first = time.time() - began
        threads, used, size = {}, [], 0
        while process.poll() is None:
            if metrics.stat().st_size > size:  # a step has just ended
                size = metrics.stat().st_size
                threads.update(thread_times(process))
                used.append(sum(threads.values()))
                if metrics.read_bytes().count(b"\n") > len(used):
                    process.kill()
                    sys.exit("two steps ended at once: their CPU times cannot be told apart")
            time.sleep(0.005)
        if process.returncode != 0:
            sys.exit("the run with checkpoints failed")
        steps = [json.loads(line)["elapsed_time_per_iteration_ms"] / 1000 for line in metrics.read_text().splitlines()]
        log = (metrics.parent / "logs/pre_trainer/rank-0/info.log").read_text()
    if len(used) < len(steps) - 1:  # the process may end before this loop sees the last step
        sys.exit(f"{len(used)} of {len(steps)} steps were seen to end: their CPU time is not known")
    held = {int(i): float(ms) / 1000 for i, ms in re.findall(r"saving iteration (\d+): training paused ([0-9.]+) ms", log)}
    processor = [0.0] + [later - before for before, later in zip(used, used[1:])]
    # Excludes the busiest threads, one per core, because these threads train.
    other = sum(sorted(threads.values())[:-os.cpu_count()])
    plain = [statistics.median(t for i, t in enumerate(times) if i >= interval and i % interval >= 2) for times in (steps, processor)]
    return (first - steps[0], *plain, costs_of(steps, plain[0], saves, interval, held), costs_of(processor, plain[1], saves, interval),
            other)


def costs_of(steps, plain, saves, interval, held=None):
    """(costs of saves, costs without saves): the extra time of the steps around a save, as shares of a plain
    step. A save may slow down the two steps after it (and training waits `held` before them). The two steps before the
    save and the two steps after the affected steps are plain; half of their sum is subtracted, so that a gradual change
    of
    the machine's speed cancels out. Costs without saves: the same for plain steps between two saves, each
    pair against the plain pairs around it."""
    pair = lambda i: steps[i] + steps[i + 1]
    costs, noise = [], []
    for i in range(interval, (saves + 1) * interval, interval):
        waited = held[i] if held else 0
        costs.append((waited + pair(i) - (pair(i - 2) + pair(i + 2)) / 2) / plain)
        if i > interval:
            noise.append((pair(i - 2) - (pair(i - 2 - interval) + pair(i + 2)) / 2) / plain)
    return costs, noise


def spread(shares):
    low, middle, high = statistics.quantiles(shares, n=4)
    return (f"{100 * middle:.1f} % of one step (median of {len(shares)}; half of them {100 * low:.1f} to {100 * high:.1f} %, "
            f"all {100 * min(shares):.1f} to {100 * max(shares):.1f} %)")


def quickstart(text):
    """Seconds and peak memory (bytes) of the complete command."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        process = subprocess.Popen([PRIMUS, "quickstart", "--text", text, "--workspace", folder], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit("primus quickstart failed")
        return time.time() - began, 1024 * usage.ru_maxrss


def main():
    global PRIMUS
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--peer")
    options.add_argument("--dtype", choices=("fp32", "bf16"), help="only this type (default: both, one after the other)")
    options.add_argument("--skip-run", action="store_true")
    options.add_argument("--only-run", action="store_true")
    options.add_argument("--saves", type=int, default=10)
    options.add_argument("--quickstart", metavar="TEXT")
    options.add_argument("--primus", type=pathlib.Path, default=PRIMUS, metavar="PROGRAM")
    options = options.parse_args()
    PRIMUS = options.primus
    if options.saves < 3:
        sys.exit("--saves: a spread needs three at least")
    model = next(l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name"))
    print(f"{datetime.date.today()}, {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    dtypes = (options.dtype,) if options.dtype else ("fp32", "bf16")
    for dtype in () if options.only_run else dtypes:
        ours = benchmark(dtype == "bf16", 4, options.steps)
        print(f"{dtype}: {ours['tokens_per_second']:.0f} tokens/s, {ours['model_flops_per_second'] / 1e9:.0f} model GFLOP/s "
              f"= {100 * ours['share_of_gemm_peak']:.1f} % of the GEMM peak ({ours['gemm_peak_flops_per_second'] / 1e9:.0f})")
        for kernel in ours["kernels"][:8]:
            print(f"    {kernel['name']:<24}{1e3 * kernel['seconds']:9.1f} ms {100 * kernel['share']:5.1f} %")
        for micro_batch in (2, 8):
            other = benchmark(dtype == "bf16", micro_batch, max(2, options.steps // 2))
            print(f"    micro-batch {micro_batch}: {other['tokens_per_second'] / ours['tokens_per_second']:.2f} x the tokens/s "
                  f"of micro-batch 4")
        if options.peer:
            theirs = peer(options.peer, dtype)
            for other in theirs["variants"]:
                print(f"    PyTorch ({other['variant']}): " + (other["error"] if "error" in other else
                      f"{other['tokens_per_s']:.0f} tokens/s; Primus is "
                      f"{ours['tokens_per_second'] / other['tokens_per_s']:.2f} x as fast"))
    if not options.skip_run:
        first, step, processor, wall, work, other = real_run(options.saves)
        other /= options.saves + 1
        print(f"real run, fp32: {first:.2f} s from process start to the beginning of step 1; a step takes {step:.2f} s and "
              f"{processor:.2f} s of CPU time")
        for name, (costs, noise) in (("time", wall), ("CPU time", work)):
            print(f"    a checkpoint costs, in {name}: {spread(costs)}\n    the same sums without one: {spread(noise)}")
        print(f"    threads that do not train took {other:.2f} s of CPU time per checkpoint: {100 * other / processor:.1f} % of a step")
    if options.quickstart:
        seconds, memory = quickstart(options.quickstart)
        print(f"primus quickstart: {seconds:.0f} s, {memory / 1e9:.2f} GB at most")


if __name__ == "__main__":
    main()
