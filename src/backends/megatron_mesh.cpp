// Parallelism settings as arguments of Megatron-LM.
#include <fmt/format.h>

#include "backends/megatron_arguments.h"
#include "config/keys.h"
#include "config/trainer_config.h"
#include "lm/model/model_parts.h"

namespace primus::backends::megatron {

using config::Layer;
using config::Value;

namespace {

// Sets overlap_param_gather, which has a meaning only for sharded parameters. Parameters are sharded by
// default, because AMD Primus's default is the distributed optimizer.
void set_gather_overlap(Megatron& m) {
  const bool shares = m.is_on("use_distributed_optimizer") || m.is_on("use_megatron_fsdp");
  if (!shares && (m.is_set("use_distributed_optimizer") || m.t.use_torch_fsdp2)) {
    m.job.warnings.emplace_back(
        "overlap_param_gather is left out, because nothing is gathered without use_distributed_optimizer");
    return;
  }
  if (!shares) m.put("use_distributed_optimizer", true);
  m.put("overlap_param_gather", true);
}

// Returns the letters that represent the modules of multi-token prediction in a layout.
std::string modules(const Megatron& m) {
  return std::string(static_cast<std::size_t>(m.t.mtp_num_layers.value_or(0)), 'm');
}

// Returns a layout in Megatron-LM's letters, with layers distributed over `parts` stages.
std::string uneven_layout(const Megatron& m, std::int64_t parts) {
  std::vector<std::string> words;
  for (const std::int64_t stage : even_blocks(m.t.num_layers, parts))
    words.push_back(fmt::format("t*{}", stage));
  return fmt::format("E{},{}L", fmt::join(words, "|"), modules(m));
}

// Adds missing letters to a layout: Megatron-LM requires one letter per module of multi-token prediction.
void modules_of_layout(Megatron& m) {
  const std::string layout = m.t.pipeline_model_parallel_layout.value_or("");
  const std::size_t loss = layout.rfind('L');
  if (modules(m).empty() || loss == std::string::npos || layout.find('m') != std::string::npos) return;
  m.put_text("pipeline_model_parallel_layout", layout.substr(0, loss) + modules(m) + layout.substr(loss));
  m.job.warnings.push_back(
      fmt::format("Megatron-LM needs an m in pipeline_model_parallel_layout for the model's multi-token "
                  "prediction: Primus passes {}",
                  m.arguments.at("pipeline_model_parallel_layout").text));
}

// Drops the number of virtual stages if a layout is given, as AMD Primus does: the layout determines this
// number, and Megatron-LM does not accept both.
void virtual_stages_of_layout(Megatron& m) {
  if (!m.t.pipeline_model_parallel_layout) return;
  if (m.t.num_layers_per_virtual_pipeline_stage) {
    throw m.error_for(
        "num_layers_per_virtual_pipeline_stage",
        "pipeline_model_parallel_layout and num_layers_per_virtual_pipeline_stage exclude each other",
        "remove one of them: the layout already describes all stages");
  }
  if (m.arguments.erase(m.rules.renamed("virtual_pipeline_model_parallel_size")) == 0) return;
  if (m.t.virtual_pipeline_model_parallel_size.value_or(1) == 1) return;
  m.job.warnings.push_back(
      fmt::format("virtual_pipeline_model_parallel_size {} is left out: pipeline_model_parallel_layout "
                  "describes all stages, and Megatron-LM does not accept both",
                  *m.t.virtual_pipeline_model_parallel_size));
}

}  // namespace

void parallelism(Megatron& m) {
  m.put("sequence_parallel", m.t.tensor_model_parallel_size > 1 && m.is_true("sequence_parallel"));
  // A module preset's setting is overridden if Megatron-LM does not support it in this combination.
  const bool is_of_preset =
      m.experiment.provenance_of("use_distributed_optimizer").layer == Layer::kModulePreset;
  if (is_of_preset && (m.t.use_torch_fsdp2 || m.t.optimizer == "muon"))
    m.put("use_distributed_optimizer", false);
  const std::string& sharding = m.t.data_parallel_sharding_strategy;
  const bool fsdp = m.is_true("use_megatron_fsdp") || m.is_true("use_custom_fsdp");
  if (fsdp) {
    m.put("use_megatron_fsdp", true);
    m.put_text("data_parallel_sharding_strategy", sharding);
  } else if (sharding == "optim") {
    m.put("use_distributed_optimizer", true);
  } else if (sharding != "no_shard" && !m.t.use_torch_fsdp2) {
    m.put("use_megatron_fsdp", true);
    m.put_text("data_parallel_sharding_strategy", sharding);
    m.put_text("ckpt_format", "fsdp_dtensor");
  }
  if (m.is_set("overlap_grad_reduce")) m.put("overlap_grad_reduce", m.t.overlap_grad_reduce);
  if (m.is_set("overlap_param_gather") && m.t.overlap_param_gather) set_gather_overlap(m);
  // If group_query_attention is unset, it follows from the numbers of query groups and heads.
  const bool grouped = m.t.group_query_attention.value_or(m.t.num_query_groups > 0 &&
                                                          m.t.num_query_groups != m.t.num_attention_heads);
  if (grouped && !m.t.multi_latent_attention) {
    m.put("group_query_attention", true);
    m.put_number("num_query_groups", static_cast<double>(m.t.num_query_groups));
  }
}

// Gradients and moments in types other than fp32 require Megatron-LM's precision-aware optimizer, which is a
// distributed Adam.
void narrow_states(Megatron& m) {
  for (const auto& [key, type] : {std::pair("main_grads_dtype", &m.t.main_grads_dtype),
                                  {"main_params_dtype", &m.t.main_params_dtype},
                                  {"exp_avg_dtype", &m.t.exp_avg_dtype},
                                  {"exp_avg_sq_dtype", &m.t.exp_avg_sq_dtype}}) {
    if (*type == "fp32") continue;
    const auto refuse = [&, key = key, type = type](const std::string& what) {
      throw m.error_for(key, fmt::format("Megatron-LM supports {}: {} only with {}", key, *type, what),
                        fmt::format("set {}: fp32, or {}", key, what));
    };
    if (m.t.optimizer != "adam") refuse("optimizer: adam");
    for (const char* needed : {"use_precision_aware_optimizer", "use_distributed_optimizer"}) {
      if (m.is_set(needed) && !m.is_true(needed)) refuse(fmt::format("{}: true", needed));
    }
    m.put("use_precision_aware_optimizer", true);
    if (!m.arguments.contains("use_megatron_fsdp")) m.put("use_distributed_optimizer", true);
  }
}

// Passes the size of each stage if the stages are unequal. By default, Megatron-LM divides the layers equally
// among the stages.
void stages(Megatron& m) {
  const std::int64_t parts = m.t.pipeline_model_parallel_size;
  modules_of_layout(m);
  virtual_stages_of_layout(m);
  if (parts <= 1 || m.t.pipeline_model_parallel_layout || m.t.decoder_first_pipeline_num_layers ||
      m.t.decoder_last_pipeline_num_layers || m.t.num_layers <= 0)
    return;
  const std::int64_t layers = m.t.num_layers + (m.t.account_for_embedding_in_pipeline_split ? 1 : 0) +
                              (m.t.account_for_loss_in_pipeline_split ? 1 : 0);
  const bool only_layers = layers == m.t.num_layers && m.t.num_layers >= parts && !m.is_mamba() &&
                           !m.t.num_layers_per_virtual_pipeline_stage &&
                           m.t.virtual_pipeline_model_parallel_size.value_or(1) == 1;
  if (layers % parts != 0 && only_layers) {
    m.put_text("pipeline_model_parallel_layout", uneven_layout(m, parts));
    m.job.warnings.push_back(
        fmt::format("Megatron-LM needs equal pipeline stages, but {} layers do not divide equally into {} "
                    "stages: Primus passes --pipeline-model-parallel-layout {}; results are the same",
                    layers, parts, m.arguments.at("pipeline_model_parallel_layout").text));
    return;
  }
  if (layers % parts != 0) {
    throw m.error_for(
        "pipeline_model_parallel_size",
        fmt::format("Megatron-LM cannot divide {} layers equally by {} pipeline stages", layers, parts),
        "choose a size that divides them, or set the layers of each stage by "
        "decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers or "
        "pipeline_model_parallel_layout");
  }
  const std::int64_t each = layers / parts;
  const std::int64_t chunk = m.t.num_layers_per_virtual_pipeline_stage.value_or(0);
  const std::int64_t chunks = m.t.virtual_pipeline_model_parallel_size.value_or(1);
  if ((chunk > 0 && each % chunk != 0) || each % chunks != 0) {
    throw m.error_for(
        chunk > 0 ? "num_layers_per_virtual_pipeline_stage" : "virtual_pipeline_model_parallel_size",
        fmt::format("Megatron-LM cannot divide the {} layers of a pipeline stage into {}", each,
                    chunk > 0 ? fmt::format("parts of {}", chunk) : fmt::format("{} parts", chunks)),
        "choose a number that divides them");
  }
}

// Drops recompute_layer_ids: Megatron-LM selects layers by count, and recomputation only affects memory and
// speed.
void recomputation(Megatron& m) {
  const Value* ids = m.experiment.settings.find("recompute_layer_ids");
  if (!ids || ids->is_null()) return;
  const bool whole = m.t.recompute_granularity == "full";
  if (whole) {
    m.put_text("recompute_method", "uniform");
    m.put_number("recompute_num_layers", 1);
  }
  m.job.warnings.push_back(
      fmt::format("recompute_layer_ids is left out, because Megatron-LM chooses layers by count and not by "
                  "number: {}; results are the same",
                  whole ? "every layer is recomputed, which takes less memory and more time"
                        : "recompute_granularity decides"));
}

// Drops AMD Primus's patches, which change the order of a pipeline's work but not its results.
void pipeline_patches(Megatron& m) {
  for (const char* key : {"patch_primus_pipeline", "patch_zero_bubble"}) {
    if (!m.is_true(key)) continue;
    m.job.warnings.push_back(
        fmt::format("{} is left out: Megatron-LM has only the schedules 1F1B and interleaved 1F1B; results "
                    "are the same, but speed and memory differ",
                    key));
  }
}

}  // namespace primus::backends::megatron
