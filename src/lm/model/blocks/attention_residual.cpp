#include "lm/model/blocks/attention_residual.h"

#include "engine/operators/attention_residual.h"
#include "turbo/elementwise/elementwise.h"

namespace primus {

// Number of layers between checkpoints of the residual stream (engine/operators/attention_residual.h); 0:
// there are no checkpoints, and branches read the stream.
PRIMUS_MODEL_FIELD(MODEL, std::int64_t, residual_block, 0, attn_res_block_size, kShape,
                   "attn_res_block_size");

using engine::Initializer;
using engine::Residual;
using engine::Value;

AttentionResidualBlock::Mixture AttentionResidualBlock::mixture(const BlockParameters& parameters,
                                                                const std::string& branch) {
  const std::string name = "." + branch + "_res_";
  engine::Parameter& norm = parameters.norm(name + "norm", name + "norm.weight");
  const std::int64_t hidden = norm.shape[0];
  return {&norm,
          &parameters.add(name + "proj", {1, hidden}, parameters.matrix(), {{name + "proj.weight", 0, 1}})};
}

Value AttentionResidualBlock::read(const Residual& x, const Mixture& of,
                                   engine::Parameter& norm_weight) const {
  if (!of.norm) return norm(x.sum, norm_weight, epsilon_);
  return norm(attention_residual(x.sum, x.checkpoints, *of.norm, *of.proj, epsilon_), norm_weight, epsilon_);
}

void AttentionResidualBlock::forward(Residual& x, const BlockInputs& in) const {
  engine::BlockScope scope(x, layer_);
  flush(x);
  const Value h = read(x, before_attention_, attention_norm_);
  if (begins_) x.checkpoints = x.checkpoints ? concat(x.checkpoints, x.sum) : x.sum;
  Value mixed = attention_->forward(h, in);
  if (begins_) {
    x.sum = std::move(mixed);
  } else {
    add(x, std::move(mixed));
    flush(x);
  }
  add(x, feed_forward_->forward(read(x, before_ffn_, ffn_norm_), in));
}

void AttentionResidualBlock::end_step(turbo::Context& context, const RoutingStep& step) const {
  attention_->end_step(context, step);
  feed_forward_->end_step(context, step);
}

namespace {

class Ends final : public StreamEnds {
 public:
  Ends(const ModelConfig& config, engine::ParameterStore& store, int chunk)
      : config_(config),
        norm_(declare(store, chunk, "output_res_norm", {config.hidden}, Initializer::constant(1),
                      {{"model.output_attn_res_norm.weight", 0, config.hidden}})),
        proj_(declare(store, chunk, "output_res_proj", {1, config.hidden},
                      Initializer::normal(config.init_std), {{"model.output_attn_res_proj.weight", 0, 1}})) {}

  Value widen(const Value& hidden) const override { return hidden; }

  Value contract(Residual& x) const override {
    flush(x);
    return attention_residual(x.sum, x.checkpoints, norm_, proj_, config_.norm_epsilon);
  }

  Value pack(Residual& x) const override {
    flush(x);
    Value all = x.checkpoints ? concat(x.sum, x.checkpoints) : x.sum;
    const std::int64_t rest = config_.streams() * config_.hidden - all.shape()[1];
    if (rest == 0) return all;
    engine::Tape& tape = all.tape();
    const Value none = tape.input(all.dtype(), {all.shape()[0], rest}, false);
    turbo::launch(tape.context(), turbo::Fill{.out = none.tensor(), .value = 0});
    return concat(all, none);
  }

  Residual unpack(const Value& packed, std::int64_t layer) const override {
    auto [sum, others] = split(packed, config_.hidden);
    const std::int64_t used = residual_checkpoints(config_, layer) * config_.hidden;
    if (used == 0) return {std::move(sum), {}};
    if (used < others.shape()[1]) others = split(others, used).first;
    return {std::move(sum), {}, std::move(others)};
  }

 private:
  ModelConfig config_;
  engine::Parameter &norm_, &proj_;
};

}  // namespace

std::unique_ptr<StreamEnds> attention_residual_ends(const ModelConfig& config, engine::ParameterStore& store,
                                                    int depth, int chunk) {
  return depth > 0 ? nullptr : std::make_unique<Ends>(config, store, chunk);
}

}  // namespace primus
