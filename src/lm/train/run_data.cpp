#include "lm/train/run_data.h"

#include <fmt/format.h>

#include "base/error.h"
#include "config/trainer_config.h"
#include "lm/train/continued_run.h"
#include "lm/train/settings/loaded_tokenizer.h"

namespace primus {
namespace {

// Returns the order of cyclic data. A resumed run keeps its order, even if the number of ranks changed. All
// ranks must call this function.
data::CyclicOptions choose_cyclic_order(RunPlan& plan) {
  data::CyclicOptions order{.micro_batch_size = plan.c.micro_batch_size,
                            .dp_size = plan.shape.data(plan.ranks.size()),
                            .sharded = plan.c.data_sharding};
  if (!plan.objective->depends_on_ranks(plan.c)) return order;
  const data::CyclicOptions own = order;
  if (const auto state = plan.ranks.first() ? continued_state(plan.e) : std::nullopt) {
    if (state->cyclic_ranks > 0) {
      order.micro_batch_size = state->cyclic_micro_batch_size;
      order.dp_size = state->cyclic_ranks;
    } else if (const auto recorded = recorded_microbatch(*state)) {
      order.micro_batch_size = *recorded;  // an older checkpoint does not contain the number of ranks
    }
  }
  order.micro_batch_size = plan.ranks.from_first(order.micro_batch_size);
  order.dp_size = plan.ranks.from_first(order.dp_size);
  if (order.micro_batch_size != own.micro_batch_size || order.dp_size != own.dp_size) {
    plan.log.info(
        "the data keep the order of {} data-parallel ranks with microbatches of {} (dataloader_type: cyclic)",
        order.dp_size, order.micro_batch_size);
  }
  return order;
}

void compare_data(RunPlan& plan) {
  const auto data = plan.data_identity();
  plan.ranks.require_same({{"the data", data ? fmt::format("{:016x}", data->fingerprint) : "none"}});
}

}  // namespace

void open_run_data(RunPlan& plan) {
  plan.cyclic_order = choose_cyclic_order(plan);
  const auto open = [&plan] {
    plan.phase("opening the data");
    plan.datasets = plan.objective->open(plan.data_request());
  };
  if (plan.objective->opens_at_once()) {
    open();
  } else {
    plan.ranks.first_then_others(open);
  }
  compare_data(plan);
  if (plan.c.target_eval_loss && !plan.datasets.valid) {
    throw plan.e.error_for(
        "target_eval_loss",
        fmt::format("target_eval_loss is {}, but no validation data is given", *plan.c.target_eval_loss),
        "give validation a share (split), or its own file");
  }
}

void log_run_data(const RunPlan& plan, const std::vector<std::string>& facts) {
  if (!plan.ranks.first()) return;  // the data are the same on all ranks
  for (const auto& notes : {plan.tokenizer->notes(), plan.model_notes, plan.datasets.notes}) {
    for (const std::string& note : notes) plan.log.warning("{}", note);
  }
  plan.log.info("{}", describe_tokenizer(plan.e, *plan.tokenizer));
  for (const auto& sentences : {facts, plan.datasets.facts}) {
    for (const std::string& fact : sentences) plan.log.info("{}", fact);
  }
  if (plan.c.eval_iters > 0 && !plan.datasets.valid) {
    plan.log.warning("eval_iters is {}, but no validation data is given: set a share (split), or {}",
                     plan.c.eval_iters, plan.objective->validation_hint());
  }
  const bool nobody_chose =
      !plan.c.split && plan.e.provenance_of("eval_iters").layer < config::Layer::kOverrides;
  if (plan.c.eval_iters == 0 && nobody_chose && plan.datasets.held_out) {
    plan.log.warning(
        "part of data_path is held out for validation, but no evaluation runs: set eval_iters to the batches "
        "per evaluation (for example 4), or train on all data with split: 100,0,0");
  }
}

}  // namespace primus
