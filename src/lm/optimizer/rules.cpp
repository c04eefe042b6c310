// The list of optimizers, and helpers shared by their rules.
#include <fmt/format.h>

#include <utility>

#include "base/entries.h"
#include "base/error.h"
#include "base/random/random.h"
#include "base/terminal/terminal.h"
#include "config/trainer_config.h"
#include "lm/optimizer/optimizer_settings.h"

namespace primus {

#include "lm/optimizer/optimizers.def"  // generated: kAllOptimizerEntry

std::span<const OptimizerEntry> optimizers() {
  static const auto all = copies_of(kAllOptimizerEntry);
  return all;
}

const OptimizerEntry* find_optimizer(std::string_view name) {
  for (const OptimizerEntry& entry : optimizers()) {
    if (entry.name == name || (!entry.other_name.empty() && entry.other_name == name)) return &entry;
  }
  return nullptr;
}

UpdateRules update_rules_of(const config::TrainerConfig& config) {
  const OptimizerEntry* const optimizer = find_optimizer(config.optimizer);
  if (!optimizer) throw unsupported(fmt::format("unknown optimizer '{}'", printable(config.optimizer)));
  return optimizer->make(config);
}

UpdateRules default_update_rules() { return update_rules_of(config::TrainerConfig()); }

OptimizerSettings OptimizerSettings::from(const config::Experiment& e) {
  const config::TrainerConfig& c = e.trainer;
  const bool has_muon = c.optimizer == "muon" || c.optimizer == "dist_muon";
  const std::string& of_moments = has_muon ? c.muon_scalar_optimizer : c.optimizer;
  for (const auto& [key, type] :
       {std::pair("exp_avg_dtype", &c.exp_avg_dtype), {"exp_avg_sq_dtype", &c.exp_avg_sq_dtype}}) {
    if (*type == "fp32" || of_moments == "adam") continue;
    throw e.error_for(key,
                      fmt::format("{}: {} supports only optimizer: adam, not {}", key, *type, of_moments),
                      fmt::format("set {}: fp32", key));
  }
  return {.rules = update_rules_of(c), .clip_norm = c.clip_grad, .split_masters = c.store_param_remainders};
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

std::vector<UpdateRun> update_runs(const UnitUpdate& u) {
  const engine::ParameterUnit& unit = u.unit;
  std::vector<UpdateRun> runs;
  for (const engine::ParameterRun& of_unit : unit.runs) {
    const engine::FlatRange range = of_unit.elements.intersect(unit.shard);
    if (of_unit.rule != u.rule || range.empty()) continue;
    const auto part = [&](const Tensor& buffer, std::int64_t first) {
      return buffer.absent() ? Tensor() : buffer.slice(range.begin - first, range.end - first);
    };
    UpdateRun& run = runs.emplace_back();
    run.param = part(unit.stored.master, unit.shard.begin);
    run.remainder = part(unit.stored.remainder, unit.shard.begin);
    run.gradient = part(unit.reduced, unit.shard.begin);
    if (unit.dtype != DType::kF32) run.working = part(unit.stored.values, unit.shard.begin);
    for (const engine::UnitState& state : unit.states) {
      if (state.rule != u.rule) continue;
      run.states.push_back(part(state.values, state.elements.begin));
      const std::int64_t block = turbo::kMomentBlock, first = state.elements.begin;
      run.scales.push_back(state.scales.absent() ? Tensor()
                                                 : state.scales.slice((range.begin - first) / block,
                                                                      (range.end - first) / block));
    }
    run.stream = random_stream_id(unit.parameters.front()->name);
    run.first_element = range.begin;
    run.decay_factor = of_unit.decayed || u.decay_all ? 1 : 0;
  }
  return runs;
}

}  // namespace primus
