#include "config/experiment.h"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "config/framework.h"
#include "config/keys.h"
#include "config/loading/inherit.h"
#include "config/loading/loading.h"
#include "config/loading/overrides.h"
#include "config/problems.h"
#include "config/readers.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "config/validation/not_yet.h"
#include "config/validation/validate.h"
#include "config/validation/zero_bubble.h"

namespace primus::config {
namespace fs = std::filesystem;
namespace {

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

ReadVariable reader_of(const LoadOptions& options) {
  return options.environment ? options.environment : process_variable;
}

FileLoader make_file_loader(const LoadOptions& options) {
  ReadVariable read = reader_of(options);
  std::vector<fs::path> dirs = options.preset_dirs ? *options.preset_dirs : default_preset_dirs(read);
  return {std::move(read), std::move(dirs),
          options.files ? options.files : std::make_shared<SettingsFiles>()};
}

// If an experiment uses the keys of another engine, throws one error that explains this, instead of many
// errors "unknown key".
void refuse_other_engines(const Loading& loading) {
  const std::string_view title = engine_name(loading.engine);
  if (loading.problems.empty() || title.empty() || parse_framework(loading.engine)) return;
  Error error = unsupported(
      fmt::format("this experiment is written for {}, which Primus cannot run yet", title),
      fmt::format(
          "write it with Megatron-LM's keys to run it with framework: native ('primus config reference' "
          "lists them){}",
          loading.result.model_preset.empty() ? ""
                                              : "; examples/native/configs has experiments for most models"));
  throw error.at(loading.engine_origin.location(), loading.engine_origin.snippet(loading.engine.size()));
}

// Adds the trainer keys of a file that uses our keys, from the weakest layer to the strongest.
void add_layers(Loading& loading, const Value& arguments) {
  if (const Value* name = preset_name(loading, "model"))
    add_preset(loading, *name, "models", Layer::kModelPreset);
  if (const Value* name = preset_name(loading, "config"))
    add_preset(loading, *name, "modules", Layer::kModulePreset);
  if (const Value* over = loading.module().find("overrides"); over && !over->is_null())
    add_layer(loading, *over, Layer::kOverrides);
  if (const Value* rate = loading.result.settings.find("lr"); rate && rate->is_scalar())
    loading.lr_of_file = rate->real;
  add_layer(loading, arguments, Layer::kCommandLine);
}

// Clears data paths that mock data replaces. validate_native() has already warned about them.
void drop_unread_paths(TrainerConfig& c) {
  if (!c.mock_data || stage_of(c).material != Material::kText) return;
  for (auto* paths : {&c.data_path, &c.train_data_path, &c.valid_data_path, &c.test_data_path})
    paths->clear();
}

// Warns of variables that the experiment sets and that its files use in ${...}.
void warn_of_own_variables(const FileLoader& files, const ReadVariable& read, Experiment& experiment) {
  for (const auto& [name, value] : experiment.env) {
    if (!files.variables().contains(name) || read(name) == value) continue;
    experiment.warnings.push_back(fmt::format(
        "{}: env.{} has no effect on ${{{}}} in this file: such variables are replaced before the "
        "experiment sets its own; export {} before the command instead",
        experiment.provenance_of("env." + name).describe(), name, name, name));
  }
}

Experiment load(FileLoader& files, Value root, const fs::path& file, std::span<const std::string> arguments,
                const LoadOptions& options) {
  Loading loading{.files = files,
                  .read_variable = reader_of(options),
                  .dir = file.parent_path(),
                  .file_name = file.stem().string(),
                  .wanted_module = options.module,
                  .root = std::move(root),
                  .lr_of_file = key_defaults().lr};
  Overrides overrides = parse_overrides(arguments);
  loading.result.warnings = overrides.notes;
  choose_module(loading, overrides);
  read_outline(loading);
  if (!read_foreign(loading, overrides.trainer)) add_layers(loading, overrides.trainer);
  bind(loading);
  refuse_other_engines(loading);
  Problems& problems = loading.problems;
  problems.throw_if_any();
  const bool native = loading.framework == Framework::kNative;
  derive_sink_windows(loading);
  if (native) take_zero_bubble(loading.result, problems);
  derive_fields(loading.result);
  if (native) {
    derive_native_settings(loading);
    validate_native(loading.result, problems, loading.result.warnings);
    drop_unread_paths(loading.result.trainer);
  }
  problems.throw_if_any();
  warn_of_own_variables(files, loading.read_variable, loading.result);
  if (loading.kept_settings.is_map()) loading.result.settings = std::move(loading.kept_settings);
  return std::move(loading.result);
}

}  // namespace

void set_train_iters(Experiment& experiment, std::int64_t train_iters) {
  experiment.trainer->train_iters = train_iters;
  experiment.provenance.insert_or_assign("train_iters", Provenance{Layer::kDerived, {}});
  if (!experiment.sets("lr_decay_iters")) experiment.trainer->lr_decay_iters = 0;
  derive_fields(experiment);
  Problems problems;
  // not used, because load_experiment() has already reported these warnings
  std::vector<std::string> reported_before;
  validate_native(experiment, problems, reported_before);
  problems.throw_if_any();
}

fs::path Experiment::output_dir() const { return fs::path(workspace) / work_group / user_name / exp_name; }

Experiment load_experiment(const fs::path& file, std::span<const std::string> overrides,
                           const LoadOptions& options) {
  FileLoader files = make_file_loader(options);
  return load(files, files.load(file), file, overrides, options);
}

Experiment load_experiment_text(std::string_view text, const std::string& name,
                                std::span<const std::string> overrides, const LoadOptions& options) {
  FileLoader files = make_file_loader(options);
  const std::shared_ptr<const Source> source = make_source(name, std::string(text));
  return load(files, files.load(source), fs::path(name), overrides, options);
}

Experiment load_recorded_experiment(std::string_view text, const std::string& name) {
  LoadOptions options;
  options.preset_dirs = default_preset_dirs(process_variable);
  options.environment = [](const std::string& variable) -> std::optional<std::string> {
    const char* const value = std::getenv(variable.c_str());
    return value ? value : R"("")";  // quotes, because an empty text would be null
  };
  return load_experiment_text(text, name, {}, options);
}

}  // namespace primus::config
