#include "lm/train/forecast/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/system/host_memory.h"
#include "base/terminal/terminal.h"
#include "comm/job.h"
#include "config/lora_settings.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/data/batch_loader.h"
#include "lm/train/forecast/planned_hardware.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

std::string bytes(std::int64_t count) { return human_bytes(static_cast<double>(count)); }

// One way to reduce memory, in levels. `apply` raises the level by one, or returns false at the highest
// level.
struct Lever {
  std::function<bool(config::TrainerConfig&, ModelConfig&)> apply;
  std::function<std::vector<std::string>(const config::TrainerConfig&)> settings;
  const char* price;
  bool of_weights = false;      // whether `apply` also reduces weights, gradients and optimizer states
  bool shortens_texts = false;  // whether the model sees less context
};

bool smaller_micro_batch(config::TrainerConfig& c, ModelConfig&) {
  for (std::int64_t size = c.micro_batch_size - 1; size > 0; --size) {
    if (c.global_batch_size % size != 0) continue;
    c.micro_batch_size = size;
    return true;
  }
  return false;
}

// Shards one more kind of state over data-parallel ranks.
bool stronger_sharding(config::TrainerConfig& c, ModelConfig&) {
  for (const char* const stronger : {"optim", "optim_grads", "optim_grads_params"}) {
    config::TrainerConfig next = c;
    next.data_parallel_sharding_strategy = stronger;
    if (sharding_of(next) <= sharding_of(c)) continue;
    c = next;
    return true;
  }
  return false;
}

bool narrow_moments(config::TrainerConfig& c, ModelConfig&) {
  const bool has_them = c.optimizer == "adam" || c.optimizer.ends_with("muon");
  if (!has_them || (c.exp_avg_dtype == "fp8" && c.exp_avg_sq_dtype == "fp8")) return false;
  c.exp_avg_dtype = c.exp_avg_sq_dtype = "fp8";
  return true;
}

// Adds adapters, if the model starts from weights.
bool adapters(config::TrainerConfig& c, ModelConfig& model) {
  if (!c.load || model.lora) return false;
  const config::LoraSettings lora;
  model.lora = {.dim = lora.dim, .alpha = lora.alpha, .modules = lora.target_modules};
  model.moe.training.bias_update_rate = 0;
  model.moe.training.quantile_bins = 0;
  return true;
}

// Returns all ways to reduce memory, from the smallest change of the run to the largest.
std::vector<Lever> levers(int data_ranks) {
  constexpr std::int64_t kShortest = 64;
  using Config = config::TrainerConfig;
  using Words = std::vector<std::string>;
  std::vector<Lever> levers = {
      {[](Config& c, ModelConfig&) { return std::exchange(c.async_save, false); },
       [](const Config&) { return Words{"async_save=false"}; }, "training pauses during saves"},
      {[](Config& c, ModelConfig&) { return std::exchange(c.snapshot_interval, 0) > 0; },
       [](const Config&) { return Words{"snapshot_interval=0"}; }, "restarts only from checkpoints"},
      {smaller_micro_batch,
       [](const Config& c) { return Words{fmt::format("micro_batch_size={}", c.micro_batch_size)}; },
       "the same global batch in more, smaller microbatches"},
      {[](Config& c, ModelConfig&) {
         if (c.recompute_granularity == "full") return false;
         c.recompute_granularity = "full";
         c.recompute_method = "uniform";
         c.recompute_num_layers = 1;
         return true;
       },
       [](const Config&) { return Words{"recompute_granularity=full"}; }, "about a third more time"},
      {narrow_moments,
       [](const Config&) {
         return Words{"exp_avg_dtype=fp8", "exp_avg_sq_dtype=fp8"};
       },
       "one-byte optimizer moments", true},
      {[](Config& c, ModelConfig&) { return !std::exchange(c.bf16, true); },
       [](const Config&) { return Words{"bf16=true"}; }, "less precise activations"},
      {adapters, [](const Config&) { return Words{"lora.enabled=true"}; }, "trains only adapters", true},
      {[](Config& c, ModelConfig&) {
         if (c.seq_length < 2 * kShortest) return false;
         c.seq_length /= 2;
         return true;
       },
       [](const Config& c) { return Words{fmt::format("seq_length={}", c.seq_length)}; }, "shorter sequences",
       false, true},
  };
  if (data_ranks > 1) {
    const Lever sharding = {
        stronger_sharding,
        [](const Config& c) {
          return Words{"data_parallel_sharding_strategy=" + c.data_parallel_sharding_strategy};
        },
        "more communication between ranks", true};
    levers.insert(levers.begin() + 1, sharding);
  }
  return levers;
}

