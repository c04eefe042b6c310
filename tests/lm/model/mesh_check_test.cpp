// Tests that a mesh which does not fit the model is refused. The error names the key to change and a value
// that works.
#include "lm/model/mesh_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"

namespace primus {
namespace {

ModelConfig mixture() {
  ModelConfig c;
  c.family = "mixtral";
  c.layers = 2;
  c.hidden = 96;
  c.heads = 12;
  c.kv_heads = 6;
  c.head_dim = 8;
  c.ffn = 80;
  c.vocab = 1000;
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.moe.experts = 6;
  c.moe.ffn = 36;
  return c;
}

MeshMismatch mismatch(const ModelConfig& config, const engine::MeshShape& shape, std::int64_t tokens = 48) {
  return mesh_mismatch(config, shape, 1, tokens).value_or(MeshMismatch{"none", "", ""});
}

TEST(MeshCheck, DivisibleSizesAreAccepted) {
  EXPECT_EQ(mismatch(mixture(), {}).key, "none");
  EXPECT_EQ(mismatch(mixture(), {.tensor = 6}).key, "none");
  EXPECT_EQ(mismatch(mixture(), {.tensor = 2, .expert = 3, .expert_tensor = 2}).key, "none");
  EXPECT_EQ(mismatch(mixture(), {.tensor = 2, .context = 2}).key, "none");
}

TEST(MeshCheck, IndivisibleSizesAreRefusedWithANumberThatWorks) {
  const auto expect = [](const ModelConfig& config, const engine::MeshShape& shape, const char* key,
                         const char* what, int fit, std::int64_t tokens = 48) {
    const MeshMismatch found = mismatch(config, shape, tokens);
    EXPECT_EQ(found.key, key);
    EXPECT_THAT(found.what, ::testing::HasSubstr(what));
    EXPECT_EQ(found.next, std::string("set ") + key + " to " + std::to_string(fit));
  };
  const char* const tensor = "tensor_model_parallel_size";
  expect(mixture(), {.tensor = 8}, tensor, "num_attention_heads", 2);
  expect(mixture(), {.tensor = 4}, tensor, "num_query_groups", 2);
  expect(mixture(), {.tensor = 6}, tensor, "micro_batch_size * seq_length", 3, 45);
  expect(mixture(), {.tensor = 2, .context = 3}, "seq_length", "two slices for each of 3", 42, 45);
  ModelConfig dense = mixture();
  dense.at(1).feed_forward = &kDenseFeedForward;
  expect(dense, {.tensor = 6}, tensor, "ffn_hidden_size", 2);
  ModelConfig shared = mixture();
  shared.moe.shared_ffn = 45;
  expect(shared, {.tensor = 6}, tensor, "moe_shared_expert_intermediate_size", 3);
  ModelConfig latent = mixture();
  latent.set_layers(&LayerSpec::attention, &kLatentAttention);
  latent.attention.latent.kv_rank = 16;
  EXPECT_EQ(mismatch(latent, {.tensor = 12}).key, "none");  // each head has its own keys and values
  latent.attention.indexer = {.heads = 2, .head_dim = 8, .top_k = 4};
  EXPECT_EQ(mismatch(latent, {.tensor = 12}).key, "none");  // every rank has the complete indexer
  EXPECT_THAT(mismatch(latent, {.context = 2}).what, ::testing::HasSubstr("sparse attention"));
  ModelConfig pooled = mixture();
  pooled.set_layers(&LayerSpec::attention, &kCompressedAttention);
  pooled.attention.pooled.out_groups = 2;
  pooled.kv_heads = 1;
  expect(pooled, {.tensor = 3}, tensor, "groups of heads (o_groups)", 1);
  EXPECT_EQ(mismatch(pooled, {.tensor = 2}).key, "none");
  EXPECT_EQ(mismatch(pooled, {.context = 2}).key, "context_parallel_size");
  ModelConfig convolutions = mixture();
  convolutions.at(0).attention = &kShortConvolution;
  EXPECT_EQ(mismatch(convolutions, {.tensor = 6, .context = 2}).key, "none");
  convolutions.hidden = 94;
  expect(convolutions, {.tensor = 6}, tensor, "channels of short convolutions (hidden_size)", 2);
  convolutions.convolution.width = 14;
  expect(convolutions, {.context = 2}, "seq_length", "slices of 12 tokens", 52);
  ModelConfig linear = mixture();
  linear.linear = {.key_heads = 12, .value_heads = 24, .conv_width = 4};
  linear.at(0).attention = &kGatedDeltaNet;
  EXPECT_EQ(mismatch(linear, {.tensor = 6, .context = 2}).key, "none");
  expect(linear, {.context = 8}, "context_parallel_size", "12 key heads of linear attention", 4);
  linear.linear.conv_width = 14;
  expect(linear, {.context = 2}, "seq_length", "slices of 12 tokens", 52);
  linear.linear.key_heads = 8;
  expect(linear, {.tensor = 6}, tensor, "key heads of linear attention (linear_num_key_heads)", 2);
  ModelConfig normed = mixture();
  normed.attention.wide_norm = true;
  expect(normed, {.tensor = 6}, tensor, "QK norm over all heads", 1);
  ModelConfig few = mixture();
  few.vocab = 5;
  expect(few, {.tensor = 6}, tensor, "vocabulary", 1);

  const char* const expert = "expert_model_parallel_size";
  expect(mixture(), {.expert = 4}, expert, "num_experts", 2);
  expect(mixture(), {.expert_tensor = 8}, "expert_tensor_parallel_size", "moe_ffn_hidden_size", 4);
  ModelConfig biased = mixture();
  biased.moe.biases = true;
  EXPECT_EQ(mismatch(biased, {.expert_tensor = 2}).key, "expert_tensor_parallel_size");
  EXPECT_EQ(mismatch(biased, {.expert = 2}).key, "none");
  ModelConfig no_experts = mixture();
  no_experts.moe = {};
  expect(no_experts, {.expert = 2}, expert, "no experts", 1);
  expect(no_experts, {.expert_tensor = 2}, "expert_tensor_parallel_size", "no experts", 1);
}

TEST(MeshCheck, UnsupportedContextRanksAreRefused) {
  using Exchange = engine::ContextParallel::Exchange;
  const auto with = [](const ModelConfig& config, const engine::MeshShape& shape, Exchange exchange) {
    return mesh_mismatch(config, shape, 1, 48, exchange).value_or(MeshMismatch{"none", "", ""});
  };
  EXPECT_EQ(with(mixture(), {.context = 3}, Exchange::kAllToAll).key, "none");
  EXPECT_EQ(with(mixture(), {.context = 4}, Exchange::kAllToAll).key, "cp_comm_type");
  EXPECT_EQ(with(mixture(), {.tensor = 2, .context = 2}, Exchange::kAllToAll).key, "cp_comm_type");
  EXPECT_EQ(with(mixture(), {.tensor = 2, .context = 2}, Exchange::kRing).key, "none");
  ModelConfig balanced = mixture();
  balanced.moe.training.balance_loss = 0.01;
  EXPECT_EQ(with(balanced, {.context = 2}, Exchange::kRing).key, "none");
  balanced.moe.training.balance_sequences = true;
  EXPECT_EQ(with(balanced, {.context = 2}, Exchange::kRing).key, "moe_router_load_balancing_type");
  EXPECT_EQ(with(balanced, {}, Exchange::kRing).key, "none");
  ModelConfig dropping = mixture();
  dropping.moe.training.capacity_factor = 1;
  EXPECT_EQ(with(dropping, {.context = 2}, Exchange::kRing).key, "none");
  dropping.moe.training.drop_lightest = false;
  EXPECT_EQ(with(dropping, {.context = 2}, Exchange::kRing).key, "moe_token_drop_policy");
}

}  // namespace
}  // namespace primus
