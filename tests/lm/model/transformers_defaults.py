#!/usr/bin/env python3
"""Writes transformers_defaults.json next to this file: transformers' defaults of all keys
for a config.json with only the sizes below. Run it by hand after a change of transformers. Needs transformers 5.
"""

import json
import pathlib

from transformers import AutoConfig

SIZES = {"num_hidden_layers": 6, "hidden_size": 1024, "intermediate_size": 512, "num_attention_heads": 32,
         "vocab_size": 100}
MORE = {"deepseek_v2": {"num_experts_per_tok": 4},  # has no default
        "lfm2": {"intermediate_size": 1600},  # another multiple gives another width
        "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3}}  # its model fails without them
FAMILIES = ["llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3", "gpt_oss", "llama4_text",
            "lfm2", "lfm2_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "deepseek_v32",
            "glm_moe_dsa", "kimi_linear", "deepseek_v4", "mistral", "ministral", "phi3", "smollm3", "olmo2", "glm4",
            "glm4_moe", "granite", "granitemoe", "granitemoeshared", "gemma2", "gemma3_text", "ministral3"]
# Keys that are left out: they describe how a model is used, its special tokens (which the tokenizer has), or its
# multi-token prediction (which is used only if the weights include it).
OTHER = {"_name_or_path", "architectures", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label",
         "is_encoder_decoder", "label2id", "num_nextn_predict_layers", "output_attentions", "output_hidden_states",
         "pad_token_id", "problem_type", "return_dict", "transformers_version", "use_cache"}


def main() -> None:
    families = {}
    for family in FAMILIES:
        sizes = SIZES | MORE.get(family, {})
        full = AutoConfig.for_model(family, **sizes).to_dict()
        families[family] = {"sizes": sizes, "full": {k: v for k, v in sorted(full.items()) if k not in OTHER}}
    file = pathlib.Path(__file__).with_suffix(".json")
    rows = (f'"{family}": {json.dumps(config)}' for family, config in families.items())
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
