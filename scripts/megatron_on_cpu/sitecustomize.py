"""Runs Megatron-LM's own training loop on a CPU: put it on PYTHONPATH with tests/golden/megatron to run
pretrain_gpt.py.

Python imports a module of this name before it runs a program. megatron_on_cpu.py replaces the CUDA calls of
Megatron's core. This file replaces those of its training loop: whether devices exist, their number and kind,
random number states, and waiting for kernels. Megatron itself is not changed. Other programs of the same
Python are not affected.
"""

import os
import sys

if any(word.endswith("pretrain_gpt.py") for word in sys.orig_argv):
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compilation takes longer than twenty steps
    import torch

    class Device:
        name, major, minor, total_memory, multi_processor_count = "CPU", 9, 0, 1 << 30, 1

    def answers(value):
        return lambda *_, **__: value

    for name, value in {
        "is_available": True, "device_count": 1, "set_device": None, "synchronize": None, "empty_cache": None,
        "manual_seed": None, "get_device_properties": Device, "get_device_capability": (Device.major, Device.minor),
        "get_rng_state": torch.get_rng_state(), "is_current_stream_capturing": False,
    }.items():
        setattr(torch.cuda, name, answers(value))  # separate functions, because torch.compile distinguishes them

    torch.accelerator.is_available = answers(False)  # prevents data loaders and optimizers from querying the driver

    import megatron_on_cpu

    megatron_on_cpu.random.CudaRNGStatesTracker.add = answers(None)
    megatron_on_cpu.use_cpu()
