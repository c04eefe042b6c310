// TorchTitan: writes the experiment as TorchTitan's configuration file, and parses its log.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "backends/backend.h"
#include "backends/log_text.h"
#include "backends/own_settings.h"
#include "config/foreign.h"
#include "lm/train/settings/training_settings.h"

namespace primus::backends {
namespace {

using config::BackendField;
using config::Value;

std::string toml(const Value& settings, const config::BackendFields& fields) {
  // The text of each section, by section name.
  std::map<std::string, std::string> sections;
  config::for_each_setting(fields, settings, [&](const std::string& path, const config::Member& member) {
    if (member.value.is_null()) return;  // TOML has no null; omitting the key selects the default
    const std::size_t dot = path.rfind('.');
    const BackendField* field = fields.find(path);
    sections[dot == std::string::npos ? "" : path.substr(0, dot)] +=
        fmt::format("{} = {}\n", member.key, inline_text(member.value, field->type));
  });
  std::string text = "# Written by Primus from an experiment.\n";
  for (const auto& [name, lines] : sections) text += fmt::format("\n[{}]\n{}", name, lines);
  return text;
}

// Replaces a hub name in a setting for which TorchTitan requires a folder. AMD Primus's launcher downloads
// the tokenizer to DATA_PATH/torchtitan/NAME, so that folder is used if it exists.
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
  job.warnings.push_back(fmt::format(
      "{} is '{}', but neither that folder nor {} exists here: TorchTitan will need the tokenizer in it. To "
      "download one from Hugging Face: python3 {} --repo_id {} --assets tokenizer --local_dir {}",
      kKey, name, there.string(), script, name, folder.string()));
}

std::int64_t integer_of(const Value& settings, std::string_view path, std::int64_t otherwise) {
  const Value* const value = config::find_path(settings, path);
  return value && value->kind == Value::Kind::kInt ? value->integer : otherwise;
}

// Warns if the ranks cannot be divided as the settings say, or cannot divide the batch.
void check_ranks(const Value& settings, const config::BackendFields& fields, std::int64_t ranks,
                 ExternalJob& job) {
  const std::size_t before = job.warnings.size();
  // Expert ranks are also ranks of data, context and tensor parallelism.
  const auto is_degree = [](std::string_view path) {
    return path.starts_with("parallelism.") && path.ends_with("_degree") &&
           path.find("expert") == std::string_view::npos;
  };
  const bool complete = integer_of(settings, "parallelism.data_parallel_shard_degree", -1) > 0;
  warn_of_uneven_mesh(settings, fields, is_degree, complete, ranks, job);
  const std::int64_t global = integer_of(settings, "training.global_batch_size", -1);
  if (ranks == 1 || global <= 0 || job.warnings.size() > before) return;
  std::int64_t data = ranks;
  for (const char* other : {"tensor", "context", "pipeline"})
    data /= std::max<std::int64_t>(
        integer_of(settings, fmt::format("parallelism.{}_parallel_degree", other), 1), 1);
  const std::int64_t unit = data * integer_of(settings, "training.local_batch_size", 8);
  if (unit > 0 && global % unit != 0) {
    job.warnings.push_back(fmt::format(
        "training.global_batch_size {} is not a multiple of {}, which is training.local_batch_size x "
        "data-parallel ranks: {} will refuse this",
        global, unit, job.title));
  }
}

ExternalJob render_torchtitan(const config::Experiment& experiment, const config::BackendFields& fields,
                              const Path& checkout, const JobShape& shape) {
  ExternalJob job{.framework = "torchtitan", .title = fields.keys().find("title")->text, .command = {}};
  require_settings(experiment, job);
  Value settings = own_settings(experiment, fields, job);
  check_ranks(settings, fields, shape.ranks(), job);
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
        "TorchTitan has no generated data (training.mock_data): it reads the small text in its sources, "
        "c4_test");
    config::set_path(settings, "training.dataset", text_value("c4_test"));
    config::set_path(settings, "training.dataset_path", Value{});
    if (!checkout.empty())
      config::set_path(settings, "training.dataset_path",
                       text_value((checkout / "tests/assets/c4_test").string()));
  }
  const Path run = std::filesystem::absolute(run_folder_of(experiment).root()).lexically_normal();
  config::set_path(settings, "job.dump_folder", text_value(run.string()));
  // The setting names AMD Primus's extension of TorchTitan's settings, which plain TorchTitan does not have.
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

// step: 20  loss:  8.0488  grad_norm:  1.4  memory: 48.87GiB(51.44%)  tps: 4,376  tflops: 25.1  mfu: 8.0%
std::optional<IterationRecord> torchtitan_iteration(std::string_view line) {
  const auto iteration = count(number_behind(line, "step:"));
  const auto loss = number_behind(line, " loss:");
  if (!iteration || *iteration == 0 || !loss || line.find("tps:") == std::string_view::npos ||
      line.find("validate") != std::string_view::npos) {
    return std::nullopt;
  }
  IterationRecord record;
  record.iteration = *iteration;
  record.lm_loss = *loss;
  record.grad_norm = number_behind(line, "grad_norm:");
  record.learning_rate = number_behind(line, " lr:").value_or(0);
  Speed& now = record.throughput.now;
  now.tokens_per_second = number_behind(line, "tps:").value_or(0);
  now.flops_per_second = number_behind(line, "tflops:").value_or(0) * 1e12;
  if (const auto mfu = number_behind(line, "mfu:")) now.mfu = *mfu / 100;
  const std::string_view memory = text_after(line, "memory:");
  if (const auto gib = number(memory)) {
    constexpr double kGiB = 1073741824.0;
    const std::size_t bracket = memory.find('(');
    const auto share = bracket < 16 ? number(memory.substr(bracket + 1)) : std::nullopt;
    record.memory = DeviceMemory{"gpu", *gib * kGiB, share && *share > 0 ? *gib * kGiB / (*share / 100) : 0};
  }
  return record;
}

std::optional<EvaluationRecord> torchtitan_evaluation(std::string_view line, std::int64_t last) {
  const auto loss = number_behind(line, " loss:");
  if (line.find("validate step:") == std::string_view::npos || !loss) return std::nullopt;
  EvaluationRecord record;
  record.iteration = count(number_behind(line, "validate step:")).value_or(last);
  record.lm_loss = *loss;
  return record;
}

}  // namespace

extern const BackendEntry kTorchTitan{"torchtitan", render_torchtitan, torchtitan_iteration,
                                      torchtitan_evaluation};

}  // namespace primus::backends
