#include "cli/options/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "base/text/suggest.h"
#include "config/experiment_keys.h"
#include "config/key_hints.h"
#include "config/keys.h"
#include "config/loading/inherit.h"
#include "config/problems.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "config/validation/missing_data.h"
#include "lm/data/blend_list.h"
#include "lm/generate/model_folder.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus::cli {
namespace {

// The key that names the data for fine-tuning.
constexpr std::string_view kConversations = "sft_dataset_name";

// A mistyped option looks like an override with an unknown key. For such errors, suggests the nearest option.
Error with_option_in_mind(const Error& error, const Arguments& declared, std::span<const std::string> words) {
  std::vector<std::string_view> options;
  for (const Argument& argument : declared.all()) {
    options.insert(options.end(), argument.names.begin(), argument.names.end());
  }
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    const bool blamed = error.snippet().find(word) != std::string::npos;
    const std::string near = did_you_mean_option(name, options);
    if (blamed && name.starts_with("--") && !near.empty() && !error.hint().starts_with("did you mean")) {
      return invalid(error.what(), near).at(error.location(), error.snippet());
    }
  }
  return error;
}

// Returns the words for completion: "lr=", and after the '=' the values of a key with choices.
std::vector<Suggestion> suggest_overrides(std::string_view typed) {
  std::vector<Suggestion> words;
  const std::size_t equals = typed.find('=');
  if (equals == std::string_view::npos) {
    for (const config::ExperimentKey& key : config::kExperimentKeys) {
      words.push_back({std::string(key.name) + "=", std::string(key.help)});
    }
    for (const config::KeySpec& key : config::all_keys()) {
      if (!key.has_meaning_for(config::Framework::kNative)) continue;
      words.push_back({std::string(key.name) + "=", std::string(key.help)});
    }
    return words;
  }
  const config::KeySpec* const key = config::find_key(typed.substr(0, equals));
  if (!key) return words;
  const std::string begin(typed.substr(0, equals + 1));
  std::vector<std::string_view> values = key->native_values.empty() ? key->choices : key->native_values;
  if (values.empty() && key->type == config::KeyType::kBool) values = {"true", "false"};
  for (const std::string_view value : values) words.push_back({begin + std::string(value), {}});
  return words;
}

// Notes settings of the user that mean something else than in AMD Primus.
void note_meanings(const config::Experiment& experiment, std::vector<std::string>& lines) {
  if (experiment.trainer->fp4) {
    lines.emplace_back(
        "note: fp4: Primus rounds values to fp4 and computes the products in bf16, on every device: this is "
        "slower than bf16 without fp4");
  }
  const config::Value* const save = experiment.settings.find("save");
  if (save && save->is_null() && experiment.provenance_of("save").layer >= config::Layer::kOverrides) {
    lines.emplace_back(
        "note: save is null: checkpoints are written to the run's folder, but AMD Primus would write none; "
        "disable_last_saving=true with save_interval above train_iters writes none, unless the run is "
        "stopped");
  }
}

// If the experiment enables a tracker (disable_wandb: false, wandb_project), adds a line that says how to
// upload its curves.
void note_tracker(const config::Experiment& experiment, const std::string& tracker, const char* name,
                  const char* instead, std::vector<std::string>& lines) {
  const config::Value* const disabled = experiment.settings.find("disable_" + tracker);
  const bool asked = disabled && disabled->kind == config::Value::Kind::kBool && !disabled->boolean;
  const auto key = std::ranges::find_if(
      experiment.ignored, [&](const std::string& ignored) { return ignored.starts_with(tracker + "_"); });
  if (!asked && key == experiment.ignored.end()) return;
  lines.push_back(fmt::format("note: nothing is sent to {} ({}): {} (docs/watching.md)", name,
                              asked ? "disable_" + tracker : *key, instead));
}

