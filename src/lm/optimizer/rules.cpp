// Which rules an optimizer has, and what they share.
#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "lm/optimizer/update_rule.h"

namespace primus {

namespace {

DType moment_type(const char* key, const std::string& type, const std::string& optimizer) {
  if (type == "fp32") return DType::kF32;
  if (optimizer != "adam") {
    throw unsupported(fmt::format("{}: {} is there for optimizer: adam, not for {}", key, type, optimizer),
                      fmt::format("set {}: fp32", key));
  }
  return DType::kBF16;
}

}  // namespace

OptimizerSettings OptimizerSettings::from(const config::TrainerConfig& c) {
  const std::string& scale = c.muon_scale_mode;
  using Scale = MuonSettings::Scale;
  using Coefficients = MuonSettings::Coefficients;
  return {.kind = c.optimizer == "sgd"                                  ? Kind::kSgd
                  : c.optimizer == "lion"                               ? Kind::kLion
                  : c.optimizer == "muon" || c.optimizer == "dist_muon" ? Kind::kMuon
                                                                        : Kind::kAdamW,
          .adam = {.beta1 = c.adam_beta1,
                   .beta2 = c.adam_beta2,
                   .epsilon = c.adam_eps,
                   .first_moment = moment_type("exp_avg_dtype", c.exp_avg_dtype, c.optimizer),
                   .second_moment = moment_type("exp_avg_sq_dtype", c.exp_avg_sq_dtype, c.optimizer)},
          .sgd_momentum = c.sgd_momentum,
          .lion = {.beta1 = c.lion_beta1, .beta2 = c.lion_beta2},
          .muon = {.momentum = c.muon_momentum,
                   .nesterov = c.muon_use_nesterov,
                   .scale = scale == "unit_rms_norm"   ? Scale::kUnitRmsNorm
                            : scale == "shape_scaling" ? Scale::kShapeScaling
                                                       : Scale::kSpectral,
                   .extra_scale = c.muon_extra_scale_factor,
                   .steps = c.muon_num_ns_steps,
                   .coefficients =
                       c.muon_coefficient_type == "simple" ? Coefficients::kSimple : Coefficients::kQuintic,
                   .fp32_products = c.muon_fp32_matmul_prec == "high" || c.muon_fp32_matmul_prec == "highest",
                   .split_qkv = c.muon_split_qkv,
                   .lion_for_rest = c.muon_scalar_optimizer == "lion"},
          .clip_norm = c.clip_grad,
          .split_masters = c.store_param_remainders};
}

UpdateRules make_update_rules(const OptimizerSettings& s) {
  using Kind = OptimizerSettings::Kind;
  UpdateRules rules;
  if (s.kind == Kind::kMuon) rules.push_back(muon_rule(s.muon));
  if (s.kind == Kind::kSgd) {
    rules.push_back(sgd_rule(s.sgd_momentum, s.decay_all_parameters));
  } else if (s.kind == Kind::kLion || (s.kind == Kind::kMuon && s.muon.lion_for_rest)) {
    rules.push_back(lion_rule(s.lion, s.decay_all_parameters));
  } else {
    rules.push_back(adamw_rule(s.adam, s.decay_all_parameters));
  }
  return rules;
}

int rule_of(const UpdateRules& rules, const engine::Parameter& parameter) {
  int index = 0;
  while (!rules[static_cast<std::size_t>(index)]->takes(parameter)) ++index;
  return index;
}

std::string names_of(const UpdateRules& rules) {
  std::string names;
  for (const auto& rule : rules) names += (names.empty() ? "" : ", ") + std::string(rule->name());
  return names;
}

std::vector<std::vector<engine::StateSpec>> states_of(const UpdateRules& rules) {
  std::vector<std::vector<engine::StateSpec>> states;
  for (const auto& rule : rules) states.push_back(rule->states());
  return states;
}

std::vector<UpdateRun> update_runs(const UnitUpdate& u, bool decay_all) {
  const engine::ParameterUnit& unit = u.unit;
  std::vector<UpdateRun> runs;
  for (const engine::ParameterRun& of_unit : unit.runs) {
    const engine::FlatRange range = of_unit.elements.intersect(unit.shard);
    if (of_unit.rule != u.rule || range.empty()) continue;
    const auto part = [&](const Tensor& buffer, std::int64_t first) {
      return buffer.absent() ? Tensor() : buffer.slice(range.begin - first, range.end - first);
    };
    UpdateRun& run = runs.emplace_back();
    run.param = part(unit.master, unit.shard.begin);
    run.remainder = part(unit.remainder, unit.shard.begin);
    run.gradient = part(unit.reduced, unit.shard.begin);
    if (unit.dtype != DType::kF32) run.working = part(unit.stored_values, unit.shard.begin);
    for (const engine::UnitState& state : unit.states) {
      if (state.rule == u.rule) run.states.push_back(part(state.values, state.elements.begin));
    }
    run.stream = random_stream_id(unit.parameters.front()->name);
    run.first_element = range.begin;
    run.decay_factor = of_unit.decayed || decay_all ? 1 : 0;
  }
  return runs;
}

}  // namespace primus
