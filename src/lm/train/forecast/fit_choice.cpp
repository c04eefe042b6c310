#include "lm/train/forecast/fit_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "config/trainer_config.h"
#include "config/validation/missing_data.h"
#include "engine/parallel/pipeline_schedule.h"
#include "lm/train/continued_run.h"
#include "lm/train/forecast/planned_hardware.h"
#include "lm/train/settings/training_settings.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

using config::TrainerConfig;

// Relative differences of work below this value are rounding errors, because the same products are summed in
// another order.
constexpr double kSameWork = 1e-3;

void without_recomputation(TrainerConfig& c) {
  c.recompute_granularity = "none";
  c.recompute_method.reset();
  c.recompute_num_layers.reset();
  c.recompute_layer_ids.clear();
}

void with_full_recomputation(TrainerConfig& c, const char* method, std::int64_t layers) {
  c.recompute_granularity = "full";
  c.recompute_method = method;
  c.recompute_num_layers = layers;
  c.recompute_layer_ids.clear();
}

// Returns overrides for micro_batch_size and all keys of recomputation. The experiment's values of these keys
// then have no effect.
std::vector<std::string> settings_of(const TrainerConfig& c) {
  std::vector<std::string> settings = {fmt::format("micro_batch_size={}", c.micro_batch_size),
                                       "recompute_granularity=" + c.recompute_granularity};
  if (c.recompute_granularity == "selective") {
    settings.push_back(fmt::format("recompute_modules=[{}]", fmt::join(c.recompute_modules, ",")));
  }
  settings.push_back("recompute_method=" + c.recompute_method.value_or("null"));
  settings.push_back(c.recompute_num_layers ? fmt::format("recompute_num_layers={}", *c.recompute_num_layers)
                                            : "recompute_num_layers=null");
  settings.push_back("recompute_layer_ids=null");
  return settings;
}

// Returns the settings that are not null.
std::vector<std::string> shown(std::vector<std::string> settings) {
  std::erase_if(settings, [](const std::string& setting) { return setting.ends_with("=null"); });
  return settings;
}

// Returns whether the change sets the key of "key=value".
bool sets_key_of(const MemoryChange& change, std::string_view setting) {
  const std::string_view key = setting.substr(0, setting.find('=') + 1);
  return std::ranges::any_of(change.settings, [&](const std::string& s) { return s.starts_with(key); });
}

struct Candidate {
  TrainerConfig trainer;
  std::vector<StepMeasurement> stages;
  std::size_t neediest = 0;
  MemoryNeed need;
  std::int64_t microbatches = 1;
  double work = 0;
  bool fits = false;
};

class Search {
 public:
  Search(const config::Experiment& experiment, const ModelConfig& model, const FamilyRegistry& families,
         const MemorySupply& supply, int world, bool keep_microbatch)
      : experiment_(experiment),
        model_(model),
        families_(families),
        supply_(supply),
        world_(world),
        keep_microbatch_(keep_microbatch) {}

  FitChoice run();

 private:
  // Throws the errors of the experiment's own settings. After this check, at least one microbatch size can be
  // measured.
  void check_settings() const;
  // Returns empty if the mesh does not support such microbatches.
  std::optional<Candidate> measure(const TrainerConfig& c) const;
  // Tries larger microbatches with the recomputation of `best`.
  void enlarge(Candidate& best);
  // `light` recomputes nothing. Returns the least recomputation with which the microbatch size of `light`
  // fits.
  std::optional<Candidate> least_recomputation(const Candidate& light);
  // Throws the error for a run that does not fit: neither `light`, the choice without recomputation, nor
  // `minimum` fits.
  [[noreturn]] void refuse(const Candidate& light, const Candidate& minimum) const;
  MemoryFit fit_of(const Candidate& candidate) const;
  void note_too_large(const Candidate& candidate);

  const config::Experiment& experiment_;
  const ModelConfig& model_;
  const FamilyRegistry& families_;
  const MemorySupply& supply_;
  int world_;
  bool keep_microbatch_;
  std::string next_;
};