// Returns whether the model has pooled latents (DeepSeek-V4). Errors in the folder are reported when the
// model is loaded.
bool reads_whole_sequences(const std::string& load) {
  try {
    return load_model_config(find_model_folder(load), builtin_families()).any_keeps(Keeps::kPooled);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void ExperimentArguments::declare(Arguments& arguments, bool needs_file, const std::string& module,
                                  const std::string& stage) {
  declared_ = &arguments;
  module_ = module;
  stage_ = stage;
  Argument& file = arguments.option("--config,--exp", "FILE", &file_, "the experiment, YAML or TOML");
  file.required = needs_file;
  file.if_repeated =
      "name one experiment; it can inherit from other files (extends: [other.yaml]), and settings may follow "
      "as KEY=VALUE";
  arguments
      .rest("overrides", overrides_, "settings that override the experiment's, e.g. lr=1e-3 --train_iters 50")
      .suggest = suggest_overrides;
}

std::vector<std::string> ExperimentArguments::settings() const {
  std::vector<std::string> words = overrides_;
  if (module_ != "post_trainer") return words;
  for (std::string& word : words) {
    const std::string_view name = std::string_view(word).substr(0, word.find('='));
    if (name == "--data" || (name == "data" && name.size() < word.size()))
      word = fmt::format("{}{}{}", name == "data" ? "" : "--", kConversations, word.substr(name.size()));
  }
  return words;
}

void ExperimentArguments::check_where_it_is(const std::map<std::string, std::string>& variables) const {
  if (!names_a_file() || Env::posix().status(file_)) read(1, variables);
}

config::Experiment ExperimentArguments::load_with(const std::vector<std::string>& settings,
                                                  std::int64_t ranks) {
  // Removes earlier values of these settings, so that no note reports a setting that is given twice.
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('=') + 1);
    std::erase_if(overrides_, [&](const std::string& given) { return given.starts_with(key); });
  }
  overrides_.insert(overrides_.end(), settings.begin(), settings.end());
  return read(ranks, {});
}

config::Experiment ExperimentArguments::read(std::int64_t ranks,
                                             const std::map<std::string, std::string>& variables) const {
  config::LoadOptions options;
  options.module = module_;
  options.files = files_;
  // Reads the environment of the job that is about to start: `variables`, and then the variables of this
  // process.
  options.environment = [this, ranks, &variables](const std::string& name) -> std::optional<std::string> {
    if (const auto found = variables.find(name); found != variables.end()) return found->second;
    const char* value = std::getenv(name.c_str());
    if (value) variables_->insert(name);
    if (value) return value;
    return name == "WORLD_SIZE" && ranks > 1 ? std::optional(std::to_string(ranks)) : std::nullopt;
  };
  config::Experiment experiment = [&] {
    try {
      return file_.empty() ? load_without_file() : config::load_experiment(file_, settings(), options);
    } catch (const config::SeveralProblems&) {
      throw;
    } catch (const Error& error) {
      throw with_option_in_mind(error, *declared_, overrides_);
    }
  }();
  // Reports invalid model_type values. (For a loaded model, reading the model reports its errors.)
  if (experiment.framework == "native" && !experiment.trainer->load) {
    model_config_of(experiment, experiment.trainer->vocab_size.value_or(1), builtin_families(),
                    &experiment.warnings);
  }
  return experiment;
}

config::Experiment ExperimentArguments::load(const Console& console, std::int64_t ranks,
                                             const std::map<std::string, std::string>& variables) const {
  config::Experiment experiment = read(ranks, variables);
  announce(experiment, console);
  return experiment;
}

void ExperimentArguments::announce(const config::Experiment& experiment, const Console& console) {
  for (const std::string& line : announcements(experiment)) console.note(line);
}

std::vector<std::string> ExperimentArguments::announcements(const config::Experiment& experiment) {
  std::vector<std::string> lines;
  if (!experiment.other_modules.empty()) {
    lines.push_back(fmt::format("note: the experiment has several modules; Primus runs {}, and not {}",
                                experiment.module_name, fmt::join(experiment.other_modules, ", ")));
  }
  if (experiment.module_name != "pre_trainer" && experiment.module_name != "post_trainer") {
    lines.push_back(fmt::format(
        "note: the experiment's only trainer is the module '{}', so Primus runs it; the usual names are "
        "pre_trainer and post_trainer",
        printable(experiment.module_name)));
  }
  if (!experiment.written_for.empty()) {
    lines.push_back(fmt::format("note: the experiment is written for {}; the native engine runs it",
                                experiment.written_for));
  }
  for (const std::string& warning : experiment.warnings) lines.push_back("warning: " + warning);
  // Only for the native engine: for other frameworks, rendering the experiment reports unsupported settings.
  if (!experiment.ignored.empty() && experiment.framework == "native") {
    // AMD Primus's presets set hundreds of keys that are ignored. The note names the ignored keys that the
    // user wrote, and counts all others.
    std::vector<std::string> own;
    std::ranges::copy_if(experiment.ignored, std::back_inserter(own), [&](const std::string& key) {
      return (experiment.provenance_of(key).layer >= config::Layer::kOverrides || key == "platform") &&
             !experiment.replaced.contains(key);
    });
    const std::size_t of_presets = experiment.ignored.size() - own.size() - experiment.replaced.size();
    std::string what = fmt::format("{}", fmt::join(own, ", "));
    if (of_presets > 0) {
      what += fmt::format("{}{} of presets ('primus config show' lists them)", own.empty() ? "" : ", and ",
                          of_presets == 1 ? "a key" : fmt::format("{} keys", of_presets));
    }
    for (const auto& [key, instead] : experiment.replaced)
      lines.push_back(fmt::format("note: {}: in the native engine, {}", experiment.name_of(key), instead));
    if (!what.empty()) {
      lines.push_back(
          fmt::format("note: framework {} ignores these keys, which affect neither results nor memory: {}",
                      experiment.framework, what));
    }
    note_tracker(experiment, "wandb", "Weights & Biases",
                 "scripts/wandb_offline.py converts a run's folder to an offline run for 'wandb sync'",
                 lines);
    note_tracker(experiment, "mlflow", "MLflow",
                 "'primus report RUN --mlflow mlruns' writes a run's folder as MLflow files", lines);
  }
  if (experiment.framework == "native") note_meanings(experiment, lines);
  return lines;
}

