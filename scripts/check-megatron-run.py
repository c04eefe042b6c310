#!/usr/bin/env python3
"""Trains one experiment with Megatron-LM and with the native engine, both through `primus train`, and
compares the curves.

    scripts/check-megatron-run.py --megatron DIR --python PYTHON [--primus build/bin/primus] [--case NAME ...]
                                  [--device cpu] [--tolerance 1e-5] [--folder DIR] [--quiet]

DIR is a checkout at the commit of presets/backends/pins.yaml. If its data helpers are not compiled, this
script compiles them there with `make`, which needs g++, and pybind11 in PYTHON's environment. PYTHON belongs
to a virtual environment with the packages named in pins.yaml. No GPU is needed: scripts/megatron_on_cpu and
tests/golden/megatron/megatron_on_cpu.py make Megatron-LM's unchanged training loop run on a CPU, over gloo.
With --device cuda both train on GPUs, Megatron-LM unchanged and over NCCL; cases that need more GPUs than
available are skipped.

Both start from the same random weights: in Hugging Face's layout for the native engine, and as a Megatron-LM
checkpoint. Both read the same .bin/.idx files, made from the repository's license by `primus data tokenize`,
over several epochs. Each case below runs 20 steps and compares losses, gradient norms, learning rates and
evaluation losses. Losses may differ by --tolerance (1e-5 on a CPU; 1e-3 on GPUs, which sum in another order),
and by 1e-2 in bf16. Exit code: 0 if all of them agree.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

from framework_check import ROOT, run

STEPS, VOCABULARY = 20, 257
TOLERANCES, BF16_TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}, 1e-2
# Megatron-LM prints gradient norms with three decimal digits, and losses with six.
NORM_TOLERANCE, LOSS_DIGITS = 6e-4, 6e-7

LLAMA = {"model": "llama_tiny.yaml", "num_layers": 4, "hidden_size": 192, "ffn_hidden_size": 512, "num_attention_heads": 6,
         "num_query_groups": 2, "untie_embeddings_and_output_weights": False}
MIXTRAL = {"model": "mixtral_base.yaml", "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 96,
           "moe_ffn_hidden_size": 96, "num_attention_heads": 4, "num_query_groups": 2, "num_experts": 4,
           "moe_router_topk": 2, "moe_aux_loss_coeff": 0.02, "rotary_base": 10000,
           "untie_embeddings_and_output_weights": True}
CASES = {
    "llama": (LLAMA, 1, {}),
    "llama, 2 ranks": (LLAMA, 2, {}),
    "llama, 2 ranks, distributed optimizer": (LLAMA, 2, {"use_distributed_optimizer": True}),
    "mixtral": (MIXTRAL, 1, {}),
    "mock data": (LLAMA, 1, {"mock_data": True}),
    "llama, bf16": (LLAMA, 1, {"bf16": True}),
    # The model features that with_parts.py adds to Megatron-LM.
    "llama, yarn": (LLAMA, 1, {"rope_scaling_type": "yarn", "rope_scaling_factor": 4.0, "original_max_position_embeddings": 16}),
    "llama, scaled positions": (LLAMA, 1, {"rope_scaling_type": "llama3", "rope_scaling_factor": 4.0, "rope_high_freq_factor": 2.0,
                                           "original_max_position_embeddings": 16}),
    "llama, divided positions": (LLAMA, 1, {"rope_scaling_type": "linear", "rope_scaling_factor": 2.5}),
}

EXPERIMENT = """\
work_group: check
user_name: check
exp_name: run
workspace: ./output
modules:
  pre_trainer:
    framework: native
    config: pre_trainer.yaml
    model: {model}
    overrides:
      train_iters: {steps}
      micro_batch_size: 2
      global_batch_size: 16
      seq_length: 64
      max_position_embeddings: 64
      bf16: {bf16}
      tokenizer_type: NullTokenizer
      vocab_size: {vocabulary}
      make_vocab_size_divisible_by: 1
      data_path: [tokens_text_document]
      split: 80,10,10
      lr: 3.0e-3
      min_lr: 3.0e-4
      lr_warmup_iters: 4
      weight_decay: 0.1
      adam_beta2: 0.95
      eval_interval: 10
      eval_iters: 2
      save: null
      disable_tensorboard: true
      # Megatron-LM's own settings: no feature that needs CUDA, Apex or Transformer Engine
      transformer_impl: local
      distributed_backend: {network}
      no_persist_layer_norm: true
      gradient_accumulation_fusion: false
      masked_softmax_fusion: false
      bias_swiglu_fusion: false
      bias_dropout_fusion: false
      apply_rope_fusion: false
