// MaxText: writes the experiment as MaxText's configuration file, and parses its log.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "backends/backend.h"
#include "backends/log_text.h"
#include "backends/own_settings.h"
#include "config/foreign.h"
#include "lm/train/settings/training_settings.h"

namespace primus::backends {
namespace {

using config::Value;

// Sets the variables that AMD Primus's env_spec.py sets for MaxText on AMD GPUs. With XLA's autotuning off,
// fp8 expert products overflow.
void maxtext_environment(const std::string& amd_model, ExternalJob& job) {
  if (amd_model.empty()) return;
  const char* level = std::getenv("XLA_GPU_AUTOTUNE_LEVEL");
  job.environment = {
      {"XLA_FLAGS",
       fmt::format("--xla_gpu_memory_limit_slop_factor=95 "
                   "--xla_gpu_reduce_scatter_combine_threshold_bytes=8589934592 "
                   "--xla_gpu_enable_command_buffer='' "
                   "--xla_gpu_enable_latency_hiding_scheduler=true "
                   "--xla_gpu_all_gather_combine_threshold_bytes=8589934592 "
                   "--xla_gpu_enable_triton_gemm=false --xla_gpu_enable_cublaslt=true "
                   "--xla_gpu_autotune_level={} --xla_gpu_enable_all_gather_combine_by_dim=false",
                   level && *level ? level : "4")},
      {"XLA_PYTHON_CLIENT_MEM_FRACTION", ".97"},
      {"TF_CPP_MIN_LOG_LEVEL", "2"},
      {"NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1"},
      {"NVTE_USE_HIPBLASLT", "1"},
      {"NVTE_FUSED_ATTN", "1"},
      {"NVTE_FUSED_ATTN_CK", "1"},
      {"NVTE_FUSED_ATTN_AOTRITON", "0"},
      {"NVTE_CK_USES_BWD_V3", "1"},
      {"NVTE_CK_USES_FWD_V3", "1"},
      {"NVTE_CK_IS_V3_ATOMIC_FP32", "0"},
      {"NVTE_CK_HOW_V3_BF16_CVT", "2"},
      {"GPU_MAX_HW_QUEUES", "2"},
      {"HIP_FORCE_DEV_KERNARG", "1"},
      {"HSA_FORCE_FINE_GRAIN_PCIE", "1"},
  };
  if (amd_model == "MI350X" || amd_model == "MI355X") job.environment["RCCL_WARP_SPEED_AUTO"] = "0";
  if (amd_model == "MI300X") job.environment["HSA_NO_SCRATCH_RECLAIM"] = "1";
}

ExternalJob render_maxtext(const config::Experiment& experiment, const config::BackendFields& fields,
                           const Path& checkout, const JobShape& shape) {
  ExternalJob job{.framework = "maxtext", .title = fields.keys().find("title")->text, .command = {}};
  require_settings(experiment, job);
  Value settings = own_settings(experiment, fields, job);
  maxtext_environment(shape.amd_model, job);
  const auto is_degree = [](std::string_view path) {
    return (path.starts_with("ici_") || path.starts_with("dcn_")) && path.ends_with("_parallelism");
  };
  warn_of_uneven_mesh(settings, fields, is_degree, false, shape.ranks(), job);
  job.process_per_node = true;
  job.last_rank_reports = false;
  const Path run = std::filesystem::absolute(run_folder_of(experiment).root()).lexically_normal();
  config::set_path(settings, "base_output_directory", text_value(run.parent_path().string()));
  config::set_path(settings, "run_name", text_value(run.filename().string()));
  // On CPUs, MaxText would require the variables of a cluster even for a single process, unless this is set.
  const Value* hardware = settings.find("hardware");
  if (hardware && hardware->text == "cpu" && shape.nodes == 1 &&
      !settings.find("skip_jax_distributed_system"))
    config::set_path(settings, "skip_jax_distributed_system", config::plain_scalar("true", {}));
  // The token is removed from the settings and passed in the environment, because other users could read the
  // file.
  std::erase_if(settings.members,
                [](const config::Member& member) { return member.key == "hf_access_token"; });
  // base_config names the file that the written file extends. MaxText searches for it next to its own files.
  if (const Value* base = settings.find("base_config"); !base || base->is_null() || base->text.empty())
    config::set_path(settings, "base_config", text_value("base.yml"));
  std::string text = "# Written by Primus from an experiment.\n";
  for (const config::Member& member : settings.members) {
    if (member.value.is_null()) continue;
    text += fmt::format("{}: {}\n", member.key, inline_text(member.value, fields.find(member.key)->type));
  }
  const Path file = run / "maxtext.yml";
  job.files.push_back({file, text});
  job.command = {"-m", fields.keys().find("entry")->text, file.string()};
  if (!checkout.empty()) job.environment["PYTHONPATH"] = (checkout / "src").string();
  return job;
}

// completed step: 4, seconds: 0.512, TFLOP/s/device: 210.1, Tokens/s/device: 8000.0, total_weights: 65536,
// loss: 9.1
std::optional<IterationRecord> maxtext_iteration(std::string_view line) {
  const auto step = count(number_behind(line, "completed step:"));
  if (!step) return std::nullopt;
  IterationRecord record;
  record.iteration = *step + 1;  // MaxText counts steps from 0
  // lm_loss excludes the losses that mixtures of experts add; dense models may log lm_loss 0.
  const auto lm_loss = number_behind(line, ", lm_loss:");
  record.lm_loss =
      lm_loss && *lm_loss != 0 ? *lm_loss : number_behind(line, ", loss:").value_or(std::nan(""));
  record.learning_rate = number_behind(line, "learning_rate:").value_or(0);
  Speed& now = record.throughput.now;
  now.seconds_per_iteration = number_behind(line, ", seconds:").value_or(0);
  now.flops_per_second = number_behind(line, "TFLOP/s/device:").value_or(0) * 1e12;
  now.tokens_per_second = number_behind(line, "Tokens/s/device:").value_or(0);
  return record;
}

std::optional<EvaluationRecord> maxtext_evaluation(std::string_view line, std::int64_t last) {
  const auto loss = number_behind(line, "loss=");
  if (line.find("eval metrics after step:") == std::string_view::npos || !loss) return std::nullopt;
  EvaluationRecord record;
  record.iteration = count(number_behind(line, "after step:")).value_or(last - 1) + 1;
  record.lm_loss = *loss;
  return record;
}

}  // namespace

extern const BackendEntry kMaxText{"maxtext", render_maxtext, maxtext_iteration, maxtext_evaluation};

}  // namespace primus::backends