std::vector<std::filesystem::path> ExperimentArguments::files_of(const config::Experiment& experiment) const {
  std::set<std::filesystem::path> files;
  for (const auto& [key, provenance] : experiment.provenance) {
    const auto& source = provenance.origin.source;
    std::error_code unreadable;
    if (source && source->is_file && std::filesystem::is_regular_file(source->name, unreadable))
      files.insert(source->name);
  }
  if (!file_.empty()) {  // a file that is extended may set no key that another file does not replace
    const auto read = [](const std::string& name) -> std::optional<std::string> {
      const char* const value = std::getenv(name.c_str());
      return value ? value : "";
    };
    try {
      config::FileLoader loader(read, config::default_preset_dirs(read), files_);
      loader.load(file_);
      files.insert(loader.loaded().begin(), loader.loaded().end());
    } catch (const Error&) {  // a name in extends contains a variable that only the job has
    }
  }
  return {files.begin(), files.end()};
}

bool ExperimentArguments::names_a_model() const {
  return std::ranges::any_of(overrides_, [](const std::string& word) {
    return word.starts_with("load=") || word == "--load" || word.starts_with("--load=");
  });
}

// Returns whether a run without an experiment file is a fine-tuning run. A run whose data are conversations
// is always a fine-tuning run.
bool ExperimentArguments::fine_tunes() const {
  return module_ == "post_trainer" || std::ranges::any_of(overrides_, [&](std::string_view word) {
           if (word.starts_with("--")) word.remove_prefix(2);
           return word.substr(0, word.find('=')) == kConversations;
         });
}

// Reports a first word that is not a setting: an experiment without --config, or a model without load=.
void ExperimentArguments::refuse_lone_word(const std::string& start) const {
  if (overrides_.empty()) return;
  const std::string& word = overrides_.front();
  if (word.starts_with("--") || word.find('=') != std::string::npos) return;
  std::error_code unreadable;
  const std::string ending = std::filesystem::path(word).extension().string();
  const bool is_experiment = ending == ".yaml" || ending == ".yml" || ending == ".toml";
  const bool is_folder = std::filesystem::is_directory(word, unreadable);
  throw invalid(fmt::format("'{}' is neither an option nor a setting (key=value)", word),
                is_experiment ? fmt::format("did you mean '--config {}'?", word)
                : is_folder   ? fmt::format("did you mean 'load={}'? {}", word, start)
                              : start);
}

// Reports words that are neither options of the command nor settings: --model X --data Y. `start`: the
// suggested replacement.
void ExperimentArguments::refuse_unknown_options(const std::string& start) const {
  std::vector<std::string_view> options;
  for (const Argument& argument : declared_->all())
    options.insert(options.end(), argument.names.begin(), argument.names.end());
  std::vector<std::string> unknown, hints;
  for (const std::string& word : settings()) {
    if (!word.starts_with("--") || word.size() < 3) continue;
    const std::string name = word.substr(0, word.find('='));
    std::string key = name.substr(2);
    std::ranges::replace(key, '-', '_');
    const bool is_model = key == "model";  // `model` is also a key: the model preset of an experiment
    if (!is_model &&
        (config::find_key(key) || config::is_experiment_key(key) || key.find('.') != std::string::npos))
      continue;
    unknown.push_back(fmt::format("'{}'", name));
    const std::string near = did_you_mean_option(name, options);
    hints.push_back(fmt::format("{}: {}", name,
                                is_model        ? "did you mean 'load'? (a model's folder)"
                                : !near.empty() ? near
                                                : config::hint_for_unknown_key(key)));
  }
  if (unknown.empty()) return;
  hints.push_back(start);
  throw invalid(fmt::format("{} {} here", fmt::join(unknown, " and "),
                            unknown.size() == 1 ? "is not an option" : "are not options"),
                fmt::format("{}", fmt::join(hints, "; ")));
}

