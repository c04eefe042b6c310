#!/usr/bin/env python3
"""The peer of `primus benchmark decode`: transformers generates texts with a model of given dimensions and random
weights, greedily, on one GPU, in bf16.

    transformers_generate.py MODEL [--layers N] [--batch 1,8,64] [--context 512] [--tokens 24] [--compile]
                                   [--attention sdpa] [--experts NAME]

MODEL is a name below. Prints one line per batch: the median time of a step after the prompt. A step is one forward
pass of `generate`'s decoding loop: the model with its cache, and argmax. The second step and later ones are timed, and
the host waits for the tokens of each step, as it does in Primus.

With --compile, the cache is static, and steps run through torch.compile in the mode reduce-overhead (CUDA graphs),
as `generate` does with cache_implementation="static". Needs transformers 5 and PyTorch.
"""
import argparse
import statistics
import time

import torch
import transformers

MOE = dict(norm_topk_prob=True, output_router_logits=False)
MODELS = {
    "llama3.1_8B": ("LlamaConfig", dict(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=131072)),
    "qwen3_30B_A3B": ("Qwen3MoeConfig", dict(
        vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=48, num_attention_heads=32,
        num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
        max_position_embeddings=40960, **MOE)),
    "gpt_oss_20B": ("GptOssConfig", dict(
        vocab_size=201088, hidden_size=2880, intermediate_size=2880, num_hidden_layers=24, num_attention_heads=64,
        num_key_value_heads=8, head_dim=64, num_local_experts=32, num_experts_per_tok=4, sliding_window=128)),
    "deepseek_v2_lite": ("DeepseekV2Config", dict(
        vocab_size=102400, hidden_size=2048, intermediate_size=10944, num_hidden_layers=27, num_attention_heads=16,
        num_key_value_heads=16, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408,
        first_k_dense_replace=1, max_position_embeddings=32768)),
    "lfm2_8B_A1B": ("Lfm2MoeConfig", dict(
        vocab_size=65536, hidden_size=2048, intermediate_size=7168, num_hidden_layers=24, num_attention_heads=32,
        num_key_value_heads=8, num_experts=32, num_experts_per_tok=4, moe_intermediate_size=1792, num_dense_layers=2,
        conv_L_cache=3, layer_types=["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)])),
    "qwen3_5_35B_A3B": ("Qwen3_5MoeTextConfig", dict(
        vocab_size=248320, hidden_size=2048, num_hidden_layers=40, num_attention_heads=16, num_key_value_heads=2,
        head_dim=256, num_experts=256, num_experts_per_tok=8, moe_intermediate_size=512,
        shared_expert_intermediate_size=512, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4)),
}


def build(name, layers, attention, experts, device, **overrides):
    kind, values = MODELS[name]
    values = {**values, **overrides}
    if layers:
        values["num_hidden_layers"] = layers
        if "layer_types" in values:
            values["layer_types"] = values["layer_types"][:layers]
    config = getattr(transformers, kind)(**values)
    config._attn_implementation = attention
    if experts:
        config._experts_implementation = experts
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.to(device).eval(), values["vocab_size"]


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


@torch.inference_mode()
def step_seconds(model, vocabulary, batch, options, device):
    """Returns the seconds of each step after the prompt."""
    prompts = torch.randint(vocabulary, (batch, options.context), device=device)
    length = options.context + options.tokens + options.warmup + 2
    forward = model
    if options.compile:
        cache = transformers.StaticCache(config=model.config, max_cache_len=length)
        forward = torch.compile(model, mode="reduce-overhead")
    else:
        cache = transformers.DynamicCache(config=model.config)
    logits = model(prompts, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    token = logits[:, -1].argmax(dim=-1, keepdim=True)
    times = []
    for i in range(options.warmup + options.tokens):
        position = torch.full((batch, 1), options.context + i, device=device)
        synchronize(device)
        begin = time.perf_counter()
        if options.compile and device == "cuda":
            torch.compiler.cudagraph_mark_step_begin()
        out = forward(token, past_key_values=cache, use_cache=True, position_ids=position)
        token = out.logits[:, -1].argmax(dim=-1, keepdim=True)
        token.cpu()  # the host has the tokens
        times.append(time.perf_counter() - begin)
    return times[options.warmup :]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than the model has")
    parser.add_argument("--batch", default="1,8,64")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--experts", default="", help="how experts are computed: eager, batched_mm, grouped_mm")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--override", action="append", default=[], help="KEY=NUMBER of the configuration, for tests")
    options = parser.parse_args()
    overrides = {key: int(value) for key, value in (pair.split("=") for pair in options.override)}
    begin = time.perf_counter()
    model, vocabulary = build(options.model, options.layers, options.attention, options.experts, options.device,
                              **overrides)
    synchronize(options.device)
    layers = model.config.num_hidden_layers
    print(f"# {options.model}: {layers} layers, transformers {transformers.__version__}, PyTorch {torch.__version__}, "
          f"built in {time.perf_counter() - begin:.0f} s", flush=True)
    for batch in (int(number) for number in options.batch.split(",")):
        try:
            times = step_seconds(model, vocabulary, batch, options, options.device)
        except Exception as error:  # a refusal of one batch is a result, too
            print(f"{options.model} batch {batch}: failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        median = statistics.median(times)
        print(f"{options.model} layers {layers} batch {batch} {'compiled' if options.compile else 'eager'} "
              f"{options.experts or 'default'}: {1e3 * median:.2f} ms, {batch / median:.1f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
