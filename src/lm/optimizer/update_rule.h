// Update rules: how an optimizer changes the master weights of a unit, and what it keeps about each of them.
// A rule names its states, and memory, checkpoints and sharding follow from that. An optimizer is a list of
// rules: of those that take a parameter, the first updates it.
//
// A new rule is a file here and a line in rules.cpp. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data_parallel.h"
#include "engine/parameters.h"
#include "engine/rank.h"
#include "lm/optimizer/optimizer_settings.h"
#include "turbo/step_scalars.h"

namespace primus {

// What one update works on.
struct UnitUpdate {
  engine::Rank& rank;
  engine::DataParallel& parallel;
  engine::ParameterUnit& unit;
  int rule;  // this rule's index: of the unit's runs and states, those with it are the rule's
  // The gradient is multiplied by it first ([1] fp32); below 0 nothing changes.
  Tensor gradient_scale;
  Tensor scalars;  // of the step, on the device
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual std::string_view name() const = 0;  // "adam": checkpoints say which rules they are of
  // What ParameterUnit::states is to hold for this rule, in this order.
  virtual std::vector<engine::StateSpec> states() const = 0;
  // Whether the rule can update the parameter.
  virtual bool takes(const engine::Parameter& /*parameter*/) const { return true; }
  // Fills in what update() reads besides the step, the learning rate and the weight decay. `step` counts from
  // 1.
  virtual void set_scalars(std::int64_t /*step*/, std::span<double, turbo::kStepScalars> /*scalars*/) const {}
  // Enqueues the update of the unit's shard from its reduced gradient: master weights, states, and stored
  // values. Every rank calls it for the same units in the same order.
  virtual void update(const UnitUpdate& update) const = 0;
};

using UpdateRules = std::vector<std::unique_ptr<UpdateRule>>;

// The rules of an optimizer; the last one takes every parameter.
UpdateRules make_update_rules(const OptimizerSettings& settings);
// Which of them updates a parameter.
int rule_of(const UpdateRules& rules, const engine::Parameter& parameter);
// "adam"; "muon, adam".
std::string names_of(const UpdateRules& rules);
// ParameterStore::Layout::states of the rules.
std::vector<std::vector<engine::StateSpec>> states_of(const UpdateRules& rules);

// AdamW: decoupled weight decay (Loshchilov and Hutter, 2019). States: exp_avg, exp_avg_sq.
std::unique_ptr<UpdateRule> adamw_rule(const AdamSettings& settings, bool decay_all);
// SGD with momentum as torch.optim.SGD has it (turbo/sgd). State: momentum_buffer; without momentum none.
std::unique_ptr<UpdateRule> sgd_rule(double momentum, bool decay_all);
// Lion (Chen et al., 2023). State: exp_avg.
std::unique_ptr<UpdateRule> lion_rule(const LionSettings& settings, bool decay_all);
// Muon (turbo/muon), for hidden matrices. State: momentum_buffer.
std::unique_ptr<UpdateRule> muon_rule(const MuonSettings& settings);

// The matrices of a parameter that Muon updates, as rows of [rows, last extent]: each expert, and in it each
// tensor of the published checkpoint, is one of its own.
std::vector<engine::FlatRange> muon_matrices(const engine::Parameter& parameter, bool split_qkv);

// ---- For rules that treat each element on its own -------------------------------------------------

// What is updated alike of a unit's shard: neighbouring elements, at least one.
struct UpdateRun {
  Tensor param;                // fp32; absent where masters are split
  Tensor working;              // bf16; absent in fp32 units
  Tensor remainder;            // int16, where masters are split
  Tensor gradient;             // fp32
  std::vector<Tensor> states;  // in the order of UpdateRule::states
  float decay_factor;          // multiplies the weight decay: 0 where a parameter is not decayed
  // For random numbers: the unit's, and the number of param[0] among its elements. Any sharding gives the
  // same.
  std::uint64_t stream;
  std::int64_t first_element;
};

std::vector<UpdateRun> update_runs(const UnitUpdate& update, bool decay_all);

}  // namespace primus
