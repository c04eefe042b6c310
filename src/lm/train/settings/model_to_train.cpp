// Derives the model, its initial weights and the tokenizer from an experiment.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "config/validation/without_effect.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/generate/model_folder.h"
#include "lm/model/key_conditions.h"
#include "lm/train/forecast/fit_choice.h"
#include "lm/train/forecast/planned_hardware.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/resume.h"
#include "lm/train/settings/loaded_model.h"
#include "lm/train/settings/loaded_tokenizer.h"
#include "lm/train/settings/training_settings.h"

namespace primus {

namespace {

// Returns whether the tokenizer comes from the preset. A preset's tokenizer is only a default: any other
// setting of a tokenizer replaces it.
bool has_preset_tokenizer(const config::Experiment& e) {
  return !e.trainer->tokenizer_model || e.provenance_of("tokenizer_model").layer < config::Layer::kOverrides;
}

// Returns whether Megatron-LM saved the folder.
bool is_of_megatron(const Path& folder) {
  Env& env = Env::posix();
  for (const char* name :
       {"latest_checkpointed_iteration.txt", "common.pt", ".metadata", "model_optim_rng.pt"}) {
    if (env.status(folder / name)) return true;
  }
  return false;
}

}  // namespace

Path loaded_root(const Path& load) {
  Env& env = Env::posix();
  const auto status = env.status(load);
  // `load` is a file, not a model folder: the error names the folder to use.
  if (status && status->type != FileStatus::Type::kFolder) return find_model_folder(load).path;
  if (env.status(load / "config.json") || env.status(load / "latest")) return load;
  if (env.status(load / "checkpoints")) return load / "checkpoints";
  // `load` is the folder of a run that saves elsewhere.
  return env.status(load / RunFolder::kExperimentFile) ? find_model_folder(load).path : load;
}

Path loaded_folder(const Path& load) {
  const Path root = loaded_root(load);
  if (Env::posix().status(root / "config.json")) return root;
  const ResumePoint point = find_resume_point(root, Validation::kStructure);
  return point.reader ? point.reader->folder() : root;
}

Error nothing_to_load(const config::Experiment& e) {
  const std::string& load = *e.trainer->load;
  if (!Env::posix().status(load)) {
    return e.error_for("load", fmt::format("the model folder '{}' does not exist", load),
                       "give the folder of a Hugging Face model, a checkpoint or a run; Primus does not "
                       "download models ('hf download NAME --local-dir FOLDER' does)");
  }
  if (is_of_megatron(load)) {
    return e.error_for(
        "load",
        fmt::format("'{}' is a checkpoint of Megatron-LM, which is made of pickled Python objects "
                    "and not read",
                    load),
        "name the Hugging Face folder that it was made from, or convert it to one");
  }
  if (Env::posix().status(Path(load) / "adapter_config.json")) {
    std::string base = "BASE";
    try {
      base = find_model_folder(load).path.string();
    } catch (const Error&) {
      // The file that names the base model is unusable; the hint then has a placeholder.
    }
    return e.error_for("load", fmt::format("'{}' holds LoRA adapters and no model", load),
                       fmt::format("to train these adapters further, set load={} lora.adapters={}; "
                                   "'primus model export {} MODEL' merges them into a copy of the model",
                                   base, load, load));
  }
  return e.error_for(
      "load", "found neither a model nor a checkpoint in " + load,
      "a model folder has config.json and *.safetensors; a checkpoint has manifest.json; the folder of a run "
      "has checkpoints");
}

namespace {

// Returns the folder of the run's own newest checkpoint; nullopt if the run does not resume.
std::optional<Path> own_checkpoint(const config::Experiment& e) {
  if (!e.trainer->auto_continue_train) return std::nullopt;
  const ResumePoint own = find_resume_point(checkpoint_root_of(e), Validation::kStructure);
  return own.reader ? std::optional(own.reader->folder()) : std::nullopt;
}

// Returns the folder whose tokenizer is used if no key names one: the folder of `load` or, if it was moved or
// removed since the run started from it, the run's own checkpoint.
Path folder_of_tokenizer(const config::Experiment& e) {
  Path folder = loaded_folder(*e.trainer->load);
  if (Env::posix().status(folder)) return folder;
  return own_checkpoint(e).value_or(std::move(folder));
}

// Reads config.json of the weights that `load` names. Returns null without such weights.
std::shared_ptr<const config::Source> read_loaded_config(const config::Experiment& e) {
  if (!e.trainer->load) return nullptr;
  Path file = loaded_folder(*e.trainer->load) / "config.json";
  if (!Env::posix().status(file)) {
    // A run that resumes does not need the weights that it started from.
    if (const auto own = own_checkpoint(e)) {
      file = *own / "config.json";
    } else if (e.trainer->num_layers > 0) {
      return nullptr;
    } else {
      throw nothing_to_load(e);
    }
  }
  return std::make_shared<config::Source>(config::Source{.name = file.string(), .text = read_file(file)});
}

// Throws if the experiment or its preset gives the model other sizes than the loaded weights have.
void refuse_other_shape(const config::Experiment& e, const ModelConfig& loaded) {
  struct Size {
    std::string_view key;
    std::int64_t ours, theirs;
  };
  const config::TrainerConfig& c = e.trainer;
  const std::array<Size, 3> sizes = {{{"num_layers", c.num_layers, loaded.layers},
                                      {"hidden_size", c.hidden_size, loaded.hidden},
                                      {"num_attention_heads", c.num_attention_heads, loaded.heads}}};
  for (const Size& size : sizes) {
    if (size.ours == size.theirs || e.provenance_of(size.key).layer <= config::Layer::kDerived) continue;
    throw e.error_for(
        size.key,
        fmt::format("the experiment's model has another shape than '{}': {} is {} here and {} in "
                    "the weights",
                    *c.load, size.key, size.ours, size.theirs),
        "the architecture comes from the weights: remove the model preset and the model's "
        "settings (on the command line, leave out --config), or repeat the model's settings");
  }
}

// Adds a note if a preset's vocabulary is much larger than that of the tokenizer.
void note_unused_vocabulary(const config::Experiment& e, std::int64_t tokens,
                            std::vector<std::string>& notes) {
  constexpr double kMost = 0.25, kPercent = 100;
  const std::optional<std::int64_t> rows = e.trainer->vocab_size;
  if (!rows || e.provenance_of("vocab_size").layer >= config::Layer::kOverrides) return;
  const double unused = 1 - static_cast<double>(tokens) / static_cast<double>(*rows);
  if (unused <= kMost) return;
  notes.push_back(
      fmt::format("vocab_size is {}, but the tokenizer has {} tokens: {:.0f} % of the embedding's rows are "
                  "never used (vocab_size=null takes the tokenizer's size)",
                  *rows, tokens, kPercent * unused));
}

// Sets the special tokens of the model to the tokenizer's special tokens.
void take_special_ids(const Tokenizer& tokenizer, ModelConfig& config) {
  const SpecialIds& ids = tokenizer.special_ids();
  config.bos_id = ids.bos;
  config.pad_id = ids.pad;
  config.eos_ids.clear();
  if (ids.eos) config.eos_ids.push_back(*ids.eos);
  config.unsaid_ids.clear();
}

}  // namespace

std::optional<ModelConfig> loaded_model(const config::Experiment& e, const FamilyRegistry& families,
                                        std::vector<std::string>* notes) {
  const std::shared_ptr<const config::Source> file =
      e.loaded_config ? e.loaded_config : read_loaded_config(e);
  if (!file) return std::nullopt;
  return read_model_config(file->text, file->name, families, notes);
}

config::Experiment with_loaded_model(config::Experiment e, const FamilyRegistry& families,
                                     std::vector<std::string>* notes) {
  if (!e.loaded_config) e.loaded_config = read_loaded_config(e);
  const std::optional<ModelConfig> model = loaded_model(e, families, nullptr);
  if (!model) return e;
  fill_model_settings(e, *model);
  config::TrainerConfig& c = e.trainer;
  if (c.seq_length <= model->max_positions ||
      e.provenance_of("seq_length").layer >= config::Layer::kOverrides) {
    return e;
  }
  c.seq_length = model->max_positions;
  if (const std::int64_t prompt = c.max_prompt_length.value_or(1);
      config::generates_answers(c) && prompt + c.max_completion_length > c.seq_length) {
    throw e.error_for(
        "max_completion_length",
        fmt::format("an answer of {} tokens (max_completion_length) and a prompt of {} do not fit into {} "
                    "tokens, the maximum of the loaded model",
                    c.max_completion_length, prompt, c.seq_length),
        fmt::format("decrease max_completion_length below {}", c.seq_length - prompt + 1));
  }
  if (notes)
    notes->push_back(fmt::format("seq_length is set to {}, the maximum of the loaded model", c.seq_length));
  return e;
}

std::string experiment_text(config::Experiment e) {
  config::TrainerConfig& c = e.trainer;
  if (has_loaded_tokenizer(e)) {
    c.tokenizer_model.reset();  // `load` sets this key again
    return config::to_yaml(e);
  }
  const bool of_preset = has_preset_tokenizer(e);
  const bool files = c.vocab_file || c.merge_file;
  const bool only_ids = !files && of_preset && c.vocab_size && c.mock_data && missing_tokenizer(c);
  const bool reads_no_file =
      c.tokenizer_type == "ByteTokenizer" || (c.tokenizer_type == "NullTokenizer" && c.vocab_size);
  if (only_ids) c.tokenizer_type.reset();
  if (only_ids || (of_preset && (files || reads_no_file))) c.tokenizer_model.reset();
  return config::to_yaml(e);
}

std::string exported_text(const config::Experiment& experiment, const FamilyRegistry& families, int world,
                          int on_host) {
  if (experiment.framework != "native") return config::to_yaml(experiment);
  config::Experiment planned = planned_experiment(experiment, families, world);
  const bool readable = !missing_tokenizer(planned.trainer) || kept_tokenizer(planned);
  if (has_chosen_microbatch(planned) && readable) {
    const std::unique_ptr<const Tokenizer> tokenizer = tokenizer_of(planned);
    const ModelConfig model = model_of(planned, families, tokenizer.get());
    // If tokens reach the experts in two hops, the microbatch and the buffers of the hops must fit the memory
    // together. The text does not contain the hosts, because another job with this text may have other hosts.
    config::Experiment on_hosts = planned;
    assume_expert_hosts(on_hosts, model.moe, world, on_host);
    fit_chosen_microbatch(on_hosts, model, families, planning_supply(planned, world, on_host), world);
    set_chosen_microbatch(planned, on_hosts.trainer->micro_batch_size);
  }
  return experiment_text(std::move(planned));
}

config::Experiment planned_experiment(const config::Experiment& experiment, const FamilyRegistry& families,
                                      int world) {
  const config::TrainerConfig& c = experiment.trainer;
  if (experiment.framework != "native" || (c.load && !Env::posix().status(*c.load))) return experiment;
  std::vector<std::string> notes;  // the run logs these notes
  const config::Experiment planned = make_objective(c)->plan(experiment, families, world).experiment;
  return with_loaded_model(with_loaded_tokenizer(planned, notes), families, &notes);
}

std::optional<std::string> missing_tokenizer(const config::TrainerConfig& c) {
  if (c.tokenizer_type == "NullTokenizer" || c.tokenizer_type == "ByteTokenizer") return std::nullopt;
  for (const auto* file : {&c.tokenizer_model, &c.vocab_file, &c.merge_file}) {
    if (*file && !Env::posix().status(**file)) return **file;
  }
  return std::nullopt;
}

std::optional<Path> kept_tokenizer(const config::Experiment& e) {
  if (!missing_tokenizer(e.trainer)) return std::nullopt;
  std::optional<Path> own = own_checkpoint(e);
  return own && has_tokenizer_files(*own) ? std::move(own) : std::nullopt;
}

std::unique_ptr<const Tokenizer> tokenizer_of(const config::Experiment& e, std::vector<std::string>* notes) {
  const config::TrainerConfig& c = e.trainer;
  const bool of_preset = has_preset_tokenizer(e);
  if (const std::optional<Path> kept = kept_tokenizer(e)) {
    if (notes)
      notes->push_back(
          fmt::format("the tokenizer '{}' does not exist: its copy in the run's checkpoint '{}' is used",
                      *missing_tokenizer(c), kept->string()));
    return load_tokenizer("", kept->string());
  }
  if (c.vocab_file || c.merge_file) {
    return load_tokenizer({.type = c.tokenizer_type.value_or(""),
                           .model = of_preset ? "" : c.tokenizer_model.value_or(""),
                           .vocab_file = c.vocab_file.value_or(""),
                           .merge_file = c.merge_file.value_or("")});
  }
  if (!c.tokenizer_type && !c.tokenizer_model) {
    // Mock data and tokenised files contain no text, so only the number of ids is needed.
    if (c.vocab_size) return load_tokenizer("NullTokenizer", std::to_string(*c.vocab_size));
    if (c.load) {
      const Path folder = folder_of_tokenizer(e);
      try {
        return load_own_tokenizer(find_model_folder(folder));
      } catch (const Error& error) {
        const bool folder_exists = Env::posix().status(folder).has_value();
        throw e.error_for("load", error.what(),
                          folder_exists ? "set tokenizer_type and tokenizer_model" : error.hint());
      }
    }
    throw e.error_for(
        "tokenizer_model", "no tokenizer is set",
        "set tokenizer_type and tokenizer_model (or vocab_size for data that is tokenised already)");
  }
  if (of_preset && c.vocab_size) {
    const std::string ids = std::to_string(*c.vocab_size);
    if (c.tokenizer_type == "NullTokenizer") return load_tokenizer("NullTokenizer", ids);
    // If the preset's tokenizer exists, mock data uses the ids and the end token of this tokenizer.
    const std::optional<std::string> missing = c.mock_data ? missing_tokenizer(c) : std::nullopt;
    if (missing) {
      if (notes) {
        notes->push_back(
            fmt::format("the tokenizer '{}' does not exist: mock data is drawn from the {} ids of vocab_size",
                        *missing, ids));
      }
      return load_tokenizer("NullTokenizer", ids);
    }
  }
  const std::string type = c.tokenizer_type.value_or(""), model = c.tokenizer_model.value_or("");
  const bool reads_no_file = type == "NullTokenizer" || type == "ByteTokenizer" || type == "byte";
  return reads_no_file ? load_tokenizer(type, model) : load_named_tokenizer({.type = type, .model = model});
}

ModelConfig model_of(const config::Experiment& e, const FamilyRegistry& families, const Tokenizer* tokenizer,
                     std::vector<std::string>* notes) {
  const std::optional<std::int64_t> size = e.trainer->vocab_size;
  if (tokenizer && size && tokenizer->vocab_size() > *size) {
    throw e.error_for(
        "vocab_size",
        fmt::format("vocab_size is {}, but the tokenizer has {} tokens", *size, tokenizer->vocab_size()),
        "omit vocab_size, or set the tokenizer that it belongs to");
  }
  if (tokenizer && notes && !e.trainer->load) note_unused_vocabulary(e, tokenizer->vocab_size(), *notes);
  const std::optional<std::int64_t> vocab =
      tokenizer ? std::optional<std::int64_t>(tokenizer->vocab_size()) : std::nullopt;
  const std::optional<ModelConfig> loaded = loaded_model(e, families, notes);
  if (loaded && notes && !e.trainer->finetune && config::is_said(e, "finetune") &&
      !Env::posix().status(loaded_folder(*e.trainer->load) / Manifest::kFileName)) {
    notes->push_back(fmt::format(
        "finetune: false has no effect: '{}' holds weights only, without optimizer states and step, "
        "so training starts at step 0 with fresh states",
        *e.trainer->load));
  }
  // The architecture comes from the folder of the weights; the experiment must not contradict it.
  config::Experiment filled = e;
  if (loaded) fill_model_settings(filled, *loaded);
  const auto read_model = [&] {
    try {
      return model_config_of(filled, loaded && !vocab ? std::optional(loaded->vocab) : vocab, families);
    } catch (const Error&) {
      // The experiment may contradict itself only because some of its sizes come from the weights. An error
      // about the sizes then explains more.
      if (loaded) refuse_other_shape(e, *loaded);
      throw;
    }
  };
  ModelConfig model = read_model();
  if (tokenizer) {
    model.bos_id = tokenizer->special_ids().bos;
    if (const auto eos = tokenizer->special_ids().eos) model.eos_ids = {*eos};
  }
  const auto taught = [&](ModelConfig config) {
    config.scores = objective_of(e.trainer).trains_scores();
    if (config.scores && config.lora) {
      throw e.error_for("lora", "a reward model trains all weights; adapters are not supported",
                        "remove lora, or set lora='{enabled: false}'");
    }
    if (tokenizer) objective_of(e.trainer).teach(e, *tokenizer, config);
    return config;
  };
  if (!loaded) return taught(std::move(model));
  if (loaded->scores && !objective_of(e.trainer).trains_scores()) {
    throw e.error_for(
        "load",
        fmt::format("'{}' is a reward model: it computes a score and no text, but stage {} trains a "
                    "language model",
                    *e.trainer->load, e.trainer->stage),
        "load a language model, or train with 'primus train reward'");
  }
  const std::string config_json = (loaded_folder(*e.trainer->load) / "config.json").string();
  LoadedModel reconciled = reconcile_with_loaded(filled, model, *loaded, config_json);
  if (notes) {
    std::ranges::move(reconciled.notes, std::back_inserter(*notes));
    config::warn_of_model_keys_without_effect(filled, *notes);
    warn_of_unread_keys(filled, reconciled.config, *notes);
  }
  if (tokenizer && tokenizer->vocab_size() > loaded->vocab) {
    throw e.error_for("tokenizer_model",
                      "the tokenizer has " + std::to_string(tokenizer->vocab_size()) +
                          " ids, but the weights are made for " + std::to_string(loaded->vocab),
                      "use the tokenizer that came with the weights");
  }
  if (tokenizer && replaces_loaded_tokenizer(e, *tokenizer)) {
    take_special_ids(*tokenizer, reconciled.config);
    if (notes)
      notes->push_back(
          fmt::format("the model gets the end tokens of {}, not those of the tokenizer that it came with",
                      e.trainer->tokenizer_model.value_or(std::string(tokenizer->name()))));
  }
  return taught(std::move(reconciled.config));
}

}  // namespace primus
