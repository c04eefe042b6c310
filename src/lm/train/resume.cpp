#include "lm/train/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "config/readers.h"
#include "config/trainer_config.h"
#include "lm/model/setting_names.h"
#include "lm/model/stated_adapters.h"
#include "lm/tokenizer/simple.h"
#include "lm/train/objectives/objective.h"

namespace primus {
namespace {

// Keys that affect the data. Includes train_iters, because the number of samples determines the number of
// epochs in the sample order.
constexpr std::array<std::string_view, 23> kDataKeys = {"seed",
                                                        "seq_length",
                                                        "data_path",
                                                        "train_data_path",
                                                        "mock_data",
                                                        "split",
                                                        "tokenizer_model",
                                                        "tokenizer_type",
                                                        "vocab_file",
                                                        "merge_file",
                                                        "train_iters",
                                                        "train_epochs",
                                                        "train_tokens",
                                                        "train_minutes",
                                                        "sft_dataset_name",
                                                        "dataloader_type",
                                                        "data_sharding",
                                                        "sft_conversation_format",
                                                        "enable_packed_sequences",
                                                        "use_packed_attention",
                                                        "num_generations",
                                                        "num_iterations",
                                                        "dynamic_sampling"};

// Collects every scalar and list of a document by name: the key alone, or the command-line form in a setting
// that is a map ("lora.dropout"). `in_settings`: the members of `value` are settings, or parts of a setting
// that is a map. `prefix` precedes the names of the members.
void collect(const config::Value& value, bool in_settings, const std::string& prefix,
             std::map<std::string, std::string>& settings) {
  for (const config::Member& member : value.members) {
    if (member.value.is_map()) {
      const bool is_setting = in_settings || member.key == "env";
      collect(member.value, is_setting || member.key == "overrides",
              is_setting ? prefix + member.key + "." : "", settings);
      continue;
    }
    std::string text = member.value.text;
    for (const config::Value& item : member.value.items) text += (text.empty() ? "" : " ") + item.text;
    settings[prefix + member.key] = text;
  }
}

// Keys of config.json that may differ: these keys do not affect the model, or affect only the number of
// positions.
constexpr std::array<std::string_view, 5> kHarmless = {"bos_token_id", "eos_token_id", "initializer_range",
                                                       "max_position_embeddings", "pad_token_id"};

template <class Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

struct ConfigLine {
  std::string value;
  bool of_rope;  // whether the key belongs to rotary positions
};

// Returns the lines of a config.json that this program wrote, by key. Flattens rope_scaling, and skips
// rope_parameters, which repeats rope_scaling.
std::map<std::string, ConfigLine> config_lines(const std::string& config) {
  std::map<std::string, ConfigLine> lines;
  auto json = nlohmann::json::parse(config);
  // Adapters count as a separate difference, so model_type is restored to the value without adapters.
  if (const auto lora = json.find("primus_lora"); lora != json.end() && lora->contains("model_type")) {
    json["model_type"] = lora->at("model_type");
    lora->erase("model_type");
  }
  for (const auto& [key, value] : json.items()) {
    if (key == "rope_parameters") continue;
    if (key != "rope_scaling") {
      lines[key] = {value.dump(), key == "rope_theta"};
    } else if (value.is_object()) {
      for (const auto& [inner, item] : value.items()) lines[inner] = {item.dump(), true};
    }
  }
  return lines;
}

std::string value_in(const std::map<std::string, ConfigLine>& lines, const std::string& key) {
  const auto line = lines.find(key);
  return line == lines.end() ? "not set" : line->second.value;
}

struct Difference {
  std::string key, before, after;
  bool of_rope;
};

// Returns a difference that a user's setting caused, and this setting. Prefers settings that changed since
// the checkpoint, and among these the setting from the strongest layer. If no setting of the user is the
// cause, returns the first difference and "".
std::pair<Difference, std::string> cause(const std::vector<Difference>& differences,
                                         const CheckpointReader& checkpoint,
                                         const config::Experiment& experiment) {
  std::set<std::string> changed;
  for (const SettingChange& change :
       changed_settings(read_trainer_state(checkpoint).experiment, config::to_yaml(experiment))) {
    changed.insert(change.key);
  }
  std::pair<Difference, std::string> best{differences.front(), {}};
  std::pair<bool, config::Layer> best_rank{false, config::Layer::kDerived};
  for (const Difference& difference : differences) {
    for (const std::string_view setting : settings_behind(difference.key)) {
      const config::Layer layer = experiment.provenance_of(setting).layer;
      const std::pair rank{changed.contains(std::string(setting)), layer};
      if (layer <= config::Layer::kDerived || rank <= best_rank) continue;
      best_rank = rank;
      best = {difference, std::string(setting)};
    }
  }
  return best;
}

// Writes numbers as 16 hexadecimal digits, because some JSON readers do not keep 64-bit numbers exactly.
nlohmann::json to_json(const InputIdentity& identity) {
  return {{"name", identity.name}, {"fingerprint", fmt::format("{:016x}", identity.fingerprint)}};
}

std::optional<InputIdentity> identity_in(const nlohmann::json& state, const char* key) {
  const auto found = state.find(key);
  if (found == state.end() || !found->is_object()) return std::nullopt;
  const auto name = found->find("name"), hash = found->find("fingerprint");
  if (name == found->end() || !name->is_string() || hash == found->end() || !hash->is_string())
    return std::nullopt;
  const std::string digits = hash->get<std::string>();
  InputIdentity identity{.name = name->get<std::string>()};
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), identity.fingerprint, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return identity;
}

// Returns empty if there is no valid clock.
std::optional<ClockState> clock_in(const nlohmann::json& state) {
  const auto found = state.find("clock");
  if (found == state.end() || !found->is_object()) return std::nullopt;
  const auto number = [&](const char* key) {
    const auto value = found->find(key);
    return value != found->end() && value->is_number() ? value->get<double>() : -1.0;
  };
  constexpr double kMax = 1e15;
  for (const char* key : {"seconds", "warm_seconds", "planned_steps", "data_steps"}) {
    if (!(number(key) >= 0 && number(key) <= kMax)) return std::nullopt;
  }
  const auto finished = found->find("finished");
  ClockState clock{.seconds = number("seconds"),
                   .warm_seconds = number("warm_seconds"),
                   .planned = static_cast<std::int64_t>(number("planned_steps")),
                   .data_steps = static_cast<std::int64_t>(number("data_steps")),
                   .finished = finished != found->end() && finished->is_boolean() && finished->get<bool>()};
  return clock.planned > 0 && clock.data_steps > 0 ? std::optional(clock) : std::nullopt;
}

}  // namespace

