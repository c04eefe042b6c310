// Derives parallel layout and step settings from an experiment.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "comm/measuring.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/model/batch_invariance.h"
#include "lm/model/mesh_check.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/settings/expert_hosts.h"
#include "lm/train/settings/training_settings.h"
#include "turbo/devices/devices.h"

namespace primus {

namespace {

// Returns recompute_layer_ids as ascending numbers. The setting is a list, or a text with commas or spaces.
std::vector<std::int64_t> recomputed_blocks(const config::Experiment& e, std::int64_t layers) {
  const std::string text = fmt::format("{}", fmt::join(e.trainer->recompute_layer_ids, ","));
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
          fmt::format("recompute_layer_ids is '{}', but this model has blocks 0 to {}", text, layers - 1),
          "write block numbers separated by commas: 0,3,4");
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
  const bool experts = model.moe.experts > 0, latent = model.any_keeps(Keeps::kLatents);
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
      } else if (module != "mla_up_proj" || !latent) {  // with latent attention, the outputs of this module
                                                        // are never stored
        throw e.error_for("recompute_modules",
                          "'" + module + "' cannot be recomputed separately in this model",
                          "choose from core_attn, layernorm, mlp and, with experts, moe and moe_act");
      }
    }
  }
  return policy;
}

// Returns the max. number of tokens of a sample, including its prompt.
std::int64_t sample_capacity_of(const config::TrainerConfig& c, const ModelConfig& model) {
  return std::min(model.max_positions, c.sample_tokens + objective_of(c).prompt_tokens(c));
}

engine::ContextParallel::Exchange context_exchange_of(const config::TrainerConfig& c) {
  using Exchange = engine::ContextParallel::Exchange;
  if (c.cp_comm_type == "p2p") return Exchange::kRing;
  return c.cp_comm_type == "a2a" ? Exchange::kAllToAll : Exchange::kAllGather;
}

