#include "lm/train/mlperf_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include "base/error.h"
#include "config/trainer_config.h"

namespace primus {
namespace {

bool is_off(const std::optional<std::string>& text) {
  return text == "0" || text == "false" || text == "False" || text == "no";
}

std::int64_t steps_of(const std::string& name, const std::string& text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || value < 0) {
    throw invalid(fmt::format("{} is '{}', which is not a number of steps", name, text.substr(0, 80)),
                  fmt::format("set {} to an integer, 0 for none", name));
  }
  return value;
}

// Adds the fields about the submitter. Appends the names of missing fields to `notes`.
void add_submission(MlperfEntries& entries, const ReadVariable& variable, std::vector<std::string>& notes) {
  struct Name {
    const char *key, *variable;
    bool required;
  };
  std::vector<std::string> missing;
  for (const Name& name :
       std::initializer_list<Name>{{"submission_benchmark", "MLLOG_SUBMISSION_BENCHMARK", true},
                                   {"submission_org", "MLLOG_SUBMISSION_ORG", true},
                                   {"submission_division", "MLLOG_SUBMISSION_DIVISION", true},
                                   {"submission_platform", "MLLOG_SUBMISSION_PLATFORM", true},
                                   {"submission_status", "MLLOG_SUBMISSION_STATUS", false},
                                   {"submission_poc_name", "MLLOG_SUBMISSION_POC_NAME", false},
                                   {"submission_poc_email", "MLLOG_SUBMISSION_POC_EMAIL", false}}) {
    if (const auto text = variable(name.variable)) {
      entries.emplace_back(name.key, *text);
    } else if (name.required) {
      missing.emplace_back(name.variable);
    }
  }
  if (!missing.empty()) {
    notes.push_back(
        fmt::format("MLPerf's rules need more fields than the log will have: set {} in the environment",
                    fmt::join(missing, ", ")));
  }
}

void add_optimizer(MlperfEntries& entries, const config::TrainerConfig& c) {
  const bool adamw = c.optimizer == "adam";
  entries.emplace_back("opt_name", adamw ? "adamw" : c.optimizer);
  entries.emplace_back("opt_base_learning_rate", c.lr);
  entries.emplace_back("opt_end_learning_rate", c.min_lr);
  entries.emplace_back("opt_learning_rate_warmup_steps", c.lr_warmup_iters);
  entries.emplace_back("opt_learning_rate_decay_steps", c.lr_decay_iters);
  entries.emplace_back("opt_learning_rate_decay_schedule", c.lr_decay_style + " with linear warmup");
  if (adamw) {
    entries.emplace_back("opt_adamw_beta_1", c.adam_beta1);
    entries.emplace_back("opt_adamw_beta_2", c.adam_beta2);
    entries.emplace_back("opt_adamw_epsilon", c.adam_eps);
  }
  entries.emplace_back(adamw ? "opt_adamw_weight_decay" : "opt_weight_decay", c.weight_decay);
  entries.emplace_back("opt_gradient_clip_norm", c.clip_grad);
}

}  // namespace

std::optional<std::string> process_variable(const std::string& name) {
  const char* const text = std::getenv(name.c_str());
  return text && *text ? std::optional<std::string>(text) : std::nullopt;
}

MlperfOptions mlperf_options_of(const config::TrainerConfig& trainer, const engine::MeshShape& shape,
                                int ranks, engine::Sharding sharding, const RunFolder& folder,
                                std::vector<std::string>& notes, const ReadVariable& variable) {
  const config::TrainerConfig& c = trainer;
  MlperfOptions options{.file = folder.mlperf_log(),
                        .global_batch_size = c.global_batch_size,
                        .train_iters = c.train_iters,
                        .throughput = !is_off(variable("MLLOG_BLOCK_TPUT_LOG"))};
  if (const auto file = variable("MLLOG_OUTPUT_FILE"); file && !is_off(variable("MLLOG_SAVE_TO_FILE")))
    options.file = *file;
  constexpr const char* kInterval = "MLLOG_TRAIN_LOSS_LOG_FREQ";
  if (const auto interval = variable(kInterval)) options.loss_interval = steps_of(kInterval, *interval);

  MlperfEntries& entries = options.entries;
  add_submission(entries, variable, notes);
  entries.emplace_back("config_filename",
                       variable("MLLOG_CONFIG_FILENAME").value_or(RunFolder::kExperimentFile));
  if (c.target_eval_loss) entries.emplace_back("target_accuracy", *c.target_eval_loss);
  entries.emplace_back("seed", c.seed);
  entries.emplace_back("global_batch_size", c.global_batch_size);
  entries.emplace_back("gradient_accumulation_steps", c.num_microbatches(shape.data(ranks)));
  entries.emplace_back("micro_batch_size", c.micro_batch_size);
  entries.emplace_back("max_sequence_length", c.seq_length);
  entries.emplace_back("max_steps", c.train_iters);
  entries.emplace_back("train_samples", c.train_iters * c.global_batch_size);
  entries.emplace_back("eval_samples", c.eval_iters * c.global_batch_size);
  add_optimizer(entries, c);
  entries.emplace_back("tensor_parallelism", std::int64_t{shape.tensor});
  entries.emplace_back("pipeline_parallelism", std::int64_t{shape.pipeline});
  entries.emplace_back("context_parallelism", std::int64_t{shape.context});
  entries.emplace_back("expert_parallelism", std::int64_t{shape.expert});
  const std::string values = c.bf16 ? "bfloat16" : "fp32";
  entries.emplace_back("lowest_numerical_precision_in_linear", c.fp4 ? "fp4" : c.fp8 ? "fp8" : values);
  entries.emplace_back("lowest_numerical_precision_in_attn", values);
  // Plain data parallelism communicates only gradients; other layouts also communicate activations or
  // weights.
  const bool gradients_alone =
      shape.data(ranks) == ranks && shape.expert == 1 && sharding == engine::Sharding::kNone;
  const bool fp32_gradients = c.main_grads_dtype == "fp32" && !c.grad_reduce_in_bf16;
  entries.emplace_back("lowest_numerical_precision_in_comm",
                       gradients_alone && fp32_gradients ? "fp32" : values);
  return options;
}

}  // namespace primus
