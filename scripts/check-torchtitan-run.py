#!/usr/bin/env python3
"""Trains one experiment with TorchTitan and with the native engine, both through `primus train`, and compares
the curves.

    scripts/check-torchtitan-run.py --torchtitan DIR --python PYTHON [--primus build/bin/primus] [--device cpu]
                                    [--tolerance 1e-5] [--folder DIR] [--quiet]

DIR is a checkout at the commit of presets/backends/pins.yaml. PYTHON belongs to a virtual environment with
the packages named in pins.yaml. No GPU is needed: scripts/torchtitan_on_cpu makes TorchTitan's unchanged
training loop run on a CPU. With --device cuda both train on a GPU, TorchTitan unchanged.

The experiment uses TorchTitan's settings: its debugmodel, 20 steps of 4 sequences. Both start from the same
random weights in a Hugging Face folder. TorchTitan cuts its text, in order, into pieces of a sequence plus
one token; the native engine cuts it into shuffled pieces of a sequence that share one token with the next. So
that both see the same data, all sequences are equal: the same 64 words, followed by the first of them. Weight
decay is 0, because TorchTitan applies it to all parameters and the native engine not to norms. Losses and
gradient norms are compared; losses may differ by --tolerance (1e-5 on a CPU; 1e-3 on a GPU, which sums in
another order). Exit code: 0 if they agree.
"""

import json
import os
import sys

import framework_check
from framework_check import ROOT, run, write_texts

STEPS, SEQUENCE, VOCABULARY, SEQUENCES = 20, 64, 2048, 200
LOSS_DIGITS, NORM_TOLERANCE = 5e-6, 2e-3  # TorchTitan prints five decimal digits; norms are less exact than losses

EXPERIMENT = f"""\
work_group: check
user_name: check
exp_name: run
workspace: ./output
modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    model: llama3.1_8B.yaml
    overrides:
      model: {{name: llama3, flavor: debugmodel, hf_assets_path: tokenizer}}
      training:
        steps: {STEPS}
        seq_len: {SEQUENCE}
        local_batch_size: 4
        mock_data: false
        dataset: c4_test
        dataset_path: ./documents
        mixed_precision_param: float32
      optimizer: {{lr: 3.0e-4, weight_decay: 0.0}}
      lr_scheduler: {{warmup_steps: 4}}
      metrics: {{log_freq: 1}}
      checkpoint: {{enable: true, interval: 1000, initial_load_path: weights, initial_load_in_hf: true}}
      activation_checkpoint: {{mode: none}}
      compile: {{enable: false}}
"""

# Run by PYTHON: writes random weights of the debugmodel in Hugging Face's layout.
WEIGHTS = r"""
import json, pathlib, sys
import torch
from safetensors.torch import save_file
vocabulary, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
hidden, layers, ffn, heads = 256, 6, 768, 16
draw = torch.Generator().manual_seed(7)
shapes = {"model.embed_tokens": (vocabulary, hidden), "model.norm": (hidden,), "lm_head": (vocabulary, hidden)}
for i in range(layers):
    at = f"model.layers.{i}."
    shapes |= {f"{at}self_attn.{x}_proj": (hidden, hidden) for x in "qkvo"}
    shapes |= {at + "mlp.gate_proj": (ffn, hidden), at + "mlp.up_proj": (ffn, hidden), at + "mlp.down_proj": (hidden, ffn),
               at + "input_layernorm": (hidden,), at + "post_attention_layernorm": (hidden,)}
weights = {name + ".weight": (1 + 0.1 * torch.randn(shape, generator=draw)) if len(shape) == 1 else
           0.02 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
folder.mkdir()
save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
(folder / "model.safetensors.index.json").write_text(
    json.dumps({"metadata": {}, "weight_map": {name: "model.safetensors" for name in weights}}))
(folder / "config.json").write_text(json.dumps({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden,
    "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
    "head_dim": hidden // heads, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 131072,
    "hidden_act": "silu", "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192}}))
"""


def compare(args, folder):
    python, checkout = args.python.absolute(), args.torchtitan.resolve()
    env = dict(os.environ, OMP_NUM_THREADS="2")
    env_there = dict(env, VENV_ACTIVATE=str(python.parent / "activate"))
    if args.device == "cpu":
        env_there["PYTHONPATH"] = str(ROOT / "scripts/torchtitan_on_cpu")
    (folder / "run.yaml").write_text(EXPERIMENT)
    write_texts(args.primus, folder, env, VOCABULARY, SEQUENCE, SEQUENCES, folder / "documents/data.json")
    run([python, "-c", WEIGHTS, VOCABULARY, folder / "weights"], folder, env, "writing weights")
    train = [args.primus, "train", "pretrain", "--config", "run.yaml", "--exp_name"]
    run([*train, "torchtitan", "--backend_path", checkout], folder, env_there, "TorchTitan")
    run([*train, "native", "--backend", "native", "data_path=native_text_document", f"device={args.device}"], folder, env,
        "the native engine")
    runs = folder / "output/check/check"
    there, here = ([json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
                   for name in ("torchtitan", "native"))
    if len(there) != STEPS or len(here) != STEPS:
        sys.exit(f"{len(there)} steps of TorchTitan and {len(here)} native ones, not {STEPS}")
    if not args.quiet:
        print("| step | TorchTitan | native | difference |\n|---|---|---|---|")
    worst = {"losses": 0.0, "norms of gradients": 0.0}
    for x, y in zip(there, here):
        differences = {what: abs(x[key] - y[key]) / x[key] for what, key in (("losses", "lm_loss"),
                                                                             ("norms of gradients", "grad_norm"))}
        worst = {what: max(value, differences[what]) for what, value in worst.items()}
        if not args.quiet:
            print(f"| {x['iteration']} | {x['lm_loss']:.5f} | {y['lm_loss']:.5f} | {differences['losses']:.1e} |")
    print("largest relative differences over {} steps: {}".format(STEPS, ", ".join(f"{k} {v:.1e}" for k, v in worst.items())))
    return worst["losses"] <= args.tolerance + LOSS_DIGITS and worst["norms of gradients"] <= NORM_TOLERANCE


if __name__ == "__main__":
    sys.exit(framework_check.main(__doc__, "torchtitan", "relative, of losses", compare, {"cpu": 1e-5, "cuda": 1e-3}))
