#include "lm/train/settings/training_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/counted.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "config/validation/without_effect.h"
#include "device/cpu/cpu_device.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/events/device_peak.h"
#include "lm/train/continued_run.h"
#include "lm/train/settings/loaded_model.h"
#include "lm/train/settings/loaded_tokenizer.h"
#include "turbo/devices/devices.h"

namespace primus {

RunFolder run_folder_of(const config::Experiment& e) {
  return RunFolder({.workspace = e.workspace,
                    .work_group = e.work_group,
                    .user_name = e.user_name,
                    .exp_name = e.exp_name});
}

std::chrono::minutes first_patience_of(const config::Experiment& e) {
  return std::chrono::minutes(e.trainer->distributed_timeout_minutes);
}

Path checkpoint_root_of(const config::Experiment& e) {
  return e.trainer->save ? Path(*e.trainer->save) : run_folder_of(e).checkpoints();
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
  // Excludes padding rows of the embedding, which belong to no token.
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

std::int64_t checkpoint_bytes(const StepMeasurement& measured, const SessionSettings& s, bool optimizer) {
  const std::int64_t copies = 2 * s.model.mtp.modules() * s.model.vocab * s.model.hidden;
  const std::int64_t masters =
      s.compute == DType::kF32 ? 0 : measured.trained_parameters * size_of(DType::kF32);
  return (measured.parameters - measured.four_bit.elements + copies) * size_of(s.compute) +
         measured.four_bit.saved_bytes + (optimizer ? measured.state_bytes + masters : 0);
}

int batches_read_ahead(std::int64_t microbatches) {
  constexpr std::int64_t kMaxAhead = 64;
  return static_cast<int>(std::min(microbatches + 1, kMaxAhead));
}

DeviceSpec device_spec_of(const config::Experiment& e, int ranks) {
  try {
    DeviceSpec spec = turbo::known_device(e.trainer->device, static_cast<int>(e.trainer->num_threads));
    if (spec.threads == 0 && ranks > 1) spec.threads = std::max(1, cpu::available_cores() / ranks);
    spec.deterministic = e.trainer->deterministic_mode;
    spec.batch_invariant = e.trainer->batch_invariant;
    const std::string& tune = e.trainer->tune_matmul;
    if (tune == "on" || (tune == "auto" && !spec.deterministic))
      spec.tuning_folder = DevicePeak::default_file().parent_path().string();
    return spec;
  } catch (const Error& error) {
    throw e.error_for("device", error.what(), error.hint());
  }
}

std::string excess_of_threads(const config::Experiment& e, const DeviceSpec& spec, int ranks) {
  const std::int64_t each = e.trainer->num_threads, cores = cpu::available_cores();
  // One thread per rank is the minimum, which no setting lowers.
  if (spec.kind != "cpu" || each <= 1 || each * ranks <= cores) return {};
  return fmt::format(
      "{}: num_threads is {}, which makes {} for {} on a machine with {} and slows them down; leave "
      "num_threads out to use {} per rank",
      e.provenance_of("num_threads").describe(), each, counted(each * ranks, "thread"),
      counted(ranks, "rank"), counted(cores, "core"),
      counted(std::max<std::int64_t>(1, cores / ranks), "thread"));
}

std::string lack_of_disk(const config::TrainerConfig& c, const Path& folder, std::int64_t checkpoint_bytes) {
  if (c.disable_last_saving && c.save_interval > c.train_iters) return {};
  Env& env = Env::posix();
  Path place = std::filesystem::absolute(folder);
  while (place.has_relative_path() && !env.status(place)) place = place.parent_path();
  const std::uint64_t have = env.free_space(place);
  if (static_cast<std::uint64_t>(checkpoint_bytes) <= have) return {};
  return fmt::format("a checkpoint needs {}, but {} has {} free",
                     human_bytes(static_cast<double>(checkpoint_bytes)), place.string(),
                     human_bytes(static_cast<double>(have)));
}

namespace {

// Returns what a run can do that was saved with a batch which `ranks` data-parallel ranks cannot divide.
std::string hint_for_saved_batch(std::int64_t batch, std::int64_t micro_batch, int ranks) {
  std::int64_t fewer = ranks - 1;
  while (fewer > 1 && batch % (micro_batch * fewer) != 0) --fewer;
  return fmt::format(
      "this run was saved with global_batch_size {}, which a run keeps: continue it on {}, or start another "
      "run "
      "(exp_name=NEW)",
      batch, counted(fewer, "data-parallel rank"));
}

}  // namespace

void check_batches(const config::Experiment& e, int world) {
  const config::TrainerConfig& c = e.trainer;
  const engine::MeshShape shape = mesh_shape_of(e, world);
  const int ranks = shape.data(world);
  if (c.global_batch_size % (c.micro_batch_size * ranks) != 0) {
    std::string next = fmt::format("set it to a multiple of {}", c.micro_batch_size * ranks);
    if (c.global_batch_size % ranks == 0) {  // smaller microbatches would allow the same batch size
      const std::int64_t share = c.global_batch_size / ranks;
      std::int64_t micro = std::min(c.micro_batch_size, share);
      while (share % micro != 0) --micro;
      next += fmt::format(", or micro_batch_size to {}, which keeps the global batch", micro);
    } else if (const auto state = own_state(e); state && state->global_batch_size == c.global_batch_size) {
      next = hint_for_saved_batch(c.global_batch_size, c.micro_batch_size, ranks);
    }
    throw e.error_for(
        "global_batch_size",
        fmt::format("global_batch_size ({}) is not a multiple of micro_batch_size ({}) times {} "
                    "data-parallel ranks",
                    c.global_batch_size, c.micro_batch_size, ranks),
        next);
  }
}

void check_mesh(const config::Experiment& given, const FamilyRegistry& families, int world) {
  config::Experiment experiment = given;
  config::TrainerConfig& c = experiment.trainer;
  // The batch is chosen later, from the data and for these ranks.
  if (c.sft_fit_to_data && !config::is_said(experiment, "global_batch_size"))
    c.global_batch_size = c.micro_batch_size * mesh_shape_of(experiment, world).data(world);
  if (c.load) {
    check_batches(experiment, world);
    return;
  }
  // If vocab_size is unset, the tokenizer determines it later. Ranks can split any vocabulary size, so the
  // check may use any number.
  const ModelConfig model =
      model_config_of(experiment, experiment.trainer->vocab_size.value_or(world), families);
  session_settings_of(experiment, model, world);
}

}  // namespace primus