std::optional<Candidate> Search::measure(const TrainerConfig& c) const {
  config::Experiment e = experiment_;
  e.trainer = c;
  Candidate found{.trainer = c};
  std::optional<SessionSettings> settings;
  try {
    settings = session_settings_of(e, model_, world_);
  } catch (const Error&) {
    return std::nullopt;
  }
  const engine::MeshShape mesh = mesh_shape_of(e, world_);
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    engine::Rank rank(planning_device(e).device, measuring_mesh(e, world_, stage * mesh.stage_ranks(world_)));
    const StepMeasurement measured = measure_session(rank, *settings, families_);
    const MemoryNeed need = memory_need(e, *settings, measured);
    if (stage == 0 || claimed(need, supply_) > claimed(found.need, supply_)) {
      found.need = need;
      found.neediest = found.stages.size();
    }
    found.work = std::max(found.work, measured.kernels.total_flops());
    found.stages.push_back(measured);
  }
  found.microbatches = settings->step.microbatches;
  found.fits = fits(found.need, supply_);
  if (mesh.pipeline > 1) {
    const PipelineSettings& pipeline = settings->step.pipeline;
    const double bubble = engine::simulate(engine::make_schedule(pipeline.schedule, mesh.pipeline,
                                                                 pipeline.chunks, found.microbatches))
                              .bubble;
    found.work /= 1 - bubble;
  }
  return found;
}

void Search::note_too_large(const Candidate& candidate) {
  const TrainerConfig& c = candidate.trainer;
  next_ = fmt::format("micro_batch_size={}{} would need {}", c.micro_batch_size,
                      c.recompute_granularity == "none" ? " without recomputation" : "",
                      human_bytes(static_cast<double>(claimed(candidate.need, supply_))));
}

void Search::enlarge(Candidate& best) {
  if (keep_microbatch_) return;
  TrainerConfig c = best.trainer;
  while (++c.micro_batch_size <= c.global_batch_size) {
    if (c.global_batch_size % c.micro_batch_size != 0) continue;
    std::optional<Candidate> larger = measure(c);
    if (!larger) continue;
    if (!larger->fits) return note_too_large(*larger);
    if (larger->work > best.work * (1 + kSameWork)) return;  // with fewer microbatches, stages wait longer
    best = std::move(*larger);
  }
}

std::optional<Candidate> Search::least_recomputation(const Candidate& light) {
  const TrainerConfig& smallest = light.trainer;
  std::optional<Candidate> best, minimum;
  const auto consider = [&](const TrainerConfig& c) {
    std::optional<Candidate> found = measure(c);
    if (!found) return false;
    const bool enough = found->fits;
    if (enough && (!best || found->work < best->work)) best = found;
    if (!minimum || claimed(found->need, supply_) < claimed(minimum->need, supply_))
      minimum = std::move(found);
    return enough;
  };
  TrainerConfig c = smallest;
  c.recompute_granularity = "selective";
  c.recompute_modules = {"core_attn"};
  consider(c);
  // Each recomputed block saves memory, so a binary search finds the smallest sufficient number of blocks.
  const std::int64_t layers = model_.layers;
  c = smallest;
  with_full_recomputation(c, "block", layers);
  if (consider(c)) {
    std::int64_t few = 0, enough = layers;
    while (enough - few > 1) {
      const std::int64_t middle = few + (enough - few) / 2;
      with_full_recomputation(c, "block", middle);
      (consider(c) ? enough : few) = middle;
    }
  } else {
    // Recomputation of larger groups of layers needs the same work, and stores the inputs of fewer groups.
    for (std::int64_t group = 2; group <= layers; group *= 2) {
      with_full_recomputation(c, "uniform", group);
      if (consider(c)) break;
    }
  }
  if (!best) refuse(light, *minimum);
  return best;
}

MemoryFit Search::fit_of(const Candidate& candidate) const {
  config::Experiment e = experiment_;
  e.trainer = candidate.trainer;
  const engine::MeshShape mesh = mesh_shape_of(e, world_);
  return fit_memory(e, model_, families_, candidate.stages[candidate.neediest], supply_, world_,
                    static_cast<int>(candidate.neediest) * mesh.stage_ranks(world_));
}

