#include "lm/model/blocks/mixture_of_experts.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/operators/few_tokens.h"
#include "engine/operators/gates.h"
#include "engine/operators/situ.h"
#include "engine/parallel/context_attention.h"
#include "engine/parallel/expert_dispatch.h"
#include "engine/parallel/expert_rounds.h"
#include "engine/parallel/parallel_operators.h"
#include "lm/model/layer_kind.h"

namespace primus {

// Number of routed experts in a layer; 0: the model is dense.
PRIMUS_MODEL_FIELD(MOE, std::int64_t, experts, 0, num_experts, kShape,
                   "num_experts num_local_experts n_routed_experts");
// Width of one expert. If not set: the width of a dense layer.
PRIMUS_MODEL_FIELD(MOE, std::int64_t, ffn, 0, moe_ffn_hidden_size, kShape,
                   "moe_intermediate_size intermediate_size");
// Total width of the shared experts; 0: no shared experts.
PRIMUS_MODEL_FIELD(MOE, std::int64_t, shared_ffn, 0, moe_shared_expert_intermediate_size, kShape,
                   "n_shared_experts shared_expert_intermediate_size");
// Number of leading layers in which a table maps token ids to experts.
PRIMUS_MODEL_FIELD(MOE, std::int64_t, hash_layers, 0, num_hash_layers, kShape,
                   "mlp_layer_types num_hash_layers");
// Width of the latents that routed experts read and write in place of hidden states (0: no latents), and
// whether the experts' output is normed.
PRIMUS_MODEL_FIELD(MOE, std::int64_t, latent, 0, routed_expert_hidden_size, kShape,
                   "routed_expert_hidden_size");
PRIMUS_MODEL_FIELD(MOE, bool, latent_norm, false, latent_moe_use_norm, kShape, "latent_moe_use_norm");
// Limit of soft capping for the router's logits, before all other steps of the routing; 0: no capping.
PRIMUS_MODEL_FIELD(MOE, double, logit_cap, 0, router_logit_softcapping, kFixed, "router_logit_softcapping");
PRIMUS_MODEL_FIELD(ROUTER, std::int32_t, top_k, 1, moe_router_topk, kFixed,
                   "num_experts_per_tok experts_per_token");
PRIMUS_MODEL_FIELD(ROUTER, std::int32_t, groups, 1, moe_router_num_groups, kFixed, "n_group topk_method");
// top_groups: number of expert groups from which a token may choose. If not set: all groups.
PRIMUS_MODEL_FIELD(ROUTER, std::int32_t, top_groups, 1, moe_router_group_topk, kFixed, "topk_group");
PRIMUS_MODEL_FIELD(ROUTER, float, scale, 1, moe_router_topk_scaling_factor, kFixed, "routed_scaling_factor");

namespace {

using engine::CheckpointPart;
using engine::Normed;
using engine::Parameter;
using engine::Routing;
using engine::RoutingRule;
using engine::Value;

class MixtureOfExperts final : public Layer {
 public:
  MixtureOfExperts(const ModelConfig& c, const BlockParameters& p, const ExpertParts& parts)
      : moe_(c.moe),
        plain_(!moe_.biases && moe_.swiglu_limit == 0 && c.situ_beta == 0),
        situ_beta_(c.situ_beta),
        situ_linear_beta_(c.situ_linear_beta),
        epsilon_(c.norm_epsilon),
        layer_(p.layer()),
        tokens_(p.sequence_group()),
        experts_{.group = p.expert_group(),
                 .tokens = p.sequence_group(),
                 .first = p.experts().begin(moe_.experts),
                 .count = p.experts().size(moe_.experts)},
        router_(
            p.add(".moe.router", {moe_.experts, c.hidden}, p.matrix(), {{parts.router, 0, moe_.experts}})),
        gate_up_(p.experts("linear_fc1", ".moe.gate_up",
                           p.expert_rows(moe_.experts, {moe_.ffn, moe_.ffn}, moe_.width(c.hidden)),
                           p.matrix(), parts.gate_up)),
        down_(p.experts("linear_fc2", ".moe.down",
                        p.expert_columns(moe_.experts, moe_.width(c.hidden), moe_.ffn), p.into_residual(),
                        parts.down)) {
    if (moe_.weigh_input && !plain_)
      throw std::logic_error("experts that scale their input support only plain SwiGLU");
    router_.reads_full_precision = true;
    if (moe_.biases) {
      const auto bias = [&](const std::string& name, std::int64_t n, std::vector<CheckpointPart> of) {
        Parameter& parameter =
            p.add(name, p.expert_rows(moe_.experts, {n}), engine::Initializer::constant(0), std::move(of));
        parameter.decay = false;
        parameter.group = engine::ReduceGroup::kExperts;
        parameter.per_expert = true;
        return &parameter;
      };
      router_bias_ = &p.add(".moe.router_bias", {moe_.experts}, engine::Initializer::constant(0),
                            {{parts.router_bias, 0, moe_.experts}});
      router_bias_->reads_full_precision = true;
      gate_up_bias_ = bias(".moe.gate_up_bias", 2 * moe_.ffn, parts.gate_up_bias);
      down_bias_ = bias(".moe.down_bias", c.hidden, parts.down_bias);
    }
    declare_uses();
    if (moe_.hashed(layer_)) {
      table_ = &p.add(".moe.table", {c.vocab, moe_.router.top_k}, engine::Initializer::distinct(moe_.experts),
                      {{parts.table, 0, c.vocab}});
      table_->trainable = false;
      table_->full_precision = true;
      table_->whole_numbers = true;
    } else if (moe_.choice_bias) {
      choice_bias_ = &p.add(".moe.choice_bias", {moe_.experts}, engine::Initializer::constant(0),
                            {{parts.choice_bias, 0, moe_.experts}});
      choice_bias_->trainable = false;
      choice_bias_->full_precision = true;
    }
    if (moe_.latent > 0) {
      latent_.down = &p.linear(".moe.latent_down", {{moe_.latent, c.hidden}, {}}, p.matrix(),
                               {{parts.latent_down, 0, moe_.latent}});
      if (moe_.latent_norm)
        latent_.norm = &p.add(".moe.latent_norm", {moe_.latent}, engine::Initializer::constant(1),
                              {{parts.latent_norm, 0, moe_.latent}});
      latent_.up = &p.linear(".moe.latent_up", {{c.hidden, moe_.latent}, {}}, p.into_residual(),
                             {{parts.latent_up, 0, c.hidden}});
    }
    if (moe_.shared_ffn > 0) {
      shared_.emplace(c, p, moe_.shared_ffn, ".moe.shared", parts.shared, parts.shared_names,
                      moe_.swiglu_shift == 0 ? moe_.swiglu_limit : 0);
    }
    if (!shared_ || !moe_.shared_gate) return;
    shared_gate_ =
        &p.add(".moe.shared_gate", {1, c.hidden}, p.matrix(), {{parts.shared + "_gate.weight", 0, 1}});
    shared_gate_->reads_full_precision = true;
  }

