#include "lm/train/training_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "comm/measuring.h"
#include "config/stages.h"
#include "device/cpu/cpu_device.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/events/device_peak.h"
#include "lm/generate/model_folder.h"
#include "lm/model/mesh_check.h"
#include "lm/train/loaded_model.h"
#include "lm/train/loaded_tokenizer.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/resume.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

// recompute_layer_ids as numbers, ascending: a list of them, or a text with commas or blanks.
std::vector<std::int64_t> recomputed_blocks(const config::Experiment& e, std::int64_t layers) {
  const std::string text = fmt::format("{}", fmt::join(e.trainer.recompute_layer_ids, ","));
  std::vector<std::int64_t> blocks;
  const char *at = text.data(), *const end = at + text.size();
  const auto separates = [](char c) { return c == ',' || c == ' '; };
  do {
    at = std::find_if_not(at, end, separates);
    std::int64_t block = -1;
    const auto [stop, error] = std::from_chars(at, end, block);
    if (error != std::errc() || (stop != end && !separates(*stop)) || block < 0 || block >= layers) {
      throw e.error_for(
          "recompute_layer_ids",
          fmt::format("recompute_layer_ids is '{}', and this model has blocks 0 to {}", text, layers - 1),
          "write numbers of blocks with commas, as 0,3,4");
    }
    blocks.push_back(block);
    at = std::find_if_not(stop, end, separates);
  } while (at != end);
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

engine::RecomputePolicy recompute_policy_of(const config::Experiment& e, const ModelConfig& model) {
  const std::int64_t layers = model.layers + model.mtp.modules();
  const bool experts = model.moe.experts > 0, latent = model.attention.latent.kv_rank > 0;
  using engine::OperatorClass;
  using engine::RecomputePolicy;
  const config::TrainerConfig& c = e.trainer;
  RecomputePolicy policy;
  if (c.recompute_granularity == "full" && !c.recompute_layer_ids.empty()) {
    policy.layers = recomputed_blocks(e, layers);
  } else if (c.recompute_granularity == "full") {
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
      } else if (module == "mlp" || (module == "moe_act" && experts)) {
        policy.classes |= RecomputePolicy::bit(OperatorClass::kActivation);
      } else if (module == "moe" && experts) {
        for (const OperatorClass part :
             {OperatorClass::kRouting, OperatorClass::kExperts, OperatorClass::kActivation}) {
          policy.classes |= RecomputePolicy::bit(part);
        }
      } else if (module != "mla_up_proj" || !latent) {  // that is never kept
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

// Tokens of a sample, its prompt included.
std::int64_t sample_capacity_of(const config::TrainerConfig& c, const ModelConfig& model) {
  return std::min(model.max_positions, c.sample_tokens + objective_of(c).prompt_tokens(c));
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
  options.split = c.split.value_or("99,1,0");
  options.hold_out_text = !c.split;
  options.seq_length = c.seq_length;
  options.seed = c.seed;
  options.train_samples = c.train_iters * c.global_batch_size;
  options.valid_samples = evaluations * c.eval_iters * c.global_batch_size;
  options.test_samples = c.eval_iters * c.global_batch_size;
  // Without the padding of the embedding, whose rows stand for no token.
  options.vocab_size = c.vocab_size.value_or(tokenizer.vocab_size());
  options.allow_other_tokenizer = c.allow_tokenizer_change;
  options.eod_mask_loss = c.eod_mask_loss;
  if (c.data_cache_path) options.cache_dir = *c.data_cache_path;
  return options;
}

bool starts_from_weights(const config::TrainerConfig& c) {
  if (config::stage_of(c).fine_tunes) return true;
  if (!c.load || c.finetune) return c.load.has_value();
  return !Env::posix().status(*c.load) || !Env::posix().status(loaded_folder(*c.load) / Manifest::kFileName);
}

Path loaded_root(const Path& load) {
  Env& env = Env::posix();
  const auto status = env.status(load);
  // A file is no model: the error says which folder to name instead.
  if (status && status->type != FileStatus::Type::kFolder) return find_model_folder(load).path;
  if (env.status(load / "config.json") || env.status(load / "latest")) return load;
  if (env.status(load / "checkpoints")) return load / "checkpoints";
  // A run that saves elsewhere.
  return env.status(load / RunFolder::kExperimentFile) ? find_model_folder(load).path : load;
}

Path loaded_folder(const Path& load) {
  const Path root = loaded_root(load);
  if (Env::posix().status(root / "config.json")) return root;
  const ResumePoint point = find_resume_point(root, Validation::kStructure);
  return point.reader ? point.reader->folder() : root;
}

namespace {

// A folder that Megatron-LM saved.
bool is_of_megatron(const Path& folder) {
  Env& env = Env::posix();
  for (const char* name :
       {"latest_checkpointed_iteration.txt", "common.pt", ".metadata", "model_optim_rng.pt"}) {
    if (env.status(folder / name)) return true;
  }
  return false;
}

}  // namespace

Error nothing_to_load(const config::Experiment& e) {
  const std::string& load = *e.trainer.load;
  if (!Env::posix().status(load)) {
    return e.error_for(
        "load", fmt::format("there is no folder '{}' to load a model from", load),
        "name the folder of a Hugging Face model, a checkpoint or a run; models of the hub are not "
        "downloaded ('hf download NAME --local-dir FOLDER' does that)");
  }
  if (is_of_megatron(load)) {
    return e.error_for(
        "load",
        fmt::format("'{}' is a checkpoint of Megatron-LM, which is made of pickled Python objects "
                    "and not read",
                    load),
        "name the Hugging Face folder that it was made from, or convert it to one");
  }
  return e.error_for(
      "load", "there is neither a model nor a checkpoint in " + load,
      "a model folder has config.json and *.safetensors; a checkpoint has manifest.json; the folder of a run "
      "has checkpoints");
}

std::optional<ModelConfig> loaded_model(const config::Experiment& e, const FamilyRegistry& families,
                                        std::vector<std::string>* notes) {
  if (!e.trainer.load) return std::nullopt;
  Path file = loaded_folder(*e.trainer.load) / "config.json";
  if (!Env::posix().status(file)) {
    // A run that goes on does without what it began with.
    const ResumePoint own = e.trainer.auto_continue_train
                                ? find_resume_point(checkpoint_root_of(e), Validation::kStructure)
                                : ResumePoint();
    if (own.reader) {
      file = own.reader->folder() / "config.json";
    } else if (e.trainer.num_layers > 0) {
      return std::nullopt;
    } else {
      throw nothing_to_load(e);
    }
  }
  return read_model_config(read_file(file), file.string(), families, notes);
}

config::Experiment with_loaded_model(config::Experiment e, const FamilyRegistry& families,
                                     std::vector<std::string>* notes) {
  const std::optional<ModelConfig> model = loaded_model(e, families, nullptr);
  if (!model) return e;
  fill_model_settings(e, *model);
  config::TrainerConfig& c = e.trainer;
  if (c.seq_length <= model->max_positions ||
      e.provenance_of("seq_length").layer >= config::Layer::kOverrides) {
    return e;
  }
  c.seq_length = model->max_positions;
  if (notes)
    notes->push_back(
        fmt::format("seq_length is set to {}, the longest that the loaded model was made for", c.seq_length));
  return e;
}

std::int64_t checkpoint_bytes(const StepMeasurement& measured, const SessionSettings& s, bool optimizer) {
  const std::int64_t copies = 2 * s.model.mtp.modules() * s.model.vocab * s.model.hidden;
  const std::int64_t masters =
      s.compute == DType::kF32 ? 0 : measured.trained_parameters * size_of(DType::kF32);
  return (measured.parameters + copies) * size_of(s.compute) +
         (optimizer ? measured.state_bytes + masters : 0);
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
    if (c.load) {
      try {
        return load_own_tokenizer(find_model_folder(loaded_folder(*c.load)));
      } catch (const Error& error) {
        throw e.error_for("load", error.what(), "set tokenizer_type and tokenizer_model");
      }
    }
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
  const std::optional<std::int64_t> vocab =
      tokenizer ? std::optional<std::int64_t>(tokenizer->vocab_size()) : std::nullopt;
  const std::optional<ModelConfig> loaded = loaded_model(e, families, notes);
  // The folder that weights come from knows its architecture; the experiment must not contradict it.
  config::Experiment filled = e;
  if (loaded) fill_model_settings(filled, *loaded);
  ModelConfig model =
      model_config_of(filled, loaded && !vocab ? std::optional(loaded->vocab) : vocab, families);
  if (tokenizer) {
    model.bos_id = tokenizer->special_ids().bos;
    if (const auto eos = tokenizer->special_ids().eos) model.eos_ids = {*eos};
  }
  const auto taught = [&](ModelConfig config) {
    if (tokenizer) objective_of(e.trainer).teach(e, *tokenizer, config);
    return config;
  };
  if (!loaded) return taught(std::move(model));
  const std::string config_json = (loaded_folder(*e.trainer.load) / "config.json").string();
  LoadedModel reconciled = reconcile_with_loaded(filled, model, *loaded, config_json);
  if (notes) std::ranges::move(reconciled.notes, std::back_inserter(*notes));
  if (tokenizer && tokenizer->vocab_size() > loaded->vocab) {
    throw e.error_for("tokenizer_model",
                      "the tokenizer has " + std::to_string(tokenizer->vocab_size()) +
                          " ids, and the weights are made for " + std::to_string(loaded->vocab),
                      "use the tokenizer that came with the weights");
  }
  return taught(std::move(reconciled.config));
}

int batches_read_ahead(std::int64_t microbatches) {
  constexpr std::int64_t kMostAhead = 64;
  return static_cast<int>(std::min(microbatches + 1, kMostAhead));
}

DeviceSpec device_spec_of(const config::Experiment& e, int ranks) {
  try {
    DeviceSpec spec = turbo::known_device(e.trainer.device, static_cast<int>(e.trainer.num_threads));
    if (spec.threads == 0 && ranks > 1) spec.threads = std::max(1, cpu::available_cores() / ranks);
    spec.deterministic = e.trainer.deterministic_mode;
    const std::string& tune = e.trainer.tune_matmul;
    if (tune == "on" || (tune == "auto" && !spec.deterministic))
      spec.tuning_folder = DevicePeak::default_file().parent_path().string();
    return spec;
  } catch (const Error& error) {
    throw e.error_for("device", error.what(), error.hint());
  }
}

engine::MeshShape mesh_shape_of(const config::Experiment& e, int ranks) {
  const config::TrainerConfig& c = e.trainer;
  const auto divide = [&](const char* key, std::int64_t wanted, int of, const std::string& what) {
    if (wanted >= 1 && wanted <= of && of % wanted == 0) return static_cast<int>(wanted);
    std::vector<int> divisors;
    for (int d = 1; d <= of; ++d) {
      if (of % d == 0) divisors.push_back(d);
    }
    throw e.error_for(
        key, fmt::format("{} is {}, which does not divide {}", key, wanted, what),
        of == 1 ? "set it to 1, or start more ranks (--nproc N, or mpirun -n N; --world N in a dry run)"
                : fmt::format("set it to one of {}", fmt::join(divisors, ", ")));
  };
  engine::MeshShape shape;
  shape.pipeline = divide("pipeline_model_parallel_size", c.pipeline_model_parallel_size, ranks,
                          fmt::format("the {} ranks", ranks));
  const int stage = ranks / shape.pipeline;
  shape.tensor = divide("tensor_model_parallel_size", c.tensor_model_parallel_size, stage,
                        fmt::format("the {} ranks of a pipeline stage", stage));
  shape.context = divide(
      "context_parallel_size", c.context_parallel_size, stage / shape.tensor,
      fmt::format("the {} ranks of a stage that hold the same part of each layer", stage / shape.tensor));
  // Megatron-LM's default: an expert is split as the other layers are.
  const std::int64_t expert_tensor = c.expert_tensor_parallel_size.value_or(
      c.num_experts.value_or(0) > 0 ? c.tensor_model_parallel_size : 1);
  shape.expert_tensor = divide("expert_tensor_parallel_size", expert_tensor, stage,
                               fmt::format("the {} ranks of a pipeline stage", stage));
  shape.expert =
      divide("expert_model_parallel_size", c.expert_model_parallel_size, stage / shape.expert_tensor,
             fmt::format("the {} ranks of a stage that hold the same part of each expert",
                         stage / shape.expert_tensor));
  const int reduced = shape.context * shape.data(ranks);
  shape.copies = divide("num_distributed_optimizer_instances", c.num_distributed_optimizer_instances, reduced,
                        fmt::format("the {} ranks that hold the same parameters", reduced));
  if (shape.copies > 1 && shape.expert * shape.expert_tensor > 1) {
    const int same_experts = stage / (shape.expert * shape.expert_tensor);
    divide("num_distributed_optimizer_instances", shape.copies, same_experts,
           fmt::format("the {} ranks that hold the same experts", same_experts));
  }
  return shape;
}

engine::Sharding sharding_of(const config::TrainerConfig& c) {
  using engine::Sharding;
  const std::string& strategy = c.data_parallel_sharding_strategy;
  if (c.use_torch_fsdp2 || strategy == "optim_grads_params") return Sharding::kParameters;
  if (strategy == "optim_grads") return Sharding::kGradients;
  if (c.use_distributed_optimizer || strategy == "optim" || c.optimizer == "dist_muon")
    return Sharding::kStates;
  return Sharding::kNone;
}

engine::Mesh measuring_mesh(const config::Experiment& e, int ranks, int rank) {
  if (ranks == 1) return {};
  return {std::make_unique<comm::MeasuringCommunicator>("world", rank, ranks), mesh_shape_of(e, ranks)};
}

namespace {

engine::ContextParallel::Exchange context_exchange_of(const config::TrainerConfig& c) {
  using Exchange = engine::ContextParallel::Exchange;
  if (c.cp_comm_type == "p2p") return Exchange::kRing;
  return c.cp_comm_type == "a2a" ? Exchange::kAllToAll : Exchange::kAllGather;
}

// Parts of the model on each stage.
int chunks_of(const config::Experiment& e, const ModelConfig& model, int stages, engine::ScheduleKind kind,
              const std::vector<std::int64_t>& layout) {
  const config::TrainerConfig& c = e.trainer;
  std::optional<std::int64_t> chunks = c.virtual_pipeline_model_parallel_size;
  const auto agree = [&](const char* key, std::int64_t other, const std::string& why) {
    if (chunks && *chunks != other) {
      throw e.error_for(key, fmt::format("{}, and virtual_pipeline_model_parallel_size is {}", why, *chunks),
                        "leave one of both out");
    }
    chunks = other;
  };
  if (!layout.empty()) {
    const auto parts = static_cast<std::int64_t>(layout.size());
    if (parts % stages != 0) {
      throw e.error_for(
          "pipeline_model_parallel_layout",
          fmt::format("the layout has {} parts, which {} pipeline stages cannot share", parts, stages),
          fmt::format("write a multiple of {} parts", stages));
    }
    agree("pipeline_model_parallel_layout", parts / stages,
          fmt::format("the layout has {} parts for each of {} stages", parts / stages, stages));
  }
  if (const auto blocks = c.num_layers_per_virtual_pipeline_stage) {
    if (*blocks > model.layers || model.layers % (*blocks * stages) != 0) {
      throw e.error_for(
          "num_layers_per_virtual_pipeline_stage",
          fmt::format("{} layers are not a multiple of {} stages times {} blocks", model.layers, stages,
                      *blocks),
          fmt::format("set it to a divisor of {}", std::max<std::int64_t>(model.layers / stages, 1)));
    }
    agree("num_layers_per_virtual_pipeline_stage", model.layers / (*blocks * stages),
          fmt::format("{} blocks in each part make {} parts on each stage", *blocks,
                      model.layers / (*blocks * stages)));
  }
  return static_cast<int>(chunks.value_or(engine::traits_of(kind).v_shaped ? 2 : 1));
}

PipelineSettings pipeline_settings_of(const config::Experiment& e, const ModelConfig& model, int stages,
                                      std::int64_t microbatches) {
  const config::TrainerConfig& c = e.trainer;
  if (stages == 1) {
    for (const auto& [key, given] :
         {std::pair("virtual_pipeline_model_parallel_size",
                    c.virtual_pipeline_model_parallel_size.value_or(1) > 1),
          std::pair("pipeline_model_parallel_layout", c.pipeline_model_parallel_layout.has_value()),
          std::pair("num_layers_per_virtual_pipeline_stage",
                    c.num_layers_per_virtual_pipeline_stage.has_value())}) {
      if (given) {
        throw e.error_for(key, fmt::format("{} has no meaning with one pipeline stage", key),
                          "leave it out, or set pipeline_model_parallel_size");
      }
    }
    return {};
  }
  if (!c.patch_primus_pipeline && e.provenance_of("pp_algorithm").layer >= config::Layer::kOverrides) {
    throw e.error_for("pp_algorithm", "pp_algorithm has no effect without patch_primus_pipeline",
                      "set patch_primus_pipeline: true");
  }
  using engine::ScheduleKind;
  std::vector<std::int64_t> layout;
  try {
    if (c.pipeline_model_parallel_layout)
      layout = parse_layout(*c.pipeline_model_parallel_layout, model.layers, model.mtp.modules());
  } catch (const Error& error) {
    throw e.error_for("pipeline_model_parallel_layout", error.what(), error.hint());
  }
  PipelineSettings settings;
  if (c.patch_primus_pipeline) settings.schedule = *engine::schedule_named(c.pp_algorithm);
  settings.chunks = chunks_of(e, model, stages, settings.schedule, layout);
  if (!c.patch_primus_pipeline && settings.chunks > 1) settings.schedule = ScheduleKind::kInterleaved;
  const bool by_groups = settings.schedule == ScheduleKind::kInterleaved;
  if (const std::int64_t rest = microbatches % stages; by_groups && rest != 0) {
    const std::int64_t of_microbatch = c.global_batch_size / microbatches,
                       more = microbatches - rest + stages;
    throw e.error_for(
        "global_batch_size",
        fmt::format(
            "interleaved 1F1B needs a multiple of its {} stages as number of microbatches, and {} sequences "
            "make {}",
            stages, c.global_batch_size, microbatches),
        fmt::format("set global_batch_size to {}", more * of_microbatch));
  }
  try {
    engine::check_schedule(settings.schedule, stages, settings.chunks, microbatches);
  } catch (const Error& error) {
    throw e.error_for("virtual_pipeline_model_parallel_size", error.what(), error.hint());
  }
  settings.blocks = layout;
  if (!layout.empty()) return settings;
  const engine::PipelineShape shape{stages, settings.chunks, engine::traits_of(settings.schedule).v_shaped};
  try {
    settings.blocks = split_blocks(model.layers, shape,
                                   {.first = c.decoder_first_pipeline_num_layers,
                                    .last = c.decoder_last_pipeline_num_layers,
                                    .embedding = c.account_for_embedding_in_pipeline_split,
                                    .loss = c.account_for_loss_in_pipeline_split});
  } catch (const Error& error) {
    throw e.error_for("pipeline_model_parallel_size", error.what(), error.hint());
  }
  return settings;
}

engine::PrecisionRecipe precision_recipe_of(const config::Experiment& e, const ModelConfig& model,
                                            int context_ranks) {
  const config::TrainerConfig& c = e.trainer;
  const bool ends = c.first_last_layers_bf16;
  const std::int64_t first = ends ? c.num_layers_at_start_in_bf16 : 0,
                     last = ends ? model.layers - c.num_layers_at_end_in_bf16 : model.layers;
  if (c.fp4 && c.fp4_recipe == "mxfp4")  // the only one that validation lets pass
    return {.fp4 = true,
            .at_random = c.mxfp4_gradient_stochastic_rounding,
            .first = first,
            .last = last,
            .layers = model.layers};
  if (!c.fp8) return {};
  constexpr std::int64_t kMultiple = 16;  // turbo/fp8_linear
  const std::int64_t tokens = c.micro_batch_size * c.seq_length / context_ranks;
  if (tokens % kMultiple != 0) {
    throw e.error_for(
        "seq_length",
        fmt::format("a rank's {} tokens of a microbatch are no multiple of {}, which products in fp8 take",
                    tokens, kMultiple),
        "set another seq_length or micro_batch_size, or fp8: null");
  }
  return {.fp8 = true,
          .gradients = *c.fp8 == "hybrid" ? DType::kF8E5M2 : DType::kF8E4M3,
          .weight_gradients = c.fp8_wgrad,
          .first = first,
          .last = last,
          .layers = model.layers,
          .delayed = c.fp8_recipe == "delayed"
                         ? engine::DelayedScaling{.steps = c.fp8_amax_history_len,
                                                  .most_recent = c.fp8_amax_compute_algo == "most_recent",
                                                  .margin = static_cast<int>(c.fp8_margin)}
                         : engine::DelayedScaling{}};
}

}  // namespace

std::string lack_of_disk(const config::TrainerConfig& c, const Path& folder, std::int64_t checkpoint_bytes) {
  if (c.disable_last_saving && c.save_interval > c.train_iters) return {};
  Env& env = Env::posix();
  Path place = std::filesystem::absolute(folder);
  while (place.has_relative_path() && !env.status(place)) place = place.parent_path();
  const std::uint64_t have = env.free_space(place);
  if (static_cast<std::uint64_t>(checkpoint_bytes) <= have) return {};
  return fmt::format("a checkpoint takes {}, and {} has {} free",
                     human_bytes(static_cast<double>(checkpoint_bytes)), place.string(),
                     human_bytes(static_cast<double>(have)));
}

void check_batches(const config::Experiment& e, int world) {
  const config::TrainerConfig& c = e.trainer;
  const engine::MeshShape shape = mesh_shape_of(e, world);
  const int ranks = shape.data(world);
  if (c.global_batch_size % (c.micro_batch_size * ranks) != 0) {
    std::string next = fmt::format("set it to a multiple of {}", c.micro_batch_size * ranks);
    if (c.global_batch_size % ranks == 0) {  // smaller microbatches keep the batch as it is
      const std::int64_t share = c.global_batch_size / ranks;
      std::int64_t micro = std::min(c.micro_batch_size, share);
      while (share % micro != 0) --micro;
      next += fmt::format(", or micro_batch_size to {}, which leaves each step its batch", micro);
    }
    throw e.error_for(
        "global_batch_size",
        fmt::format("global_batch_size ({}) is not a multiple of micro_batch_size ({}) times {} "
                    "data-parallel ranks",
                    c.global_batch_size, c.micro_batch_size, ranks),
        next);
  }
}

namespace {

OptimizerSettings optimizer_settings_of(const config::Experiment& e,
                                        const engine::PrecisionRecipe& precision) {
  const config::TrainerConfig& c = e.trainer;
  OptimizerSettings settings = OptimizerSettings::from(e);
  if (!precision.fp4 || !c.weight_deosc) return settings;
  settings.oscillation = {.start_step = c.weight_deosc_start_step,
                          .period = c.weight_deosc_period,
                          .ratio = c.weight_deosc_ratio,
                          .log_freq = c.weight_deosc_log_freq};
  settings.rules = without_oscillation(settings.rules, precision, *settings.oscillation);
  return settings;
}

}  // namespace

SessionSettings session_settings_of(const config::Experiment& e, const ModelConfig& model, int world) {
  check_batches(e, world);
  const config::TrainerConfig& c = e.trainer;
  const engine::MeshShape shape = mesh_shape_of(e, world);
  const int ranks = shape.data(world);
  const engine::ContextParallel::Exchange exchange = context_exchange_of(c);
  if (const auto mismatch = mesh_mismatch(model, shape, c.micro_batch_size, c.seq_length, exchange))
    throw e.error_for(mismatch->key, mismatch->what, mismatch->next);
  const engine::Sharding sharding = sharding_of(c);
  const engine::PrecisionRecipe precision = precision_recipe_of(e, model, shape.context);
  using Policy = engine::WeightGradientQueue::Policy;
  return {.model = model,
          .compute = c.bf16 ? DType::kBF16 : DType::kF32,
          .gradients = c.main_grads_dtype == "bf16" ? DType::kBF16 : DType::kF32,
          .decay_head_norms = c.apply_wd_to_qk_layernorm,
          .step = {.micro_batch = c.micro_batch_size,
                   .sequence = c.seq_length,
                   .microbatches = c.num_microbatches(ranks),
                   .packed_documents = config::separates_documents(c),
                   .recompute = recompute_policy_of(e, model),
                   .precision = precision,
                   .weight_gradients = c.delay_wgrad_compute ? Policy::kDeferred : Policy::kInline,
                   .seed = static_cast<std::uint64_t>(c.seed),
                   .context_exchange = exchange,
                   .tensor_overlap = {.overlap = c.tp_comm_overlap},
                   .expert_overlap = c.moe_shared_expert_overlap,
                   .pipeline = pipeline_settings_of(e, model, shape.pipeline, c.num_microbatches(ranks)),
                   .record_after = c.enable_cuda_graph ? c.cuda_graph_warmup_steps : 0},
          .optimizer = optimizer_settings_of(e, precision),
          .sharding = sharding,
          // Whoever shards gradients has no room for whole ones.
          .reduce_each_microbatch =
              c.reduce_gradients_each_microbatch.value_or(sharding >= engine::Sharding::kGradients),
          .parallel = {.overlap_reduction = c.overlap_grad_reduce,
                       .overlap_gather = c.overlap_param_gather,
                       .reshard_after_forward = c.torch_fsdp2_reshard_after_forward,
                       .reduce_dtype = c.grad_reduce_in_bf16 ? DType::kBF16 : DType::kF32},
          .evaluation = c.eval_iters > 0,
          .sample_capacity = c.sample_interval ? sample_capacity_of(c, model) : 0,
          .loss_rule = objective_of(c).loss_rule(e)};
}

}  // namespace primus
