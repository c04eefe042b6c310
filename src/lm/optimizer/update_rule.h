// Update rules: how an optimizer changes the master weights of a unit, and which states it keeps for each
// weight. A rule names its states; memory, checkpoints and sharding follow from that. An optimizer is a list
// of rules; the first one that accepts a parameter updates it.
//
// Each optimizer is one file in this folder that ends with its OptimizerEntry; its keys are lines of
// config/keys.def. Rules are stateless and thread-safe.
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
#include "turbo/step_scalars.h"

namespace primus::config {
struct TrainerConfig;
}

namespace primus {

// The arguments of one update.
struct UnitUpdate {
  engine::Rank& rank;
  engine::DataParallel& parallel;
  engine::ParameterUnit& unit;
  int rule;  // index of this rule, which selects its runs and states in the unit
  // [1] fp32 factor of the gradient. A factor below 0 means that the update changes nothing.
  Tensor gradient_scale;
  Tensor scalars;         // the step's scalars, on the device
  std::int64_t step = 1;  // number of the step, for rules whose work depends on it (UpdateRule::varies)
  Tensor snapped = {};    // [1] int32: number of weights that were set to an fp4 value
  bool decay_all;         // whether norms and biases are decayed too
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Returns a name such as "adam"; checkpoints contain the names of their rules.
  virtual std::string_view name() const = 0;
  // Returns the states that ParameterUnit::states holds for this rule, in this order.
  virtual std::vector<engine::StateSpec> states() const = 0;
  // Whether the rule can update the parameter.
  virtual bool takes(const engine::Parameter& /*parameter*/) const { return true; }
  // Fills in the scalars that update() reads, except step, learning rate and weight decay. `step` counts from
  // 1.
  virtual void set_scalars(std::int64_t /*step*/, std::span<double, turbo::kStepScalars> /*scalars*/) const {}
  // True if the work that update() enqueues depends on the step, so that a recorded step cannot be replayed.
  virtual bool varies() const { return false; }
  // Enqueues the update of the unit's shard from its reduced gradient: master weights, states, and stored
  // values. Every rank must call update() for the same units in the same order.
  virtual void update(const UnitUpdate& update) const = 0;
};

// The last rule accepts every parameter.
using UpdateRules = std::vector<std::shared_ptr<const UpdateRule>>;

// An optimizer. Defining the entry in its file registers it (primus_entry_list in cmake/PrimusBuild.cmake):
//   extern const OptimizerEntry kLion{.name = "lion", .title = "Lion", .make = make_rules};
struct OptimizerEntry {
  std::string_view name;   // the optimizer's value of the key `optimizer`
  std::string_view title;  // name for display
  UpdateRules (*make)(const config::TrainerConfig& config);
  std::string_view other_name = {};  // an alternative value of the key
};

// Returns all optimizers, in the order of their file names.
std::span<const OptimizerEntry> optimizers();
// Returns the optimizer for a value of the key `optimizer`, or null.
const OptimizerEntry* find_optimizer(std::string_view name);
// Returns the rules of the optimizer that the experiment chooses.
UpdateRules update_rules_of(const config::TrainerConfig& config);
// AdamW with the keys' defaults.
UpdateRules default_update_rules();

// Returns the index of the rule that updates a parameter.
int rule_of(const UpdateRules& rules, const engine::Parameter& parameter);
// Returns names such as "adam" or "muon, adam".
std::string names_of(const UpdateRules& rules);
// Returns the rules' states, for ParameterStore::Layout::states.
std::vector<std::vector<engine::StateSpec>> states_of(const UpdateRules& rules);

// ---- For elementwise rules ------------------------------------------------------------------------

// A run of neighbouring elements of a unit's shard with equal settings; at least one element.
struct UpdateRun {
  Tensor param;                // fp32 masters; absent if masters are split
  Tensor working;              // bf16 values; absent in fp32 units
  Tensor remainder;            // int16 remainders, if masters are split
  Tensor gradient;             // fp32 gradient
  std::vector<Tensor> states;  // states in the order of UpdateRule::states
  std::vector<Tensor> scales;  // scales of each state; absent for a state without scales
  float decay_factor;          // factor of the weight decay; 0: no decay
  // Used for random numbers: the unit's stream, and the index of param[0] in the unit. Both are independent
  // of the sharding.
  std::uint64_t stream;
  std::int64_t first_element;
};

std::vector<UpdateRun> update_runs(const UnitUpdate& update);

}  // namespace primus
