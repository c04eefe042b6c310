#include "lm/train/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/error.h"
#include "config/readers.h"

namespace primus {
namespace {

// train_iters too: the number of samples decides over how many passes through the data the order is drawn.
constexpr std::array<std::string_view, 11> kDataKeys = {
    "seed",           "seq_length", "data_path",  "train_data_path", "mock_data", "split", "tokenizer_model",
    "tokenizer_type", "vocab_file", "merge_file", "train_iters"};

// Every scalar and list of a document, by its key alone: keys of different maps do not share names here.
void collect(const config::Value& value, std::map<std::string, std::string>& settings) {
  for (const config::Member& member : value.members) {
    if (member.value.is_map()) {
      collect(member.value, settings);
      continue;
    }
    std::string text = member.value.text;
    for (const config::Value& item : member.value.items) text += (text.empty() ? "" : " ") + item.text;
    settings[member.key] = text;
  }
}

std::map<std::string, std::string> settings_of(std::string_view yaml) {
  std::map<std::string, std::string> settings;
  if (!yaml.empty())
    collect(config::read_yaml(config::make_source("experiment.yaml", std::string(yaml))), settings);
  return settings;
}

}  // namespace

std::string write_trainer_state(const TrainerState& s) {
  const nlohmann::json state{{"iteration", s.iteration},
                             {"consumed_samples", s.consumed_samples},
                             {"global_batch_size", s.global_batch_size},
                             {"seed", s.seed},
                             {"nan_iterations", s.nan_iterations},
                             {"lm_loss", s.lm_loss},
                             {"experiment", s.experiment}};
  return state.dump(2) + "\n";
}

TrainerState read_trainer_state(const CheckpointReader& checkpoint) {
  const auto json = nlohmann::json::parse(checkpoint.trainer_state(), nullptr, false);
  const auto broken = [&](std::string_view what) {
    return invalid(fmt::format("trainer_state.json {}", what), "continue from an older checkpoint")
        .at(checkpoint.folder().string());
  };
  if (!json.is_object()) throw broken("is not a JSON object");
  const auto integer = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer())
      throw broken(fmt::format("has no integer \"{}\"", key));
    return found->get<std::int64_t>();
  };
  TrainerState state{.iteration = integer("iteration"),
                     .consumed_samples = integer("consumed_samples"),
                     .global_batch_size = integer("global_batch_size"),
                     .seed = integer("seed")};
  if (state.iteration != checkpoint.iteration())
    throw broken(
        fmt::format("says iteration {}, and the manifest {}", state.iteration, checkpoint.iteration()));
  if (const auto experiment = json.find("experiment"); experiment != json.end() && experiment->is_string())
    state.experiment = experiment->get<std::string>();
  // Later additions: a checkpoint may be without them. A NaN is written as null.
  state.nan_iterations = json.contains("nan_iterations") ? integer("nan_iterations") : 0;
  if (const auto loss = json.find("lm_loss"); loss != json.end() && loss->is_number())
    state.lm_loss = loss->get<double>();
  return state;
}

void refuse_another_model(const CheckpointReader& checkpoint, const ModelConfig& model, DType compute,
                          const FamilyRegistry& families, Start start) {
  const Path file = checkpoint.folder() / "config.json";
  ModelConfig saved = read_model_config(checkpoint.file("config.json"), file.string(), families);
  // It has all the multi-token prediction that it announces, which who starts anew may do without.
  saved.mtp.enabled = start == Start::kContinued || model.mtp.enabled;
  saved.moe.training = model.moe.training;  // how to train may change
  // Written by the same code: only what the models are can make a difference.
  const auto before = nlohmann::json::parse(write_model_config(saved, compute, families));
  const auto after = nlohmann::json::parse(write_model_config(model, compute, families));
  constexpr std::array<std::string_view, 4> kHarmless = {"bos_token_id", "eos_token_id", "initializer_range",
                                                         "max_position_embeddings"};
  std::set<std::string> keys;
  for (const auto& json : {before, after}) {
    for (const auto& [key, value] : json.items()) keys.insert(key);
  }
  for (const std::string& key : keys) {
    if (std::find(kHarmless.begin(), kHarmless.end(), key) != kHarmless.end()) continue;
    const bool stretches = key.starts_with("rope_");
    if (start == Start::kFinetuned && stretches) continue;
    const auto value_in = [&](const nlohmann::json& json) {
      return json.contains(key) ? json[key].dump() : "not set";
    };
    if (value_in(before) == value_in(after)) continue;
    throw invalid(fmt::format("it was saved by another model: {} is {} there, and {} in the experiment", key,
                              value_in(before), value_in(after)),
                  stretches
                      ? fmt::format("restore the setting, or start another run (exp_name) with load: {}",
                                    checkpoint.folder().string())
                      : "restore the setting: these weights were not trained for another (a run with "
                        "another exp_name and without load begins anew)")
        .at(file.string());
  }
}

bool has_optimizer_state(const CheckpointReader& checkpoint) {
  const auto& tensors = checkpoint.manifest().tensors;
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const TensorRecord& record) { return record.part == TensorPart::kOptimizer; });
}

std::vector<SettingChange> changed_settings(std::string_view before, std::string_view after) {
  const auto old_settings = settings_of(before), new_settings = settings_of(after);
  std::vector<SettingChange> changes;
  const auto note = [&](const std::string& key, const std::string& was, const std::string& is) {
    const bool moves = std::find(kDataKeys.begin(), kDataKeys.end(), key) != kDataKeys.end();
    changes.push_back({key, was, is, moves});
  };
  for (const auto& [key, value] : old_settings) {
    const auto now = new_settings.find(key);
    if (now == new_settings.end()) {
      note(key, value, "");
    } else if (now->second != value) {
      note(key, value, now->second);
    }
  }
  for (const auto& [key, value] : new_settings) {
    if (!old_settings.contains(key)) note(key, "", value);
  }
  return changes;
}

}  // namespace primus
