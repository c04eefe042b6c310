#include "lm/train/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/file.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/data/batch_loader.h"
#include "lm/model/weights.h"
#include "lm/monitor/run_folder.h"
#include "lm/monitor/training_monitor.h"
#include "lm/optimizer/schedule.h"
#include "lm/train/loaded_model.h"
#include "lm/train/resume.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/linear/gemm_rate.h"

namespace primus {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kProgressSeconds = 5;  // between reports of work before the first step

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

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

// The model's own folder of what `load` names: a Hugging Face folder, one of our checkpoints, or a folder of
// those, of which the one is meant that a run would go on from.
Path loaded_folder(const Path& load) {
  if (Env::posix().status(load / "config.json")) return load;
  const ResumePoint point = find_resume_point(load, Validation::kStructure);
  return point.reader ? point.reader->folder() : load;
}

DeviceMemory memory_in_use(const engine::MemoryPlan& plan) {
  const double total =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return {.label = "cpu", .used = static_cast<double>(plan.total()), .total = total};
}

// Model in the compute type, with a copy of embedding and head for each module of multi-token prediction;
// moments in fp32, and master weights where the model is narrower.
std::int64_t checkpoint_bytes(std::int64_t parameters, const SessionSettings& s, bool optimizer) {
  const std::int64_t copies = 2 * s.model.mtp.modules() * s.model.vocab * s.model.hidden;
  return (parameters + copies) * size_of(s.compute) +
         (optimizer ? parameters * (8 + (s.compute == DType::kF32 ? 0 : 4)) : 0);
}

HostBatch host_batch(const data::Batch& batch) {
  return {batch.tokens, batch.labels, batch.loss_mask, batch.document_starts, batch.position_ids};
}

// A tokenizer's file that the experiment names and that is not there.
std::optional<std::string> missing_tokenizer(const config::TrainerConfig& c) {
  if (c.tokenizer_type == "NullTokenizer" || c.tokenizer_type == "ByteTokenizer") return std::nullopt;
  for (const auto* file : {&c.tokenizer_model, &c.vocab_file, &c.merge_file}) {
    if (*file && !Env::posix().status(**file)) return **file;
  }
  return std::nullopt;
}

// A preset names its model's tokenizer, which is not what counts ids, and gives way to another one's files.
bool has_preset_tokenizer(const config::Experiment& e) {
  return !e.trainer.tokenizer_model || e.provenance_of("tokenizer_model").layer < config::Layer::kOverrides;
}

// The experiment as text that means the same without its presets: what gave way is left out.
std::string experiment_text(config::Experiment e) {
  config::TrainerConfig& c = e.trainer;
  const bool of_preset = has_preset_tokenizer(e);
  const bool files = c.vocab_file || c.merge_file;
  const bool only_ids = !files && of_preset && c.vocab_size && c.mock_data && missing_tokenizer(c);
  const bool null = c.tokenizer_type == "NullTokenizer" && c.vocab_size;
  if (only_ids) c.tokenizer_type.reset();
  if (only_ids || (of_preset && (files || null))) c.tokenizer_model.reset();
  return config::to_yaml(e);
}

// Loads of the experts, and the means over layers of the losses that shape the routers, under Megatron's
// names and without their coefficients.
void add_routing(const StepResult& result, const MoeConfig& moe, IterationRecord& record) {
  double balance = 0, z = 0;
  for (const LayerRouting& layer : result.routing) {
    record.routing.push_back({.layer = layer.layer, .imbalance = layer.imbalance, .dropped = layer.dropped});
    if (moe.training.balance_loss != 0) record.routing.back().balance_loss = layer.balance_loss;
    balance += layer.balance_loss;
    z += layer.z_loss;
  }
  if (result.routing.empty()) return;
  const auto layers = static_cast<double>(result.routing.size());
  if (moe.training.balance_loss != 0) {
    record.other_losses.emplace_back(
        moe.training.balance_sequences ? "seq_load_balancing_loss" : "load_balancing_loss", balance / layers);
  }
  if (moe.training.z_loss != 0) record.other_losses.emplace_back("z_loss", z / layers);
}

}  // namespace

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

Trainer::Trainer(const config::Experiment& experiment, const FamilyRegistry& families, Logger& log)
    : experiment_(experiment), families_(families), log_(log) {}

