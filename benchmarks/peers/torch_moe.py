#!/usr/bin/env python3
"""The peer for mixtures of experts on one GPU: training steps of mixture.py as a PyTorch user would write them,
with random tokens.

    torch_moe.py LAYERS SEQUENCE MICROBATCH MICROBATCHES bf16 COMPILE [--steps 6] [--losses]

Like torch_llama.py, but DIMS in the environment is hidden,ffn,heads,groups,vocabulary,head,experts,chosen;
default: Qwen3-30B-A3B. TFLOP/s count only the weights that a token uses. Needs PyTorch with torch._grouped_mm
(2.9 or later).
"""
from mixture import Mixture, MixtureShape
from torch_llama import main

if __name__ == "__main__":
    main("moe", __doc__, MixtureShape, Mixture)