InputIdentity identity_of(const Tokenizer& tokenizer) {
  return {.name = std::string(tokenizer.name()), .fingerprint = tokenizer.fingerprint()};
}

std::string_view key_in_use(const config::Experiment& experiment,
                            std::initializer_list<std::string_view> keys) {
  std::string_view best = *keys.begin();
  for (const std::string_view key : keys) {
    if (experiment.provenance_of(key).layer > experiment.provenance_of(best).layer) best = key;
  }
  return best;
}

std::map<std::string, std::string> settings_of(std::string_view yaml) {
  std::map<std::string, std::string> settings;
  if (!yaml.empty())
    collect(config::read_yaml(config::make_source("experiment.yaml", std::string(yaml))), false, "",
            settings);
  // Removes lr_decay_iters if it has its default, train_iters, which earlier versions wrote into checkpoints.
  const auto decay = settings.find("lr_decay_iters"), length = settings.find("train_iters");
  if (decay != settings.end() && length != settings.end() && decay->second == length->second)
    settings.erase(decay);
  return settings;
}

std::string write_trainer_state(const TrainerState& s) {
  nlohmann::json state{{"iteration", s.iteration},
                       {"consumed_samples", s.consumed_samples},
                       {"global_batch_size", s.global_batch_size},
                       {"seed", s.seed},
                       {"nan_iterations", s.nan_iterations},
                       {"lm_loss", s.lm_loss},
                       {"train_iters", s.train_iters},
                       {"optimizer", s.optimizer},
                       {"experiment", s.experiment}};
  if (s.learning_rate) state["learning_rate"] = *s.learning_rate;
  if (s.cyclic_ranks > 0) {
    state["cyclic_order"] = {{"ranks", s.cyclic_ranks}, {"micro_batch_size", s.cyclic_micro_batch_size}};
  }
  if (s.clock) {
    state["clock"] = {{"seconds", s.clock->seconds},
                      {"warm_seconds", s.clock->warm_seconds},
                      {"planned_steps", s.clock->planned},
                      {"data_steps", s.clock->data_steps},
                      {"finished", s.clock->finished}};
  }
  if (!s.base.empty()) state["base"] = s.base;
  if (s.base_weights) state["base_weights"] = to_json(*s.base_weights);
  if (s.tokenizer) state["tokenizer"] = to_json(*s.tokenizer);
  if (s.data) state["data"] = to_json(*s.data);
  if (!s.good_checks.empty()) state["good_checks"] = s.good_checks;
  if (s.expert_rounds > 0) state["expert_rounds"] = s.expert_rounds;
  return state.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
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
        fmt::format("says iteration {}, but the manifest says {}", state.iteration, checkpoint.iteration()));
  if (const auto experiment = json.find("experiment"); experiment != json.end() && experiment->is_string())
    state.experiment = experiment->get<std::string>();
  // These fields were added later, so a checkpoint may lack them. A NaN is written as null.
  if (const auto optimizer = json.find("optimizer"); optimizer != json.end()) {
    if (!optimizer->is_string()) throw broken("has an \"optimizer\" that is not a string");
    state.optimizer = optimizer->get<std::string>();
  }
  state.clock = clock_in(json);
  if (const auto rate = json.find("learning_rate"); rate != json.end() && rate->is_number())
    state.learning_rate = rate->get<double>();
  if (const auto order = json.find("cyclic_order"); order != json.end() && order->is_object()) {
    const auto count = [&](const char* key) {
      const auto value = order->find(key);
      const bool good = value != order->end() && value->is_number_integer();
      constexpr std::int64_t kMax = 1 << 20;
      return good ? std::clamp<std::int64_t>(value->get<std::int64_t>(), 0, kMax) : std::int64_t{0};
    };
    state.cyclic_ranks = count("ranks");
    state.cyclic_micro_batch_size = count("micro_batch_size");
    if (state.cyclic_ranks * state.cyclic_micro_batch_size == 0)
      throw broken("has a \"cyclic_order\" without ranks and micro_batch_size");
  }
  if (const auto base = json.find("base"); base != json.end() && base->is_string())
    state.base = base->get<std::string>();
  state.train_iters = json.contains("train_iters") ? integer("train_iters") : 0;
  state.nan_iterations = json.contains("nan_iterations") ? integer("nan_iterations") : 0;
  if (const auto loss = json.find("lm_loss"); loss != json.end() && loss->is_number())
    state.lm_loss = loss->get<double>();
  state.base_weights = identity_in(json, "base_weights");
  state.tokenizer = identity_in(json, "tokenizer");
  state.data = identity_in(json, "data");
  if (const auto checks = json.find("good_checks"); checks != json.end() && checks->is_object()) {
    for (const auto& [key, step] : checks->items()) {
      if (step.is_number_integer())
        state.good_checks[key] = std::clamp<std::int64_t>(step.get<std::int64_t>(), 0, state.iteration);
    }
  }
  if (const auto rounds = json.find("expert_rounds"); rounds != json.end()) {
    constexpr std::int64_t kMax = 1 << 20;  // the limit of moe_expert_rounds
    state.expert_rounds = integer("expert_rounds");
    if (state.expert_rounds < 1 || state.expert_rounds > kMax)
      throw broken(fmt::format("has an \"expert_rounds\" that is not between 1 and {}", kMax));
  }
  return state;
}

