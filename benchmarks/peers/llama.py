"""The model of torch_llama.py, torch_fsdp.py and mixture.py: a plain Llama in PyTorch, as a user would write
it for training.

RMSNorm, fused QKV and fused gate and up products, rotary embedding by halves, PyTorch's attention with
grouped queries, untied head.
"""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Shape:
    """The dimensions of a Llama; default: Llama-3-8B."""

    layers: int
    hidden: int = 4096
    ffn: int = 14336
    heads: int = 32
    groups: int = 8  # KV heads
    vocabulary: int = 128256

    @property
    def width(self):
        return self.hidden // self.heads

    @property
    def parts(self):
        """Columns of the fused QKV product."""
        return [self.heads * self.width, self.groups * self.width, self.groups * self.width]

    def flops(self, sequence):
        """Training FLOPs per token: 6 per weight of a product, plus causal attention, which counts half of
        full attention."""
        block = self.hidden * (sum(self.parts) + self.parts[0] + self.mlp_columns)
        return 6 * (self.layers * block + self.vocabulary * self.hidden) + 6 * self.layers * sequence * self.parts[0]

    @property
    def mlp_columns(self):
        """Weights of a block after its attention that a token uses, divided by the hidden size."""
        return 3 * self.ffn


def rotations(shape, sequence, device):
    """Cosines and sines of each position, in bf16, base 500 000."""
    steps = torch.arange(0, shape.width, 2, device=device, dtype=torch.float32) / shape.width
    positions = torch.arange(sequence, device=device, dtype=torch.float32)
    angles = torch.outer(positions, 500000.0**-steps).repeat(1, 2)
    return angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)


def rotate(heads, cos, sin):
    first, second = heads.chunk(2, dim=-1)
    return (heads * cos + torch.cat((-second, first), dim=-1) * sin).to(heads.dtype)


class Attention(nn.Module):
    """The attention half of a block."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.qkv = nn.Linear(shape.hidden, sum(shape.parts), bias=False)
        self.output = nn.Linear(shape.parts[0], shape.hidden, bias=False)

    def normed(self, q, k):
        return q, k

    def attend(self, x, cos, sin):
        batch, sequence, _ = x.shape
        columns = self.qkv(x).split(self.shape.parts, dim=-1)
        q, k, v = (part.view(batch, sequence, -1, self.shape.width).transpose(1, 2) for part in columns)
        q, k = (rotate(part, cos, sin) for part in self.normed(q, k))
        # Under autocast, q and k (rotated) may have another type than v (a product), so they get v's type.
        seen = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=True)
        return self.output(seen.transpose(1, 2).reshape(batch, sequence, -1))


class Block(Attention):
    def __init__(self, shape):
        super().__init__(shape)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attend(self.attention_norm(x), cos, sin)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Llama(nn.Module):
    """`loss` and `around` are for sharded training: a compiled loss, and a wrapper of each block
    (recomputation)."""

    block_kind = Block

    def __init__(self, shape, loss=cross_entropy, around=lambda block, *inputs: block(*inputs)):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(self.block_kind(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self.loss, self.around = loss, around

    def forward(self, tokens, targets, cos, sin):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.around(block, x, cos, sin)
        return self.loss(self.head(self.norm(x)), targets)

    def draw(self):
        """Initializes matrices with normal values and norms with ones."""
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
            else:
                nn.init.ones_(weight)
        return self


class Adapted(nn.Module):
    """A frozen linear layer with a LoRA adapter: y = x W' + 2 (x A') B', B initially 0."""

    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear
        like = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.down = nn.Parameter(torch.empty(rank, linear.in_features, **like))
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank, **like))
        nn.init.xavier_normal_(self.down)

    def forward(self, x):
        return self.linear(x) + 2.0 * F.linear(F.linear(x, self.down), self.up)


def adapt(model, rank):
    """Freezes the model and adds adapters to the four products of each block."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("qkv", "output", "gate_up", "down"):
            setattr(block, name, Adapted(getattr(block, name), rank))
    return model


def optimizer_of(model):
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
