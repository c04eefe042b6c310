"""The model of torch_moe.py: llama.py's with a mixture of experts in every block, as a user would write it.

Softmax over all experts; the weights of the top-k experts are normalized to a sum of 1. Tokens are sorted by
expert and multiplied by torch._grouped_mm. The head dimension may differ from hidden / heads; heads are
normed before the rotary embedding.
"""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from llama import Attention, Llama, Shape


@dataclasses.dataclass(frozen=True)
class MixtureShape(Shape):
    """Dimensions; default: Qwen3-30B-A3B."""

    hidden: int = 2048
    ffn: int = 768  # per expert
    heads: int = 32
    groups: int = 4
    vocabulary: int = 151936
    head: int = 128
    experts: int = 128
    chosen: int = 8  # experts per token

    @property
    def width(self):
        return self.head

    @property
    def mlp_columns(self):
        return self.experts + 3 * self.ffn * self.chosen


class Experts(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(shape.experts, shape.hidden, 2 * shape.ffn))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.ffn, shape.hidden))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weights, experts = F.softmax(self.router(tokens).float(), dim=-1).topk(self.shape.chosen, dim=-1)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype).flatten()
        experts = experts.flatten()
        order = experts.argsort(stable=True)
        # bincount() would synchronize with the GPU.
        rows = torch.zeros(self.shape.experts, dtype=torch.int64, device=x.device)
        ends = rows.scatter_add(0, experts, torch.ones_like(experts)).cumsum(0).to(torch.int32)
        token = order // self.shape.chosen
        gate, up = torch._grouped_mm(tokens[token], self.gate_up, offs=ends).chunk(2, dim=-1)
        y = torch._grouped_mm(F.silu(gate) * up, self.down, offs=ends) * weights[order][:, None]
        return torch.zeros_like(tokens).index_add(0, token, y).view_as(x)


class MixtureBlock(Attention):
    def __init__(self, shape):
        super().__init__(shape)
        self.q_norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.k_norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.experts = Experts(shape)

    def normed(self, q, k):
        return self.q_norm(q), self.k_norm(k)

    def forward(self, x, cos, sin):
        x = x + self.attend(self.attention_norm(x), cos, sin)
        return x + self.experts(self.mlp_norm(x))


class Mixture(Llama):
    block_kind = MixtureBlock