"""

# Run by PYTHON: writes the weights in both layouts.
WEIGHTS = r"""
import json, pathlib, sys, types
settings, vocabulary, folder = json.loads(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
bf16 = sys.argv[4] == "bf16"  # Megatron-LM rounds loaded weights to bf16, also for its fp32 copy
import torch
from safetensors.torch import save_file
from write_model_golden import published
get = settings.get
hidden, heads, groups, experts = get("hidden_size"), get("num_attention_heads"), get("num_query_groups"), get("num_experts")
width = hidden // heads
shapes = {"embedding.word_embeddings.weight": (vocabulary, hidden)}
for i in range(get("num_layers")):
    at = f"decoder.layers.{i}."
    shapes |= {at + "input_layernorm.weight": (hidden,), at + "pre_mlp_layernorm.weight": (hidden,),
               at + "self_attention.linear_qkv.weight": ((heads + 2 * groups) * width, hidden),
               at + "self_attention.linear_proj.weight": (hidden, heads * width)}
    parts = [at + "mlp."]
    if experts:
        shapes[at + "mlp.router.weight"] = (experts, hidden)
        parts = [f"{at}mlp.experts.local_experts.{e}." for e in range(experts)]
    for part in parts:
        shapes |= {part + "linear_fc1.weight": (2 * get("ffn_hidden_size"), hidden),
                   part + "linear_fc2.weight": (hidden, get("ffn_hidden_size"))}
shapes["decoder.final_layernorm.weight"] = (hidden,)
if get("untie_embeddings_and_output_weights"):
    shapes["output_layer.weight"] = (vocabulary, hidden)
draw = torch.Generator().manual_seed(7)
model = {name: (1 + 0.1 * torch.randn(shape, generator=draw)) if len(shape) == 1 else
         0.05 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
if bf16:
    model = {name: tensor.bfloat16().float() for name, tensor in model.items()}
release = folder / "of_megatron" / "release" / "mp_rank_00"
release.mkdir(parents=True)
torch.save({"model": model, "checkpoint_version": 3.0, "iteration": 0}, release / "model_optim_rng.pt")
(folder / "of_megatron" / "latest_checkpointed_iteration.txt").write_text("release")
config = types.SimpleNamespace(num_layers=get("num_layers"), num_query_groups=groups, kv_channels=width,
                               num_moe_experts=experts)
layout = {key: part.clone().contiguous() for name, tensor in model.items()
          for key, part in published(name, tensor, config).items()}
hf = folder / "of_hugging_face"
hf.mkdir()
save_file(layout, hf / "model.safetensors", metadata={"format": "pt"})
common = {"vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": get("ffn_hidden_size"),
          "num_hidden_layers": get("num_layers"), "num_attention_heads": heads, "num_key_value_heads": groups,
          "head_dim": width, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64,
          "hidden_act": "silu", "tie_word_embeddings": not get("untie_embeddings_and_output_weights")}
if experts:
    common |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": experts,
               "num_experts_per_tok": get("moe_router_topk"), "router_aux_loss_coef": get("moe_aux_loss_coeff"),
               "sliding_window": None}
else:
    common |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
(hf / "config.json").write_text(json.dumps(common))
"""


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


class Check:
    def __init__(self, args, folder):
        self.args, self.folder, self.failures = args, folder, []
        self.python, self.checkout = args.python.absolute(), args.megatron.resolve()
        # One thread per rank: the ranks share the machine.
        self.env = dict(os.environ, OMP_NUM_THREADS="1")
        self.env_there = dict(self.env, VENV_ACTIVATE=str(self.python.parent / "activate"))
        if args.device == "cpu":
            on_cpu = [str(ROOT / "scripts/megatron_on_cpu"), str(ROOT / "tests/golden/megatron")]
            self.env_there["PYTHONPATH"] = os.pathsep.join(on_cpu)

    def has_module(self, name):
        return subprocess.run([self.python, "-c", f"import {name}"], capture_output=True).returncode == 0

    def gpus(self):
        count = run([self.python, "-c", "import torch; print(torch.cuda.device_count())"], self.folder, self.env, "Python")
        if int(count) == 0:
            sys.exit("PyTorch finds no GPU: give --device cpu, or a PYTHON whose PyTorch is one for CUDA")
        return int(count)

    def prepare(self):
        # The Makefile calls python3-config, which may belong to another Python than the
        # environment's Python.
        ending = run([self.python, "-c", "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"], self.folder,
                     self.env, "Python").strip()
        path = str(self.python.parent) + os.pathsep + os.environ["PATH"]
        run(["make", "-s", "-C", self.checkout / "megatron/core/datasets", f"LIBEXT={ending}"], self.folder,
            dict(self.env, PATH=path), "the compilation of Megatron-LM's helpers")
        parts = [part.strip() for part in (ROOT / "LICENSE").read_text().split("\n\n") if part.strip()]
        (self.folder / "corpus.jsonl").write_text("".join(json.dumps({"text": part}) + "\n" for part in parts))
        run([self.args.primus, "data", "tokenize", "--input", "corpus.jsonl", "--output-prefix", "tokens", "--tokenizer-type",
             "ByteTokenizer", "--append-eod"], self.folder, self.env, "primus data tokenize")

    def train(self, case, ranks, backend, weights, env):
        name = f"{case.replace(', ', '-').replace(' ', '_')}-{backend}"
        words = [self.args.primus, "train", "pretrain", "--config", f"{case}.yaml", "--backend", backend, "--nproc", ranks,
                 "--exp_name", name, f"load={weights}"]
        if backend == "megatron":
            words += ["--backend_path", self.checkout]
        else:
            words += [f"device={self.args.device}"]
        out = run(words, self.folder, env, f"{case}: {backend}")
        folder = self.folder / "output/check/check" / name
        if not self.args.quiet:
            print(f"{case}: {backend}: {out.strip().splitlines()[-1]}", flush=True)
        return lines_of(folder / "metrics.jsonl"), lines_of(folder / "evaluations.jsonl")

    def compare(self, case):
        settings, ranks, further = CASES[case]
        own = self.folder / case
        own.mkdir()
        bf16 = further.get("bf16", False)
        text = EXPERIMENT.format(model=settings["model"], steps=STEPS, vocabulary=VOCABULARY, bf16=json.dumps(bf16),
                                 network="nccl" if self.args.device == "cuda" else "gloo")
        overrides = {key: value for key, value in (settings | further).items() if key not in ("model", "bf16")}
        text += "".join(f"      {key}: {json.dumps(value)}\n" for key, value in overrides.items())
        (self.folder / f"{case}.yaml").write_text(text)
        path = [str(self.checkout), str(ROOT / "tests/golden/megatron")]
        run([self.python, "-c", WEIGHTS, json.dumps(settings), VOCABULARY, own, "bf16" if bf16 else "fp32"], self.folder,
            dict(self.env, PYTHONPATH=os.pathsep.join(path)), "writing weights")
        there, there_evaluations = self.train(case, ranks, "megatron", own / "of_megatron", self.env_there)
        here, here_evaluations = self.train(case, ranks, "native", own / "of_hugging_face", self.env)
        self.show(case, there, here)
        self.judge(case, there, here, there_evaluations, here_evaluations, BF16_TOLERANCE if bf16 else self.args.tolerance)

    @staticmethod
    def evaluations_of(records):
        # Keeps the first evaluation, because Megatron-LM evaluates again after training, on further samples of the set.
        first = {}
        for record in records:
            first.setdefault((record["iteration"], record["data_set"]), record)
        return first

    def show(self, case, there, here):
        if self.args.quiet:
            return
        print(f"\n{case}\n\n| step | learning rate there | gradients' norm there | Megatron-LM | native | difference |\n"
              "|---|---|---|---|---|---|")
        for x, y in zip(there, here):
            print(f"| {x['iteration']} | {x['learning_rate']:.6e} | {x['grad_norm']:.3f} | {x['lm_loss']:.6f} | "
                  f"{y['lm_loss']:.6f} | {abs(x['lm_loss'] - y['lm_loss']) / x['lm_loss']:.1e} |")

    def judge(self, case, there, here, there_evaluations, here_evaluations, tolerance):
        def differences(key, xs, ys):
            return [abs(x[key] - y[key]) / max(abs(x[key]), 1e-30) for x, y in zip(xs, ys)]

        if len(there) != STEPS or len(here) != STEPS:
            self.failures.append(f"{case}: {len(there)} steps of Megatron-LM and {len(here)} native ones, not {STEPS}")
            return
        loss = max(differences("lm_loss", there, here))
        # Megatron-LM logs the learning rate of the next step, so compare it with the native engine's next step.
        rate = max(differences("learning_rate", there, here[1:]))
        norm = max(abs(x["grad_norm"] - y["grad_norm"]) for x, y in zip(there, here))
        norm_limit = NORM_TOLERANCE + tolerance * max(x["grad_norm"] for x in there)
        evaluations = [self.evaluations_of(records) for records in (there_evaluations, here_evaluations)]
        if evaluations[0].keys() != evaluations[1].keys() or len(evaluations[0]) != 3:
            self.failures.append(f"{case}: evaluations of {list(evaluations[0])} and natively {list(evaluations[1])}, not 3")
            return
        evaluation = max(differences("lm_loss", *([e[key] for key in sorted(e)] for e in evaluations)))
        print(f"{case}: largest differences over {STEPS} steps: losses {loss:.1e}, learning rates {rate:.1e}, norms of gradients "
              f"{norm:.1e} (absolute), evaluations {evaluation:.1e}", flush=True)
        for what, value, most in (("losses", loss, tolerance), ("learning rates", rate, 1e-6),
                                  ("norms of gradients", norm, norm_limit), ("evaluations", evaluation, tolerance)):
            if not value <= most + LOSS_DIGITS:
                self.failures.append(f"{case}: {what} differ by {value:.1e}, more than {most:.1e}")
        samples = [(x["consumed_samples"], y["consumed_samples"]) for x, y in zip(there, here)]
        if any(x != y for x, y in samples):
            self.failures.append(f"{case}: samples consumed differ: {samples}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", type=pathlib.Path, required=True)
    parser.add_argument("--python", type=pathlib.Path, required=True)
    parser.add_argument("--primus", type=pathlib.Path, default=ROOT / "build/bin/primus")
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--device", choices=list(TOLERANCES), default="cpu")
    parser.add_argument("--tolerance", type=float, help="relative tolerance of fp32 losses")
    parser.add_argument("--folder", type=pathlib.Path, help="an empty folder in which all files are kept")
    parser.add_argument("--quiet", action="store_true", help="print one line per case")
    args = parser.parse_args()
    args.primus = args.primus.absolute()
    args.tolerance = args.tolerance or TOLERANCES[args.device]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or pathlib.Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            sys.exit(f"{folder} is not empty: give --folder one that is, or that does not exist")
        check = Check(args, folder)
        check.prepare()
        most = check.gpus() if args.device == "cuda" else math.inf
        for case in args.case or CASES:
            if args.device == "cuda" and CASES[case][0] is MIXTRAL and not check.has_module("transformer_engine"):
                print(f"{case}: left out: on a GPU Megatron-LM's router takes Transformer Engine's product, which is not installed",
                      flush=True)
            elif CASES[case][1] > most:
                print(f"{case}: left out: it needs {CASES[case][1]} GPUs, and there is {most}", flush=True)
            else:
                check.compare(case)
        for failure in check.failures:
            print(f"FAILED {failure}")
        return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