Trainer::~Trainer() = default;

TrainingForecast Trainer::forecast() {
  const config::TrainerConfig& c = experiment_.trainer;
  std::vector<std::string> notes;
  // A forecast needs no tokenizer file where the experiment says how many tokens there are.
  const bool there = !c.vocab_size || !missing_tokenizer(c);
  const std::unique_ptr<const Tokenizer> tokenizer = there ? tokenizer_of(experiment_) : nullptr;
  const ModelConfig model = model_of(experiment_, families_, tokenizer.get(), &notes);
  for (const std::string& note : notes) log_.warning("{}", note);
  const SessionSettings settings = session_settings_of(experiment_, model);
  engine::Rank rank(turbo::make_cpu_device(static_cast<int>(c.num_threads)));
  TrainingForecast f{.model = model, .step = measure_session(rank, settings, families_)};
  f.model_flops_per_step = training_flops(model, c.global_batch_size, c.seq_length);
  f.steps = c.train_iters;
  f.tokens_per_step = c.global_batch_size * c.seq_length;
  f.checkpoint_bytes = checkpoint_bytes(f.step.parameters, settings, !c.no_save_optim);
  f.snapshot_bytes = c.async_save ? f.checkpoint_bytes : 0;
  f.matmul_flops_per_second = turbo::measure_gemm_rate(rank.device(), settings.compute, 0.2);
  f.seconds = f.step.kernels.total_flops() / f.matmul_flops_per_second * static_cast<double>(f.steps);
  return f;
}

// One run from start to end; its members are built in this order.
struct Trainer::Run {
  Run(const config::Experiment& experiment, const FamilyRegistry& registry, Logger& logger)
      : e(experiment),
        c(e.trainer),
        log(logger),
        families(registry),
        folder(run_folder_of(e)),
        tokenizer(tokenizer_of(e, &model_notes)),
        model(model_of(e, registry, tokenizer.get(), &model_notes)),
        settings(session_settings_of(e, model)),
        schedule(c) {}

  void prepare();
  TrainingSummary execute(const std::atomic<bool>& stop);

  const config::Experiment& e;
  const config::TrainerConfig& c;
  Logger& log;
  const FamilyRegistry& families;
  RunFolder folder;
  std::vector<std::string> model_notes;
  std::unique_ptr<const Tokenizer> tokenizer;
  ModelConfig model;
  SessionSettings settings;
  Schedule schedule;

 private:
  void lock_folder();
  void record_experiment() const;
  void open_data();
  // The newest good checkpoint in `root`; damaged ones are named in the log.
  ResumePoint resume_point(const Path& root) const;
  void load_or_initialize();
  void resume_from(const CheckpointReader& checkpoint);
  void finetune_from(const CheckpointReader& checkpoint);
  // False: `stop` came first, and the step was left without a trace.
  bool train_step(const std::atomic<bool>& stop);
  // Empty: `stop` came first.
  std::optional<double> evaluate(const data::Dataset& dataset, const char* name, std::int64_t first_sample,
                                 const std::atomic<bool>& stop);
  data::BatchLoaderOptions loader_options(std::int64_t first_sample) const;
  // The next batch of what is trained or evaluated on. Where the data is broken, what was learned is saved
  // first.
  const data::Batch& next_batch(data::BatchLoader& batches);
  std::optional<std::string> newest_checkpoint() const;
  void save();
  std::vector<Snapshot::Blob> make_model_files() const;
  std::string trainer_state() const;

  std::optional<RunLock> lock, checkpoints_lock;
  data::Datasets datasets;
  std::unique_ptr<engine::Rank> rank;
  std::unique_ptr<TrainingSession> session;
  std::unique_ptr<DeviceReader> reader;
  std::unique_ptr<AsyncWriter> writer;  // after what its sources read
  std::unique_ptr<TrainingMonitor> monitor;
  std::unique_ptr<ThroughputMeter> meter;
  std::unique_ptr<data::BatchLoader> loader;
  engine::MemoryPlan memory;
  std::int64_t iteration = 0;        // completed steps
  std::int64_t first_iteration = 0;  // completed when this process began
  std::int64_t last_saved = -1;
  std::int64_t nan_iterations = 0;
  std::vector<Snapshot::Blob> model_files;  // of every checkpoint, beside the weights
  double step_began = 0, wait_before = 0;
  StepResult result;
};

