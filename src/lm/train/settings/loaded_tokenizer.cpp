#include "lm/train/settings/loaded_tokenizer.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/files/file.h"
#include "config/trainer_config.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/tokenizer/simple.h"
#include "lm/tokenizer/tokenizer.h"
#include "lm/train/resume.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

constexpr std::array<std::string_view, 4> kTokenizerKeys = {"tokenizer_model", "tokenizer_type", "vocab_file",
                                                            "merge_file"};

// The tokenizer of a folder of weights.
struct OwnTokenizer {
  std::string model;  // folder of the tokenizer's files
  // Used for a checkpoint whose tokenizer has no files: ByteTokenizer, or NullTokenizer with `vocab_size`
  // ids.
  std::string type;
  std::optional<std::int64_t> vocab_size;
  // The identity of the tokenizer, if the checkpoint records it.
  std::optional<InputIdentity> identity;
};

std::optional<OwnTokenizer> own_tokenizer(const Path& folder) {
  std::optional<TrainerState> state;
  if (Env::posix().status(folder / Manifest::kFileName)) {
    state = read_trainer_state(CheckpointReader::open(folder, Validation::kStructure));
  }
  std::optional<OwnTokenizer> own;
  if (has_tokenizer_files(folder)) own = {.model = folder.string()};
  if (state && !state->experiment.empty()) {
    // A recorded ByteTokenizer takes precedence over files: byte-level models have tokenizer files only for
    // other programs.
    const config::TrainerConfig trainer =
        config::load_recorded_experiment(state->experiment, (folder / "trainer_state.json").string()).trainer;
    const std::string type = trainer.tokenizer_type.value_or("");
    const bool counts = type == "NullTokenizer" || (type.empty() && !trainer.tokenizer_model && !own);
    if (type == "ByteTokenizer" || type == "byte") own = {.type = "ByteTokenizer"};
    if (counts && trainer.vocab_size) own = {.type = "NullTokenizer", .vocab_size = trainer.vocab_size};
  }
  if (own && state) own->identity = state->tokenizer;
  return own;
}

std::unique_ptr<const Tokenizer> load_own(const OwnTokenizer& own) {
  return load_tokenizer(own.type, own.vocab_size ? std::to_string(*own.vocab_size) : own.model);
}

// Returns the strongest key with which the user names a tokenizer.
std::optional<std::string_view> key_of_user(const config::Experiment& e) {
  const config::TrainerConfig& c = e.trainer;
  const std::array<const std::optional<std::string>*, 4> values = {&c.tokenizer_model, &c.tokenizer_type,
                                                                   &c.vocab_file, &c.merge_file};
  for (std::size_t i = 0; i < kTokenizerKeys.size(); ++i) {
    if (*values[i] && e.provenance_of(kTokenizerKeys[i]).layer >= config::Layer::kOverrides) {
      return kTokenizerKeys[i];
    }
  }
  return std::nullopt;
}

// Returns whether the user names only a kind of tokenizer. The files of the loaded folder are then read as
// this kind of tokenizer.
bool names_only_a_kind(const config::TrainerConfig& c, std::string_view key) {
  return key == "tokenizer_type" && c.tokenizer_type != "NullTokenizer" &&
         c.tokenizer_type != "ByteTokenizer" && c.tokenizer_type != "byte";
}

void refuse_another(const config::Experiment& e, std::string_view key, const OwnTokenizer& own,
                    const Path& folder) {
  const std::optional<std::string> missing = missing_tokenizer(e.trainer);
  if (missing && !kept_tokenizer(e)) {
    throw e.error_for(key, fmt::format("the tokenizer '{}' does not exist", *missing),
                      fmt::format("omit {} to use the tokenizer that came with the weights ({})", key,
                                  own.type.empty() ? own.model : own.type));
  }
  const std::unique_ptr<const Tokenizer> named = tokenizer_of(e);
  if (own.identity && make_same_ids(own.identity->fingerprint, named->fingerprint())) return;
  std::string own_name = own.type;
  if (own.type.empty()) {
    // Another file format in the same folder (tokenizer.json, tokenizer.model) is still the same tokenizer.
    std::error_code unresolved;
    const Path model = std::filesystem::weakly_canonical(e.trainer->tokenizer_model.value_or(""), unresolved);
    const Path inside = model.lexically_relative(std::filesystem::weakly_canonical(folder, unresolved));
    if (e.trainer->tokenizer_model && !inside.empty() && *inside.begin() != "..") return;
    own_name = own.model;
  }
  try {
    const std::unique_ptr<const Tokenizer> theirs = load_own(own);
    if (make_same_ids(theirs->fingerprint(), named->fingerprint())) return;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    own_name += ", which cannot be read here";
  }
  throw e.error_for(
      key,
      fmt::format("the tokenizer is '{}', but the weights of '{}' were trained with another one ({})",
                  e.trainer->tokenizer_model.value_or(std::string(named->name())), folder.string(), own_name),
      fmt::format("omit {} to use the tokenizer that came with the weights; or set "
                  "allow_tokenizer_change=true to change the tokenizer intentionally",
                  key));
}

}  // namespace

