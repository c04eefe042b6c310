// TorchTitan and MaxText: settings as the framework's own configuration file.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "backends/job.h"
#include "base/error.h"
#include "config/foreign.h"
#include "lm/train/training_settings.h"

namespace primus::backends {
namespace {

using config::BackendField;
using config::KeyType;
using config::Value;

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A value as TOML and as YAML's flow style, of the field's type.
std::string inline_text(const Value& value, KeyType type) {
  using Kind = Value::Kind;
  if (value.is_null()) return "null";
  if (value.is_list()) {
    std::string text = "[";
    for (const Value& item : value.items)
      text += (text.size() > 1 ? ", " : "") + inline_text(item, KeyType::kAny);
    return text + "]";
  }
  if (value.is_map()) {
    std::string text = "{";
    for (const config::Member& member : value.members)
      text += (text.size() > 1 ? ", " : "") + quoted(member.key) + ": " +
              inline_text(member.value, KeyType::kAny);
    return text + "}";
  }
  const bool is_number = value.kind == Kind::kInt || value.kind == Kind::kFloat;
  if (type == KeyType::kString) return quoted(value.text);
  if (type == KeyType::kBool && is_number) return value.real != 0 ? "true" : "false";
  if (type == KeyType::kList && value.kind == Kind::kString) return "[" + quoted(value.text) + "]";
  if (is_number && (type == KeyType::kFloat || value.kind == Kind::kFloat)) {
    std::string text = fmt::format("{}", value.real);
    if (std::isfinite(value.real) && text.find_first_of(".e") == std::string::npos) text += ".0";
    // YAML 1.1 takes 1e-08 for text.
    if (const std::size_t e = text.find('e'); e != std::string::npos && text.find('.') == std::string::npos)
      text.insert(e, ".0");
    return text;
  }
  if (value.kind == Kind::kInt) return fmt::format("{}", value.integer);
  if (value.kind == Kind::kBool) return value.boolean ? "true" : "false";
  return quoted(value.text);
}

// The settings that the framework itself has; what Primus adds to them is noted in `job`.
Value own_settings(const config::Experiment& experiment, const config::BackendFields& fields,
                   ExternalJob& job) {
  Value result;
  result.kind = Value::Kind::kMap;
  config::for_each_setting(
      fields, experiment.settings, [&](const std::string& path, const config::Member& member) {
        if (fields.find(path)) {
          config::set_path(result, path, member.value);
        } else if (const Value* extra = config::find_extra(fields, path); extra && !member.value.is_null()) {
          const Value* because = extra->find("because");
          job.dropped[because ? because->text : "Primus adds it"].push_back(path);
        }
      });
  return result;
}

Value text_value(const std::string& text) {
  Value value;
  value.kind = Value::Kind::kString;
  value.text = text;
  return value;
}

void require_settings(const config::Experiment& experiment, const ExternalJob& job) {
  if (config::has_foreign_settings(experiment)) return;
  throw unsupported(
      fmt::format("the experiment is written with Megatron-LM's keys, which are not rendered for {} yet",
                  job.title),
      fmt::format("write its overrides with {}'s own settings (docs/backends.md), or choose framework: "
                  "native or megatron",
                  job.title))
      .at(experiment.provenance_of("framework").origin.location());
}

std::string toml(const Value& settings, const config::BackendFields& fields) {
  // Sections in the order of the table, each with its settings.
  std::map<std::string, std::string> sections;
  config::for_each_setting(fields, settings, [&](const std::string& path, const config::Member& member) {
    if (member.value.is_null()) return;  // TOML has no null: the default is meant
    const std::size_t dot = path.rfind('.');
    const BackendField* field = fields.find(path);
    sections[dot == std::string::npos ? "" : path.substr(0, dot)] +=
        fmt::format("{} = {}\n", member.key, inline_text(member.value, field->type));
  });
  std::string text = "# Written by Primus from an experiment.\n";
  for (const auto& [name, lines] : sections) text += fmt::format("\n[{}]\n{}", name, lines);
  return text;
}

// A hub's name where TorchTitan wants a folder: Primus's launcher downloads the tokenizer to
// DATA_PATH/torchtitan/NAME and puts that in its place.
void find_assets(Value& settings, const Path& checkout, ExternalJob& job) {
  constexpr const char* kKey = "model.hf_assets_path";
  const Value* assets = config::find_path(settings, kKey);
  std::error_code error;
  if (!assets || assets->is_null() || std::filesystem::is_directory(assets->text, error)) return;
  const std::string name = assets->text;
  const char* data = std::getenv("DATA_PATH");
  const Path folder = Path(data && *data ? data : "data") / "torchtitan";
  const Path there = folder / Path(name).filename();
  if (std::filesystem::is_directory(there, error)) {
    config::set_path(settings, kKey, text_value(std::filesystem::absolute(there).string()));
    return;
  }
  const std::string script =
      ((checkout.empty() ? Path("<TorchTitan>") : checkout) / "scripts/download_hf_assets.py").string();
  job.warnings.push_back(
      fmt::format("{} is '{}', and there is no such folder here, nor {}: TorchTitan will need its tokenizer; "
                  "for a model of "
                  "Hugging Face: python3 {} --repo_id {} --assets tokenizer --local_dir {}",
                  kKey, name, there.string(), script, name, folder.string()));
}

// What Primus sets for MaxText on AMD's GPUs (its env_spec.py). With XLA's autotuning off, products of fp8
// experts overflow.
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

}  // namespace

ExternalJob render_torchtitan(const config::Experiment& experiment, const config::BackendFields& fields,
                              const Path& checkout, const JobShape&) {
  ExternalJob job{.framework = "torchtitan", .title = fields.keys().find("title")->text, .command = {}};
  require_settings(experiment, job);
  Value settings = own_settings(experiment, fields, job);
  if (const Value* converters = config::find_path(settings, "model.converters");
      converters && converters->is_list()) {
    Value kept = *converters;
    if (std::erase_if(kept.items, [](const Value& item) { return item.text == "primus_turbo"; }) > 0)
      job.dropped["Primus-Turbo's kernels"].emplace_back("model.converters: primus_turbo");
    config::set_path(settings, "model.converters", kept);
  }
  const Value* mock = config::find_path(experiment.settings, "training.mock_data");
  if (mock && mock->boolean) {
    job.warnings.emplace_back(
        "TorchTitan has no generated data (training.mock_data): it reads the small text that comes with its "
        "sources, c4_test");
    config::set_path(settings, "training.dataset", text_value("c4_test"));
    config::set_path(settings, "training.dataset_path", Value{});
    if (!checkout.empty())
      config::set_path(settings, "training.dataset_path",
                       text_value((checkout / "tests/assets/c4_test").string()));
  }
  const Path run = std::filesystem::absolute(run_folder_of(experiment).root()).lexically_normal();
  config::set_path(settings, "job.dump_folder", text_value(run.string()));
  // Primus's own extension of the settings is not part of a plain TorchTitan.
  const Value* module = config::find_path(settings, "experimental.custom_args_module");
  if (module && module->text.starts_with("primus."))
    config::set_path(settings, "experimental.custom_args_module", Value{});
  find_assets(settings, checkout, job);
  const Path file = run / "torchtitan.toml";
  job.files.push_back({file, toml(settings, fields)});
  job.command = {"-m", fields.keys().find("entry")->text, "--job.config_file", file.string()};
  if (!checkout.empty()) job.environment["PYTHONPATH"] = checkout.string();
  return job;
}

ExternalJob render_maxtext(const config::Experiment& experiment, const config::BackendFields& fields,
                           const Path& checkout, const JobShape& shape) {
  ExternalJob job{.framework = "maxtext", .title = fields.keys().find("title")->text, .command = {}};
  require_settings(experiment, job);
  Value settings = own_settings(experiment, fields, job);
  maxtext_environment(shape.amd_model, job);
  job.process_per_node = true;
  job.last_rank_reports = false;
  const Path run = std::filesystem::absolute(run_folder_of(experiment).root()).lexically_normal();
  config::set_path(settings, "base_output_directory", text_value(run.parent_path().string()));
  config::set_path(settings, "run_name", text_value(run.filename().string()));
  // On CPUs it wants a cluster's variables, even alone.
  const Value* hardware = settings.find("hardware");
  if (hardware && hardware->text == "cpu" && shape.nodes == 1 &&
      !settings.find("skip_jax_distributed_system"))
    config::set_path(settings, "skip_jax_distributed_system", config::plain_scalar("true", {}));
  // A token stands in the environment alone: its file would show it.
  std::erase_if(settings.members,
                [](const config::Member& member) { return member.key == "hf_access_token"; });
  // base_config names the file that this one extends, which MaxText looks for beside its own.
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

}  // namespace primus::backends