// Builds the experiment when no file is given: one epoch over the data with validation and samples. For
// conversations, sft_fit_to_data chooses the length.
config::Experiment ExperimentArguments::load_without_file() const {
  const bool tunes = fine_tunes();
  const bool learns_answers = tunes && stage_ == "sft";
  const bool packs = learns_answers || (tunes && stage_ == "distill");
  const auto with_rewards = config::stages_with_rewards();
  const bool generates = tunes && std::ranges::find(with_rewards, stage_) != with_rewards.end();
  const std::string module = tunes ? "post_trainer" : module_;
  const std::vector<std::string> given = settings();
  const bool samples = !generates && stage_ != "reward";  // a reward model generates no text
  bool whole_sequences = false;  // the model supports neither generation nor packed sequences
  const auto load_as = [&](const std::string& exp_name) {
    return config::load_experiment_text(
        fmt::format("exp_name: {}\n"
                    "modules:\n"
                    "  {}:\n"
                    "    framework: native\n"
                    "    config: {}.yaml\n"
                    "    overrides:\n"
                    "      train_epochs: 1\n"
                    "{}{}{}{}",
                    json_text(nlohmann::json(exp_name), -1), module,
                    tunes ? stage_ + "_trainer" : "pre_trainer",
                    // For reinforcement learning, the preset sets the batch, and nothing is evaluated.
                    generates ? ""
                              : "      micro_batch_size: 1\n"
                                "      global_batch_size: 8\n"
                                "      lr_warmup_fraction: 0.05\n"
                                "      eval_interval: 100\n"
                                "      eval_iters: 4\n",
                    whole_sequences || !samples ? "" : "      sample_interval: 100\n",
                    generates ? "      sft_dataset_name: null\n"
                    : tunes   ? "      sft_dataset_name: null\n      sft_fit_to_data: true\n"
                              : "",
                    packs && !whole_sequences ? "      enable_packed_sequences: true\n" : ""),
        config::kNoExperimentFile, given);
  };
  if (!names_a_model()) {
    const std::string start =
        fmt::format("name an experiment with --config FILE, or start from a model: load=FOLDER {}",
                    learns_answers ? "sft_dataset_name=FILE"
                    : generates    ? "data=FILE reward=exact:answer"
                    : packs        ? "teacher=FOLDER data=FILE"
                    : tunes        ? "data=FILE"
                                   : "data_path=FILE");
    refuse_unknown_options(start);
    refuse_lone_word(start);
    constexpr std::string_view kPreset = "model=";
    const auto preset =
        std::ranges::find_if(overrides_, [&](const std::string& word) { return word.starts_with(kPreset); });
    if (preset != overrides_.end()) {
      const std::filesystem::path named = preset->substr(kPreset.size());
      throw invalid(
          fmt::format("{} chooses the model of an experiment, and there is no experiment", *preset),
          fmt::format("add --config FILE, whose model it replaces; or 'primus model info {}' describes the "
                      "model without an experiment",
                      named.stem().string()));
    }
    throw invalid("there is neither an experiment nor a model to start from", start);
  }
  const config::Experiment first = load_as("run");
  const config::TrainerConfig& c = first.trainer;
  if (!c.load) throw invalid("load is null: there is no model to start from", "name one: load=FOLDER");
  whole_sequences = reads_whole_sequences(*c.load);
  // The name is made from the names of the model folder and the data, for example "llama-corpus".
  std::string name = std::filesystem::path(*c.load + "/").parent_path().filename().string();
  std::vector<std::string> data = c.data_path.empty() ? c.train_data_path : c.data_path;
  if (tunes) data.assign(1, c.sft_dataset_name.value_or("data"));
  if (!data.empty()) name += "-" + std::filesystem::path(data.back()).stem().string();
  if (tunes && !learns_answers) name += "-" + stage_;
  std::ranges::replace_if(
      name,
      [](char x) { return !std::isalnum(static_cast<unsigned char>(x)) && x != '-' && x != '_' && x != '.'; },
      '_');
  return load_as(is_plain_name(name) ? name : "run");
}

void check_data_paths(const config::Experiment& experiment) {
  const config::TrainerConfig& c = experiment.trainer;
  if (c.mock_data && c.train_epochs && config::stage_of(c).material == config::Material::kText) {
    throw experiment.error_for("train_epochs", "mock data never ends, so it has no epochs",
                               "set train_iters or train_tokens");
  }
  for (const auto& [key, paths] :
       {std::pair("data_path", &c.data_path), std::pair("train_data_path", &c.train_data_path),
        std::pair("valid_data_path", &c.valid_data_path), std::pair("test_data_path", &c.test_data_path)}) {
    try {
      if (!paths->empty()) data::parse_blend(*paths);
    } catch (const Error& error) {
      throw experiment.error_for(key, error.what(), error.hint());
    }
  }
}

void apply_environment(const config::Experiment& experiment) {
  for (const auto& [name, value] : experiment.env) setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace primus::cli
