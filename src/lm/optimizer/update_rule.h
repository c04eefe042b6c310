// Update rules: how an optimizer changes the master weights of a unit, and which states it keeps for each
// weight. A rule names its states; memory, checkpoints and sharding are derived from the names. An optimizer
// is a list of rules; a parameter is updated by the first rule that accepts it.
//
// Each optimizer is one file in this folder, which ends with the optimizer's OptimizerEntry. Its keys are
// lines of config/keys.def. Rules are stateless and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/parallel/data_parallel.h"
#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
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
  int rule;  // index of this rule, which selects the rule's ranges and states in the unit
  // factor of the gradient, [1] fp32. If it is negative, the update changes nothing.
  Tensor gradient_scale;
  Tensor scalars;         // scalars of this step, on the device
  std::int64_t step = 1;  // number of the step, for rules whose work depends on the step (UpdateRule::varies)
  Tensor snapped = {};    // [1] int32: number of weights that were set to an fp4 value
  bool decay_all;         // whether weight decay also applies to norms and biases
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Returns the name of the rule, such as "adam". Checkpoints contain the names of their rules.
  virtual std::string_view name() const = 0;
  // Returns the states that ParameterUnit::states contains for this rule, in this order.
  virtual std::vector<engine::StateSpec> states() const = 0;
  // Returns whether the rule can update the parameter.
  virtual bool takes(const engine::Parameter& /*parameter*/) const { return true; }
  // Sets the scalars that update() reads, except step number, learning rate and weight decay. The first step
  // has `step` 1.
  virtual void set_scalars(std::int64_t /*step*/, std::span<double, turbo::kStepScalars> /*scalars*/) const {}
  // Returns whether the work that update() enqueues depends on the step. Such a step cannot be recorded and
  // replayed.
  virtual bool varies() const { return false; }
  // Enqueues the update of the unit's shard from its reduced gradient: master weights, states, and stored
  // values. Every rank must call update() for the same units in the same order.
  virtual void update(const UnitUpdate& update) const = 0;
};

// The rules of an optimizer. The last rule accepts every parameter.
using UpdateRules = std::vector<std::shared_ptr<const UpdateRule>>;

// An optimizer. It is registered by defining its entry in its file (primus_entry_list in
// cmake/PrimusBuild.cmake):
//   extern const OptimizerEntry kLion{.name = "lion", .title = "Lion", .make = make_rules};
struct OptimizerEntry {
  std::string_view name;   // value of the key `optimizer` that chooses this optimizer
  std::string_view title;  // name to display
  UpdateRules (*make)(const config::TrainerConfig& config);
  std::string_view other_name = {};  // an alternative value of the key `optimizer`
};

// Returns all optimizers, in the order of their file names.
std::span<const OptimizerEntry> optimizers();
// Returns the optimizer for a value of the key `optimizer`, or null.
const OptimizerEntry* find_optimizer(std::string_view name);
// Returns the rules of the optimizer that the experiment chooses.
UpdateRules update_rules_of(const config::TrainerConfig& config);
// Returns the rules of AdamW with the default values of the keys.
UpdateRules default_update_rules();

// Returns the index of the rule that updates a parameter.
int rule_of(const UpdateRules& rules, const engine::Parameter& parameter);
// Returns the names of the rules, such as "adam" or "muon, adam".
std::string names_of(const UpdateRules& rules);
// Returns the states of all rules, for ParameterStore::Layout::states.
std::vector<std::vector<engine::StateSpec>> states_of(const UpdateRules& rules);

// ---- For elementwise rules ------------------------------------------------------------------------

// A range of neighbouring elements of a unit's shard that have equal settings; at least one element.
struct UpdateRun {
  Tensor param;                // fp32 master weights; absent if master weights are split
  Tensor working;              // bf16 values; absent in fp32 units
  Tensor remainder;            // int16 remainders; present if master weights are split
  Tensor gradient;             // fp32 gradient
  std::vector<Tensor> states;  // states in the order of UpdateRule::states
  std::vector<Tensor> scales;  // scales of each state; absent for states without scales
  float decay_factor;          // factor of the weight decay; 0: no decay
  // For random numbers: the random stream of the unit, and the index of param[0] in the unit. Neither value
  // depends on the sharding.
  std::uint64_t stream;
  std::int64_t first_element;
};

std::vector<UpdateRun> update_runs(const UnitUpdate& update);

}  // namespace primus
