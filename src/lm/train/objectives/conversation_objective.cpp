#include "lm/train/objectives/conversation_objective.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_text.h"
#include "config/lora_settings.h"
#include "config/trainer_config.h"
#include "config/validation/missing_data.h"
#include "lm/data/conversation_format.h"
#include "lm/data/sft_dataset.h"
#include "lm/generate/generation_config.h"
#include "lm/train/settings/start_weights.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/step/session.h"

namespace primus {

void at_key(const config::Experiment& experiment, std::string_view key, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (!error.location().empty() || error.kind() == ErrorKind::kIo) throw;
    throw experiment.error_for(key, error.what(), error.hint());
  }
}

void leave_out_evaluation(config::Experiment& experiment, std::string_view instead) {
  config::TrainerConfig& c = experiment.trainer;
  if (c.eval_iters == 0) return;
  const config::Provenance said = experiment.provenance_of("eval_iters");
  const bool of_command = said.origin.source && said.origin.source->name == config::kNoExperimentFile;
  if (said.layer >= config::Layer::kOverrides && !of_command) {
    throw experiment.error_for(
        "eval_iters", fmt::format("eval_iters is {}, but stage {} has no evaluation", c.eval_iters, c.stage),
        fmt::format("set eval_iters: 0; {}", instead));
  }
  c.eval_iters = 0;
  experiment.provenance.insert_or_assign("eval_iters", config::Provenance{config::Layer::kDerived, {}});
}

bool has_conversations(const config::Experiment& experiment) {
  const std::string path = experiment.trainer->sft_dataset_name.value_or("");
  if (Env::posix().status(path)) return true;
  try {
    data::find_inputs({path});  // the path may be a glob
  } catch (const Error&) {
    return false;
  }
  return true;
}

void find_missing_conversations(const config::Experiment& experiment, std::vector<MissingInput>& missing) {
  const std::string path = experiment.trainer->sft_dataset_name.value_or("");
  const bool is_glob = path.find_first_of("*?[") != std::string::npos;
  if (!is_glob && !Env::posix().status(path)) missing.push_back({"sft_dataset_name", path});
}

void teach_end_of_turn(const data::ConversationStyle& style, const Tokenizer& tokenizer, ModelConfig& model) {
  if (!style.own && !data::can_write(style.format, tokenizer)) return;
  const std::int32_t end = data::ConversationWriter(style, tokenizer).end_id();
  if (std::ranges::find(model.eos_ids, end) == model.eos_ids.end()) model.eos_ids.push_back(end);
}

void put_stop_ids(const config::Experiment& experiment, const ModelConfig& model,
                  std::vector<Snapshot::Blob>& files) {
  constexpr const char* kGeneration = "generation_config.json";
  const auto generation = std::ranges::find(files, kGeneration, &Snapshot::Blob::name);
  if (generation == files.end()) {
    files.push_back({kGeneration, with_stop_ids("", kGeneration, model.eos_ids)});
    return;
  }
  const Path loaded = loaded_folder(*experiment.trainer->load) / kGeneration;
  generation->content = with_stop_ids(generation->content, loaded.string(), model.eos_ids);
}

void put_chat_template(const data::ConversationStyle& style, const Tokenizer& tokenizer,
                       std::vector<Snapshot::Blob>& files) {
  const bool has_tokenizer = std::ranges::any_of(
      files, [](const Snapshot::Blob& file) { return file.name.starts_with("tokenizer"); });
  if (!has_tokenizer || style.own) return;
  const std::string jinja = data::template_of(style, tokenizer);
  constexpr const char* kFile = "chat_template.jinja";
  std::erase_if(files, [](const Snapshot::Blob& file) {
    return file.name == kFile || file.name == "chat_template.json";
  });
  const auto config = std::ranges::find(files, "tokenizer_config.json", &Snapshot::Blob::name);
  if (config != files.end()) {
    nlohmann::json settings = parse_json_object(config->content, config->name);
    settings["chat_template"] = jinja;
    config->content = json_text(settings) + "\n";
  }
  files.push_back({kFile, jinja});
}

void check_reference_adapters(const config::Experiment& experiment) {
  constexpr const char* kKey = "reference_adapters";
  const config::TrainerConfig& c = experiment.trainer;
  if (!c.reference_adapters) return;
  const auto refuse = [&](const std::string& what, const std::string& next) {
    throw experiment.error_for(kKey, what, next);
  };
  const config::Value* const map = experiment.settings.find("lora");
  const config::LoraSettings lora = map && map->is_map() ? config::read_lora(*map) : config::LoraSettings();
  if (!lora.enabled) {
    refuse(
        "reference_adapters needs LoRA: without it, the reference model is the model at the start of the run",
        "set lora.enabled=true, or remove reference_adapters");
  }
  if (lora.base_weights != "none") {
    refuse(fmt::format("reference_adapters does not support base weights in 4 bits (lora.base_weights: {})",
                       lora.base_weights),
           "remove lora.base_weights, or reference_adapters");
  }
  if (!c.load) refuse("reference_adapters needs load, the base model of the adapters", "set load");
  if (c.reference_free || c.beta.value_or(0) == 0) {
    refuse(fmt::format("reference_adapters has no effect, because {} means that there is no reference model",
                       c.reference_free ? "reference_free" : "beta 0"),
           c.reference_free ? "set reference_free=false, or remove reference_adapters"
                            : "set beta above 0, or remove reference_adapters");
  }
  if (!Env::posix().status(Path(*c.reference_adapters) / "adapter_config.json")) {
    refuse(fmt::format("'{}' is no PEFT folder: it has no adapter_config.json", *c.reference_adapters),
           "'primus model export RUN FOLDER --adapters' writes the adapters of a run as a PEFT folder");
  }
}

ReferenceWeights reference_weights_of(const config::Experiment& experiment) {
  return {[experiment](TrainingSession& session, ModelInstance& reference) {
            load_reference_weights(experiment, session.rank(), reference);
          },
          experiment.trainer->reference_adapters.value_or("")};
}

}  // namespace primus
