#include "config/validation/validate_staleness.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "config/stages.h"
#include "config/trainer_config.h"

namespace primus::config {
namespace {

constexpr std::string_view kKey = "max_staleness";

// Returns whether the loss limits the weight of tokens whose probability has changed since they were
// generated.
bool limits_ratios(const TrainerConfig& c) {
  const bool chooses_loss = stage_of(c).chooses_policy_loss;
  const std::string loss = chooses_loss && !c.loss_type.empty() ? c.loss_type.front() : "";
  if (loss == "cispo" || loss == "sapo" || loss == "vespo") return true;
  if (c.epsilon < 1) return true;  // ratios are never below 0
  return chooses_loss &&
         (c.sampler_correction != "none" || c.delta.has_value() || c.off_policy_mask_threshold.has_value());
}

}  // namespace

void validate_staleness(const Experiment& e, Problems& problems, std::vector<std::string>& warnings) {
  const TrainerConfig& c = e.trainer;
  if (c.max_staleness == 0 || stage_of(c).material != Material::kPrompts) return;
  if (stage_of(c).trains_values) {
    problems.add(e.error_for(kKey,
                             fmt::format("stage {} does not support max_staleness: the values and old "
                                         "log-probabilities of answers are those of the current weights",
                                         c.stage),
                             "remove max_staleness, or use stage grpo"));
    return;
  }
  if (stage_of(c).chooses_policy_loss && c.dynamic_sampling) {
    problems.add(e.error_for(kKey,
                             "max_staleness and dynamic_sampling exclude each other: dynamic sampling needs "
                             "the rewards of a step's answers before it generates further answers",
                             "remove one of them"));
  }
  if (c.max_staleness % c.num_iterations != 0) {
    problems.add(e.error_for(
        kKey,
        fmt::format("max_staleness ({}) is not a multiple of num_iterations ({}): the run generates answers "
                    "every {} updates",
                    c.max_staleness, c.num_iterations, c.num_iterations),
        fmt::format("set max_staleness to {}",
                    std::max<std::int64_t>(c.max_staleness / c.num_iterations, 1) * c.num_iterations)));
  }
  if (limits_ratios(c)) return;
  warnings.push_back(
      fmt::format("{}: the run learns from answers of older weights, but epsilon ({}) does not limit the "
                  "ratio of new to old probability. Set epsilon below 1{}",
                  e.provenance_of(kKey).describe(), c.epsilon,
                  stage_of(c).chooses_policy_loss ? ", or sampler_correction" : ""));
}

}  // namespace primus::config