  Value forward(const Normed& normed, const BlockInputs& in) const override {
    const Value& h = normed.value();
    RoutingRule rule = rule_for(in);
    const bool training = in.routing != nullptr;
    Value logits = router_logits(h, router_, training ? moe_.training.jitter : 0, rule.random,
                                 training ? own_tokens(in.token_numbers, tokens_) : in.token_numbers);
    if (router_bias_) logits = router_bias(std::move(logits), *router_bias_);
    if (moe_.logit_cap > 0) logits = soft_cap(std::move(logits), moe_.logit_cap);
    // Choices, capacity and losses depend on the complete microbatch. All ranks that have a part of the
    // microbatch therefore compute them for all tokens.
    logits = replicate_tokens(logits, tokens_);
    Value load;
    if (training && moe_.training.balance_step && rule.balance_scale != 0) {
      const RoutingStep& step = *in.routing;
      load = step_load(logits, rule, row_of(step.running), *step.parallel);
      rule.load_share = 1 / static_cast<float>(step.data_ranks * (h.tape().microbatch() + 1));
    }
    const Tensor traced = in.trace ? row_of(in.trace->experts) : Tensor();
    const bool replay = in.trace && in.trace->use == RoutingTrace::Use::kReplay;
    const Tensor choice_bias = choice_bias_ ? choice_bias_->value : Tensor(),
                 given = replay ? traced : Tensor();
    const Value by_table = table_ ? experts_by_table(in.tokens, *table_) : Value();
    const std::optional<engine::FewExperts> few = few_experts_of(h, in);
    const Routing routing = few ? choose_experts(logits, rule, choice_bias, given, by_table)
                                : route(logits, rule, choice_bias, given, in.token_numbers, load, by_table);
    if (in.trace && !replay) record(routing, traced);
    if (training && (!tokens_ || tokens_->rank() == 0)) {
      observe(logits, routing, rule, row_of(in.routing->load), row_of(in.routing->losses), load);
      if (by_quantiles())
        observe_margins(logits, rule, choice_bias_->value, margin_bins(), histograms(in.routing->margins));
    }
    if (few) {
      const bool apart = shared_ && !few->shared_down;
      return few_experts(h, routing, *few, apart ? of_shared_experts(normed, in) : Value());
    }
    const bool single = !tokens_ && !experts_.group;
    if (!latent_.down && single) return through_experts(h, routing, &normed, &in);
    if (single)
      return with_shared(out_of_latent(through_experts(linear(h, *latent_.down), routing)), normed, in);
    return through_ranks(normed, routing, rule.capacity, in);
  }