void Trainer::prepare() {
  run_ = std::make_unique<Run>(experiment_, families_, log_);
  run_->prepare();
}

TrainingSummary Trainer::run(const std::atomic<bool>& stop) { return run_->execute(stop); }

void Trainer::Run::lock_folder() {
  folder.create();
  lock.emplace(folder.root());
}

// For who looks for this run's checkpoints by its folder.
void Trainer::Run::record_experiment() const {
  config::Experiment resolved = e;
  if (c.save) resolved.trainer.save = std::filesystem::absolute(*c.save).lexically_normal().string();
  write_file_atomic(folder.experiment_file(), experiment_text(resolved));
}

void Trainer::Run::open_data() {
  data::DataOptions data_options = data_options_of(e, *tokenizer);
  double next_report = now() + kProgressSeconds;
  data_options.progress = [&](const data::TokenizeProgress& p) {
    if (now() < next_report) return;
    next_report = now() + kProgressSeconds;
    const double share =
        static_cast<double>(p.bytes_done) / static_cast<double>(std::max<std::uint64_t>(p.bytes_total, 1));
    log.info("tokenizing {}: {:.0f} %, {:.1f} MB/s, {:.0f} s left", p.input, 100 * share,
             static_cast<double>(p.bytes_done) / 1e6 / std::max(p.seconds, 1e-3),
             share > 0 ? p.seconds * (1 - share) / share : 0.0);
  };
  datasets = data::open_datasets(data_options, *tokenizer);
  const std::int64_t needed = c.train_iters * c.global_batch_size;
  if (datasets.train && datasets.train->size() < needed) {
    throw e.error_for(
        "train_iters",
        fmt::format("{} steps of {} sequences need {} samples, and {} has {}", c.train_iters,
                    c.global_batch_size, needed, datasets.train->description(), datasets.train->size()),
        fmt::format("train for {} steps, or give the data sets weights so that they may be repeated",
                    datasets.train->size() / c.global_batch_size));
  }
}

void Trainer::Run::prepare() {
  // A run that is refused for its data leaves no folder where there was none.
  if (Env::posix().status(folder.root())) lock_folder();
  open_data();
  if (!lock) lock_folder();
  for (const auto& notes : {tokenizer->notes(), model_notes, datasets.notes}) {
    for (const std::string& note : notes) log.warning("{}", note);
  }

  rank = std::make_unique<engine::Rank>(turbo::make_cpu_device(static_cast<int>(c.num_threads)));
  const StepMeasurement measured = measure_session(*rank, settings, families);
  memory = measured.memory;
  constexpr double kMiB = 1 << 20;
  log.info(
      "{} | {:.1f}M parameters | memory: {:.0f} MiB persistent (weights, gradients, optimizer), {:.0f} MiB "
      "stash "
      "(activations), {:.0f} MiB scratch",
      rank->device().description(), static_cast<double>(measured.parameters) / 1e6,
      static_cast<double>(memory.persistent) / kMiB, static_cast<double>(memory.stash) / kMiB,
      static_cast<double>(memory.scratch) / kMiB);
  if (c.async_save) {
    log.info(
        "saving in the background will hold a copy of the checkpoint: {:.0f} MiB (async_save=false needs "
        "none)",
        static_cast<double>(checkpoint_bytes(measured.parameters, settings, !c.no_save_optim)) / kMiB);
  }
  rank->reserve(memory);
  session = std::make_unique<TrainingSession>(*rank, settings, families);
  reader = std::make_unique<DeviceReader>(*rank);
  load_or_initialize();

  const Path root = checkpoint_root_of(e);
  make_folders(root);
  // It may belong to several experiments.
  if (c.save) checkpoints_lock.emplace(root, "wait for it or stop it, or let this run save elsewhere (save)");
  CheckpointRoot(root).recover();
  model_files = make_model_files();
  first_iteration = iteration;
  writer = std::make_unique<AsyncWriter>(root, SaveOptions{.keep_last = static_cast<int>(c.keep_latest)});
  monitor = std::make_unique<TrainingMonitor>(
      folder,
      MonitorOptions{.resume_iteration = iteration,
                     .log_interval = static_cast<int>(c.log_interval),
                     .tensorboard_log_interval = static_cast<int>(c.tensorboard_log_interval),
                     .tensorboard = !c.disable_tensorboard},
      log);
  meter = std::make_unique<ThroughputMeter>(ThroughputOptions{
      .train_iters = c.train_iters,
      .world_size = 1,
      .peak_flops_per_device = turbo::measure_gemm_rate(rank->device(), settings.compute, 0.1),
      .avg_skip_iterations = static_cast<int>(c.log_avg_skip_iterations),
      .avg_reset_interval = static_cast<int>(c.log_avg_reset_interval)});
  if (iteration >= c.train_iters) return;
  // Only now: a run that is refused, or has nothing to do, leaves the record of one that trained.
  record_experiment();
  loader =
      std::make_unique<data::BatchLoader>(*datasets.train, loader_options(iteration * c.global_batch_size));
}

