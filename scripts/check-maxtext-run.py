#!/usr/bin/env python3
"""Trains one experiment with MaxText and with the native engine, both through `primus train`, and compares
the curves.

    scripts/check-maxtext-run.py --maxtext DIR --python PYTHON [--primus build/bin/primus] [--tolerance 1e-5]
                                 [--folder DIR] [--quiet]

DIR is a checkout at the commit of presets/backends/pins.yaml. PYTHON (3.12 or later) belongs to a virtual
environment with the packages named in pins.yaml, and safetensors. No GPU is needed: MaxText runs on a CPU
unchanged.

The experiment uses MaxText's settings: a small Qwen 3, 20 steps of 4 sequences. (MaxText's Llama is not
comparable after the first step: MaxText divides the initial query weights by the square root of the head
dimension, instead of the scores, and so Adam's updates change them by that much more.) The native engine
starts from MaxText's initial weights: MaxText draws them from the seed, and a program in this script writes
them as a Hugging Face folder. All sequences are equal. MaxText has no target for the last token of a
sequence: its 65 tokens correspond to 64 in the native engine plus the first token of the next sequence.
Weight decay is 0, because MaxText applies it to all parameters and the native engine not to norms. Losses and
learning rates are compared. Exit code: 0 if they agree.
"""

import json
import os
import sys

import framework_check
from framework_check import run, write_texts

STEPS, TARGETS, VOCABULARY, SEQUENCES = 20, 64, 2048, 200
LOGGED = 6e-4  # MaxText's log has three decimal digits; its metrics_file has all

EXPERIMENT = f"""\
work_group: check
user_name: check
exp_name: run
workspace: ./output
modules:
  pre_trainer:
    framework: maxtext
    config: pre_trainer.yaml
    model: model_base.yaml
    overrides:
      hardware: cpu
      model_name: default
      decoder_block: qwen3
      use_qk_norm: true
      base_emb_dim: 192
      base_mlp_dim: 512
      base_num_decoder_layers: 4
      base_num_query_heads: 6
      base_num_kv_heads: 2
      head_dim: 32
      vocab_size: {VOCABULARY}
      mlp_activations: [silu, linear]
      normalization_layer_epsilon: 1.0e-6
      rope_max_timescale: 1000000
      steps: {STEPS}
      max_target_length: {TARGETS + 1}
      per_device_batch_size: 4
      dtype: float32
      weight_dtype: float32
      attention: dot_product
      remat_policy: full
      learning_rate: 3.0e-4
      learning_rate_final_fraction: 0.1
      warmup_steps_fraction: 0.2
      adam_weight_decay: 0.0
      gradient_clipping_threshold: 1.0
      dataset_type: hf
      hf_path: json
      hf_data_dir: ''
      hf_train_files: documents.json
      tokenizer_type: huggingface
      tokenizer_path: tokenizer
      packing: false
      profiler: ''
      log_period: 1
      metrics_file: there.jsonl
      enable_checkpointing: false
      enable_goodput_recording: false
"""

