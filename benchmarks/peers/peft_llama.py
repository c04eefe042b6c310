#!/usr/bin/env python3
"""The peer of fine-tuning with adapters on one GPU: transformers' Llama, adapters by PEFT, compiled by PyTorch.

    peft_llama.py LAYERS SEQUENCE MICROBATCH MICROBATCHES [--rank 16] [--steps 3] [--whole]

Weights are random, frozen and bf16; tokens are random. Adapters in bf16 at all seven products of a block are trained. A
step is MICROBATCHES forward and backward passes, clipping to norm 1 and fused AdamW. Each block is compiled
(torch.compile), which takes seconds; --whole compiles the model as one graph. The result is the median of the steps,
after two warm-up steps. DIMS in the environment is hidden,ffn,heads,groups,vocabulary; default: Llama-3.1-8B.

Prints one line: tokens/s, peak memory and the last loss; or that memory ran out.
"""
import argparse
import os
import statistics
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
import transformers
from peft import LoraConfig, get_peft_model


def make_model(args, device):
    hidden, ffn, heads, groups, vocabulary = (int(word) for word in
                                              os.environ.get("DIMS", "4096,14336,32,8,128256").split(","))
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=args.layers, num_attention_heads=heads,
        num_key_value_heads=groups, vocab_size=vocabulary, tie_word_embeddings=False, rope_theta=500000.0,
        max_position_embeddings=args.sequence, use_cache=False, attn_implementation="sdpa", dtype=torch.bfloat16)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    # Adapters keep the weights' type, as those of the other rows.
    model = get_peft_model(model, LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear"),
                           autocast_adapter_dtype=False)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "sequence", "microbatch", "microbatches"):
        parser.add_argument(name, type=int)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3, help="number of timed steps")
    parser.add_argument("--whole", action="store_true", help="compile the model as one graph")
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    torch.set_float32_matmul_precision("high")
    model = make_model(args, device)
    model.train()
    inner = model.get_base_model().model
    head = model.get_base_model().lm_head
    vocabulary = head.weight.shape[0]
    if not args.whole:
        for block in inner.layers:
            block.compile()

    def loss_of(x, targets):
        return F.cross_entropy(head(x).flatten(0, 1).float(), targets.flatten())

    compiled_loss = torch.compile(loss_of)
    forward = torch.compile(inner) if args.whole else inner
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def step():
        for _ in range(args.microbatches):
            tokens, targets = (torch.randint(0, vocabulary, (args.microbatch, args.sequence), device=device)
                               for _ in range(2))
            loss = compiled_loss(forward(input_ids=tokens).last_hidden_state, targets)
            (loss / args.microbatches).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def synchronize():
        if on_gpu:
            torch.cuda.synchronize()

    seconds = []
    try:
        for number in range(2 + args.steps):
            synchronize()
            begin = time.perf_counter()
            loss = step()
            synchronize()
            if number >= 2:
                seconds.append(time.perf_counter() - begin)
        rate = args.microbatches * args.microbatch * args.sequence / statistics.median_high(seconds)
        memory = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
        result = f"{rate:.0f} tok/s mem {memory:.1f} GiB loss {loss.item():.3f}"
    except torch.OutOfMemoryError:
        result = "OOM"
    print(f"PEER peft L{args.layers} S{args.sequence} B{args.microbatch} ACC{args.microbatches} rank {args.rank} "
          f"({len(trained)} adapter matrices): {result}", flush=True)


if __name__ == "__main__":
    main()
