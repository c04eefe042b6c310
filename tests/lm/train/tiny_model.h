// A small Llama, batches for it, and a training session on any device, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/random/random.h"
#include "device/guard_device.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/train/step/session.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/master_weights.h"

namespace primus::test {

inline ModelConfig tiny_llama() {
  ModelConfig c;
  c.layers = 4;
  c.hidden = 48;
  c.ffn = 80;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 12;
  c.vocab = 97;
  c.max_positions = 64;
  c.init_std = 0.08;
  return c;
}

// A mixture with all training options of routers: losses, jitter, and experts that overflow.
inline ModelConfig tiny_mixture() {
  ModelConfig c = tiny_llama();
  c.family = "mixtral";
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.moe.experts = 5;
  c.moe.ffn = 40;
  c.moe.router.top_k = 2;
  c.moe.training = {.balance_loss = 0.02,
                    .balance_sequences = true,
                    .z_loss = 0.01,
                    .capacity_factor = 1.1,
                    .jitter = 0.05};
  return c;
}

// Latent attention, a dense layer, a layer with experts balanced by biases, and multi-token prediction of
// depth two.
inline ModelConfig tiny_deepseek() {
  ModelConfig c = tiny_llama();
  c.family = "deepseek_v3";
  c.layers = 2;
  c.kv_heads = c.heads;
  c.set_layers(&LayerSpec::attention, &kLatentAttention);
  c.attention.latent = {.q_rank = 20, .kv_rank = 16, .nope_dim = 8, .rope_dim = 4, .value_dim = 10};
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.at(0).feed_forward = &kDenseFeedForward;
  c.moe.experts = 6;
  c.moe.ffn = 24;
  c.moe.shared_ffn = 24;
  c.moe.choice_bias = true;
  c.moe.router = {.scoring = turbo::RouterRule::Scoring::kSigmoid,
                  .group_score = turbo::RouterRule::GroupScore::kTwoBest,
                  .top_k = 2,
                  .groups = 3,
                  .top_groups = 2};
  c.moe.training = {.balance_loss = 0.02, .balance_sequences = true, .bias_update_rate = 0x1p-7};
  c.mtp = {.layers = 2, .enabled = true, .training = {.loss_scale = 0.3}};
  return c;
}

// tiny_deepseek() with attention to six selected tokens.
inline ModelConfig tiny_sparse() {
  ModelConfig c = tiny_deepseek();
  c.family = "deepseek_v32";
  c.attention.indexer = {.heads = 4, .head_dim = 12, .top_k = 6};
  return c;
}

// The features of Megatron-LM's GPT that AMD Primus uses for Grok 2 and MiniMax-M2.5: caps on logits, head
// norms, partly rotated heads, sigmoid scores and expert biases. The caps are low enough to matter. Adds
// multi-token prediction of depth one.
inline ModelConfig tiny_capped() {
  ModelConfig c = tiny_llama();
  c.family = "primus_gpt";
  c.layers = 2;
  c.kv_heads = 4;
  c.rotary_fraction = 0.5;
  c.logit_cap = 1.5;
  c.attention.qk_norm = true;
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.moe.experts = 8;
  c.moe.ffn = 24;
  c.moe.logit_cap = 0.5;
  c.moe.choice_bias = true;
  c.moe.router = {.scoring = turbo::RouterRule::Scoring::kSigmoid, .top_k = 2};
  c.moe.training = {.balance_loss = 0.02, .z_loss = 0.01, .bias_update_rate = 0x1p-7};
  c.mtp = {.layers = 1, .enabled = true, .training = {.loss_scale = 0.3}};
  return c;
}

// Short convolutions with biases before and after an attention block, and a tied head.
inline ModelConfig tiny_lfm2() {
  ModelConfig c = tiny_llama();
  c.family = "lfm2";
  c.kv_heads = 4;
  c.layers = 3;
  c.set_layers({0, 2}, &LayerSpec::attention, &kShortConvolution);
  c.convolution.bias = true;
  c.tied_embeddings = true;
  return c;
}

// tiny_lfm2() with a mixture of experts after the first block.
inline ModelConfig tiny_lfm2_moe() {
  ModelConfig c = tiny_lfm2();
  c.family = "lfm2_moe";
  c.convolution.bias = false;
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.at(0).feed_forward = &kDenseFeedForward;
  c.moe.experts = 8;
  c.moe.ffn = 24;
  c.moe.choice_bias = true;
  c.moe.router = {.scoring = turbo::RouterRule::Scoring::kSigmoid, .top_k = 2, .min_sum = 1e-6F};
  c.moe.training = {.bias_update_rate = 0x1p-7};
  return c;
}

// DeepSeek-V4 with each kind of layer, experts from a table in the first one, blocks that end within the
// sequence, more blocks than the indexer selects, and multi-token prediction of depth one.
inline ModelConfig tiny_deepseek_v4() {
  ModelConfig c = tiny_llama();
  c.family = "deepseek_v4";
  c.layers = 3;
  c.kv_heads = 1;
  c.ffn = 24;
  c.rotary_fraction = 4.0 / 12;
  c.rope_scaling = {.kind = RopeScaling::Kind::kYarn, .factor = 4, .original_max_positions = 8};
  c.rope_scaling.attention_factor = 1;
  AttentionConfig& a = c.attention;
  a.latent.q_rank = 20;
  a.window = 3;
  c.set_layers(&LayerSpec::attention, &kCompressedAttention);
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.set_layers(&LayerSpec::local, true);
  c.at(1).pools = LayerSpec::Pools::kSparse;
  c.at(2).pools = LayerSpec::Pools::kHeavy;
  a.pooled.sparse_ratio = 2;
  a.pooled.heavy_ratio = 5;
  a.pooled.theta = 160000;
  a.pooled.index_heads = 2;
  a.pooled.index_dim = 8;
  a.pooled.index_top_k = 3;
  a.pooled.out_groups = 4;
  a.pooled.out_rank = 6;
  c.hyper = {.streams = 4, .iterations = 5};
  c.moe.experts = 8;
  c.moe.ffn = c.moe.shared_ffn = 24;
  c.moe.hash_layers = 1;
  c.moe.choice_bias = true;
  c.moe.swiglu_limit = 1;
  c.moe.swiglu_alpha = 1;
  c.moe.swiglu_shift = 0;
  c.moe.router = {.scoring = turbo::RouterRule::Scoring::kSqrtSoftplus, .top_k = 2, .scale = 1.5F};
  c.moe.training = {.balance_loss = 0.02, .balance_sequences = true, .bias_update_rate = 0x1p-7};
  c.mtp = {.layers = 1, .enabled = true, .training = {.loss_scale = 0.3}};
  return c;
}

// Gated delta networks before and after a gated attention layer that rotates half of each head, with
// zero-centred norms, and more value heads than key heads.
inline ModelConfig tiny_qwen3_5() {
  ModelConfig c = tiny_llama();
  c.family = "qwen3_5_text";
  c.kv_heads = 4;
  c.layers = 3;
  c.rotary_fraction = 0.5;
  c.norm_epsilon = 1e-3;  // dividing by the small norms of small states would amplify rounding
  c.centred_norms = c.attention.output_gate = true;
  c.linear = {.key_heads = 4, .value_heads = 8, .key_dim = 8, .value_dim = 6, .conv_width = 3};
  c.set_layers({0, 2}, &LayerSpec::attention, &kGatedDeltaNet);
  return c;
}

// tiny_qwen3_5() with a mixture of experts after the first block, balanced over the step, and a gate for the
// shared expert.
inline ModelConfig tiny_qwen3_next() {
  ModelConfig c = tiny_qwen3_5();
  c.family = "qwen3_next";
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.at(0).feed_forward = &kDenseFeedForward;
  c.moe.experts = 8;
  c.moe.ffn = 24;
  c.moe.shared_ffn = 24;
  c.moe.shared_gate = true;
  c.moe.router.top_k = 2;
  c.moe.training = {.balance_loss = 0.02, .balance_step = true};
  return c;
}

// Layers of Kimi delta attention before and after one layer of latent attention without positions, with
// experts after the first layer. Norms amplify the rounding of small inputs, so epsilon is large.
inline ModelConfig tiny_kimi_linear() {
  ModelConfig c = tiny_llama();
  c.norm_epsilon = 0.1;
  c.family = "kimi_linear";
  c.kv_heads = c.heads;
  c.set_layers(&LayerSpec::attention, &kDeltaAttention);
  c.at(2).attention = &kLatentAttention;
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.at(0).feed_forward = &kDenseFeedForward;
  c.attention.latent = {
      .q_rank = 0, .kv_rank = 16, .nope_dim = 8, .rope_dim = 4, .value_dim = 10, .nope = true};
  c.linear = {.key_heads = 4, .value_heads = 4, .key_dim = 12, .value_dim = 12, .conv_width = 4};
  c.moe.experts = 8;
  c.moe.ffn = 24;
  c.moe.shared_ffn = 24;
  c.moe.choice_bias = true;
  c.moe.router = {.scoring = turbo::RouterRule::Scoring::kSigmoid,
                  .group_score = turbo::RouterRule::GroupScore::kTwoBest,
                  .top_k = 2};
  c.moe.training = {.balance_loss = 0.02, .bias_update_rate = 0x1p-7};
  return c;
}

// Gated delta networks of flash-linear-attention before and after one layer of latent attention.
inline ModelConfig tiny_gated_deltanet() {
  ModelConfig c = tiny_llama();
  c.norm_epsilon = 0.1;
  c.family = "gated_deltanet";
  c.layers = 3;
  c.kv_heads = c.heads;
  c.attention.latent = {.q_rank = 20, .kv_rank = 16, .nope_dim = 8, .rope_dim = 4, .value_dim = 10};
  c.head_dim = 12;
  c.linear = {.key_heads = 4, .value_heads = 8, .key_dim = 8, .value_dim = 6, .conv_width = 3};
  c.set_layers(&LayerSpec::attention, &kLatentAttention);
  c.set_layers({0, 2}, &LayerSpec::attention, &kGatedDeltaNet);
  return c;
}

// Only Kimi delta attention of flash-linear-attention, with two value heads per key head.
inline ModelConfig tiny_kda() {
  ModelConfig c = tiny_llama();
  c.norm_epsilon = 0.1;
  c.family = "kda";
  c.layers = 2;
  c.linear = {.key_heads = 4, .value_heads = 8, .key_dim = 8, .value_dim = 12, .conv_width = 4};
  c.set_layers(&LayerSpec::attention, &kDeltaAttention);
  return c;
}

// All features that Kimi K3 adds, and multi-token prediction of depth one.
inline ModelConfig tiny_kimi_k3() {
  ModelConfig c = tiny_kimi_linear();
  c.family = "kimi_k3";
  c.init_std = 0.15;
  c.layers = 5;
  c.attention.latent.q_rank = 20;
  c.attention.latent.output_gate = true;
  c.at(4).attention = &kLatentAttention;
  c.linear.gate_lower_bound = -5;
  c.linear.full_rank_gate = true;
  c.situ_beta = 4;
  c.situ_linear_beta = 25;
  c.residual_block = 2;
  c.moe.latent = 32;
  c.moe.latent_norm = true;
  c.mtp = {.layers = 1, .enabled = true, .training = {.loss_scale = 0.3}};
  return c;
}

// A dense model with adapters for all matrices.
inline ModelConfig tiny_lora() {
  ModelConfig c = tiny_llama();
  c.lora = {.dim = 6, .alpha = 9, .modules = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}};
  return c;
}