  void end_step(turbo::Context& context, const RoutingStep& step) const override {
    if (by_quantiles()) {
      turbo::launch(context, turbo::QuantileBiasUpdate{.bins = margin_bins(),
                                                       .top_k = moe_.router.top_k,
                                                       .counts = histograms(step.margins),
                                                       .bias = choice_bias_->value,
                                                       .centred = moe_.training.centred_bias,
                                                       .kept = static_cast<float>(moe_.training.kept_bias)});
      return;
    }
    if (!choice_bias_ || moe_.training.bias_update_rate == 0) return;
    turbo::launch(context,
                  turbo::ExpertBiasUpdate{.load = row_of(step.load),
                                          .bias = choice_bias_->value,
                                          .rate = static_cast<float>(moe_.training.bias_update_rate)});
  }

 private:
  // Calls use(parameter, times) for each parameter of the experts that training changes: a pass uses it
  // `times` times in each round, once in each of a routing's two parts. Exception: one operator multiplies
  // the rows of both parts by the last matrix of plain experts.
  template <class Use>
  void for_each_use(Use use) const {
    const std::int64_t parts = in_parts() ? 2 : 1;
    for (Parameter* const used : {&gate_up_, gate_up_bias_, down_bias_}) {
      if (used) use(*used, parts);
    }
    use(down_, plain_ ? 1 : parts);
    for (const Parameter* const matrix : {&gate_up_, &down_}) {
      if (matrix->low_rank.down) use(*matrix->low_rank.down, parts);
      if (matrix->low_rank.up) use(*matrix->low_rank.up, plain_ && matrix == &down_ ? 1 : parts);
    }
  }

  // Declares how often a pass uses the parameters of the experts.
  void declare_uses() {
    const std::int64_t rounds = experts_.group ? moe_.training.rounds : 1;
    for_each_use([&](Parameter& used, std::int64_t times) {
      used.uses.resize(static_cast<std::size_t>(rounds * times), used.uses.back());
    });
  }

  // Returns the number of rows of this rank's experts per token of the group, if every expert gets the same
  // number of rows.
  double equal_share() const {
    return static_cast<double>(moe_.router.top_k * experts_.count) / static_cast<double>(moe_.experts);
  }

  bool chooses_evenly() const {
    return moe_.training.forced == turbo::RouterRule::Forced::kEven && !moe_.hashed(layer_);
  }

  // Returns whether the rank keeps activations for fewer rows than its experts can get. The result must be
  // the same for every pass, because the constructor uses it to declare how often a pass uses a matrix.
  bool in_parts() const {
    return experts_.group && !chooses_evenly() && moe_.training.capacity_factor == 0 &&
           moe_.training.capacity_margin * equal_share() <
               static_cast<double>(std::min<std::int64_t>(moe_.router.top_k, experts_.count));
  }

