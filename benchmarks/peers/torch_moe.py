#!/usr/bin/env python3
"""The peer of mixtures on one GPU: training steps of mixture.py as a user of PyTorch would write them, with random tokens.

    torch_moe.py LAYERS SEQUENCE MICROBATCH MICROBATCHES bf16 COMPILE [--steps 6] [--losses]

All as in torch_llama.py, but DIMS in the environment has hidden,ffn,heads,groups,vocabulary,head,experts,chosen:
Qwen3-30B-A3B's by default. TFLOP/s count the weights that a token meets. Needs PyTorch with torch._grouped_mm (2.9 or later).
"""
from mixture import Mixture, MixtureShape
from torch_llama import main

if __name__ == "__main__":
    main("moe", __doc__, MixtureShape, Mixture)
