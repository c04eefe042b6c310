"""Runs TorchTitan's own training loop on a CPU, over gloo: put it on PYTHONPATH to run `python3 -m
torchtitan.train`.

Python imports a module of this name before it runs a program. TorchTitan gets its device from PyTorch, which
names none without a GPU, and calls functions that torch.cpu lacks. TorchTitan itself is not changed.
"""

import resource
import sys

if "torchtitan.train" in sys.orig_argv:
    import torch

    class Device:
        total_memory = 1 << 30

    def memory_stats(*_):
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        return {"active_bytes.all.peak": used, "reserved_bytes.all.peak": used}

    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.current_device = lambda: 0
    torch.cpu.get_device_name = lambda *_: "CPU"
    torch.cpu.get_device_properties = lambda *_: Device
    torch.cpu.memory_stats = memory_stats
    torch.cpu.empty_cache = torch.cpu.reset_peak_memory_stats = lambda *_: None