// tiny_lora() with dropout. In the first function, dropout applies to A's input; in the second function, it
// applies to B's output.
inline ModelConfig tiny_lora_dropout() {
  ModelConfig c = tiny_lora();
  c.lora.training.dropout = 0.2;
  return c;
}
inline ModelConfig tiny_lora_dropout_after() {
  ModelConfig c = tiny_lora_dropout();
  c.lora.training.drops_after = true;
  return c;
}

// A mixture with adapters for all matrices, including those of each expert. Experts overflow, and the router
// is frozen.
inline ModelConfig tiny_lora_mixture() {
  ModelConfig c = tiny_mixture();
  c.lora = tiny_lora().lora;
  return c;
}

inline SessionSettings tiny_settings(DType compute = DType::kF32, const ModelConfig& model = tiny_llama()) {
  return {.model = model,
          .compute = compute,
          .step = {.micro_batch = 2, .sequence = 16, .microbatches = 3},
          .optimizer = {},
          .evaluation = true};
}

struct TestBatch : data::Batch {
  TestBatch(std::int64_t count, std::int64_t vocab, std::uint64_t seed) {
    loss_mask.assign(static_cast<std::size_t>(count), 1.0F);
    const RandomStream random(seed, RandomPurpose::kTest);
    for (std::int64_t i = 0; i <= count; ++i) {
      const auto id = static_cast<std::int32_t>(
          random.below(static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(vocab)));
      if (i < count) tokens.push_back(id);
      if (i > 0) labels.push_back(id);
    }
    loss_mask[1] = 0;  // a masked token in every batch
  }
  // Splits the tokens into documents, which start at `starts` and count positions from 0.
  void pack(const std::vector<std::int32_t>& starts) {
    document_starts = starts;
    document_starts.push_back(static_cast<std::int32_t>(tokens.size()));
    for (std::size_t d = 0; d + 1 < document_starts.size(); ++d) {
      for (std::int32_t t = document_starts[d]; t < document_starts[d + 1]; ++t)
        positions.push_back(t - document_starts[d]);
    }
  }
};