TrainingSummary Trainer::Run::execute(const std::atomic<bool>& stop) {
  const double began = now();
  if (iteration >= c.train_iters && iteration > 0) {
    TrainingSummary done{.first_step = iteration, .last_step = iteration, .last_loss = result.loss};
    done.checkpoint = newest_checkpoint();
    return done;
  }
  TrainingSummary summary{.first_step = iteration, .last_step = iteration};
  const std::int64_t evaluated_samples = c.eval_iters * c.global_batch_size;
  bool evaluated = false;
  while (iteration < c.train_iters && !stop) {
    if (!train_step(stop)) break;
    evaluated = c.eval_iters > 0 && datasets.valid && iteration % c.eval_interval == 0;
    if (evaluated) {
      const std::int64_t first = (iteration / c.eval_interval - 1) * evaluated_samples;
      summary.validation_loss = evaluate(*datasets.valid, "validation", first, stop);
    }
    if (iteration % c.save_interval == 0) save();
    const bool out_of_time = c.exit_duration_in_mins && (now() - began) / 60 >= *c.exit_duration_in_mins;
    if (out_of_time || (c.exit_interval && iteration % *c.exit_interval == 0)) {
      log.info("stopping after iteration {}: {}", iteration,
               out_of_time ? "exit_duration_in_mins" : "exit_interval");
      summary.interrupted = iteration < c.train_iters;
      break;
    }
  }
  if (stop && iteration < c.train_iters) {
    log.info("asked to stop after iteration {}", iteration);
    summary.interrupted = true;
  }
  if (!summary.interrupted && c.eval_iters > 0) {
    if (datasets.valid && !evaluated) {
      summary.validation_loss =
          evaluate(*datasets.valid, "validation", c.train_iters / c.eval_interval * evaluated_samples, stop);
    }
    if (datasets.test) summary.test_loss = evaluate(*datasets.test, "test", 0, stop);
  }
  if (iteration > summary.first_step && (summary.interrupted || !c.disable_last_saving)) save();
  writer->wait();
  monitor->sync();

  summary.last_step = iteration;
  summary.last_loss = result.loss;
  summary.seconds = now() - began;
  summary.checkpoint = newest_checkpoint();
  return summary;
}

std::optional<std::string> Trainer::Run::newest_checkpoint() const {
  const CheckpointRoot checkpoints(checkpoint_root_of(e));
  const auto saved = checkpoints.latest();
  return saved ? std::optional(checkpoints.folder(*saved).string()) : std::nullopt;
}

ResumePoint Trainer::Run::resume_point(const Path& root) const {
  ResumePoint point = find_resume_point(root);
  for (const std::string& reason : point.rejected) log.warning("damaged checkpoint passed over: {}", reason);
  return point;
}

void Trainer::Run::load_or_initialize() {
  if (c.auto_continue_train) {
    const ResumePoint point = resume_point(checkpoint_root_of(e));
    if (point.reader) {
      resume_from(*point.reader);
      return;
    }
  }
  if (!c.load) {
    session->store().initialize(rank->context(), static_cast<std::uint64_t>(c.seed));
    return;
  }
  // `load` is a Hugging Face folder, one of our checkpoints, or a folder of them.
  Path load = *c.load;
  if (Env::posix().status(load / Manifest::kFileName)) {
    const CheckpointReader checkpoint = CheckpointReader::open(load);
    c.finetune ? finetune_from(checkpoint) : resume_from(checkpoint);
  } else if (Env::posix().status(load / "config.json")) {
    load_weights(SafetensorsFolder::open(load), session->store(), *rank);
  } else {
    const ResumePoint point = resume_point(load);
    if (!point.reader) {
      throw e.error_for("load", "there is neither a model nor a checkpoint in " + load.string(),
                        "a model folder has config.json and *.safetensors; a checkpoint has manifest.json");
    }
    load = point.reader->folder();
    c.finetune ? finetune_from(*point.reader) : resume_from(*point.reader);
  }
  log.info("weights loaded from {}", load.string());
}

