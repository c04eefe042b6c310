// Tests the config.json of flash-linear-attention's models: what its keys mean, and which keys the errors
// name.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "config_json.h"
#include "lm/model/blocks/layers.h"

namespace primus {
namespace {

using nlohmann::json;
using test::golden;
using test::read;
using test::refusal;
using Layers = std::vector<std::int64_t>;

TEST(FlashLinear, LayersWithoutAttentionHaveLinearAttention) {
  json root = golden("gated_deltanet");
  EXPECT_EQ(read(root).layers_keeping(Keeps::kState), (Layers{0, 2}));
  EXPECT_EQ(read(root).kv_heads, 2);
  EXPECT_EQ(read(root).rope_theta, 5000);
  root["attn"]["layers"] = {2, 0};
  EXPECT_EQ(read(root).layers_keeping(Keeps::kState), (Layers{1}));
  root["attn"]["layers"] = {0, 0};
  EXPECT_EQ(refusal(root), "'layers' names a layer twice");
  root["attn"]["layers"] = {3};
  EXPECT_NE(refusal(root), "accepted");
  root["attn"] = nullptr;
  EXPECT_EQ(read(root).layers_keeping(Keeps::kState), (Layers{0, 1, 2}));
  root["attn"] = {golden("gated_deltanet")["attn"]};
  EXPECT_EQ(refusal(root), "'attn': a list is not supported");
  EXPECT_EQ(read(golden("gated_deltanet_latent")).attention.latent.kv_rank, 16);
  EXPECT_EQ(read(golden("kda")).spec(0).attention, &kDeltaAttention);
  EXPECT_EQ(read(golden("gated_deltanet")).spec(0).attention, &kGatedDeltaNet);
}

TEST(FlashLinear, OmittedKeysHaveItsDefaults) {
  const ModelConfig gated = read({{"model_type", "gated_deltanet"},
                                  {"num_hidden_layers", 21},
                                  {"hidden_size", 2048},
                                  {"vocab_size", 32000},
                                  {"head_dim", 128}});
  EXPECT_EQ(gated.linear.key_heads, 6);
  EXPECT_EQ(gated.linear.value_heads, 6);
  EXPECT_EQ(gated.linear.value_dim, 256);
  const ModelConfig kimi = read({{"model_type", "kda"},
                                 {"num_hidden_layers", 24},
                                 {"hidden_size", 2048},
                                 {"vocab_size", 32000},
                                 {"intermediate_size", nullptr}});
  EXPECT_EQ(kimi.linear.value_heads, 16);
  EXPECT_EQ(kimi.linear.value_dim, 128);
  EXPECT_EQ(kimi.ffn, 5632);
  EXPECT_EQ(kimi.norm_epsilon, 1e-6);
  EXPECT_FALSE(kimi.tied_embeddings);
}

TEST(FlashLinear, UnsupportedSettingsAreRefusedByName) {
  const std::string unsupported = " is not supported for this model family";
  for (const auto& [family, key, value] :
       {std::tuple<const char*, const char*, json>{"kda", "allow_neg_eigval", true},
        {"kda", "safe_gate", true},
        {"kda", "use_short_conv", false},
        {"kda", "attnres_block_size", 2},
        {"kda", "use_l2warp", true},
        {"gated_deltanet", "use_gate", false},
        {"gated_deltanet", "output_gate_activation", "sigmoid"},
        {"gated_deltanet", "hidden_act", "powlu"}}) {
    json root = golden(family);
    root[key] = value;
    EXPECT_EQ(refusal(root), "'" + std::string(key) + "': " + value.dump() + unsupported);
  }
  json root = golden("gated_deltanet");
  for (const auto& [key, value] : {std::pair<const char*, json>{"window_size", 8}, {"qkv_bias", true}}) {
    root = golden("gated_deltanet");
    root["attn"][key] = value;
    EXPECT_EQ(refusal(root), "'" + std::string(key) + "': " + value.dump() + unsupported);
  }
  root = golden("kda");
  root["expand_v"] = 1.3;
  EXPECT_EQ(refusal(root), "'expand_v' must give an integer value head dimension of at most 256");
  root = golden("kda");
  root["num_v_heads"] = 3;
  EXPECT_EQ(refusal(root), "'linear_num_value_heads' is not a multiple of linear_num_key_heads");
}

}  // namespace
}  // namespace primus