// The changes are measured with recomputation of all blocks. Each change therefore also names the settings of
// this recomputation, without which the run would not fit. A sharding level that is enough without
// recomputation is preferred, because it costs less time.
void Search::refuse(const Candidate& light, const Candidate& minimum) const {
  constexpr std::string_view kSharding = "data_parallel_sharding_strategy=";
  const auto shards = [&](const MemoryChange& change) {
    return change.settings.size() == 1 && change.settings.front().starts_with(kSharding);
  };
  MemoryFit fit = fit_of(minimum);
  const std::vector<MemoryChange> of_light = fit_of(light).changes;
  for (MemoryChange& change : fit.changes) {
    const auto lighter = std::ranges::find_if(of_light, shards);
    const bool spares = shards(change) && lighter != of_light.end();
    if (spares) change = *lighter;
    for (std::string& setting : shown(settings_of(spares ? light.trainer : minimum.trainer))) {
      if (!sets_key_of(change, setting)) change.settings.push_back(std::move(setting));
    }
  }
  throw invalid(fmt::format("--fit: with micro_batch_size={} and all blocks recomputed, {}",
                            minimum.trainer.micro_batch_size, describe_lack(fit)),
                describe_changes(fit));
}

void Search::check_settings() const {
  try {
    session_settings_of(experiment_, model_, world_);
  } catch (const Error&) {
    if (keep_microbatch_ || experiment_.trainer->micro_batch_size == 1) throw;
    // The experiment's microbatches may be too large for the number of ranks, for which the search chooses
    // smaller ones.
    config::Experiment smallest = experiment_;
    smallest.trainer->micro_batch_size = 1;
    session_settings_of(smallest, model_, world_);
  }
}

FitChoice Search::run() {
  check_settings();
  TrainerConfig smallest = experiment_.trainer;
  without_recomputation(smallest);
  std::optional<Candidate> best;
  if (keep_microbatch_) best = measure(smallest);
  for (smallest.micro_batch_size = 1; !best; ++smallest.micro_batch_size) {
    if (smallest.global_batch_size % smallest.micro_batch_size == 0) best = measure(smallest);
  }
  const double min_work = best->work;
  if (!best->fits) {
    note_too_large(*best);
    const std::string cheaper = next_;
    best = least_recomputation(*best);
    enlarge(*best);
    next_ = cheaper;
  } else {
    enlarge(*best);
  }
  return {.settings = settings_of(best->trainer),
          .need = best->need,
          .microbatches = best->microbatches,
          .microbatch_was_given = keep_microbatch_,
          .extra_work = std::max(0.0, best->work / min_work - 1),
          .next = next_};
}

}  // namespace

FitChoice choose_fit(const config::Experiment& experiment, const ModelConfig& model,
                     const FamilyRegistry& families, const MemorySupply& supply, int world,
                     bool keep_microbatch) {
  return Search(experiment, model, families, supply, world, keep_microbatch).run();
}

std::string describe_choice(const FitChoice& choice, const MemorySupply& supply) {
  const auto bytes = [](std::int64_t count) { return human_bytes(static_cast<double>(count)); };
  const std::string work =
      choice.extra_work < kSameWork
          ? std::string("no recomputation")
          : fmt::format("{:.1f} % more work than without recomputation", 100 * choice.extra_work);
  return fmt::format(
      "fit: {}, {} microbatch{} a step{}\nfit: needs {} of {}; {}{}", fmt::join(shown(choice.settings), " "),
      choice.microbatches, choice.microbatches == 1 ? "" : "es",
      choice.microbatch_was_given ? ", as in the run so far" : "", bytes(claimed(choice.need, supply)),
      bytes(supply.device), work, choice.next.empty() ? "" : "; " + choice.next);
}

// ---- Microbatches of reinforcement learning -------------------------------------------------------

namespace {

constexpr std::string_view kKey = "micro_batch_size";

bool runs_on_gpu(const config::Experiment& e) {
  if (e.hardware) return e.hardware->device != "cpu";
  return turbo::choose_device(device_spec_of(e, 1)).kind != "cpu";
}

// Returns whether each update of a step gets whole microbatches of this number of rows.
bool divides(const config::Experiment& e, std::int64_t rows, int world) {
  const std::int64_t unit = e.trainer->num_mini_batches * mesh_shape_of(e, world).data(world) * rows;
  return e.trainer->global_batch_size % unit == 0;
}

MemoryNeed largest_need(const config::Experiment& e, const ModelConfig& model, const FamilyRegistry& families,
                        const MemorySupply& supply, int world) {
  const SessionSettings settings = session_settings_of(e, model, world);
  const engine::MeshShape mesh = mesh_shape_of(e, world);
  MemoryNeed largest;
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    engine::Rank rank(planning_device(e).device, measuring_mesh(e, world, stage * mesh.stage_ranks(world)));
    const MemoryNeed need = memory_need(e, settings, measure_session(rank, settings, families));
    if (stage == 0 || claimed(need, supply) > claimed(largest, supply)) largest = need;
  }
  return largest;
}

}  // namespace