void Trainer::Run::finetune_from(const CheckpointReader& checkpoint) {
  refuse_another_model(checkpoint, e, model, settings.compute, families, Start::kFinetuned);
  load_checkpoint(checkpoint, session->store(), *rank, false);
}

void Trainer::Run::resume_from(const CheckpointReader& checkpoint) {
  const TrainerState state = read_trainer_state(checkpoint);
  refuse_another_model(checkpoint, e, model, settings.compute, families, Start::kContinued);
  if (state.global_batch_size != c.global_batch_size) {
    // The place in the data is steps times batch; with another batch it would be another place.
    throw e.error_for("global_batch_size",
                      fmt::format("this run was saved with global_batch_size {}, not {}",
                                  state.global_batch_size, c.global_batch_size),
                      "keep it, or start another run (exp_name) with load: " + checkpoint.folder().string());
  }
  const bool optimizer = !c.no_load_optim && has_optimizer_state(checkpoint);
  if (!optimizer && !c.no_load_optim) {
    log.warning("{} has no optimizer state (no_save_optim): its moments start from zero",
                checkpoint.folder().string());
  }
  load_checkpoint(checkpoint, session->store(), *rank, optimizer);
  iteration = last_saved = checkpoint.iteration();
  nan_iterations = state.nan_iterations;
  result.loss = state.lm_loss;
  log.info("continuing from {} (iteration {})", checkpoint.folder().string(), iteration);
  for (const SettingChange& change : changed_settings(state.experiment, experiment_text(e))) {
    const std::string text = fmt::format("{} was {}, and is {} from here on", change.key,
                                         change.before.empty() ? "unset" : change.before,
                                         change.after.empty() ? "unset" : change.after);
    change.moves_data
        ? log.warning("{}: the data goes on in another order, and parts of it come twice or never", text)
        : log.info("{}", text);
  }
}

bool Trainer::Run::train_step(const std::atomic<bool>& stop) {
  step_began = now();
  wait_before = loader->wait_seconds();
  TrainingStep& step = session->step();
  step.begin(iteration + 1);
  for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
    // A step of many microbatches may take minutes, and only its end changes the model.
    if (stop && i > 0) return false;
    step.microbatch(i, host_batch(next_batch(*loader)));
  }
  step.finish_gradients();
  result = step.result();
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.gradient_norm);
  if (!finite) ++nan_iterations;
  if (c.check_for_nan_in_loss_and_grad && !finite) {
    const bool loss = !std::isfinite(result.loss);
    std::string first = step.find_non_finite();
    if (first.empty()) first = "the backward pass";
    throw NumericsFault{.iteration = iteration + 1,
                        .quantity = loss ? "lm loss" : "gradient norm",
                        .value = loss ? result.loss : result.gradient_norm,
                        .first_operator = first}
        .to_error();
  }
  // Weights and moments may change only once a checkpoint in flight has copied them.
  writer->wait_copied();
  const double learning_rate = schedule.learning_rate(iteration);
  step.update(iteration + 1, learning_rate, schedule.weight_decay(iteration));
  rank->compute().synchronize();
  ++iteration;

  const double ended = now();
  IterationRecord record{.iteration = iteration,
                         .train_iters = c.train_iters,
                         .consumed_samples = iteration * c.global_batch_size,
                         .global_batch_size = c.global_batch_size,
                         .learning_rate = learning_rate,
                         .lm_loss = result.loss,
                         .grad_norm = result.gradient_norm,
                         .nan_iterations = nan_iterations};
  if (result.mtp_loss) record.other_losses.emplace_back("mtp_loss", *result.mtp_loss);
  add_routing(result, model.moe, record);
  record.memory = memory_in_use(memory);
  record.throughput = meter->update(iteration,
                                    {.seconds = ended - step_began,
                                     .data_wait_seconds = loader->wait_seconds() - wait_before,
                                     .tokens = static_cast<double>(c.global_batch_size * c.seq_length),
                                     .model_flops = training_flops(model, c.global_batch_size, c.seq_length)},
                                    ended);
  monitor->iteration(record);
  writer->check();
  return true;
}

