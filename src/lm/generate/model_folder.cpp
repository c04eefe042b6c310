#include "lm/generate/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "config/experiment.h"
#include "config/readers.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/data/chat_template.h"
#include "lm/events/run_folder.h"
#include "lm/model/peft_config.h"
#include "lm/model/weights.h"
#include "lm/tokenizer/simple.h"

namespace primus {
namespace {

constexpr std::uint64_t kConfigLimit = 16U << 20;
constexpr const char* kGenerationConfig = "generation_config.json";

bool is_file(const Path& path) {
  const auto status = Env::posix().status(path);
  return status && status->type == FileStatus::Type::kFile;
}

bool is_folder(const Path& path) {
  const auto status = Env::posix().status(path);
  return status && status->type == FileStatus::Type::kFolder;
}

// Returns the checkpoint that `latest` names. If that checkpoint is missing or damaged, returns the newest
// complete checkpoint in a folder of checkpoints; nullopt if no save was completed.
std::optional<Path> newest_checkpoint(const Path& root) {
  if (!is_folder(root)) return std::nullopt;
  const CheckpointRoot checkpoints(root);
  if (const auto named = checkpoints.latest()) return checkpoints.folder(*named);
  const std::vector<std::int64_t> iterations = checkpoints.iterations();
  for (auto i = iterations.rbegin(); i != iterations.rend(); ++i) {
    const Path folder = checkpoints.folder(*i);
    if (is_file(folder / Manifest::kFileName)) return folder;
  }
  return std::nullopt;
}

// Returns the fields that identify the run folder of an experiment, whose text was written by
// config::to_yaml.
std::string identity_of(const config::Value& experiment) {
  std::string identity;
  for (const char* key : {"workspace", "work_group", "user_name", "exp_name"}) {
    const config::Value* const name = experiment.find(key);
    identity += (identity.empty() ? "" : "/") + (name ? name->text : "");
  }
  return Path(identity).lexically_normal().string();
}

// Returns whether both texts identify the same run. In experiment.yaml the workspace is an absolute path; in
// a checkpoint it is the value that the user wrote.
bool is_same_run(const std::string& recorded, std::string writer) {
  while (writer.starts_with("../")) writer.erase(0, 3);
  return recorded == writer || recorded.ends_with("/" + writer);
}

// Returns the identity of a checkpoint's experiment.
std::string identity_of_writer(const Path& checkpoint) {
  const std::string text = CheckpointReader::open(checkpoint, Validation::kStructure).trainer_state();
  const auto state = nlohmann::json::parse(text, nullptr, false);
  if (!state.is_object() || !state.contains("experiment") || !state["experiment"].is_string()) return "";
  const std::string file = (checkpoint / "trainer_state.json").string();
  return identity_of(config::read_yaml(config::make_source(file, state["experiment"].get<std::string>())));
}

// Returns the newest checkpoint of a run that saves to another folder (`save`); several experiments may use
// that folder.
std::optional<Path> checkpoint_elsewhere(const Path& run) {
  const Path file = run / RunFolder::kExperimentFile;
  if (!is_file(file)) return std::nullopt;
  // Reads only the text without validating it, because variables in it may belong to another environment.
  const config::Value experiment =
      config::read_document(config::make_source(file.string(), read_file(file, kConfigLimit)));
  const config::Value* const modules = experiment.find("modules");
  if (!modules || modules->members.empty()) return std::nullopt;
  const config::Value* const overrides = modules->members.front().value.find("overrides");
  const config::Value* const save = overrides ? overrides->find("save") : nullptr;
  if (!save || save->kind != config::Value::Kind::kString) return std::nullopt;
  const std::optional<Path> newest = newest_checkpoint(save->text);
  if (!newest) {
    throw invalid(fmt::format("the run in '{}' saves to '{}', which has no complete checkpoint", run.string(),
                              save->text),
                  "give the folder that its checkpoints were moved to, or train until one is saved");
  }
  const std::string own = identity_of(experiment), writer = identity_of_writer(*newest);
  if (!is_same_run(own, writer)) {
    throw invalid(fmt::format("the run in '{}' saves to '{}', but the newest checkpoint there belongs to "
                              "another experiment ('{}')",
                              run.string(), save->text, writer),
                  fmt::format("give the intended checkpoint: the newest is '{}'", newest->string()));
  }
  return newest;
}

// Returns the tokenizer that a run's experiment names, if this tokenizer has no file: the byte tokenizer, or
// the NullTokenizer with its vocabulary size. Null if the experiment names no tokenizer.
std::unique_ptr<const Tokenizer> tokenizer_of_run(const config::TrainerConfig& trainer) {
  const std::string type = trainer.tokenizer_type.value_or(""), model = trainer.tokenizer_model.value_or("");
  if (trainer.vocab_size && model.empty() && (type.empty() || type == "NullTokenizer")) {
    return load_tokenizer("NullTokenizer", std::to_string(*trainer.vocab_size));
  }
  return type.empty() ? nullptr : load_tokenizer(type, model);
}

// Returns the experiment with which a checkpoint was trained; nullopt if the checkpoint does not contain it.
std::optional<config::Experiment> experiment_of(const ModelFolder& folder) {
  if (!folder.iteration) return std::nullopt;
  const CheckpointReader checkpoint = CheckpointReader::open(folder.path, Validation::kStructure);
  const auto state = nlohmann::json::parse(checkpoint.trainer_state(), nullptr, false);
  if (!state.is_object() || !state.contains("experiment") || !state["experiment"].is_string())
    return std::nullopt;
  return config::load_recorded_experiment(state["experiment"].get<std::string>(),
                                          (folder.path / "trainer_state.json").string());
}

// Returns whether training wrote this folder: a run's folder, a folder of checkpoints, or a checkpoint.
bool is_of_a_run(const Path& folder) {
  return is_file(folder / RunFolder::kExperimentFile) || is_file(folder / "latest") ||
         is_file(folder / "checkpoints" / "latest") || is_file(folder / Manifest::kFileName);
}

// Returns whether `given` may be a name on the Hub like "meta-llama/Llama-3.2-1B", and not a path whose last
// component is misspelled.
bool may_be_of_the_hub(const Path& given) {
  const std::string text = given.string();
  return std::ranges::count(text, '/') == 1 && text.front() != '.' && given.has_filename() &&
         !Env::posix().status(given.parent_path());
}

Error nothing_at(const Path& given) {
  std::string hint = hint_for_run_name(given);
  if (!hint.empty()) return invalid(fmt::format("'{}' does not exist", given.string()), hint);
  hint = "give a model folder, a checkpoint, or the folder of a run";
  if (may_be_of_the_hub(given)) {
    hint += fmt::format("; Primus does not download models: 'hf download {} --local-dir FOLDER' does",
                        given.string());
  }
  return invalid(fmt::format("'{}' does not exist", given.string()), hint);
}

Error no_folder(const Path& given) {
  if (given.extension() == ".gguf" || given.extension() == ".ggml") {
    return invalid(fmt::format("'{}' is a GGUF file, which Primus cannot read", given.string()),
                   "give the Hugging Face folder that it was made from (config.json and *.safetensors)");
  }
  const Path parent = given.has_parent_path() ? given.parent_path() : Path(".");
  if (given.filename() == "latest" && is_file(given)) {
    return invalid(fmt::format("'{}' is not a folder, but names the newest checkpoint", given.string()),
                   fmt::format("give the folder of the checkpoints: {}", parent.string()));
  }
  return invalid(fmt::format("'{}' is not a folder", given.string()),
                 is_file(parent / "config.json")
                     ? fmt::format("give the folder that holds config.json: {}", parent.string())
                     : "give the folder that holds config.json, or adapter_config.json for adapters");
}

}  // namespace

namespace {

constexpr const char* kAdapterConfig = "adapter_config.json";

PeftConfig read_adapters(const Path& folder) {
  const Path file = folder / kAdapterConfig;
  return read_peft_config(read_file(file, kConfigLimit), file.string());
}

// Returns the model to which the adapters of a PEFT folder belong.
ModelFolder base_of(const Path& adapters) {
  const std::string file = (adapters / kAdapterConfig).string(), base = read_adapters(adapters).base;
  const std::string hint = "set base_model_name_or_path in this file to the model's folder";
  if (base.empty()) throw invalid("the adapters' base model is unknown", hint).at(file);
  for (const Path& path : {Path(base), adapters / base}) {
    if (!is_folder(path) || is_file(path / kAdapterConfig)) continue;
    ModelFolder found = find_model_folder(path);
    found.adapters = adapters;
    return found;
  }
  throw invalid(fmt::format("the adapters' base model '{}' is not a folder with a model", base), hint)
      .at(file);
}

}  // namespace

ModelFolder find_model_folder(const Path& given) {
  ModelFolder found = find_model_or_adapters(given);
  return found.adapters ? base_of(given) : found;
}

ModelFolder find_model_or_adapters(const Path& given) {
  const auto status = Env::posix().status(given);
  if (!status) throw nothing_at(given);
  if (status->type != FileStatus::Type::kFolder) throw no_folder(given);
  if (!is_file(given / "config.json") && is_file(given / kAdapterConfig)) return {{}, {}, given};
  ModelFolder found{given, {}};
  if (!is_file(given / "config.json")) {
    // A checkpoint in the run's own folder takes precedence over shared folders.
    std::optional<Path> newest = newest_checkpoint(given);
    if (!newest) newest = newest_checkpoint(given / "checkpoints");
    if (!newest) newest = checkpoint_elsewhere(given);
    if (newest) found.path = *newest;
  }
  if (!is_file(found.path / "config.json")) {
    throw invalid(
        fmt::format("'{}' holds neither a model (config.json) nor a complete checkpoint", given.string()),
        "give a Hugging Face folder, or the folder of a run that has saved a checkpoint");
  }
  if (is_file(found.path / Manifest::kFileName)) {
    found.iteration = CheckpointReader::open(found.path, Validation::kStructure).iteration();
  }
  return found;
}

const Path& folder_with(const ModelFolder& folder, const char* name) {
  return folder.adapters && is_file(*folder.adapters / name) ? *folder.adapters : folder.path;
}

SafetensorsFolder open_weights(const ModelFolder& folder) {
  return folder.adapters ? SafetensorsFolder::open_adapted(folder.path, *folder.adapters)
                         : SafetensorsFolder::open(folder.path);
}

ModelConfig load_model_config(const ModelFolder& folder, const FamilyRegistry& families,
                              std::vector<std::string>* notes) {
  const Path file = folder.path / "config.json";
  ModelConfig config = read_model_config(read_file(file, kConfigLimit), file.string(), families, notes);
  config.lora.training.base = {};  // base weights that were trained in 4 bits are read in the compute type
  if (!folder.adapters) return config;
  if (config.lora) {
    throw unsupported("the base model of the PEFT folder has adapters, too",
                      "merge them into its weights first: primus model export")
        .at(file.string());
  }
  config.lora = adapters_of(read_adapters(*folder.adapters), config, families,
                            (*folder.adapters / kAdapterConfig).string());
  return config;
}

std::string base_model_of(const ModelFolder& folder) {
  if (folder.adapters) return std::filesystem::absolute(folder.path).lexically_normal().string();
  const auto experiment = experiment_of(folder);
  if (!experiment) return {};
  const config::TrainerConfig& c = experiment->trainer;
  for (const auto& path : {c.load, c.pretrained_checkpoint, c.hf_path}) {
    if (path && !path->empty())
      return is_folder(*path) ? std::filesystem::absolute(*path).lexically_normal().string() : *path;
  }
  return {};
}

// If a model has no tokenizer file, the experiment in its checkpoint names the tokenizer.
std::unique_ptr<const Tokenizer> load_own_tokenizer(const ModelFolder& folder) {
  const Path& files = folder_with(folder, "tokenizer.json");
  if (is_file(files / "tokenizer.json")) return load_tokenizer({}, files.string());
  if (const auto experiment = experiment_of(folder)) {
    if (auto tokenizer = tokenizer_of_run(experiment->trainer)) return tokenizer;
  }
  throw invalid(fmt::format("'{}' has no tokenizer.json", folder.path.string()),
                "name one with --tokenizer FILE, or --tokenizer-type ByteTokenizer for a model of bytes");
}

bool is_fine_tuned(const ModelFolder& folder) {
  const auto experiment = experiment_of(folder);
  return experiment && config::stage_of(experiment->trainer).material != config::Material::kText;
}

std::optional<data::ConversationStyle> load_conversation_style(const ModelFolder& folder,
                                                               const Tokenizer& tokenizer) {
  const auto experiment = experiment_of(folder);
  if (!experiment || config::stage_of(experiment->trainer).material == config::Material::kText) {
    if (tokenizer.chat_template().empty()) return std::nullopt;
    return data::choose_style("auto", tokenizer).style;
  }
  const config::TrainerConfig& c = experiment->trainer;
  if (config::stage_of(c).material == config::Material::kPrompts) {
    const auto chosen = data::choose_prompt_style(c.sft_conversation_format, tokenizer);
    return chosen ? std::optional(chosen->style) : std::nullopt;
  }
  data::ConversationStyle style = data::choose_style(c.sft_conversation_format, tokenizer).style;
  style.inline_bos = c.sft_bridge_compat_inline_bos;
  return style;
}

std::unique_ptr<const Tokenizer> load_named_tokenizer(TokenizerSource source) {
  if (!source.model.empty() && (source.type == "ByteTokenizer" || source.type == "byte")) {
    throw invalid(fmt::format("{} reads no file, but '{}' is given", source.type, printable(source.model)),
                  "keep one of the two: without a type, Primus detects it from the file");
  }
  if (source.model.empty() || has_tokenizer_files(source.model) || !is_of_a_run(source.model))
    return load_tokenizer(source);
  const ModelFolder folder = find_model_folder(source.model);
  if (source.type.empty()) return load_own_tokenizer(folder);
  source.model = folder.path.string();
  return load_tokenizer(source);
}

namespace {

// Adds a note if the folder has its own tokenizer and `chosen`, which `name` names, encodes texts with other
// ids.
void note_other_tokenizer(const ModelFolder& folder, const Tokenizer& chosen, const std::string& name,
                          std::vector<std::string>& notes) {
  std::unique_ptr<const Tokenizer> trained;
  try {
    trained = load_own_tokenizer(folder);
  } catch (const Error&) {
    return;  // the folder has no tokenizer, or a broken one, so --tokenizer replaces nothing useful
  }
  if (make_same_ids(trained->fingerprint(), chosen.fingerprint())) return;
  notes.push_back(
      fmt::format("the model in '{}' was trained with its own tokenizer ({}), not with the chosen one ({})",
                  folder.path.string(), trained->name(), name.empty() ? chosen.name() : printable(name)));
}

}  // namespace

std::unique_ptr<const Tokenizer> load_model_tokenizer(const ModelFolder& folder, const ModelConfig& config,
                                                      const std::string& type, const std::string& model,
                                                      std::vector<std::string>* notes) {
  const bool own = type.empty() && model.empty();
  auto tokenizer = own ? load_own_tokenizer(folder) : load_named_tokenizer({type, model, {}, {}});
  if (tokenizer->vocab_size() > config.vocab) {
    throw invalid(
        fmt::format("the tokenizer has {} tokens, the model only {}", tokenizer->vocab_size(), config.vocab),
        "they do not belong together: use the model's own tokenizer, or remove tokens that its "
        "tokenizer_config.json adds to tokenizer.json");
  }
  if (!own && notes) note_other_tokenizer(folder, *tokenizer, model, *notes);
  return tokenizer;
}

std::optional<std::int64_t> trained_sequence(const ModelFolder& folder) {
  const auto experiment = experiment_of(folder);
  return experiment ? std::optional(experiment->trainer->seq_length) : std::nullopt;
}

std::vector<std::int32_t> load_stop_ids(const ModelFolder& folder, const ModelConfig& config,
                                        const Tokenizer& tokenizer, std::vector<std::string>* notes) {
  std::vector<std::int32_t> ids;
  const auto add = [&](std::int64_t id) {
    const bool known = id >= 0 && id < config.vocab;
    const auto token = static_cast<std::int32_t>(known ? id : 0);
    if (known && std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
  };
  const SpecialIds& special = tokenizer.special_ids();
  if (special.eos) add(*special.eos);
  if (special.eod) add(*special.eod);
  for (const std::int64_t id : config.eos_ids) add(id);

  const Path file = folder_with(folder, kGenerationConfig) / kGenerationConfig;
  if (!is_file(file)) return ids;
  const auto json = parse_json_object(read_file(file, kConfigLimit), file.string());
  const auto listed = json.find("eos_token_id");
  if (listed == json.end()) return ids;
  const auto all = listed->is_array() ? *listed : nlohmann::json::array({*listed});
  for (const nlohmann::json& id : all) {
    if (id.is_null()) continue;
    if (!id.is_number_integer()) throw invalid("'eos_token_id' must be token ids").at(file.string());
    if (id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(config.vocab)) {
      add(id.get<std::int64_t>());
    } else if (notes) {
      notes->push_back(
          fmt::format("{}: eos_token_id is {}, but the vocabulary has {} tokens, so no text ends with it",
                      file.string(), id.dump(), config.vocab));
    }
  }
  return ids;
}

SamplingDefaults load_sampling_defaults(const ModelFolder& folder) {
  const Path file = folder_with(folder, kGenerationConfig) / kGenerationConfig;
  if (!is_file(file)) return {};
  return read_sampling_defaults(read_file(file, kConfigLimit), file.string());
}

void load_model_weights(const ModelFolder& folder, engine::ParameterStore& store, engine::Rank& rank) {
  if (folder.iteration && !folder.adapters) {
    load_checkpoint(CheckpointReader::open(folder.path, Validation::kStructure), store, rank, false);
  } else {
    load_weights(open_weights(folder), store, rank);
  }
}

}  // namespace primus