// Returns the number of model parts per stage.
int chunks_of(const config::Experiment& e, const ModelConfig& model, int stages, engine::ScheduleKind kind,
              const std::vector<std::int64_t>& layout) {
  const config::TrainerConfig& c = e.trainer;
  std::optional<std::int64_t> chunks = c.virtual_pipeline_model_parallel_size;
  const auto agree = [&](const char* key, std::int64_t other, const std::string& why) {
    if (chunks && *chunks != other) {
      throw e.error_for(key, fmt::format("{}, but virtual_pipeline_model_parallel_size is {}", why, *chunks),
                        "remove one of the two");
    }
    chunks = other;
  };
  if (!layout.empty()) {
    const auto parts = static_cast<std::int64_t>(layout.size());
    if (parts % stages != 0) {
      throw e.error_for(
          "pipeline_model_parallel_layout",
          fmt::format("the layout has {} parts, which cannot be divided evenly among {} pipeline stages",
                      parts, stages),
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
        throw e.error_for(key, fmt::format("{} has no effect with one pipeline stage", key),
                          "remove it, or set pipeline_model_parallel_size");
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
    throw e.error_for("global_batch_size",
                      fmt::format("interleaved 1F1B needs a number of microbatches that is a multiple of its "
                                  "{} stages, but {} sequences "
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
  if (c.fp4 && c.fp4_recipe == "mxfp4")  // validation accepts no other recipe
    return {.fp4 = true,
            .at_random = c.mxfp4_gradient_stochastic_rounding,
            .first = first,
            .last = last,
            .layers = model.layers};
  if (!c.fp8) return {};
  constexpr std::int64_t kMultiple = 16;  // multiple required by turbo/fp8_linear
  const std::int64_t tokens = c.micro_batch_size * c.seq_length / context_ranks;
  if (tokens % kMultiple != 0) {
    throw e.error_for(
        "seq_length",
        fmt::format("a rank's {} tokens of a microbatch are not a multiple of {}, which fp8 products need",
                    tokens, kMultiple),
        "change seq_length or micro_batch_size, or set fp8: null");
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

// The kind of device of the run, or of the hardware that the run is planned for.
std::string device_kind_of(const config::Experiment& e) {
  return e.hardware ? e.hardware->device : turbo::choose_device(device_spec_of(e, 1)).kind;
}

// Refuses settings with which the training pass of a token differs from its pass in generation.
void check_batch_invariant_training(const config::Experiment& e, const ModelConfig& model,
                                    const engine::PrecisionRecipe& precision,
                                    const engine::MeshShape& shape) {
  if (!e.trainer->batch_invariant) return;
  std::optional<std::string> why = batch_variance(model, true);
  if (precision.fp8 || precision.fp4) why = "fp8 and fp4 products scale the tokens of a batch together";
  if (shape.context > 1) why = "context ranks divide the keys of a sequence";
  if (!why && device_kind_of(e) != "cpu")
    why = batch_variance_on_gpus(model, e.trainer->bf16 ? DType::kBF16 : DType::kF32, shape);
  if (!why) return;
  throw e.error_for("batch_invariant", "batch_invariant does not support this run: " + *why,
                    "change that setting, or remove batch_invariant");
}

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

// Returns MeshShape::host according to moe_ranks_per_host; 0 if the key is not set. `shape` has all other
// members. Throws if the key has no effect, or does not divide the ranks that share the experts.
int host_of_key(const config::Experiment& e, const engine::MeshShape& shape) {
  const config::TrainerConfig& c = e.trainer;
  constexpr const char* kKey = "moe_ranks_per_host";
  const int ranks = shape.expert * shape.expert_tensor;
  if (!c.moe_ranks_per_host || ranks == 1) return 0;
  if (c.moe_token_dispatcher_type == "allgather") {
    throw e.error_for(kKey, fmt::format("{} has no effect with moe_token_dispatcher_type: allgather", kKey),
                      fmt::format("set moe_token_dispatcher_type=alltoall, or remove {}", kKey));
  }
  const std::int64_t host = *c.moe_ranks_per_host;
  if (host == 1 || host >= ranks) return 0;
  if (ranks % host == 0) return static_cast<int>(host);
  std::vector<int> divisors;
  for (int d = 1; d <= ranks; ++d) {
    if (ranks % d == 0) divisors.push_back(d);
  }
  throw e.error_for(kKey,
                    fmt::format("{} is {}, which does not divide the {} ranks that share the experts "
                                "(expert_model_parallel_size x expert_tensor_parallel_size)",
                                kKey, host, ranks),
                    fmt::format("set it to one of {}; 1 sends tokens in one hop", fmt::join(divisors, ", ")));
}

}  // namespace

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
        of == 1
            ? "set it to 1, or start more ranks (--nproc N, or mpirun -n N; --world N in a dry run)"
            : fmt::format("set it to one of {}, or start more ranks (--nproc N, or mpirun -n N; --world N in "
                          "a dry run)",
                          fmt::join(divisors, ", ")));
  };
  engine::MeshShape shape;
  shape.pipeline = divide("pipeline_model_parallel_size", c.pipeline_model_parallel_size, ranks,
                          fmt::format("the {} ranks", ranks));
  const int stage = ranks / shape.pipeline;
  shape.tensor = divide("tensor_model_parallel_size", c.tensor_model_parallel_size, stage,
                        fmt::format("the {} ranks of a pipeline stage", stage));
  shape.context = divide(
      "context_parallel_size", c.context_parallel_size, stage / shape.tensor,
      fmt::format("{} (the ranks of a pipeline stage / tensor_model_parallel_size)", stage / shape.tensor));
  // Megatron-LM's default divides the matrices of experts like the matrices of other layers.
  const std::int64_t expert_tensor = c.expert_tensor_parallel_size.value_or(
      c.num_experts.value_or(0) > 0 ? c.tensor_model_parallel_size : 1);
  shape.expert_tensor = divide("expert_tensor_parallel_size", expert_tensor, stage,
                               fmt::format("the {} ranks of a pipeline stage", stage));
  shape.expert =
      divide("expert_model_parallel_size", c.expert_model_parallel_size, stage / shape.expert_tensor,
             fmt::format("{} (the ranks of a pipeline stage / expert_tensor_parallel_size)",
                         stage / shape.expert_tensor));
  const int reduced = shape.context * shape.data(ranks);
  shape.copies = divide("num_distributed_optimizer_instances", c.num_distributed_optimizer_instances, reduced,
                        fmt::format("the {} ranks that hold the same parameters", reduced));
  if (shape.copies > 1 && shape.expert * shape.expert_tensor > 1) {
    const int same_experts = stage / (shape.expert * shape.expert_tensor);
    divide("num_distributed_optimizer_instances", shape.copies, same_experts,
           fmt::format("the {} ranks that hold the same experts", same_experts));
  }
  shape.host = host_of_key(e, shape);
  return shape;
}

void assume_expert_hosts(config::Experiment& e, const MoeConfig& moe, int world, int on_host) {
  if (e.trainer->moe_ranks_per_host) return;
  if (e.hardware) on_host = static_cast<int>(e.hardware->gpus_per_host);
  on_host = std::clamp(on_host, 1, world);
  const int host = choose_expert_hosts(moe, mesh_shape_of(e, world), on_host).host;
  if (host > 0) e.trainer->moe_ranks_per_host = host;
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

bool orders_sums(const config::Experiment& e) {
  return e.trainer->batch_invariant && device_kind_of(e) != "cpu";
}

engine::Mesh measuring_mesh(const config::Experiment& e, int ranks, int rank) {
  if (ranks == 1) return {};
  auto world = std::make_unique<comm::MeasuringCommunicator>("world", rank, ranks);
  world->set_ordered_sums(orders_sums(e));
  return {std::move(world), mesh_shape_of(e, ranks)};
}

std::string why_microbatches_do_not_alternate(const config::Experiment& e, int world) {
  const config::TrainerConfig& c = e.trainer;
  const engine::MeshShape shape = mesh_shape_of(e, world);
  if (shape.expert * shape.expert_tensor == 1) return "no ranks share experts";
  if (shape.pipeline > 1) return "the model has several pipeline stages";
  if (sharding_of(c) == engine::Sharding::kParameters)
    return "each pass gathers the sharded parameters for itself";
  if (c.patch_primus_pipeline && c.pp_algorithm != "1f1b")
    return "the schedule '" + c.pp_algorithm + "' has another order of passes";
  if (c.num_microbatches(shape.data(world)) == 1) return "a step has only one microbatch";
  return {};
}

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
  check_batch_invariant_training(e, model, precision, shape);
  using Policy = engine::WeightGradientQueue::Policy;
  SessionSettings settings{
      .model = model,
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
               .expert_overlap = {.shared_experts = c.moe_shared_expert_overlap,
                                  .microbatches = c.overlap_moe_expert_parallel_comm &&
                                                  why_microbatches_do_not_alternate(e, world).empty()},
               .pipeline = pipeline_settings_of(e, model, shape.pipeline, c.num_microbatches(ranks)),
               .record_after = c.enable_cuda_graph ? c.cuda_graph_warmup_steps : 0},
      .optimizer = optimizer_settings_of(e, precision),
      .sharding = sharding,
      // With sharded gradients there is no memory for complete gradients to accumulate in.
      .reduce_each_microbatch =
          c.reduce_gradients_each_microbatch.value_or(sharding >= engine::Sharding::kGradients),
      .parallel = {.overlap_reduction = c.overlap_grad_reduce,
                   .overlap_gather = c.overlap_param_gather,
                   .reshard_after_forward = c.torch_fsdp2_reshard_after_forward,
                   .reduce_dtype = c.grad_reduce_in_bf16 ? DType::kBF16 : DType::kF32},
      .evaluation = c.eval_iters > 0,
      .sample_capacity = c.sample_interval ? sample_capacity_of(c, model) : 0,
      .loss_rule = objective_of(c).loss_rule(e)};
  objective_of(c).prepare_session(e, world, settings);
  return settings;
}

}  // namespace primus
