// Update rules: how an optimizer changes the master weights of a unit, and what it keeps about each of them.
// A rule names its states, and memory, checkpoints and sharding follow from that. An optimizer is a list of
// rules: of those that take a parameter, the first updates it.
//
// An optimizer is one file here, which ends with its OptimizerEntry, and its keys are lines of
// config/keys.def. Rules are stateless and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/trainer_config.h"
#include "engine/data_parallel.h"
#include "engine/parameters.h"
#include "engine/rank.h"
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
  Tensor scalars;         // of the step, on the device
  std::int64_t step = 1;  // its number, for rules that do something else in some steps (UpdateRule::varies)
  Tensor snapped = {};    // [1] int32, where weights that end at a number of fp4 are counted
  bool decay_all;         // norms and biases are decayed, too
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
  // True: what update() enqueues depends on the step's number, so a recorded step is no other's.
  virtual bool varies() const { return false; }
  // Enqueues the update of the unit's shard from its reduced gradient: master weights, states, and stored
  // values. Every rank calls it for the same units in the same order.
  virtual void update(const UnitUpdate& update) const = 0;
};

// The last one takes every parameter.
using UpdateRules = std::vector<std::shared_ptr<const UpdateRule>>;

// An optimizer. Its file defines the entry, and that is all that the program needs to know it
// (primus_entry_list in cmake/PrimusBuild.cmake):
//   extern const OptimizerEntry kLion{.name = "lion", .title = "Lion", .make = make_rules};
struct OptimizerEntry {
  std::string_view name;   // the value of the key `optimizer` that chooses it
  std::string_view title;  // what people call it
  UpdateRules (*make)(const config::TrainerConfig& config);
  std::string_view other_name = {};  // a second value that chooses it
};

// All of them, by their files' names.
std::span<const OptimizerEntry> optimizers();
// The one that a value of the key `optimizer` chooses; null where there is none.
const OptimizerEntry* find_optimizer(std::string_view name);
// The rules of the optimizer that the experiment chooses.
UpdateRules update_rules_of(const config::TrainerConfig& config);

// Which of the rules updates a parameter.
int rule_of(const UpdateRules& rules, const engine::Parameter& parameter);
// "adam"; "muon, adam".
std::string names_of(const UpdateRules& rules);
// ParameterStore::Layout::states of the rules.
std::vector<std::vector<engine::StateSpec>> states_of(const UpdateRules& rules);

// ---- For rules that treat each element on its own -------------------------------------------------

// What is updated alike of a unit's shard: neighbouring elements, at least one.
struct UpdateRun {
  Tensor param;                // fp32; absent where masters are split
  Tensor working;              // bf16; absent in fp32 units
  Tensor remainder;            // int16, where masters are split
  Tensor gradient;             // fp32
  std::vector<Tensor> states;  // in the order of UpdateRule::states
  std::vector<Tensor> scales;  // of each; absent where it has none
  float decay_factor;          // multiplies the weight decay: 0 where a parameter is not decayed
  // For random numbers: the unit's, and the number of param[0] among its elements. Any sharding gives the
  // same.
  std::uint64_t stream;
  std::int64_t first_element;
};

std::vector<UpdateRun> update_runs(const UnitUpdate& update);

}  // namespace primus
