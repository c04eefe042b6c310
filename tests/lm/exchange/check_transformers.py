#!/usr/bin/env python3
"""Checks by hand that Hugging Face transformers loads what `primus model export` writes.

    check_transformers.py PRIMUS [FAMILY ...]

Exports each golden model (tests/golden/models), loads it with transformers in float64, and compares its logits with
the golden's, which transformers computed from the original folder. Needs torch and transformers 5.
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

LIMIT = 1e-6  # the goldens are stored in fp32


def main() -> int:
    primus, *families = sys.argv[1:]
    goldens = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden" / "models"
    failed = False
    for family in families or sorted(folder.name for folder in goldens.iterdir()):
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
        complaints = {what: sorted(names) for what, names in loading.items() if names}
        error = float((logits - io["logits"].double()).abs().max() / io["logits"].abs().max())
        good = error < LIMIT and not complaints
        failed = failed or not good
        print(f"{family:14} normalised error {error:.1e} {'' if good else f'FAILED {complaints}'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
