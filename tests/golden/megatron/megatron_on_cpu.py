"""Runs Megatron-LM's core on a CPU: one process per rank, and a world over gloo. Import it before any module
of megatron.core.

It replaces only functions that need CUDA or another missing package:

  torch.cuda.current_device   returns the device on which modules create their tensors.
  device="cuda", cuda(),      mean the CPU in torch calls, and tensors report their CUDA type, which optimizers
  pin_memory, type()          and gradient clipping check.
  torch.cuda.Stream           does nothing.
  all_to_all_single           accepts counts that are tensors: they come from the device as arrays.
  random number states        of tensor ranks are CUDA's; nothing is drawn here.
  Transformer Engine          is absent; two modules use its names although the import failed.
  torch.topk                  takes the first of equal values, as on CUDA (108 sizes up to [65536, 256], torch
                              2.11 on an H200, all equal). On a CPU it may take any of them, and dropping by
                              position is a topk of zeros and ones.
"""

import contextlib
import os
import warnings

import torch

warnings.filterwarnings("ignore")
torch.cuda.current_device = lambda: "cpu"


class NoStream:
    def wait_stream(self, _):
        pass

    def record_event(self):
        return self

    def synchronize(self):
        pass


torch.cuda.Stream = NoStream
torch.cuda.current_stream = NoStream
torch.cuda.stream = lambda _: contextlib.nullcontext()


class OnCpu(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


from megatron.core import __version__ as VERSION  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.tensor_parallel import random  # noqa: E402
from megatron.core.transformer import multi_latent_attention  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402

random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
multi_latent_attention.HAVE_TE = False
moe_utils.te_general_gemm = None


def all_to_all_of_counts(out, given, output_split_sizes=None, input_split_sizes=None, **further):
    lists = [None if counts is None else [int(n) for n in counts] for counts in (output_split_sizes, input_split_sizes)]
    return all_to_all_single(out, given, *lists, **further)


all_to_all_single = torch.distributed.all_to_all_single
torch.distributed.all_to_all_single = all_to_all_of_counts


def first_topk(values, k, dim=-1, largest=True, sorted=True):
    order = torch.sort(values, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((order.values.narrow(dim, 0, k), order.indices.narrow(dim, 0, k)))


def use_cpu() -> None:
    """Replaces torch.topk, and CUDA devices in the torch calls of this thread."""
    torch.topk = torch.Tensor.topk = first_topk
    OnCpu().__enter__()


def start(rank: int = 0, ranks: int = 1, **axes) -> None:
    use_cpu()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    parallel_state.initialize_model_parallel(**axes)