void refuse_another_model(const CheckpointReader& checkpoint, const config::Experiment& experiment,
                          const ModelConfig& model, DType compute, const FamilyRegistry& families,
                          Start start) {
  const Path file = checkpoint.folder() / "config.json";
  ModelConfig saved = read_model_config(checkpoint.file("config.json"), file.string(), families);
  // A checkpoint has all modules of multi-token prediction. A run that starts from the checkpoint may disable
  // these modules.
  saved.mtp.enabled = start == Start::kContinued || model.mtp.enabled;
  if (start == Start::kFinetuned && !saved.lora) saved.lora = model.lora;
  // A new run may store the base weights in another format.
  if (start == Start::kFinetuned) saved.lora.training = model.lora.training;
  if (start == Start::kFinetuned && !saved.scores) saved.scores = model.scores;  // the head may be new
  saved.moe.training = model.moe.training;  // training settings may change
  // One function writes both files, so any difference is a difference of the models.
  const auto before = config_lines(write_model_config(saved, compute, families));
  const auto after = config_lines(write_model_config(model, compute, families));
  std::vector<Difference> differences;
  for (const auto& lines : {before, after}) {
    for (const auto& [key, line] : lines) {
      const Difference found{key, value_in(before, key), value_in(after, key), line.of_rope};
      const bool counts = !contains(kHarmless, key) && !(start == Start::kFinetuned && line.of_rope);
      if (counts && found.before != found.after) differences.push_back(found);
    }
  }
  if (differences.empty()) return;
  const auto [difference, setting] = cause(differences, checkpoint, experiment);
  const std::string folder = checkpoint.folder().string();
  if (difference.key == "primus_lora") {
    const std::string what = fmt::format("'{}' was saved {}", folder,
                                         !saved.lora  ? "without LoRA"
                                         : model.lora ? "with other lora settings"
                                                      : "with LoRA adapters");
    const std::string hint = fmt::format("to continue this run, set {}; for another run, use a new exp_name",
                                         adapter_overrides(saved.lora, model.lora));
    // If the experiment has no adapters, only a preset contains `lora`, so the error names no position.
    throw model.lora ? experiment.error_for("lora", what, hint) : invalid(what, hint);
  }
  const std::string what = fmt::format("'{}' was saved with {} {}, but the experiment has {}", folder,
                                       difference.key, difference.before, difference.after);
  const std::string hint =
      difference.of_rope
          ? fmt::format("restore the setting, or start another run (exp_name) with load: {}", folder)
          : "restore the setting, or use a new exp_name without load to start from random weights";
  throw setting.empty() ? invalid(what, hint).at(file.string()) : experiment.error_for(setting, what, hint);
}