class Search {
 public:
  Search(const FamilyRegistry& families, const MemorySupply& supply, int world, int rank)
      : families_(families), supply_(supply), world_(world), rank_(rank) {}

  // The settings and the model of a run after changes.
  struct Run {
    config::Experiment e;
    ModelConfig model;
  };

  // Raises the level of `lever` until the run fits. Returns false if the run does not fit at the highest
  // level; `run` then has this level.
  bool pull(Run& run, const Lever& lever, MemoryNeed& need) const {
    config::TrainerConfig trainer = run.e.trainer;
    ModelConfig model = run.model;
    while (lever.apply(trainer, model)) {
      const Run before = run;
      run.e.trainer = trainer;
      run.model = model;
      try {
        need = measure(run);
      } catch (const Error&) {  // the mesh does not support such microbatches
        run = before;
        continue;
      }
      if (fits(need, supply_)) return true;
    }
    return false;
  }

  // Returns the memory need of the requested rank. If this rank fits, returns the largest need of all stages,
  // because after a change another stage may need the most memory.
  MemoryNeed measure(const Run& run) const {
    const config::Experiment& e = run.e;
    const SessionSettings settings = session_settings_of(e, run.model, world_);
    const auto need_of = [&](int rank_number) {
      engine::Rank rank(planning_device(e).device, measuring_mesh(e, world_, rank_number));
      return memory_need(e, settings, measure_session(rank, settings, families_));
    };
    MemoryNeed maximum = need_of(rank_);
    const engine::MeshShape mesh = mesh_shape_of(e, world_);
    const int stage_ranks = mesh.stage_ranks(world_);
    for (int stage = 0; stage < mesh.pipeline && fits(maximum, supply_); ++stage) {
      if (stage == rank_ / stage_ranks) continue;
      const MemoryNeed need = need_of(stage * stage_ranks);
      if (claimed(need, supply_) > claimed(maximum, supply_)) maximum = need;
    }
    return maximum;
  }

 private:
  const FamilyRegistry& families_;
  const MemorySupply& supply_;
  int world_, rank_;
};

}  // namespace

std::int64_t program_bytes(const engine::MeshShape& mesh, int world, int on_host) {
  std::int64_t bytes = resident_bytes();
  for (const int ranks : {mesh.tensor, mesh.context, mesh.data(world), mesh.pipeline, mesh.expert}) {
    bytes += comm::shared_memory_of_rank(std::min(ranks, on_host));
  }
  return bytes;
}

std::int64_t context_bytes(const Device& device) { return device.properties().host_memory ? 0 : 600'000'000; }

std::int64_t group_bytes(const Device& device, const engine::Mesh& mesh) {
  constexpr std::int64_t kOfEach = 700'000'000;
  if (device.properties().host_memory || mesh.size() == 1) return 0;
  return kOfEach * static_cast<std::int64_t>(mesh.groups().size());
}

MemorySupply host_supply() {
  const HostMemory memory = host_memory();
  return {.device = memory.available,
          .host = memory.available,
          .shared = true,
          .total = memory.total,
          .limited_by = memory.limited_by};
}

MemorySupply supply_of(const Device& device) {
  MemorySupply supply = host_supply();
  if (device.properties().host_memory) return supply;
  const DeviceMemoryUse use = device.memory_use();
  supply.device = use.total - use.used;
  supply.total = use.total;
  supply.shared = false;
  supply.limited_by.clear();
  return supply;
}

MemoryNeed memory_need(const config::Experiment& e, const SessionSettings& settings,
                       const StepMeasurement& measured) {
  const config::TrainerConfig& c = e.trainer;
  // Bytes per token: 4 each for the token id, the label and the loss weight. If documents are separated, also
  // 4 each for the position and for the start of the document.
  const std::int64_t per_token = 12 + (c.reset_position_ids || config::separates_documents(c) ? 8 : 0);
  const std::int64_t batch = c.micro_batch_size * c.seq_length * per_token;
  const std::int64_t held =
      batches_read_ahead(settings.step.microbatches) + 2 + 2 * settings.step.microbatches;
  const auto whole = static_cast<double>(checkpoint_bytes(measured, settings, !c.no_save_optim));
  const auto state = static_cast<double>(checkpoint_bytes(measured, settings, true));
  return {.device = measured.memory,
          .snapshot = c.async_save ? static_cast<std::int64_t>(measured.saved_share * whole) : 0,
          .memory_snapshots =
              c.snapshot_interval > 0 ? 3 * static_cast<std::int64_t>(measured.saved_share * state) : 0,
          .host_buffers = held * batch};
}

std::int64_t claimed(const MemoryNeed& need, const MemorySupply& supply) {
  return supply.shared ? need.total() : need.device.total();
}

