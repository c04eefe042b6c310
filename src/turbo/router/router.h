// The router of a mixture of experts: chooses each token's experts and their weights. All computation is in
// fp32.
//
// Rules cover Mixtral (arXiv:2401.04088), Switch Transformer (2101.03961), DeepSeek-V2, -V3 and -V4
// (2405.04434, 2412.19437), Qwen3, gpt-oss and Llama 4.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct RouterRule {
  // Limits of the kernels: the number of experts, and the number of chosen experts or groups.
  static constexpr std::int64_t kMaxExperts = 1024, kMaxTopK = 64;

  // kSqrtSoftplus is sqrt(log(1 + e^x)), used by DeepSeek-V4.
  enum class Scoring : std::uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus } scoring = Scoring::kSoftmax;
  // If true, the weights of the chosen experts are divided by their sum. (With softmax, the result equals a
  // softmax over only the chosen logits.)
  bool normalise = true;
  // Experts are divided into groups of consecutive experts, and only experts of the `top_groups` best groups
  // are candidates. A group's score is the score of its best expert (DeepSeek-V2) or the sum of its two best
  // scores (DeepSeek-V3).
  enum class GroupScore : std::uint8_t { kBest, kTwoBest } group_score = GroupScore::kBest;
  // For benchmarks, ignores the scores: chooses expert (slot mod experts), or random experts.
  enum class Forced : std::uint8_t { kNo, kEven, kUniform } forced = Forced::kNo;
  std::int32_t top_k = 1, groups = 1, top_groups = 1;
  float scale = 1;  // multiplies every weight
  // Added to the sum by which weights are divided. It avoids a division by zero, as in the code published
  // with DeepSeek's models.
  float min_sum = 1e-20F;

  // Returns whether the rule can choose from this number of experts.
  bool fits(std::int64_t experts) const;

  bool operator==(const RouterRule&) const = default;
};

// The source of a router's random numbers (base/random/random.h, purpose kRouting). The numbers of a token
// are a function of the step, the token's index in the global batch, and the layer. Therefore they do not
// depend on the distribution of tokens over microbatches and ranks.
struct RouterRandom {
  std::uint64_t seed = 0;
  std::uint32_t layer = 0;
  Tensor scalars = {};  // the step's scalars (turbo/step_scalars.h)
  // [tokens] int32: (index of the sample in the global batch) * sequence length + position.
  Tensor tokens = {};

  bool given() const { return !scalars.absent() && !tokens.absent(); }
};

// out = x · u + previous, with u uniform in [1 - jitter, 1 + jitter] per element. The router reads this fp32
// result instead of the hidden states; the same operator with the same u computes the gradient.
struct RouterJitter {
  static constexpr KernelId kId = KernelId::kRouterJitter;
  Tensor x;             // [tokens, hidden] fp32 or bf16
  Tensor previous;      // out's type, or absent; may be out
  Tensor out;           // [tokens, hidden] fp32 or bf16
  float jitter;         // > 0
  RouterRandom random;  // must be present
  void check() const;
  double flops() const { return 0; }
};

// Chooses the top_k experts by score + bias, best first; of two equal experts, the one with the lower index
// is preferred. The weights are the scores without bias.
struct RouterForward {
  static constexpr KernelId kId = KernelId::kRouterForward;
  RouterRule rule;
  RouterRandom random;  // required for Forced::kUniform; optional for Forced::kEven, which uses only `tokens`
  Tensor logits;        // [tokens, experts] fp32
  Tensor bias;          // [experts] fp32, or absent
  Tensor given;  // [tokens, top_k] int32, each in [0, experts): the experts to use; absent: the best experts
                 // are used
  Tensor experts;  // output: [tokens, top_k] int32
  Tensor weights;  // output: [tokens, top_k] fp32
  void check() const;
  double flops() const { return 0; }
};

