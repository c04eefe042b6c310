#!/usr/bin/env python3
"""Measures CPU training of the 124M Llama and prints the table of docs/performance.md.

    benchmarks/train/measure.py [--steps N] [--peer PYTHON] [--skip-run] [--quickstart TEXT]

For fp32 and bf16: tokens/s and the share of the GEMM peak measured in the same process; cost per token at half and double the
micro-batch; with --peer (a Python that has torch), PyTorch's step of the same model right after ours, and the ratio. Then one real
run: time from process start to the beginning of the first step, and what a checkpoint costs the steps around it; and with
--quickstart, `primus quickstart` on a text (./quickstart.sh leaves one in build/quickstart/kjv.txt): its time and its memory. Nothing
else should run meanwhile.
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
                             f"bf16={'true' if bf16 else 'false'}", f"micro_batch_size={micro_batch}",
                             f"global_batch_size={micro_batch}"))


def peer(python, dtype):
    result = subprocess.run([python, ROOT / "benchmarks/peers/torch_llama_cpu.py", "--dtype", dtype, "--threads", "2"],
                            capture_output=True, text=True, env=ENVIRONMENT)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return json.loads(result.stdout)


def real_run():
    """Twelve steps with a checkpoint after the sixth: (seconds to the first step, stall as a share of a step)."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        process = subprocess.Popen([PRIMUS, "train", "pretrain", "--config", EXPERIMENT, "--workspace", folder,
                                    "bf16=false", "train_iters=12", "save_interval=6", "global_batch_size=4",
                                    "disable_last_saving=true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=ENVIRONMENT)
        metrics = pathlib.Path(folder) / "primus/root/llama_124M-pretrain/metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
            time.sleep(0.005)
        first = time.time() - began
        process.wait()
        steps = [json.loads(line)["elapsed_time_per_iteration_ms"] for line in metrics.read_text().splitlines()]
        log = (metrics.parent / "logs/pre_trainer/rank-0/info.log").read_text()
    held = float(re.search(r"saving iteration 6: training held for ([0-9.]+) ms", log).group(1))
    plain = statistics.median(steps[2:6] + steps[8:])
    # The save happens between steps 6 and 7, and its copying and writing may slow those two down as well.
    stall = (held + sum(t - plain for t in steps[6:8])) / plain
    return first - steps[0] / 1000, stall


def quickstart(text):
    """Seconds and peak memory (bytes) of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        process = subprocess.Popen([PRIMUS, "quickstart", "--text", text, "--workspace", folder], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit("primus quickstart failed")
        return time.time() - began, 1024 * usage.ru_maxrss


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--peer")
    options.add_argument("--skip-run", action="store_true")
    options.add_argument("--quickstart", metavar="TEXT")
    options = options.parse_args()
    model = next(l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name"))
    print(f"{datetime.date.today()}, {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    for dtype in ("fp32", "bf16"):
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
        first, stall = real_run()
        print(f"real run, fp32: {first:.2f} s from process start to the beginning of step 1; a checkpoint costs "
              f"{100 * stall:.1f} % of one step")
    if options.quickstart:
        seconds, memory = quickstart(options.quickstart)
        print(f"primus quickstart: {seconds:.0f} s, {memory / 1e9:.2f} GB at most")


if __name__ == "__main__":
    main()