config::Experiment with_loaded_tokenizer(const config::Experiment& experiment,
                                         std::vector<std::string>& notes) {
  const config::TrainerConfig& given = experiment.trainer;
  if (!given.load) return experiment;
  const std::optional<std::string_view> key = key_of_user(experiment);
  if (key && given.allow_tokenizer_change) return experiment;
  const Path folder = loaded_folder(*given.load);
  const std::optional<OwnTokenizer> own = own_tokenizer(folder);
  if (!own) return experiment;
  const bool only_kind = key && own->type.empty() && names_only_a_kind(given, *key);
  if (key && !only_kind) {
    refuse_another(experiment, *key, *own, folder);
    return experiment;
  }
  config::Experiment result = experiment;
  config::TrainerConfig& c = result.trainer;
  const std::string& used = own->type.empty() ? own->model : own->type;
  const std::string replaced = given.tokenizer_model.value_or(given.tokenizer_type.value_or(""));
  if ((given.tokenizer_model || (given.tokenizer_type && !only_kind)) && used != replaced) {
    notes.push_back(fmt::format("the tokenizer that came with the weights ({}) is used, not a preset's {}",
                                used, replaced));
  }
  for (const std::string_view name : kTokenizerKeys) {
    if (!only_kind || name != "tokenizer_type") result.provenance.erase(std::string(name));
  }
  c.tokenizer_model.reset();
  if (!only_kind) c.tokenizer_type.reset();
  c.vocab_file.reset();
  c.merge_file.reset();
  if (experiment.provenance_of("vocab_size").layer < config::Layer::kOverrides || own->vocab_size) {
    c.vocab_size = own->vocab_size;
    result.provenance.erase("vocab_size");
  }
  if (own->type.empty()) {
    c.tokenizer_model = own->model;
    result.provenance["tokenizer_model"].layer = config::Layer::kDerived;
  } else {
    c.tokenizer_type = own->type;
  }
  return result;
}

bool replaces_loaded_tokenizer(const config::Experiment& experiment, const Tokenizer& tokenizer) {
  const config::TrainerConfig& c = experiment.trainer;
  if (!c.load || !c.allow_tokenizer_change || !key_of_user(experiment)) return false;
  const Path folder = loaded_folder(*c.load);
  if (!Env::posix().status(folder)) return false;
  const std::optional<OwnTokenizer> own = own_tokenizer(folder);
  if (!own) return false;
  if (own->identity) return !make_same_ids(own->identity->fingerprint, tokenizer.fingerprint());
  try {
    return !make_same_ids(load_own(*own)->fingerprint(), tokenizer.fingerprint());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return true;
  }
}

std::string describe_tokenizer(const config::Experiment& experiment, const Tokenizer& tokenizer) {
  const config::TrainerConfig& c = experiment.trainer;
  const bool built_in = tokenizer.name() == "ByteTokenizer" || tokenizer.name() == "NullTokenizer";
  std::string line = fmt::format("tokenizer: {}", tokenizer.name());
  if (const std::optional<Path> kept = kept_tokenizer(experiment)) {
    line += " of " + kept->string();
  } else if (!built_in) {
    if (const auto& file = c.vocab_file ? c.vocab_file : c.tokenizer_model ? c.tokenizer_model : c.load)
      line += " of " + *file;
  }
  line += fmt::format(", {} tokens", tokenizer.vocab_size());
  if (tokenizer.name() == "ByteTokenizer" && !c.tokenizer_model)
    line += " (a token is a byte; tokenizer_model names another tokenizer)";
  return line;
}

bool has_loaded_tokenizer(const config::Experiment& experiment) {
  return experiment.trainer->load && experiment.trainer->tokenizer_model &&
         experiment.provenance_of("tokenizer_model").layer == config::Layer::kDerived;
}

}  // namespace primus