// Looks up experts by the token id (DeepSeek-V4's hash routing): experts[t, :] = table[tokens[t], :].
struct RouterTable {
  static constexpr KernelId kId = KernelId::kRouterTable;
  Tensor tokens;   // [tokens] int32: row indices of the table
  Tensor table;    // [vocabulary, top_k] fp32: integers
  Tensor experts;  // output: [tokens, top_k] int32
  void check() const;
  double flops() const { return 0; }
};

// Counts how often each expert is among the top_k scores, ignoring bias and groups. Divides the tokens into
// segments of equal length, and counts each segment separately. The load-balancing losses use these counts.
struct RouterLoad {
  static constexpr KernelId kId = KernelId::kRouterLoad;
  std::int32_t top_k;
  Tensor logits;  // [tokens, experts] fp32
  Tensor chosen;  // [tokens, top_k] int32: the experts with the largest logits, or absent if not yet known
  Tensor load;    // output: [segments, experts] int32
  void check() const;
  double flops() const { return 0; }
};

// The auxiliary losses of a router, added to losses[0] and losses[1] (fp32):
//   balance   the mean over segments b of  experts / (top_k T_b²) · Σ_e load[b, e] Σ_{t in b} p[t, e]
//   z         the mean over tokens of  (log Σ_e exp logits[t, e])²
// p is the softmax, or, for other kinds of scores, the scores divided by their sum. One segment per
// microbatch gives the loss of Switch Transformer and Megatron-LM's aux_loss; one segment per sequence gives
// the loss of DeepSeek (seq_aux_loss). If experts are balanced, the balance loss is 1. With the loads of
// several microbatches and with `load_share`, the balance loss is Megatron-LM's global_aux_loss.
struct RouterLosses {
  static constexpr KernelId kId = KernelId::kRouterLosses;
  RouterRule rule;
  Tensor logits;  // [tokens, experts] fp32
  Tensor load;    // [segments, experts] int32, or absent: no balance loss
  Tensor losses;  // [2] fp32; the call adds to it
  // The factor of the load. It is 1/N if `load` is a sum over N microbatches, so that the loss uses the mean
  // load.
  float load_share = 1;
  void check() const;
  double flops() const { return 0; }
};

// d_logits = (gradient of the weights) + balance_scale · (gradient of the balance loss) + z_scale · (gradient
// of the z loss).
struct RouterBackward {
  static constexpr KernelId kId = KernelId::kRouterBackward;
  RouterRule rule;
  Tensor logits;     // [tokens, experts] fp32
  Tensor experts;    // [tokens, top_k] int32
  Tensor d_weights;  // [tokens, top_k] fp32
  Tensor load;       // [segments, experts] int32, or absent: no balance loss
  float balance_scale, z_scale;
  Tensor previous;  // [tokens, experts] fp32, added to d_logits; absent: zero; may be d_logits
  Tensor d_logits;  // output: [tokens, experts] fp32
  void check() const;
  double flops() const { return 0; }
};

// running[e] += load[e], then load[e] = running[e]: replaces the load of a microbatch by the sum over all
// microbatches so far.
struct RunningLoad {
  static constexpr KernelId kId = KernelId::kRunningLoad;
  Tensor load, running;  // [1, experts] and [experts] int32, updated in place
  void check() const;
  double flops() const { return 0; }
};

// load[e] += number of slots that chose e; load[experts] += number of dropped slots.
struct ExpertLoad {
  static constexpr KernelId kId = KernelId::kExpertLoad;
  Tensor experts;  // [tokens, top_k] int32
  Tensor rows;     // [tokens, top_k] int32: `rows` of a RoutingPlan, < 0 for dropped slots
  Tensor load;     // [experts + 1] int32; the call adds to it
  void check() const;
  double flops() const { return 0; }
};

// Loss-free balancing (DeepSeek-V3): bias[e] += rate · sign(mean load - load[e]).
struct ExpertBiasUpdate {
  static constexpr KernelId kId = KernelId::kExpertBiasUpdate;
  Tensor load;  // [experts + 1] int32, from ExpertLoad
  Tensor bias;  // [experts] fp32, updated in place
  float rate;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
