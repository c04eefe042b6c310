#!/usr/bin/env python3
"""Checks that Hugging Face transformers loads exports of `primus model export`. Run by hand.

    check_transformers.py PRIMUS [FAMILY ...]

Exports each golden model (tests/golden/models), loads it with transformers in float64, and compares its logits with
the golden's, which transformers computed from the original folder, and its configuration with the original's. Needs
torch and transformers 5. Skips Kimi K3, which transformers does not have.
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

LIMIT = 1e-6  # the goldens are stored in fp32
NOT_IN_TRANSFORMERS = {"kimi_k3"}
# The comparison ignores these keys: they name the writer, or set a cache, a type or a loss for training.
OTHER_KEYS = {"_name_or_path", "architectures", "dtype", "output_router_logits", "router_aux_loss_coef",
              "transformers_version", "use_cache"}
# Keys that an export omits, because it writes explicit widths, lists of layers, and no windows.
OTHERWISE_SAID = {
    "lfm2": {"block_auto_adjust_ff_dim", "block_multiple_of", "intermediate_size"},
    "llama4": {"interleave_moe_layer_step"},
    "mixtral": {"head_dim"},
    "phi3": {"rope_parameters"},  # the export states the factor, which transformers computes from the lengths
    "qwen2": {"max_window_layers"},
    "qwen3": {"max_window_layers"},
}


def differences(exported: pathlib.Path, original: pathlib.Path) -> list[str]:
    """Returns the settings of the original, as transformers reads them, that differ in the export."""
    ours, theirs = (AutoConfig.from_pretrained(folder).to_dict() for folder in (exported, original))
    keys = theirs.keys() - OTHER_KEYS - OTHERWISE_SAID.get(original.name, set())
    return sorted(f"{key}: {ours.get(key)} for {theirs[key]}" for key in keys if ours.get(key) != theirs[key])


def main() -> int:
    primus, *families = sys.argv[1:]
    goldens = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden" / "models"
    failed = False
    for family in families or sorted({folder.name for folder in goldens.iterdir()} - NOT_IN_TRANSFORMERS):
        with tempfile.TemporaryDirectory() as temporary:
            exported = pathlib.Path(temporary) / family
            subprocess.run([primus, "model", "export", goldens / family, exported, "--quiet"], check=True,
                           stdout=subprocess.DEVNULL)
            model, loading = AutoModelForCausalLM.from_pretrained(
                exported, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager",
                output_loading_info=True)
            io = load_file(goldens / family / "io.safetensors")
            with torch.no_grad():
                logits = model.eval()(io["input_ids"]).logits
            differing = differences(exported, goldens / family)
        complaints = {what: sorted(names) for what, names in loading.items() if names}
        if differing:
            complaints["configuration"] = differing
        error = float((logits - io["logits"].double()).abs().max() / io["logits"].abs().max())
        good = error < LIMIT and not complaints
        failed = failed or not good
        print(f"{family:14} normalised error {error:.1e} {'' if good else f'FAILED {complaints}'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