  // Returns this rank's experts, the maximum number of rows for these experts, and the number of rows whose
  // activations the rank keeps, for one round.
  engine::SharedExperts experts_for(const engine::FlatRange& round, const BlockInputs& in) const {
    engine::SharedExperts experts = experts_;
    if (!experts.group) return experts;
    experts.round = round;
    const std::int64_t ranks = experts.group->size(), tokens = ranks * round.size();
    if (in_parts()) {
      experts.keeps = std::max<std::int64_t>(
          1, static_cast<std::int64_t>(
                 std::ceil(moe_.training.capacity_margin * equal_share() * static_cast<double>(tokens))));
    }
    if (in.routing && !in.trace && chooses_evenly()) {
      // Consecutive choices get consecutive experts. The token's number determines the first expert. The
      // tokens of a rank form at most two ranges of consecutive numbers in each sequence. In each range, an
      // expert gets at most one row more than the mean.
      experts.limit =
          tokens * moe_.router.top_k * experts.count / moe_.experts + 2 * in.batch * ranks * experts.count;
    }
    return experts;
  }

  // Runs experts that are distributed over ranks. The shared experts, and possibly another microbatch,
  // overlap with the dispatch and the return of tokens.
  Value through_ranks(const Normed& normed, const Routing& routing, std::int64_t capacity,
                      const BlockInputs& in) const {
    Value h = latent_.down ? linear(normed.value(), *latent_.down) : normed.value();
    engine::Tape& tape = h.tape();
    const std::int64_t tokens = h.shape()[0];
    // Every round needs a token. All ranks of the group have equally many tokens, so they agree.
    const std::int64_t rounds = experts_.group ? std::min(moe_.training.rounds, tokens) : 1;
    const auto range_of = [&](std::int64_t round) { return engine::tokens_of_round(tokens, rounds, round); };
    // All rounds are planned first, so the host has the row counts of later rounds when it needs them.
    std::vector<engine::Dispatch> dispatches;
    for (std::int64_t round = 0; round < rounds; ++round) {
      dispatches.push_back(plan_dispatch(routing, experts_for(range_of(round), in), capacity,
                                         {.parallel = experts_.group ? in.experts : nullptr,
                                          .all_to_all = moe_.training.all_to_all,
                                          .fp8 = moe_.training.fp8_dispatch,
                                          .shared = shared_.has_value(),
                                          .keeps = moe_.training.keep_received}));
    }
    Value wide, of_shared, y;
    for (std::int64_t round = 0; round < rounds; ++round) {
      const engine::Dispatch& dispatch = dispatches[static_cast<std::size_t>(round)];
      const bool last = round + 1 == rounds;
      engine::InFlight there = begin_dispatch(take_rows(h, range_of(round)), dispatch);
      if (last) h = {};
      if (shared_ && round == 0) wide = shared_->widen(normed, in);
      Value rows = through_experts(end_dispatch(std::move(there), dispatch), dispatch.routing);
      engine::InFlight back = begin_return(std::move(rows), dispatch);
      if (shared_ && last) of_shared = gated_shared(normed, shared_->narrow(std::exchange(wide, {}), in));
      y = join_rows(std::move(y), end_return(std::move(back), dispatch), range_of(round), tokens);
    }
    // The sums of gradients count the uses in all rounds (declare_uses).
    if (tape.training() && experts_.group && rounds < moe_.training.rounds) {
      for_each_use([&](Parameter& used, std::int64_t times) {
        engine::skip_uses(tape, used, (moe_.training.rounds - rounds) * times);
      });
    }
    y = out_of_latent(std::move(y));
    return of_shared ? sum(std::move(y), of_shared) : y;
  }

  Value with_shared(Value y, const Normed& normed, const BlockInputs& in) const {
    return shared_ ? sum(std::move(y), of_shared_experts(normed, in)) : y;
  }

  // Projects the summed output of the experts from the latent's width back to the hidden size.
  Value out_of_latent(Value y) const {
    if (!latent_.up) return y;
    return linear(latent_.norm ? norm(y, *latent_.norm, epsilon_) : y, *latent_.up);
  }

  Value of_shared_experts(const Normed& h, const BlockInputs& in) const {
    return gated_shared(h, shared_->forward(h, in));
  }

