"""Megatron-LM's core on a CPU: one process, a world of one over gloo. Import before anything of megatron.core.

What Megatron takes for granted and a CPU does not have is put right here, and nothing else of it is changed:

  torch.cuda.current_device   names the device on which modules make their tensors.
  Transformer Engine          is absent; two modules use its names although the import failed.
  torch.topk                  takes the first of equal values, as it does on CUDA (108 sizes up to [65536, 256], torch
                              2.11 on an H200, all equal). Which of them it takes on a CPU is arbitrary, and dropping
                              by position is topk of zeros and ones.
"""

import os
import warnings

import torch

warnings.filterwarnings("ignore")
torch.cuda.current_device = lambda: "cpu"

from megatron.core import __version__ as VERSION  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.transformer import multi_latent_attention  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402

multi_latent_attention.HAVE_TE = False
moe_utils.te_general_gemm = None


def first_topk(values, k, dim=-1, largest=True, sorted=True):
    order = torch.sort(values, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((order.values.narrow(dim, 0, k), order.indices.narrow(dim, 0, k)))


def start() -> None:
    torch.topk = torch.Tensor.topk = first_topk
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