inline std::unique_ptr<Device> guard_device() {
  return std::make_unique<GuardDevice>(2, turbo::cpu_kernel_table());
}

inline std::vector<std::byte> bits_of(engine::Rank& rank, const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  rank.compute().copy_to_host(bytes.data(), tensor.data, tensor.bytes());
  rank.compute().synchronize();
  return bytes;
}

// Returns the bits of elements [begin, end) of this rank's shard of a unit's weights: fp32 masters in any
// storage, and values of frozen weights.
inline std::vector<std::byte> weight_bits(engine::Rank& rank, const engine::ParameterUnit& unit,
                                          const engine::FlatRange& range) {
  const auto part = [&](const Tensor& tensor) { return bits_of(rank, tensor.slice(range.begin, range.end)); };
  if (!unit.split()) return part(unit.trained ? unit.stored.master : unit.stored.values);
  const std::vector<std::byte> high = part(unit.stored.values), low = part(unit.stored.remainder);
  std::vector<std::byte> bits(2 * high.size());
  for (std::size_t i = 0; 2 * i < high.size(); ++i) {
    BFloat16 value;
    std::int16_t rest = 0;
    std::memcpy(&value, high.data() + 2 * i, sizeof(value));
    std::memcpy(&rest, low.data() + 2 * i, sizeof(rest));
    const float master = turbo::joined_master(value, rest);
    std::memcpy(bits.data() + 4 * i, &master, sizeof(master));
  }
  return bits;
}
inline std::vector<std::byte> weight_bits(engine::Rank& rank, const engine::ParameterUnit& unit) {
  return weight_bits(rank, unit, {0, unit.shard.size()});
}
// Returns the stored bits of one parameter.
inline std::vector<std::byte> weight_bits(engine::Rank& rank, const engine::Parameter& p) {
  const engine::FlatRange range = engine::stored_range(p);
  const std::int64_t first = p.offset - p.unit->shard.begin;
  return weight_bits(rank, *p.unit, {range.begin + first, range.end + first});
}

