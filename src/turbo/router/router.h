// Which experts a token goes to, and what each weighs: the router of a mixture of experts, everything in
// fp32.
//
// Rules cover Mixtral (arXiv:2401.04088), Switch Transformer (2101.03961), DeepSeek-V2, -V3 and -V4
// (2405.04434, 2412.19437), Qwen3, gpt-oss and Llama 4.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct RouterRule {
  // What kernels have room for: experts, and how many of them, or groups of them, are chosen from all.
  static constexpr std::int64_t kMaxExperts = 1024, kMaxTopK = 64;

  // sqrt(log(1 + e^x)): DeepSeek-V4.
  enum class Scoring : std::uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus } scoring = Scoring::kSoftmax;
  // Whether the weights of the chosen are divided by their sum. (Softmax over the chosen logits only is
  // softmax with normalised weights.)
  bool normalise = true;
  // Groups of consecutive experts: only those of the `top_groups` best groups are candidates. A group scores
  // as its best expert (DeepSeek-V2) or as the sum of its two best (DeepSeek-V3).
  enum class GroupScore : std::uint8_t { kBest, kTwoBest } group_score = GroupScore::kBest;
  // For benchmarks, instead of the scores: expert (slot mod experts), or experts drawn at random.
  enum class Forced : std::uint8_t { kNo, kEven, kUniform } forced = Forced::kNo;
  std::int32_t top_k = 1, groups = 1, top_groups = 1;
  float scale = 1;  // times every weight
  // Added to the sum that weights are divided by, as in the published code: it keeps the division defined.
  float least_sum = 1e-20F;

  // Whether it can choose from so many experts.
  bool fits(std::int64_t experts) const;

  bool operator==(const RouterRule&) const = default;
};

// Where a router's random numbers come from (base/random/random.h, purpose kRouting): a token draws by the
// step, its own number within the step's global batch, and the layer. So noise does not depend on how tokens
// are spread over microbatches and ranks.
struct RouterRandom {
  std::uint64_t seed = 0;
  std::uint32_t layer = 0;
  Tensor scalars = {};  // the step's (turbo/step_scalars.h)
  Tensor tokens = {};   // [tokens] int32: sample within the global batch times sequence length, plus position

  bool given() const { return !scalars.absent() && !tokens.absent(); }
};

// out = x · u + previous, u uniform in [1 - jitter, 1 + jitter], one for each element: what a router sees of
// hidden states instead of them, in fp32, and the way back for its gradient (the same u).
struct RouterJitter {
  static constexpr KernelId kId = KernelId::kRouterJitter;
  Tensor x;             // [tokens, hidden] fp32 or bf16
  Tensor previous;      // out's type, or absent; may be out
  Tensor out;           // [tokens, hidden] fp32 or bf16
  float jitter;         // > 0
  RouterRandom random;  // given
  void check() const;
  double flops() const { return 0; }
};

// Chooses top_k experts by score + bias (the earlier of equal ones), best first; weights are scores without
// bias.
struct RouterForward {
  static constexpr KernelId kId = KernelId::kRouterForward;
  RouterRule rule;
  RouterRandom random;  // given for Forced::kUniform; Forced::kEven counts by its tokens if they are there
  Tensor logits;        // [tokens, experts] fp32
  Tensor bias;          // [experts] fp32, or absent
  Tensor given;         // [tokens, top_k] int32, each in [0, experts): these instead of the best; or absent
  Tensor experts;       // [tokens, top_k] int32 out
  Tensor weights;       // [tokens, top_k] fp32 out
  void check() const;
  double flops() const { return 0; }
};

// Experts by the token's number alone (DeepSeek-V4's hash routing): experts[t, :] = table[tokens[t], :].
struct RouterTable {
  static constexpr KernelId kId = KernelId::kRouterTable;
  Tensor tokens;   // [tokens] int32, rows of the table
  Tensor table;    // [vocabulary, top_k] fp32: whole numbers
  Tensor experts;  // [tokens, top_k] int32 out
  void check() const;
  double flops() const { return 0; }
};

// How often each expert is among the top_k scores, bias and groups aside, in each of `segments` equal runs of
// tokens: what the load-balancing losses count.
struct RouterLoad {
  static constexpr KernelId kId = KernelId::kRouterLoad;
  std::int32_t top_k;
  Tensor logits;  // [tokens, experts] fp32
  Tensor chosen;  // [tokens, top_k] int32: the experts of the largest logits, if known already; or absent
  Tensor load;    // [segments, experts] int32 out
  void check() const;
  double flops() const { return 0; }
};

// The losses that shape a router, added to losses[0] and losses[1] (fp32):
//   balance   the mean over segments b of  experts / (top_k T_b²) · Σ_e load[b, e] Σ_{t in b} p[t, e]
//   z         the mean over tokens of  (log Σ_e exp logits[t, e])²
// p is the softmax, or the other scores divided by their sum. One segment per microbatch is the loss of
// Switch Transformer and Megatron-LM's aux_loss, one per sequence DeepSeek's (seq_aux_loss); balanced experts
// give 1. With the loads of more microbatches and `load_share` it is Megatron-LM's global_aux_loss.
struct RouterLosses {
  static constexpr KernelId kId = KernelId::kRouterLosses;
  RouterRule rule;
  Tensor logits;  // [tokens, experts] fp32
  Tensor load;    // [segments, experts] int32, or absent: no balance loss
  Tensor losses;  // [2] fp32, added to
  // Of the loads that count: their mean over so many runs of tokens as these are, when `load` is their sum.
  float load_share = 1;
  void check() const;
  double flops() const { return 0; }
};

// d_logits = that of the weights + balance_scale · that of the balance loss + z_scale · that of the z loss.
struct RouterBackward {
  static constexpr KernelId kId = KernelId::kRouterBackward;
  RouterRule rule;
  Tensor logits;     // [tokens, experts] fp32
  Tensor experts;    // [tokens, top_k] int32
  Tensor d_weights;  // [tokens, top_k] fp32
  Tensor load;       // [segments, experts] int32, or absent: no balance loss
  float balance_scale, z_scale;
  Tensor previous;  // [tokens, experts] fp32 to be added, or absent; may be d_logits
  Tensor d_logits;  // [tokens, experts] fp32 out
  void check() const;
  double flops() const { return 0; }
};

// running[e] += load[e], and load[e] = running[e]: loads of one microbatch become those of all so far.
struct RunningLoad {
  static constexpr KernelId kId = KernelId::kRunningLoad;
  Tensor load, running;  // [1, experts] and [experts] int32, in place
  void check() const;
  double flops() const { return 0; }
};

// load[e] += slots whose choice is e; load[experts] += slots that were dropped.
struct ExpertLoad {
  static constexpr KernelId kId = KernelId::kExpertLoad;
  Tensor experts;  // [tokens, top_k] int32
  Tensor rows;     // [tokens, top_k] int32: a RoutingPlan's, negative for dropped slots
  Tensor load;     // [experts + 1] int32, added to
  void check() const;
  double flops() const { return 0; }
};

// Balancing without a loss (DeepSeek-V3): bias[e] += rate · sign(mean load - load[e]).
struct ExpertBiasUpdate {
  static constexpr KernelId kId = KernelId::kExpertBiasUpdate;
  Tensor load;  // [experts + 1] int32, as ExpertLoad leaves it
  Tensor bias;  // [experts] fp32, in place
  float rate;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