namespace {

std::string another(const InputIdentity& before, const InputIdentity& now) {
  return before.name == now.name ? fmt::format("'{}', whose content has changed since then", now.name)
                                 : fmt::format("'{}'; now it is '{}'", before.name, now.name);
}

std::string hint_of_change(const std::string& folder, std::string_view permission) {
  return fmt::format(
      "restore the old value; or give the new run its own name (exp_name), with load: {} to start from these "
      "weights; or set {}=true to continue with the change",
      folder, permission);
}

[[noreturn]] void refuse_input(const config::Experiment& experiment, const std::string& folder,
                               std::string_view key, std::string_view what, const InputIdentity& before,
                               const InputIdentity& now, std::string_view permission) {
  throw experiment.error_for(
      key, fmt::format("'{}' was trained with another {}: {}", folder, what, another(before, now)),
      hint_of_change(folder, permission));
}

constexpr std::string_view kAllowData = "allow_data_change";

// Returns the file or folder of a run's tokenizer: the value of `key`, or else of `load`. If both are unset,
// returns `kind`, the name of the tokenizer's kind.
std::string place_of_tokenizer(std::string_view yaml, const std::string& key, const std::string& kind) {
  const auto settings = settings_of(yaml);
  for (const std::string& name : {key, std::string("load")}) {
    const auto found = settings.find(name);
    if (found != settings.end() && !found->second.empty() && found->second != "null") return found->second;
  }
  return kind;
}

// Throws the error that the run of the checkpoint has another tokenizer. Names the folders, if they differ,
// because tokenizers of different folders may be of one kind.
[[noreturn]] void refuse_tokenizer(const CheckpointReader& checkpoint, const TrainerState& state,
                                   const config::Experiment& experiment, const InputIdentity& tokenizer,
                                   std::string_view permission) {
  const std::string_view key =
      key_in_use(experiment, {"tokenizer_model", "tokenizer_type", "vocab_file", "merge_file"});
  InputIdentity before = *state.tokenizer, now = tokenizer;
  before.name = place_of_tokenizer(state.experiment, std::string(key), before.name);
  now.name = place_of_tokenizer(config::to_yaml(experiment), std::string(key), now.name);
  using std::filesystem::weakly_canonical;
  if (weakly_canonical(before.name) == weakly_canonical(now.name)) before.name = now.name;
  refuse_input(experiment, checkpoint.folder().string(), key, "tokenizer", before, now, permission);
}

}  // namespace

void ChangedData::refuse(std::string_view key, std::string_view what) const {
  if (other_tokenizer && before.name == now.name) {
    const std::string folder = checkpoint.folder().string();
    throw experiment.error_for(
        key,
        fmt::format("'{}' was trained with other tokens of '{}', because the tokenizer has changed; whether "
                    "the content of '{}' has also changed is unknown",
                    folder, now.name, now.name),
        hint_of_change(folder, kAllowData));
  }
  refuse_input(experiment, checkpoint.folder().string(), key, what, before, now, kAllowData);
}

