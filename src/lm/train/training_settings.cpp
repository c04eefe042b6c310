#include "lm/train/training_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/train/loaded_model.h"
#include "lm/train/loaded_tokenizer.h"
#include "lm/train/resume.h"

namespace primus {
namespace {

engine::RecomputePolicy recompute_policy_of(const config::Experiment& e, std::int64_t layers) {
  using engine::OperatorClass;
  using engine::RecomputePolicy;
  const config::TrainerConfig& c = e.trainer;
  RecomputePolicy policy;
  if (c.recompute_granularity == "full") {
    const std::int64_t count = c.recompute_num_layers.value_or(1);
    const bool block = c.recompute_method == "block";
    policy.full_layers = block ? std::min(count, layers) : layers;
    policy.layers_per_group = block ? 1 : count;
  } else if (c.recompute_granularity == "selective") {
    for (const std::string& module : c.recompute_modules) {
      if (module == "core_attn") {
        policy.classes |= RecomputePolicy::bit(OperatorClass::kAttention);
      } else if (module == "layernorm") {
        policy.classes |= RecomputePolicy::bit(OperatorClass::kNorm);
      } else if (module == "mlp" || (module == "moe_act" && c.num_experts)) {
        policy.classes |= RecomputePolicy::bit(OperatorClass::kActivation);
      } else if (module == "moe" && c.num_experts) {
        for (const OperatorClass part :
             {OperatorClass::kRouting, OperatorClass::kExperts, OperatorClass::kActivation}) {
          policy.classes |= RecomputePolicy::bit(part);
        }
      } else if (module != "mla_up_proj" || !c.multi_latent_attention) {  // that is never kept
        throw e.error_for("recompute_modules",
                          "'" + module + "' cannot be recomputed by itself in this model",
                          "core_attn, layernorm, mlp and, with experts, moe and moe_act can");
      }
    }
  }
  return policy;
}

// A preset names its model's tokenizer, which is not what counts ids, and gives way to another one's files.
bool has_preset_tokenizer(const config::Experiment& e) {
  return !e.trainer.tokenizer_model || e.provenance_of("tokenizer_model").layer < config::Layer::kOverrides;
}

}  // namespace

RunFolder run_folder_of(const config::Experiment& e) {
  return RunFolder({.workspace = e.workspace,
                    .work_group = e.work_group,
                    .user_name = e.user_name,
                    .exp_name = e.exp_name});
}

Path checkpoint_root_of(const config::Experiment& e) {
  return e.trainer.save ? Path(*e.trainer.save) : run_folder_of(e).checkpoints();
}

data::DataOptions data_options_of(const config::Experiment& e, const Tokenizer& tokenizer) {
  const config::TrainerConfig& c = e.trainer;
  const std::int64_t evaluations = c.train_iters / c.eval_interval + 1;
  data::DataOptions options;
  options.data_path = c.data_path;
  options.train_data_path = c.train_data_path;
  options.valid_data_path = c.valid_data_path;
  options.test_data_path = c.test_data_path;
  options.mock_data = c.mock_data;
  options.split = c.split;
  options.seq_length = c.seq_length;
  options.seed = c.seed;
  options.train_samples = c.train_iters * c.global_batch_size;
  options.valid_samples = evaluations * c.eval_iters * c.global_batch_size;
  options.test_samples = c.eval_iters * c.global_batch_size;
  // Without the padding of the embedding, whose rows stand for no token.
  options.vocab_size = c.vocab_size.value_or(tokenizer.vocab_size());
  options.eod_mask_loss = c.eod_mask_loss;
  if (c.data_cache_path) options.cache_dir = *c.data_cache_path;
  return options;
}

Path loaded_folder(const Path& load) {
  if (Env::posix().status(load / "config.json")) return load;
  const ResumePoint point = find_resume_point(load, Validation::kStructure);
  return point.reader ? point.reader->folder() : load;
}

std::int64_t checkpoint_bytes(std::int64_t parameters, const SessionSettings& s, bool optimizer) {
  const std::int64_t copies = 2 * s.model.mtp.modules() * s.model.vocab * s.model.hidden;
  return (parameters + copies) * size_of(s.compute) +
         (optimizer ? parameters * (8 + (s.compute == DType::kF32 ? 0 : 4)) : 0);
}

std::string experiment_text(config::Experiment e) {
  config::TrainerConfig& c = e.trainer;
  if (has_loaded_tokenizer(e)) {
    c.tokenizer_model.reset();  // `load` brings it again
    return config::to_yaml(e);
  }
  const bool of_preset = has_preset_tokenizer(e);
  const bool files = c.vocab_file || c.merge_file;
  const bool only_ids = !files && of_preset && c.vocab_size && c.mock_data && missing_tokenizer(c);
  const bool null = c.tokenizer_type == "NullTokenizer" && c.vocab_size;
  if (only_ids) c.tokenizer_type.reset();
  if (only_ids || (of_preset && (files || null))) c.tokenizer_model.reset();
  return config::to_yaml(e);
}

std::optional<std::string> missing_tokenizer(const config::TrainerConfig& c) {
  if (c.tokenizer_type == "NullTokenizer" || c.tokenizer_type == "ByteTokenizer") return std::nullopt;
  for (const auto* file : {&c.tokenizer_model, &c.vocab_file, &c.merge_file}) {
    if (*file && !Env::posix().status(**file)) return **file;
  }
  return std::nullopt;
}

std::unique_ptr<const Tokenizer> tokenizer_of(const config::Experiment& e, std::vector<std::string>* notes) {
  const config::TrainerConfig& c = e.trainer;
  const bool of_preset = has_preset_tokenizer(e);
  if (c.vocab_file || c.merge_file) {
    return load_tokenizer({.type = c.tokenizer_type.value_or(""),
                           .model = of_preset ? "" : c.tokenizer_model.value_or(""),
                           .vocab_file = c.vocab_file.value_or(""),
                           .merge_file = c.merge_file.value_or("")});
  }
  if (!c.tokenizer_type && !c.tokenizer_model) {
    // Mock data and tokenised files need no text, only a number of ids.
    if (c.vocab_size) return load_tokenizer("NullTokenizer", std::to_string(*c.vocab_size));
    throw e.error_for(
        "tokenizer_model", "there is no tokenizer",
        "set tokenizer_type and tokenizer_model (or vocab_size for data that is tokenised already)");
  }
  if (of_preset && c.vocab_size) {
    const std::string ids = std::to_string(*c.vocab_size);
    if (c.tokenizer_type == "NullTokenizer") return load_tokenizer("NullTokenizer", ids);
    // Where the preset's is there, mock data draws from its ids and ends documents as it does.
    const std::optional<std::string> missing = c.mock_data ? missing_tokenizer(c) : std::nullopt;
    if (missing) {
      if (notes) {
        notes->push_back(fmt::format(
            "the tokenizer '{}' is not there: mock data is drawn from vocab_size's {} ids", *missing, ids));
      }
      return load_tokenizer("NullTokenizer", ids);
    }
  }
  return load_tokenizer(c.tokenizer_type.value_or(""), c.tokenizer_model.value_or(""));
}

ModelConfig model_of(const config::Experiment& e, const FamilyRegistry& families, const Tokenizer* tokenizer,
                     std::vector<std::string>* notes) {
  const std::optional<std::int64_t> size = e.trainer.vocab_size;
  if (tokenizer && size && tokenizer->vocab_size() > *size) {
    throw e.error_for(
        "vocab_size",
        fmt::format("vocab_size is {}, and the tokenizer has {} tokens", *size, tokenizer->vocab_size()),
        "leave vocab_size out, or name the tokenizer that it belongs to");
  }
  ModelConfig model = model_config_of(
      e, tokenizer ? std::optional<std::int64_t>(tokenizer->vocab_size()) : std::nullopt, families);
  if (tokenizer) {
    model.bos_id = tokenizer->special_ids().bos;
    if (const auto eos = tokenizer->special_ids().eos) model.eos_ids = {*eos};
  }
  const Path config_json = e.trainer.load ? loaded_folder(*e.trainer.load) / "config.json" : Path();
  if (!e.trainer.load || !Env::posix().status(config_json)) return model;

  // The folder that weights come from knows its architecture; the experiment must not contradict it.
  const ModelConfig loaded = read_model_config(read_file(config_json), config_json.string(), families, notes);
  LoadedModel reconciled = reconcile_with_loaded(e, model, loaded, config_json.string());
  if (notes) std::ranges::move(reconciled.notes, std::back_inserter(*notes));
  if (tokenizer && tokenizer->vocab_size() > loaded.vocab) {
    throw e.error_for("tokenizer_model",
                      "the tokenizer has " + std::to_string(tokenizer->vocab_size()) +
                          " ids, and the weights are made for " + std::to_string(loaded.vocab),
                      "use the tokenizer that came with the weights");
  }
  return std::move(reconciled.config);
}

SessionSettings session_settings_of(const config::Experiment& e, const ModelConfig& model) {
  const config::TrainerConfig& c = e.trainer;
  using Policy = engine::WeightGradientQueue::Policy;
  return {.model = model,
          .compute = c.bf16 ? DType::kBF16 : DType::kF32,
          .step = {.micro_batch = c.micro_batch_size,
                   .sequence = c.seq_length,
                   .microbatches = c.num_microbatches(),
                   .packed_documents = c.reset_attention_mask,
                   .recompute = recompute_policy_of(e, model.layers + model.mtp.modules()),
                   .weight_gradients = c.delay_wgrad_compute ? Policy::kDeferred : Policy::kInline,
                   .seed = static_cast<std::uint64_t>(c.seed)},
          .adam = AdamSettings::from(c),
          .evaluation = c.eval_iters > 0};
}

}  // namespace primus