// Loss and gradient norm of each step, losses of multi-token prediction, and the bits of all gradients and
// weights after the last step.
struct TrainedState {
  std::vector<std::pair<double, double>> steps;
  std::vector<double> mtp_losses;
  std::vector<std::vector<std::byte>> gradients, weights;
  bool operator==(const TrainedState&) const = default;
};

// Trains from fixed initial weights. Calls `before` before each step, with a batch.
inline TrainedState train(
    std::unique_ptr<Device> device, const SessionSettings& settings, int steps = 2,
    const FamilyRegistry& families = builtin_families(),
    const std::function<void(TrainingSession& session, const data::BatchView& batch)>& before = {}) {
  engine::Rank rank(std::move(device));
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, families);
  session->store().initialize(rank.context(), 7);
  TrainingStep& step = session->step();
  TrainedState state;
  for (int s = 0; s < steps; ++s) {
    if (before) {
      TestBatch batch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab, 1);
      if (settings.step.packed_documents) batch.pack({0, 5, 6, 16, 27});
      before(*session, batch);
    }
    step.begin(s + 1);
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
      TestBatch batch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
                      static_cast<std::uint64_t>(s * 100 + i));
      if (settings.step.packed_documents) batch.pack({0, 5, 6, 16, 27});
      step.microbatch(i, batch);
    }
    step.finish_gradients();
    const StepResult result = step.result();
    state.steps.emplace_back(result.loss, result.gradient_norm);
    if (result.mtp_loss) state.mtp_losses.push_back(*result.mtp_loss);
    step.update(s + 1, 1e-2, 0.1);
  }
  for (const engine::ParameterUnit& unit : session->store().units()) {
    if (unit.trained) state.gradients.push_back(bits_of(rank, unit.reduced));
    state.weights.push_back(weight_bits(rank, unit));
  }
  return state;
}

}  // namespace primus::test