void ChangedData::refuse_setting(const SettingChange& change, std::string_view so) const {
  const std::string folder = checkpoint.folder().string();
  throw experiment.error_for(change.key,
                             fmt::format("'{}' was trained with {}: {}, {}", folder, change.key,
                                         change.before.empty() ? "unset" : change.before, so),
                             hint_of_change(folder, kAllowData));
}

std::vector<std::string> compare_inputs(const CheckpointReader& checkpoint, const TrainerState& state,
                                        const config::Experiment& experiment, const InputIdentity& tokenizer,
                                        const std::optional<InputIdentity>& data) {
  const config::TrainerConfig& c = experiment.trainer;
  std::vector<std::string> warnings;
  // A permitted difference becomes a warning with the text of the refusal.
  const auto compare = [&warnings](bool permitted, std::string_view permission, const auto& refuse) {
    try {
      refuse();
    } catch (const Error& error) {
      if (!permitted) throw;
      warnings.push_back(fmt::format("{}; {} permits the change", error.what(), permission));
    }
  };
  const bool other_tokenizer = has_other_tokenizer(state, tokenizer);
  if (other_tokenizer) {
    constexpr std::string_view kAllowTokenizer = "allow_tokenizer_change";
    compare(c.allow_tokenizer_change, kAllowTokenizer,
            [&] { refuse_tokenizer(checkpoint, state, experiment, tokenizer, kAllowTokenizer); });
  }
  if (has_other_data(state, data)) {
    compare(c.allow_data_change, kAllowData, [&] {
      objective_of(c).refuse_changed_data({.checkpoint = checkpoint,
                                           .state = state,
                                           .experiment = experiment,
                                           .before = *state.data,
                                           .now = *data,
                                           .other_tokenizer = other_tokenizer});
    });
  }
  return warnings;
}

bool has_other_tokenizer(const TrainerState& state, const InputIdentity& tokenizer) {
  return state.tokenizer && !make_same_ids(state.tokenizer->fingerprint, tokenizer.fingerprint);
}

bool has_other_data(const TrainerState& state, const std::optional<InputIdentity>& data) {
  return state.data && data && state.data->fingerprint != data->fingerprint;
}

bool has_optimizer_state(const CheckpointReader& checkpoint) {
  const auto& tensors = checkpoint.manifest().tensors;
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const TensorRecord& record) { return record.part == TensorPart::kOptimizer; });
}

void refuse_another_batch(const CheckpointReader& checkpoint, const TrainerState& state,
                          const config::Experiment& experiment) {
  const std::int64_t now = experiment.trainer->global_batch_size;
  if (state.global_batch_size == now) return;
  throw experiment.error_for(
      "global_batch_size",
      fmt::format("this run was saved with global_batch_size {}, but it is now {}", state.global_batch_size,
                  now),
      "restore it, or start another run (exp_name) with load: " + checkpoint.folder().string());
}

void refuse_another_optimizer(const CheckpointReader& checkpoint, const TrainerState& state,
                              const config::Experiment& experiment, std::string_view optimizer) {
  if (state.optimizer == optimizer) return;
  throw experiment.error_for(
      key_in_use(experiment, {"optimizer", "muon_scalar_optimizer"}),
      fmt::format("'{}' has the states of another optimizer: {} in the checkpoint, {} in the experiment",
                  checkpoint.folder().string(), printable(state.optimizer), optimizer),
      "restore the optimizer; or set no_load_optim=true to continue from these weights with new states");
}

std::string recorded_setting(const TrainerState& state, const std::string& key) {
  const auto settings = settings_of(state.experiment);
  const auto found = settings.find(key);
  return found == settings.end() ? std::string() : found->second;
}

std::vector<SettingChange> changed_settings(std::string_view before, std::string_view after) {
  const auto old_settings = settings_of(before), new_settings = settings_of(after);
  std::vector<SettingChange> changes;
  const auto is_unset = [](const std::string& value) { return value.empty() || value == "null"; };
  const auto note = [&](const std::string& key, const std::string& was, const std::string& is) {
    if (is_unset(was) && is_unset(is)) return;
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
