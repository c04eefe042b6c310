#include "lm/generate/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "config/experiment.h"
#include "config/readers.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/model/weights.h"
#include "lm/monitor/run_folder.h"

namespace primus {
namespace {

constexpr std::uint64_t kConfigLimit = 16U << 20;

bool is_file(const Path& path) {
  const auto status = Env::posix().status(path);
  return status && status->type == FileStatus::Type::kFile;
}

// Where the run of this folder saves, if not in the folder itself.
std::optional<Path> recorded_save(const Path& run) {
  const Path file = run / RunFolder::kExperimentFile;
  if (!is_file(file)) return std::nullopt;
  // Only what it says, not whether it could be run: its variables may be another environment's.
  const config::Value experiment =
      config::read_document(config::make_source(file.string(), read_file(file, kConfigLimit)));
  const config::Value* const modules = experiment.find("modules");
  if (!modules || modules->members.empty()) return std::nullopt;
  const config::Value* const overrides = modules->members.front().value.find("overrides");
  const config::Value* const save = overrides ? overrides->find("save") : nullptr;
  return save && save->kind == config::Value::Kind::kString ? std::optional<Path>(save->text) : std::nullopt;
}

// A checkpoint of a model whose tokenizer has no file (bytes) still knows its experiment.
std::unique_ptr<const Tokenizer> load_own_tokenizer(const ModelFolder& folder) {
  if (is_file(folder.path / "tokenizer.json")) return load_tokenizer({}, folder.path.string());
  if (folder.iteration) {
    const CheckpointReader checkpoint = CheckpointReader::open(folder.path, Validation::kStructure);
    const auto state = nlohmann::json::parse(checkpoint.trainer_state(), nullptr, false);
    if (state.is_object() && state.contains("experiment") && state["experiment"].is_string()) {
      const auto experiment = config::load_experiment_text(state["experiment"].get<std::string>(),
                                                           (folder.path / "trainer_state.json").string());
      const config::TrainerConfig& trainer = experiment.trainer;
      if (trainer.tokenizer_type) {
        return load_tokenizer(*trainer.tokenizer_type, trainer.tokenizer_model.value_or(""));
      }
    }
  }
  throw invalid(fmt::format("'{}' has no tokenizer.json", folder.path.string()),
                "name one with --tokenizer FILE, or --tokenizer-type ByteTokenizer for a model of bytes");
}

}  // namespace

ModelFolder find_model_folder(const Path& given) {
  const auto status = Env::posix().status(given);
  if (!status) {
    throw invalid(fmt::format("there is no '{}'", given.string()),
                  "give a model folder, a checkpoint, or the folder of a run");
  }
  if (status->type != FileStatus::Type::kFolder) {
    throw invalid(fmt::format("'{}' is not a folder", given.string()),
                  "give the folder that holds config.json");
  }
  ModelFolder found{given, {}};
  if (!is_file(given / "config.json")) {
    std::vector<Path> roots = {given, given / "checkpoints"};
    if (const auto save = recorded_save(given)) roots.insert(roots.begin(), *save);
    for (const Path& root : roots) {
      if (!is_file(root / "latest")) continue;
      const CheckpointRoot checkpoints(root);
      if (const auto iteration = checkpoints.latest()) found.path = checkpoints.folder(*iteration);
      break;
    }
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

ModelConfig load_model_config(const ModelFolder& folder, const FamilyRegistry& families,
                              std::vector<std::string>* notes) {
  const Path file = folder.path / "config.json";
  return read_model_config(read_file(file, kConfigLimit), file.string(), families, notes);
}

std::unique_ptr<const Tokenizer> load_model_tokenizer(const ModelFolder& folder, const ModelConfig& config,
                                                      const std::string& type, const std::string& model) {
  const bool own = type.empty() && model.empty();
  auto tokenizer = own ? load_own_tokenizer(folder) : load_tokenizer(type, model);
  if (tokenizer->vocab_size() > config.vocab) {
    throw invalid(
        fmt::format("the tokenizer has {} tokens, the model only {}", tokenizer->vocab_size(), config.vocab),
        "they do not belong together: name the model's own tokenizer");
  }
  return tokenizer;
}

std::vector<std::int32_t> load_stop_ids(const ModelFolder& folder, const ModelConfig& config,
                                        const Tokenizer& tokenizer) {
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

  const Path file = folder.path / "generation_config.json";
  if (!is_file(file)) return ids;
  const auto json = parse_json_object(read_file(file, kConfigLimit), file.string());
  const auto listed = json.find("eos_token_id");
  if (listed == json.end()) return ids;
  const auto all = listed->is_array() ? *listed : nlohmann::json::array({*listed});
  for (const nlohmann::json& id : all) {
    if (id.is_null()) continue;
    // What does not fit an int64 is beyond every vocabulary.
    if (!id.is_number_integer()) throw invalid("'eos_token_id' must be token ids").at(file.string());
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() <= static_cast<std::uint64_t>(config.vocab))
      add(id.get<std::int64_t>());
  }
  return ids;
}

void load_model_weights(const ModelFolder& folder, engine::ParameterStore& store, engine::Rank& rank) {
  if (folder.iteration) {
    load_checkpoint(CheckpointReader::open(folder.path, Validation::kStructure), store, rank, false);
  } else {
    load_weights(SafetensorsFolder::open(folder.path), store, rank);
  }
}

}  // namespace primus