  // Returns the experts for kernels that decode a few tokens, if the device has kernels for these experts.
  std::optional<engine::FewExperts> few_experts_of(const Value& h, const BlockInputs& in) const {
    const bool decoding = in.cache && !h.tape().gathers_parameters();
    if (!decoding || tokens_ || experts_.group || latent_.down || situ_beta_ > 0) return {};
    engine::FewExperts few{.gate_up = &gate_up_,
                           .down = &down_,
                           .gate_up_bias = gate_up_bias_,
                           .down_bias = down_bias_,
                           .weighs_rows = plain_,
                           .weigh_input = moe_.weigh_input};
    if (moe_.swiglu_limit > 0) few.clamp = clamp();
    if (const auto shared = shared_ ? shared_->plain_matrices() : std::nullopt) {
      engine::FewExperts with_shared = few;
      with_shared.shared_gate_up = shared->gate_up;
      with_shared.shared_down = shared->down;
      with_shared.shared_gate = shared_gate_;
      if (takes_few_experts(h, moe_.router.top_k, with_shared)) return with_shared;
    }
    if (!takes_few_experts(h, moe_.router.top_k, few)) return {};
    return few;
  }

  // If the shared experts have a gate, applies this gate to the output for this rank's tokens.
  Value gated_shared(const Normed& h, Value y) const {
    return shared_gate_ ? gated(y, router_logits(h.value(), *shared_gate_)) : y;
  }

  // Runs this rank's experts, and returns the result per token. If `shared` is given, the output of the
  // shared experts is added; h must then be the value of `shared`.
  Value through_experts(const Value& h, const Routing& routing, const Normed* shared = nullptr,
                        const BlockInputs* in = nullptr) const {
    const auto addend = [&] { return shared && shared_ ? of_shared_experts(*shared, *in) : Value(); };
    if (routing.kept > 0) return through_parts(h, engine::parts_of(routing, h, gate_up_));
    const Value rows = expert_rows(h, routing);
    return plain_ ? linear_combine(rows, down_, routing, addend()) : combine(rows, routing, addend());
  }

  // Computes the same as through_experts(). Keeps no activations of the routing's second part.
  Value through_parts(const Value& h, engine::RoutingParts parts) const {
    const Value head = expert_rows(h, parts.head, std::exchange(parts.head_gradient, {}));
    std::optional<engine::ReplayScope> replay(h.tape());
    const Value rest = expert_rows(h, parts.rest, std::exchange(parts.rest_gradient, {}));
    replay.reset();
    return plain_ ? linear_combine(head, rest, down_, parts) : combine(head, rest, parts);
  }

  // Returns rows of the experts. For plain experts, the rows are weighted inputs of the last product. For
  // other experts, the rows are the unweighted output, because the routing weights also multiply the last
  // bias. `gradients`: as for dispatch_linear().
  Value expert_rows(const Value& h, const Routing& routing,
                    const engine::RoutingParts::RowGradients& gradients = {}) const {
    Value rows = dispatch_linear(h, gate_up_, routing, gradients);
    if (gate_up_bias_) rows = grouped_bias(std::move(rows), *gate_up_bias_, routing);
    if (plain_) return weighted_swiglu(rows, routing, moe_.weigh_input);
    rows = grouped_linear(activated(rows), down_, routing);
    return down_bias_ ? grouped_bias(std::move(rows), *down_bias_, routing) : rows;
  }

  // Applies the activation function of experts that are not plain (plain_).
  Value activated(const Value& rows) const {
    if (situ_beta_ > 0) return situ(rows, situ_beta_, situ_linear_beta_);
    return moe_.swiglu_limit > 0 ? clamped_swiglu(rows, clamp()) : swiglu(rows);
  }

  RoutingRule rule_for(const BlockInputs& in) const {
    RoutingRule rule{.router = moe_.router};
    if (!in.routing) return rule;
    const MoeConfig::Training& t = moe_.training;
    rule.router.forced = t.forced;
    rule.random = in.routing->random;
    rule.random.layer = static_cast<std::uint32_t>(layer_);
    const std::int64_t tokens = in.batch * in.sequence * (in.context ? in.context->ranks() : 1);
    rule.capacity = t.capacity(tokens * moe_.router.top_k, moe_.experts);
    rule.drop_lightest = t.drop_lightest;
    rule.sequences = in.batch;
    // If choices come from a table, a balance loss cannot change them.
    rule.balance_scale = table_ ? 0.0F : static_cast<float>(t.balance_loss * in.routing->loss_weight);
    rule.z_scale = static_cast<float>(t.z_loss * in.routing->loss_weight);
    rule.segments = t.balance_sequences ? in.batch : 1;
    return rule;
  }