bool fits(const MemoryNeed& need, const MemorySupply& supply) {
  constexpr std::int64_t kMaxKept = std::int64_t{256} << 20;
  const auto enough = [kMaxKept](std::int64_t wanted, std::int64_t there) {
    return there == 0 || wanted <= there - std::min(there / 20, kMaxKept);
  };
  if (supply.shared) return enough(need.total(), supply.device);
  return enough(need.device.total(), supply.device) && enough(need.host(), supply.host);
}

namespace {

// Returns whether `need` takes less memory than `before`: less device memory or, if host memory is separate
// and its size is known, less host memory.
bool is_less(const MemoryNeed& need, const MemoryNeed& before, const MemorySupply& supply) {
  return claimed(need, supply) < claimed(before, supply) ||
         (!supply.shared && supply.host > 0 && need.host() < before.host());
}

// Combines changes one after another, each at its highest level, until the run `given` of `fit` fits. The
// first attempt leaves out changes that do not reduce the missing kind of memory. The second attempt uses all
// changes. Returns nothing if all changes together are not enough.
std::optional<MemoryChange> combined(const Search& search, const Search::Run& given,
                                     const std::vector<Lever>& levers, const MemoryFit& fit) {
  for (const bool only_helpful : {true, false}) {
    Search::Run changed = given;
    MemoryChange together{{}, "all of these combined", fit.need};
    for (const Lever& lever : levers) {
      const Search::Run before = changed;
      MemoryNeed need = together.need;
      const bool enough = search.pull(changed, lever, need);
      if (only_helpful && !enough && !is_less(need, together.need, fit.supply)) changed = before;
      if (changed.e.trainer == before.e.trainer && changed.model == before.model) continue;
      together.need = need;
      std::ranges::move(lever.settings(changed.e.trainer), std::back_inserter(together.settings));
      if (enough) return together;
    }
  }
  return std::nullopt;
}

}  // namespace

bool shares_experts(const config::TrainerConfig& config, const ModelConfig& model) {
  const bool shared = config.expert_model_parallel_size > 1 ||
                      config.expert_tensor_parallel_size.value_or(config.tensor_model_parallel_size) > 1;
  return shared && model.moe.experts > 0;
}

bool may_keep_fewer_rows(const config::TrainerConfig& config, const ModelConfig& model) {
  return shares_experts(config, model) && !config.moe_expert_capacity_margin;
}

std::string describe_fewer_rows() {
  return fmt::format(
      "a rank keeps the activations of {} times its equal share of the experts' rows "
      "(moe_expert_capacity_margin), because the activations of all rows do not fit; the backward pass "
      "computes the activations of further rows again",
      MoeConfig::Training::kFewerRows);
}

std::int64_t most_expert_rounds(const config::TrainerConfig& config, const ModelConfig& model) {
  constexpr std::int64_t kMost = 64;
  if (!shares_experts(config, model) || config.moe_expert_rounds || model.moe.training.capacity_factor > 0)
    return 1;
  const std::int64_t tokens = config.micro_batch_size * config.seq_length /
                              (config.tensor_model_parallel_size * config.context_parallel_size);
  std::int64_t rounds = 1;
  while (2 * rounds <= std::min(kMost, tokens)) rounds *= 2;
  return rounds;
}

std::int64_t expert_rounds_that_fit(std::int64_t known, std::int64_t most,
                                    FunctionRef<bool(std::int64_t rounds)> lacks) {
  if (most <= known || lacks(most)) return known;
  for (std::int64_t rounds = 2; rounds < most; rounds *= 2) {
    if (rounds > known && !lacks(rounds)) return rounds;
  }
  return most;
}

std::int64_t expert_rounds_that_fit(std::int64_t known, std::int64_t most,
                                    const config::Experiment& experiment, const ModelConfig& model,
                                    const FamilyRegistry& families, const MemorySupply& supply, int world,
                                    int rank) {
  const Search search(families, supply, world, rank);
  return expert_rounds_that_fit(known, most, [&](std::int64_t rounds) {
    Search::Run run{experiment, model};
    run.model.moe.training.rounds = rounds;
    return !fits(search.measure(run), supply);
  });
}

std::string describe_expert_rounds(std::int64_t rounds) {
  return fmt::format(
      "a rank sends its tokens to the experts in {} rounds (moe_expert_rounds), because buffers for all "
      "tokens do not fit; gradients of experts are added round by round",
      rounds);
}