data::BatchLoaderOptions Trainer::Run::loader_options(std::int64_t first_sample) const {
  constexpr std::int64_t kMostAhead = 64;  // microbatches read ahead
  return {.micro_batch_size = c.micro_batch_size,
          .consumed_samples = first_sample,
          .prefetch = static_cast<int>(std::min(settings.step.microbatches + 1, kMostAhead)),
          .reset_position_ids = c.reset_position_ids,
          .reset_attention_mask = c.reset_attention_mask,
          .eod = tokenizer->special_ids().eod};
}

const data::Batch& Trainer::Run::next_batch(data::BatchLoader& batches) {
  try {
    return batches.next();
  } catch (const Error&) {
    // Something is wrong with the data, not with what was learned from it.
    if (iteration > first_iteration) {
      try {
        save();
        writer->wait();
      } catch (const Error& second) {
        log.error("{}", second.what());
      }
    }
    throw;
  }
}

std::optional<double> Trainer::Run::evaluate(const data::Dataset& dataset, const char* name,
                                             std::int64_t first_sample, const std::atomic<bool>& stop) {
  const double began = now();
  data::BatchLoader batches(dataset, loader_options(first_sample));
  TrainingStep& step = session->step();
  step.begin_evaluation();
  const std::int64_t count = c.eval_iters * settings.step.microbatches;
  for (std::int64_t i = 0; i < count; ++i) {
    if (stop) return std::nullopt;
    step.evaluate(host_batch(next_batch(batches)));
  }
  const double loss = step.evaluation_loss();
  monitor->evaluation({.iteration = iteration,
                       .data_set = name,
                       .lm_loss = loss,
                       .tokens = count * c.micro_batch_size * c.seq_length,
                       .seconds = now() - began});
  return loss;
}

std::vector<Snapshot::Blob> Trainer::Run::make_model_files() const {
  std::vector<Snapshot::Blob> files{{"config.json", write_model_config(model, settings.compute, families)}};
  // How the model that was loaded wants to be sampled is still true of it.
  constexpr const char* kGeneration = "generation_config.json";
  const Path loaded = c.load ? loaded_folder(*c.load) : Path();
  if (c.load && Env::posix().status(loaded / kGeneration)) {
    constexpr std::uint64_t kLimit = 1 << 20;
    files.push_back({kGeneration, read_file(loaded / kGeneration, kLimit)});
  }
  // The tokenizer belongs to the model folder; kinds without a Hugging Face form (null, byte) are left out.
  const Path scratch = folder.root() / ".tokenizer";
  remove_tree(scratch);
  try {
    make_folders(scratch);
    tokenizer->save(scratch);
    for (const std::string& name : Env::posix().list(scratch))
      files.push_back({name, read_file(scratch / name)});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
  }
  remove_tree(scratch);
  return files;
}

std::string Trainer::Run::trainer_state() const {
  return write_trainer_state({.iteration = iteration,
                              .consumed_samples = iteration * c.global_batch_size,
                              .global_batch_size = c.global_batch_size,
                              .seed = c.seed,
                              .nan_iterations = nan_iterations,
                              .lm_loss = result.loss,
                              .experiment = experiment_text(e)});
}

void Trainer::Run::save() {
  if (last_saved == iteration) return;
  const double began = now();
  rank->compute().synchronize();
  monitor->sync();
  Snapshot snapshot;
  snapshot.iteration = iteration;
  snapshot.files = model_files;
  snapshot.trainer_state = trainer_state();
  snapshot.model = model_sources(session->store(), *reader);
  if (!c.no_save_optim) snapshot.optimizer = optimizer_sources(session->store(), *reader);
  // Waiting for the files makes a copy needless: nothing changes meanwhile.
  writer->save(std::move(snapshot),
               c.async_save ? AsyncWriter::Sources::kLive : AsyncWriter::Sources::kStable);
  last_saved = iteration;
  if (!c.async_save) writer->wait();
  log.info("saving iteration {}: training held for {:.1f} ms", iteration, 1e3 * (now() - began));
}

}  // namespace primus