  engine::SwigluClamp clamp() const { return {moe_.swiglu_limit, moe_.swiglu_alpha, moe_.swiglu_shift}; }
  bool by_quantiles() const { return choice_bias_ && moe_.training.quantile_bins > 0; }
  turbo::MarginBins margin_bins() const {
    return {static_cast<float>(moe_.training.margin_low), static_cast<float>(moe_.training.margin_high)};
  }
  Tensor histograms(const Tensor& table) const {
    return row_of(table).reshaped({moe_.experts, moe_.training.quantile_bins});
  }

  // Returns the row of this layer in a table for all layers.
  Tensor row_of(const Tensor& table) const {
    return table.slice(layer_, layer_ + 1).reshaped({table.cols()});
  }

  MoeConfig moe_;
  bool plain_;  // the experts consist only of matrix products and SwiGLU
  double situ_beta_, situ_linear_beta_, epsilon_;
  std::int64_t layer_;
  comm::Communicator* tokens_;     // the ranks that route a microbatch together
  engine::SharedExperts experts_;  // slice of the experts on this rank
  Parameter &router_, &gate_up_, &down_;
  Parameter *router_bias_ = nullptr, *gate_up_bias_ = nullptr, *down_bias_ = nullptr;
  Parameter *choice_bias_ = nullptr, *table_ = nullptr, *shared_gate_ = nullptr;
  // The parameters for the latents that experts read and write (MoeConfig::latent).
  struct {
    Parameter *down = nullptr, *norm = nullptr, *up = nullptr;
  } latent_;
  std::optional<FeedForward> shared_;
};

std::vector<LayerProduct> products(const ModelConfig& c, std::int64_t) {
  const MoeConfig& moe = c.moe;
  const std::int64_t within = moe.width(c.hidden);
  const auto of_experts = [&](std::string_view what, std::int64_t out, std::int64_t in,
                              std::string_view module) {
    return LayerProduct{.what = what,
                        .out = out,
                        .in = in,
                        .experts = moe.experts,
                        .per_token = moe.router.top_k,
                        .module = module};
  };
  std::vector<LayerProduct> all = {of_experts("experts' gate and up", 2 * moe.ffn, within, "linear_fc1"),
                                   of_experts("experts' down", within, moe.ffn, "linear_fc2")};
  if (moe.latent > 0) {
    all.push_back({"experts' latent, down", moe.latent, c.hidden});
    all.push_back({"experts' latent, up", c.hidden, moe.latent});
  }
  if (moe.shared_ffn > 0) {
    all.push_back({.what = "shared expert's gate and up",
                   .out = 2 * moe.shared_ffn,
                   .in = c.hidden,
                   .module = "linear_fc1"});
    all.push_back(
        {.what = "shared expert's down", .out = c.hidden, .in = moe.shared_ffn, .module = "linear_fc2"});
  }
  return all;
}

std::vector<SharedExtent> shared(const ModelConfig& c) {
  if (c.moe.shared_ffn == 0) return {};
  return {{c.moe.shared_ffn, "columns of the shared experts (moe_shared_expert_intermediate_size)"}};
}

}  // namespace

ExpertParts separate_experts(const ModelConfig& config, std::string router, const std::string& prefix,
                             const std::string& gate, const std::string& up, const std::string& down) {
  ExpertParts parts{.router = std::move(router), .gate_up = {}, .down = {}};
  const std::int64_t ffn = config.moe.ffn, hidden = config.moe.width(config.hidden);
  for (std::int64_t e = 0; e < config.moe.experts; ++e) {
    const std::string at = prefix + "." + std::to_string(e) + ".";
    parts.gate_up.push_back({at + gate + ".weight", e * 2 * ffn, ffn});
    parts.gate_up.push_back({at + up + ".weight", e * 2 * ffn + ffn, ffn});
    parts.down.push_back({at + down + ".weight", e * hidden, hidden});
  }
  return parts;
}

std::unique_ptr<Layer> mixture_of_experts(const ModelConfig& config, const BlockParameters& parameters,
                                          const ExpertParts& parts) {
  return std::make_unique<MixtureOfExperts>(config, parameters, parts);
}

extern const LayerKind kMixture{.branch = LayerKind::Branch::kFeedForward,
                                .routes = true,
                                .batch_invariant = true,
                                .products = products,
                                .mixing = nullptr,
                                .shared_by_tensor_ranks = shared};

}  // namespace primus
