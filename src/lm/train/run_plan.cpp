#include "lm/train/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/train/objectives/conversation_objective.h"
#include "lm/train/settings/expert_hosts.h"
#include "lm/train/settings/loaded_tokenizer.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

engine::MeshShape shape_of_job(const config::Experiment& e, const ModelConfig& model, const JobRanks& ranks) {
  engine::MeshShape shape = mesh_shape_of(e, ranks.size());
  if (!e.trainer->moe_ranks_per_host)
    shape.host = choose_expert_hosts(model.moe, shape, ranks.per_host()).host;
  return shape;
}

}  // namespace

RunPlan::RunPlan(std::unique_ptr<Objective> run_objective, const config::Experiment& experiment,
                 const FamilyRegistry& registry, Logger& logger, const TrainerOptions& run_options,
                 std::vector<std::string> notes)
    : objective(std::move(run_objective)),
      model_notes(std::move(notes)),
      e(with_loaded_model(experiment, registry, &model_notes)),
      c(e.trainer),
      options(run_options),
      log(logger),
      ranks(run_options.job),
      families(registry),
      folder(run_folder_of(e)),
      tokenizer(tokenizer_of(e, &model_notes)),
      model(model_of(e, registry, tokenizer.get(), &model_notes)),
      shape(shape_of_job(e, model, ranks)),
      place(engine::place_of(shape, ranks.size(), ranks.rank())),
      settings(session_settings_of(e, model, ranks.size())),
      schedule(c, starts_from_weights(c)) {}

std::int64_t RunProgress::total_steps(const config::TrainerConfig& c) const {
  if (!clock) return c.train_iters;
  return clock->state().finished ? last_iteration : clock->total();
}

void RunPlan::phase(std::string_view what, std::optional<double> share) const {
  if (monitor) return monitor->phase(what, share);
  // Before the run has a folder, there is no monitor, so this function calls the view itself.
  if (options.view) options.view->on({.facts = PhaseFacts{.what = std::string(what), .share = share}});
}

data::TokenizeProgressFn RunPlan::tokenize_progress() const {
  constexpr double kProgressSeconds = 5;  // seconds between log lines
  return [this, next = monotonic_seconds() + kProgressSeconds](const data::TokenizeProgress& p) mutable {
    const double share =
        static_cast<double>(p.bytes_done) / static_cast<double>(std::max<std::uint64_t>(p.bytes_total, 1));
    phase(fmt::format("tokenizing {}", p.input), share);
    if (monotonic_seconds() < next) return;
    next = monotonic_seconds() + kProgressSeconds;
    log.info("tokenizing {}: {:.0f} %, {:.1f} MB/s, {:.0f} s left", p.input, 100 * share,
             static_cast<double>(p.bytes_done) / 1e6 / std::max(p.seconds, 1e-3),
             share > 0 ? p.seconds * (1 - share) / share : 0.0);
  };
}

DataRequest RunPlan::data_request() const {
  return {.experiment = e,
          .tokenizer = *tokenizer,
          .progress = tokenize_progress(),
          .warn = [this](const std::string& text) { log.warning("{}", text); },
          .timed_steps = timed_steps,
          .cyclic = cyclic_order};
}

InputIdentity RunPlan::tokenizer_identity() const { return identity_of(*tokenizer); }

std::optional<InputIdentity> RunPlan::data_identity() const {
  if (!datasets.train) return std::nullopt;
  return InputIdentity{.name = objective->data_name(c), .fingerprint = datasets.train_fingerprint};
}

DeviceSpec RunPlan::choose_device(std::vector<std::string>* notes) const {
  DeviceSpec spec = turbo::choose_device(device_spec_of(e, ranks.on_host()), notes);
  if (notes && ranks.first()) {
    if (std::string excess = excess_of_threads(e, spec, ranks.on_host()); !excess.empty())
      notes->push_back(std::move(excess));
  }
  const bool named = c.device.find(':') != std::string::npos;
  if (spec.kind != "cpu" && !named) spec.ordinal = ranks.number_on_host();
  at_key(e, "batch_invariant", [&] { turbo::check_batch_invariant(spec); });
  return spec;
}

data::BatchLoaderOptions RunPlan::loader_options(std::int64_t first_sample, std::int64_t samples) const {
  const bool marks = objective->documents_end_by_token();
  // The loss of preferences is always a mean over units (pairs or answers), not over tokens.
  const bool compares = config::stage_of(c).material == config::Material::kPreferences;
  return {.micro_batch_size = c.micro_batch_size,
          .dp_rank = place.data,
          .dp_size = shape.data(ranks.size()),
          .consumed_samples = first_sample,
          .prefetch = batches_read_ahead(settings.step.microbatches),
          .reset_position_ids = marks && c.reset_position_ids,
          .reset_attention_mask = marks && c.reset_attention_mask,
          .eod = tokenizer->special_ids().eod,
          .samples_per_mean = c.calculate_per_token_loss || compares ? samples : 0};
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace primus