# Run by PYTHON: writes MaxText's initial weights for a settings file, in Hugging Face's layout.
WEIGHTS = r"""
import json, pathlib, sys
import jax
import numpy
from maxtext.configs import pyconfig
from maxtext.utils import train_utils
from safetensors.numpy import save_file
jax.config.update("jax_default_prng_impl", "unsafe_rbg")  # as MaxText sets it for training
config, folder = pyconfig.initialize(["weights", sys.argv[1]]), pathlib.Path(sys.argv[2])
state = train_utils.setup_train_loop(config, None)[-1]
drawn = {jax.tree_util.keystr(path): value for path, value in jax.tree_util.tree_flatten_with_path(state)[0]}
def there(name):
    return numpy.asarray(drawn[f".model.{name}.value"], dtype=numpy.float32)
hidden = config.emb_dim
weights = {"model.embed_tokens": there("token_embedder.embedding"), "model.norm": there("decoder.decoder_norm.scale"),
           "lm_head": there("decoder.logits_dense.kernel").T}
def layer(i, name):
    return numpy.take(there("decoder.layers." + name), i, axis=1)  # scanned layers are stacked along the second axis
for i in range(config.num_decoder_layers):
    at = f"model.layers.{i}."
    weights |= {at + "self_attn.q_proj": layer(i, "self_attention.query.kernel").reshape(hidden, -1).T,
                at + "self_attn.q_norm": layer(i, "self_attention.query_norm.scale"),
                at + "self_attn.k_norm": layer(i, "self_attention.key_norm.scale"),
                at + "self_attn.k_proj": layer(i, "self_attention.key.kernel").reshape(hidden, -1).T,
                at + "self_attn.v_proj": layer(i, "self_attention.value.kernel").reshape(hidden, -1).T,
                at + "self_attn.o_proj": layer(i, "self_attention.out.kernel").reshape(-1, hidden).T,
                at + "mlp.gate_proj": layer(i, "mlp.wi_0.kernel").T, at + "mlp.up_proj": layer(i, "mlp.wi_1.kernel").T,
                at + "mlp.down_proj": layer(i, "mlp.wo.kernel").T,
                at + "input_layernorm": layer(i, "pre_self_attention_layer_norm.scale"),
                at + "post_attention_layernorm": layer(i, "post_self_attention_layer_norm.scale")}
weights = {name + ".weight": numpy.ascontiguousarray(value) for name, value in weights.items()}
folder.mkdir()
save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
(folder / "model.safetensors.index.json").write_text(
    json.dumps({"metadata": {}, "weight_map": {name: "model.safetensors" for name in weights}}))
(folder / "config.json").write_text(json.dumps({
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": config.vocab_size, "hidden_size": hidden,
    "intermediate_size": config.mlp_dim, "num_hidden_layers": config.num_decoder_layers,
    "num_attention_heads": config.num_query_heads, "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim,
    "rms_norm_eps": config.normalization_layer_epsilon, "rope_theta": float(config.rope_max_timescale),
    "max_position_embeddings": 4096, "attention_bias": False, "hidden_act": "silu", "tie_word_embeddings": False}))
"""


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def compare(args, folder):
    python, checkout = args.python.absolute(), args.maxtext.resolve()
    env = dict(os.environ, OMP_NUM_THREADS="2")
    env_there = dict(env, JAX_PLATFORMS="cpu", VENV_ACTIVATE=str(python.parent / "activate"))
    (folder / "run.yaml").write_text(EXPERIMENT)
    write_texts(args.primus, folder, env, VOCABULARY, TARGETS, SEQUENCES, folder / "documents.json")
    train = [args.primus, "train", "pretrain", "--config", "run.yaml", "--exp_name"]
    run([*train, "maxtext", "--backend_path", checkout], folder, env_there, "MaxText")
    runs = folder / "output/check/check"
    run([python, "-c", WEIGHTS, runs / "maxtext/maxtext.yml", folder / "weights"], folder,
        dict(env_there, PYTHONPATH=str(checkout / "src")), "writing weights")
    run([*train, "native", "--backend", "native", "data_path=native_text_document", "load=weights",
         f"max_target_length={TARGETS}"], folder, env, "the native engine")
    parsed, here = (read_lines(runs / name / "metrics.jsonl") for name in ("maxtext", "native"))
    there = read_lines(folder / "there.jsonl")
    if not len(there) == len(parsed) == len(here) == STEPS:
        sys.exit(f"{len(there)} steps of MaxText, {len(parsed)} of them in metrics.jsonl, {len(here)} native: not {STEPS}")
    for x, y in zip(there, parsed):
        if abs(x["learning/loss"] - y["lm_loss"]) > LOGGED:
            sys.exit(f"step {y['iteration']}: metrics.jsonl has the loss {y['lm_loss']}, MaxText {x['learning/loss']}")
    if not args.quiet:
        print("| step | learning rate there | MaxText | native | difference |\n|---|---|---|---|---|")
    worst = {"losses": 0.0, "norms of gradients": 0.0, "learning rates": 0.0}
    for x, y in zip(there, here):
        pairs = {"losses": ("learning/loss", "lm_loss"), "norms of gradients": ("learning/raw_grad_norm", "grad_norm"),
                 "learning rates": ("learning/current_learning_rate", "learning_rate")}
        differences = {what: abs(x[a] - y[b]) / max(abs(x[a]), 1e-12) if x[a] != y[b] else 0.0 for what, (a, b) in pairs.items()}
        worst = {what: max(value, differences[what]) for what, value in worst.items()}
        if not args.quiet:
            print(f"| {y['iteration']} | {x['learning/current_learning_rate']:.6e} | {x['learning/loss']:.6f} | {y['lm_loss']:.6f} | "
                  f"{differences['losses']:.1e} |")
    print("largest relative differences over {} steps: {}".format(STEPS, ", ".join(f"{k} {v:.1e}" for k, v in worst.items())))
    return max(worst["losses"], worst["learning rates"]) <= args.tolerance and worst["norms of gradients"] <= 10 * args.tolerance


if __name__ == "__main__":
    sys.exit(framework_check.main(__doc__, "maxtext", "relative, of losses and rates; norms: ten times that", compare))