bool leaves_microbatch_open(const config::Experiment& e) {
  const config::Provenance said = e.provenance_of(kKey);
  if (said.layer < config::Layer::kModulePreset) return true;
  const std::string_view file = said.origin.source ? std::string_view(said.origin.source->name) : "";
  if (file == config::kNoExperimentFile) return true;
  // The preset of the stage sets a size for every device. A preset of the user counts as a choice.
  return said.layer == config::Layer::kModulePreset && file.ends_with(e.trainer->stage + "_trainer.yaml");
}

std::optional<MicrobatchChoice> choose_microbatch(const config::Experiment& e, int world) {
  if (!leaves_microbatch_open(e) || !runs_on_gpu(e)) return std::nullopt;
  const config::TrainerConfig& c = e.trainer;
  if (const auto state = own_state(e)) {
    const std::optional<std::int64_t> rows = recorded_microbatch(*state);
    if (rows && divides(e, *rows, world))
      return MicrobatchChoice{
          .rows = *rows, .why = fmt::format("micro_batch_size is {}, as when the run was started", *rows)};
  }
  const engine::MeshShape mesh = mesh_shape_of(e, world);
  const std::int64_t answers = c.global_batch_size / (c.num_mini_batches * mesh.data(world));
  // With several pipeline stages, few microbatches leave stages idle.
  const std::int64_t most_rows = answers / (4 * mesh.pipeline);
  const std::int64_t most_tokens = MicrobatchChoice::kMaxTokens * mesh.context;
  std::int64_t rows = std::min(most_rows, most_tokens / c.seq_length);
  while (rows > c.micro_batch_size && !divides(e, rows, world)) --rows;
  if (rows <= c.micro_batch_size) return std::nullopt;
  return MicrobatchChoice{
      .rows = rows,
      .why = fmt::format(
          "micro_batch_size is not set: chose {} of {} rows, which are {} tokens (at most {}, and "
          "a quarter of the rows of an update)",
          rows, answers, rows * c.seq_length, most_tokens)};
}

void set_chosen_microbatch(config::Experiment& e, std::int64_t rows) {
  e.trainer->micro_batch_size = rows;
  e.provenance.insert_or_assign(std::string(kKey), config::Provenance{config::Layer::kDerived, {}});
}

bool has_chosen_microbatch(const config::Experiment& e) {
  return e.provenance_of(kKey).layer == config::Layer::kDerived;
}

std::optional<std::int64_t> smaller_microbatch(const config::Experiment& e, int world) {
  std::int64_t rows = e.trainer->micro_batch_size;
  while (--rows > 0) {
    if (divides(e, rows, world)) return rows;
  }
  return std::nullopt;
}

bool fits_with_reserve(const MemoryNeed& need, MemorySupply supply) {
  supply.device -= supply.device / 10;
  return fits(need, supply);
}

std::string describe_decrease(std::int64_t before, std::int64_t after) {
  return fmt::format(
      "decreased micro_batch_size from {} to {}, so that a tenth of the device's memory stays free", before,
      after);
}

std::string fit_chosen_microbatch(config::Experiment& e, const ModelConfig& model,
                                  const FamilyRegistry& families, const MemorySupply& supply, int world) {
  if (!has_chosen_microbatch(e)) return {};
  const std::int64_t before = e.trainer->micro_batch_size;
  while (!fits_with_reserve(largest_need(e, model, families, supply, world), supply)) {
    const std::optional<std::int64_t> rows = smaller_microbatch(e, world);
    if (!rows) break;
    set_chosen_microbatch(e, *rows);
  }
  const std::int64_t after = e.trainer->micro_batch_size;
  return after == before ? std::string() : describe_decrease(before, after);
}

}  // namespace primus
