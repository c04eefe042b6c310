#include "config/validation/validate_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "config/trainer_config.h"

namespace primus::config {
namespace {

constexpr std::string_view kLayout = "pipeline_model_parallel_layout";
constexpr std::string_view kStrategy = "data_parallel_sharding_strategy";

void warn(const Experiment& e, std::string_view key, const std::string& what,
          std::vector<std::string>& warnings) {
  warnings.push_back(e.provenance_of(key).describe() + ": " + what);
}

// Refuses keys that set the blocks of a stage next to a layout, which sets the blocks of all stages. Warns if
// the blocks do not divide equally into stages.
void check_stages(const Experiment& e, Problems& problems, std::vector<std::string>& warnings) {
  const TrainerConfig& c = e.trainer;
  const std::int64_t parts = c.pipeline_model_parallel_size, layers = c.num_layers;
  if (parts <= 1) return;
  bool is_set = c.pipeline_model_parallel_layout.has_value();
  for (const auto& [key, given] :
       {std::pair("decoder_first_pipeline_num_layers", c.decoder_first_pipeline_num_layers.has_value()),
        std::pair("decoder_last_pipeline_num_layers", c.decoder_last_pipeline_num_layers.has_value()),
        std::pair("account_for_embedding_in_pipeline_split", c.account_for_embedding_in_pipeline_split),
        std::pair("account_for_loss_in_pipeline_split", c.account_for_loss_in_pipeline_split)}) {
    if (!given) continue;
    is_set = true;
    if (!c.pipeline_model_parallel_layout) continue;
    const bool layout_is_later = e.provenance_of(kLayout).layer > e.provenance_of(key).layer;
    problems.add(e.error_for(layout_is_later ? kLayout : key,
                             fmt::format("{} and {} both set the blocks of pipeline stages", key, kLayout),
                             "remove one of them"));
  }
  if (is_set || layers < parts || layers % parts == 0) return;
  warn(e, "pipeline_model_parallel_size",
       fmt::format("{} layers do not divide equally into {} pipeline stages: stages get {} or {} layers "
                   "({} can set the number of each stage)",
                   layers, parts, layers / parts + 1, layers / parts, kLayout),
       warnings);
}

// Reports contradictions between the keys that choose what is sharded over data-parallel ranks. Settings of
// different layers do not contradict each other, because the stronger layer overrides a preset.
void check_sharding(const Experiment& e, Problems& problems, std::vector<std::string>& warnings) {
  const std::string& strategy = e.trainer->data_parallel_sharding_strategy;
  const auto is_beside = [&](std::string_view key) {
    const Layer layer = e.provenance_of(key).layer;
    return layer >= Layer::kOverrides && layer == e.provenance_of(kStrategy).layer;
  };
  if (e.trainer->use_torch_fsdp2 && strategy != "optim_grads_params" && is_beside("use_torch_fsdp2")) {
    problems.add(
        e.error_for(kStrategy,
                    fmt::format("use_torch_fsdp2 is true, which means {}: optim_grads_params, but {} is {}",
                                kStrategy, kStrategy, strategy),
                    "remove one of them"));
  }
  if (!e.trainer->use_distributed_optimizer && strategy != "no_shard" &&
      is_beside("use_distributed_optimizer")) {
    warn(e, "use_distributed_optimizer",
         fmt::format("use_distributed_optimizer: false has no effect with {}: {}, which shards the optimizer "
                     "states",
                     kStrategy, strategy),
         warnings);
  }
}

// Refuses fp8 for tokens that all ranks gather, and for tokens in two hops: only the all-to-all in one hop
// has a step that decodes rows.
void check_dispatch(const Experiment& e, Problems& problems) {
  if (!e.trainer->moe_dispatch_fp8) return;
  if (e.trainer->moe_token_dispatcher_type == "allgather")
    problems.add(e.error_for(
        "moe_dispatch_fp8", "moe_dispatch_fp8 needs moe_token_dispatcher_type: alltoall, but it is allgather",
        "set moe_token_dispatcher_type: alltoall, or remove moe_dispatch_fp8"));
  if (e.trainer->moe_ranks_per_host.value_or(1) > 1)
    problems.add(e.error_for("moe_ranks_per_host", "moe_dispatch_fp8 sends tokens in one hop",
                             "set moe_ranks_per_host: 1, or remove moe_dispatch_fp8"));
}

// Refuses more rounds than a rank has tokens, because every round needs a token. Refuses rounds with a
// capacity, because an expert may get all rows of its capacity in one round, so rounds would save nothing.
void check_rounds(const Experiment& e, Problems& problems) {
  const TrainerConfig& c = e.trainer;
  if (!c.moe_expert_rounds) return;
  if (*c.moe_expert_rounds > 1 && c.moe_expert_capacity_factor)
    problems.add(e.error_for("moe_expert_rounds",
                             "moe_expert_rounds saves no memory with moe_expert_capacity_factor",
                             "remove one of them"));
  const std::int64_t tokens =
      c.micro_batch_size * c.seq_length / (c.tensor_model_parallel_size * c.context_parallel_size);
  if (*c.moe_expert_rounds <= std::max<std::int64_t>(tokens, 1)) return;
  problems.add(
      e.error_for("moe_expert_rounds",
                  fmt::format("moe_expert_rounds is {}, but a rank has only {} tokens of a microbatch",
                              *c.moe_expert_rounds, tokens),
                  fmt::format("set moe_expert_rounds to at most {}", std::max<std::int64_t>(tokens, 1))));
}

}  // namespace

void validate_parallel(const Experiment& experiment, Problems& problems, std::vector<std::string>& warnings) {
  if (experiment.framework != "native") return;
  check_stages(experiment, problems, warnings);
  check_sharding(experiment, problems, warnings);
  check_dispatch(experiment, problems);
  check_rounds(experiment, problems);
}

}  // namespace primus::config
