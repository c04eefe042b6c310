"""Megatron-LM's own training loop on a CPU: on PYTHONPATH beside tests/golden/megatron, this makes pretrain_gpt.py run there.

Python imports a module of this name before it runs a program. megatron_on_cpu.py puts right what Megatron's core takes for
granted; what its training loop asks CUDA for besides is here: whether there is a device, how many and of which kind, states
of random numbers, and to wait for kernels. Nothing of Megatron itself is changed by it. Other programs of the same Python
are left alone.
"""

import os
import sys

if any(word.endswith("pretrain_gpt.py") for word in sys.orig_argv):
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than twenty steps
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
        setattr(torch.cuda, name, answers(value))  # each a function of its own: the compiler of torch tells them apart

    torch.accelerator.is_available = answers(False)  # else loaders of data and optimizers ask the driver

    import megatron_on_cpu

    megatron_on_cpu.random.CudaRNGStatesTracker.add = answers(None)
    megatron_on_cpu.use_cpu()