MemoryFit fit_memory(const config::Experiment& experiment, const ModelConfig& model,
                     const FamilyRegistry& families, const StepMeasurement& measured,
                     const MemorySupply& supply, int world, int rank) {
  constexpr std::size_t kMaxChanges = 3;
  MemoryFit fit{.need = memory_need(experiment, session_settings_of(experiment, model, world), measured),
                .supply = supply};
  fit.fits = fits(fit.need, supply);
  if (fit.fits) return fit;
  const std::vector<Lever> all = levers(mesh_shape_of(experiment, world).data(world));
  const Search search(families, supply, world, rank);
  const Search::Run given{experiment, model};
  // Most changes do not affect weights, gradients and optimizer states. If these do not fit even after all
  // changes that do, no change is enough.
  const auto weights_fit = [&](const MemoryNeed& need) {
    return fits({.device = {.persistent = need.device.persistent, .stash = 0, .scratch = 0}}, supply);
  };
  if (!weights_fit(fit.need)) {
    Search::Run smallest = given;
    MemoryNeed need = fit.need;
    for (const Lever& lever : all) {
      if (lever.of_weights) search.pull(smallest, lever, need);
    }
    if (!weights_fit(need)) return fit;
  }
  bool only_shortens = true;  // whether each change found shortens texts
  for (const Lever& lever : all) {
    Search::Run changed = given;
    MemoryNeed need;
    if (fit.changes.size() == kMaxChanges) break;
    if (search.pull(changed, lever, need)) {
      only_shortens = only_shortens && lever.shortens_texts;
      fit.changes.push_back({lever.settings(changed.e.trainer), lever.price, need});
    }
  }
  if (fit.changes.empty()) {
    if (auto change = combined(search, given, all, fit)) fit.changes.push_back(*std::move(change));
    return fit;
  }
  // If the only single change shortens texts, a combination that keeps their length comes first.
  if (fit.changes.size() > 1 || !only_shortens) return fit;
  std::vector<Lever> others;
  std::ranges::copy_if(all, std::back_inserter(others), [](const Lever& l) { return !l.shortens_texts; });
  if (auto change = combined(search, given, others, fit))
    fit.changes.insert(fit.changes.begin(), *std::move(change));
  return fit;
}

namespace {

// Formats both amounts with enough digits to tell them apart.
std::pair<std::string, std::string> distinct_sizes(std::int64_t need, std::int64_t have) {
  const std::string rounded = bytes(need);
  if (need == have || rounded != bytes(have)) return {rounded, bytes(have)};
  const std::int64_t need_mebibytes = need >> 20, have_mebibytes = have >> 20;
  if (need_mebibytes != have_mebibytes) {
    return {fmt::format("{} MiB", need_mebibytes), fmt::format("{} MiB", have_mebibytes)};
  }
  return {fmt::format("{} B", need), fmt::format("{} B", have)};
}

}  // namespace

std::string describe_lack(const MemoryFit& fit) {
  const MemorySupply& s = fit.supply;
  const std::string where = s.limited_by.empty() ? "" : fmt::format(" (the limit of {})", s.limited_by);
  if (s.chosen) {
    const auto [need, have] = distinct_sizes(claimed(fit.need, s), s.device);
    return fmt::format("the run needs {} of memory, but it may use only {}", need, have);
  }
  if (!s.hardware.empty()) {
    const auto [need, have] = distinct_sizes(fit.need.device.total(), s.device);
    return fmt::format("the run needs {} of the device's memory, but of the {} of {}, {} are free", need,
                       bytes(s.total), s.hardware, have);
  }
  if (s.shared) {
    const auto [need, have] = distinct_sizes(fit.need.total(), s.device);
    return fmt::format("the run needs {} of memory, but {} of {} are free{}", need, have, bytes(s.total),
                       where);
  }
  const auto [device_need, device_have] = distinct_sizes(fit.need.device.total(), s.device);
  const auto [host_need, host_have] = distinct_sizes(fit.need.host(), s.host);
  return fmt::format("the run needs {} of device memory and {} of host memory, but {} and {} are free{}",
                     device_need, host_need, device_have, host_have, where);
}

std::string describe_changes(const MemoryFit& fit) {
  if (fit.changes.empty()) {
    return fmt::format(
        "weights, gradients and optimizer states alone need {}: divide them among more ranks (sharding, "
        "tensor and pipeline parallelism: docs/parallelism.md), or use a smaller model, or a machine with "
        "more "
        "memory",
        bytes(fit.need.device.persistent));
  }
  std::string text;
  for (const MemoryChange& change : fit.changes) {
    text += fmt::format("{}{} needs {} ({})", text.empty() ? "" : "; ", fmt::join(change.settings, " "),
                        bytes(claimed(change.need, fit.supply)), change.price);
  }
  return text;
}

}  // namespace primus
