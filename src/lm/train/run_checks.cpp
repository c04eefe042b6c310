#include "lm/train/run_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/trainer_config.h"
#include "config/validation/without_effect.h"
#include "lm/events/run_job.h"
#include "lm/train/continued_run.h"
#include "lm/train/forecast/fit_choice.h"
#include "lm/train/forecast/memory_fit.h"
#include "lm/train/memory_snapshots.h"
#include "lm/train/settings/training_settings.h"

namespace primus {

void compare_experiments(RunPlan& plan) {
  // Compares versions first, because another version may have other settings.
  plan.ranks.require_same({{"the version of Primus", plan.options.version}});
  // Results do not depend on the number of threads, and hosts may have different numbers of cores.
  config::Experiment compared = plan.e;
  compared.trainer->num_threads = 0;
  compared.env.erase("OMP_NUM_THREADS");
  const std::string text = experiment_text(std::move(compared));
  std::vector<std::pair<std::string, std::string>> settings_now;
  for (const auto& [key, value] : settings_of(text)) settings_now.emplace_back(key, value);
  settings_now.emplace_back("the tokenizer", fmt::format("{:016x}", plan.tokenizer->fingerprint()));
  const char* const node_order = std::getenv(kNodeOrder);
  settings_now.emplace_back("the order of nodes", node_order ? node_order : "the launcher's");
  const char* const counted_rows = std::getenv("PRIMUS_COUNTED_ROWS");
  settings_now.emplace_back("PRIMUS_COUNTED_ROWS", counted_rows && *counted_rows ? counted_rows : "auto");
  plan.ranks.require_same(settings_now);
  // Compares the complete text, because the experiment contains more than settings.
  plan.ranks.require_same({{"the experiment", text}});
}

namespace {

// Returns the memory for one of this host's ranks.
MemorySupply supply_for(RunPlan& plan, engine::Rank& rank) {
  if (const std::int64_t bytes = plan.options.memory_of_rank; bytes > 0)
    return {.device = bytes, .host = bytes, .total = bytes};
  MemorySupply supply = supply_of(rank.device());
  if (!supply.shared) supply.device -= group_bytes(rank.device(), rank.mesh());
  supply.host /= plan.ranks.on_host();
  if (supply.shared) supply.device /= plan.ranks.on_host();
  return supply;
}

// Measures the session with changed settings.
StepMeasurement measure_again(const RunPlan& plan, engine::Rank& rank) {
  rank.forget_measurement();
  return measure_session(rank, plan.settings, plan.families);
}

// Decreases a chosen micro_batch_size until the run fits on every rank.
void decrease_microbatch(RunPlan& plan, engine::Rank& rank, StepMeasurement& measured) {
  if (!has_chosen_microbatch(plan.e)) return;
  const std::int64_t before = plan.c.micro_batch_size;
  const auto lacks = [&] {
    return !fits_with_reserve(memory_need(plan.e, plan.settings, measured), supply_for(plan, rank));
  };
  while (plan.ranks.any(lacks())) {
    const std::optional<std::int64_t> rows = smaller_microbatch(plan.e, plan.ranks.size());
    if (!rows) break;
    set_chosen_microbatch(plan.e, *rows);
    const std::int64_t record_after = plan.settings.step.record_after;  // a trace records nothing
    const std::int64_t rounds = plan.settings.model.moe.training.rounds;
    plan.settings = session_settings_of(plan.e, plan.model, plan.ranks.size());
    plan.settings.step.record_after = record_after;
    plan.settings.model.moe.training.rounds = rounds;
    measured = measure_again(plan, rank);
  }
  if (plan.ranks.first() && plan.c.micro_batch_size != before)
    plan.log.info("{}", describe_decrease(before, plan.c.micro_batch_size));
}

// Returns the number of rounds of the run that this start continues, because another number changes results
// by rounding. Returns 0 if there is none. The newest state is in a checkpoint or in a snapshot of any rank.
std::int64_t continued_rounds(RunPlan& plan) {
  if (plan.c.moe_expert_rounds || !shares_experts(plan.c, plan.model)) return 0;
  std::optional<TrainerState> newest =
      newest_snapshot_state(plan, plan.c.auto_continue_train && plan.c.snapshot_interval > 0);
  if (plan.ranks.first()) {
    std::optional<TrainerState> saved = continued_state(plan.e);
    if (saved && (!newest || newest->iteration < saved->iteration)) newest = std::move(saved);
  }
  // The first rank has read a checkpoint, so its number counts, unless only other ranks have snapshots.
  const std::string rounds =
      plan.ranks.first_text(newest && newest->expert_rounds > 0 ? std::to_string(newest->expert_rounds) : "");
  return rounds.empty() ? 0 : std::stoll(rounds);
}

// Logs the number of rounds. `continued`: as continued_rounds() returns; `lack`: why this number does not
// fit.
void log_rounds(const RunPlan& plan, std::int64_t continued, const std::string& lack) {
  const std::int64_t rounds = plan.settings.model.moe.training.rounds;
  if (rounds == continued) {
    plan.log.info("a rank sends its tokens to the experts in {} round{} (moe_expert_rounds), as before",
                  rounds, rounds == 1 ? "" : "s");
  } else if (continued > 0) {
    plan.log.warning(
        "with the {} round{} (moe_expert_rounds) that this run had, {}: a rank now sends its tokens to the "
        "experts in {} rounds, so results differ by rounding from those of an uninterrupted run",
        continued, continued == 1 ? "" : "s", lack, rounds);
  } else {
    plan.log.warning(
        "{}; the number depends on the free memory, and changes results by rounding. A resumed run keeps it. "
        "Set moe_expert_rounds={} so that every new start of this experiment has it",
        describe_expert_rounds(rounds), rounds);
  }
}

// Measures the session. If it does not fit, measures it again with fewer rows that experts keep, and then
// with more rounds in which tokens are sent to experts. A resumed run begins with the rounds that it had.
StepMeasurement measure_session_that_fits(RunPlan& plan, engine::Rank& rank) {
  MoeConfig::Training& experts = plan.settings.model.moe.training;
  const std::int64_t continued = continued_rounds(plan);
  if (continued > 0) experts.rounds = continued;
  StepMeasurement measured = measure_session(rank, plan.settings, plan.families);
  decrease_microbatch(plan, rank, measured);
  if (!shares_experts(plan.c, plan.model)) return measured;
  // Returns what the first rank lacks that lacks memory; "" if the run fits.
  const auto lack_of_memory = [&] {
    MemoryFit fit{.need = memory_need(plan.e, plan.settings, measured), .supply = supply_for(plan, rank)};
    return plan.ranks.first_text(fits(fit.need, fit.supply) ? "" : describe_lack(fit));
  };
  std::string lack = lack_of_memory();
  if (!lack.empty() && may_keep_fewer_rows(plan.c, plan.model)) {
    experts.capacity_margin = MoeConfig::Training::kFewerRows;
    plan.log.info("{}", describe_fewer_rows());
    measured = measure_again(plan, rank);
    lack = lack_of_memory();
  }
  // A run that starts although it does not fit trains as it was asked to.
  const std::int64_t most = plan.options.ignore_memory ? 1 : most_expert_rounds(plan.c, plan.model),
                     known = experts.rounds;
  if (!lack.empty() && most > known) {
    experts.rounds = expert_rounds_that_fit(known, most, [&](std::int64_t rounds) {
      experts.rounds = rounds;
      measured = measure_again(plan, rank);
      return !lack_of_memory().empty();
    });
    measured = measure_again(plan, rank);
  }
  if (plan.ranks.first() && !plan.c.moe_expert_rounds && (experts.rounds > 1 || continued > 1))
    log_rounds(plan, continued, lack);
  return measured;
}

}  // namespace

StepMeasurement measure_within_memory(RunPlan& plan, engine::Rank& rank) {
  const StepMeasurement measured = measure_session_that_fits(plan, rank);
  // Some ranks need more memory than others, for example in pipelines, so they may choose smaller passes. All
  // ranks use the smallest pass.
  std::int64_t tokens = SessionSettings::kSmallestSamplePass;
  while (tokens < plan.settings.sample_pass_tokens && !plan.ranks.any(measured.sample_pass_tokens <= tokens))
    tokens *= 2;
  if (measured.sample_pass_tokens > 0)
    plan.settings.sample_pass_tokens = std::min(tokens, measured.sample_pass_tokens);
  return measured;
}

void check_memory(RunPlan& plan, engine::Rank& rank, const StepMeasurement& measured) {
  const MemorySupply supply = supply_for(plan, rank);
  // The ranks may have chosen two hops to the experts, which need other buffers. The changes that
  // fit_memory() proposes are measured with the same hops.
  config::Experiment with_hosts = plan.e;
  assume_expert_hosts(with_hosts, plan.settings.model.moe, plan.ranks.size(), plan.ranks.per_host());
  const MemoryFit fit = fit_memory(with_hosts, plan.settings.model, plan.families, measured, supply,
                                   plan.ranks.size(), plan.ranks.rank());
  if (fit.fits) return;
  if (plan.options.ignore_memory) {
    plan.log.warning("{}: started anyway (--force)", describe_lack(fit));
    return;
  }
  throw invalid(describe_lack(fit), describe_changes(fit) + "; --force starts it anyway");
}

void check_disk(const RunPlan& plan, const StepMeasurement& measured) {
  const std::string what = lack_of_disk(plan.c, plan.folder.root(),
                                        checkpoint_bytes(measured, plan.settings, !plan.c.no_save_optim));
  if (what.empty()) return;
  if (plan.options.ignore_memory) {
    plan.log.warning("{}: started anyway (--force)", what);
    return;
  }
  throw invalid(what, "free disk space, or choose another folder (workspace); --force starts it anyway");
}

namespace {

bool recomputes_all_layers(const RunPlan& plan) {
  const engine::RecomputePolicy& policy = plan.settings.step.recompute;
  const std::int64_t chunks = std::int64_t{plan.shape.pipeline} * plan.settings.step.pipeline.chunks;
  for (std::int64_t layer = 0; layer < plan.model.layers / chunks; ++layer) {
    if (!policy.full(layer)) return false;
  }
  return true;
}

}  // namespace

void note_settings_without_effect(const RunPlan& plan, const engine::ParameterStore& parameters) {
  constexpr auto kBetweenRanks = std::to_array<std::string_view>(
      {"use_distributed_optimizer", "data_parallel_sharding_strategy", "use_torch_fsdp2",
       "torch_fsdp2_reshard_after_forward", "overlap_grad_reduce", "overlap_param_gather",
       "grad_reduce_in_bf16", "reduce_gradients_each_microbatch", "distributed_timeout_minutes"});
  constexpr auto kOfGpus = std::to_array<std::string_view>({"deterministic_mode", "tune_matmul"});
  constexpr auto kBetweenExperts = std::to_array<std::string_view>(
      {"moe_shared_expert_overlap", "moe_token_dispatcher_type", "moe_ranks_per_host", "moe_dispatch_fp8",
       "moe_expert_capacity_margin", "moe_expert_rounds", "moe_keep_received_tokens",
       "overlap_moe_expert_parallel_comm"});
  const auto note = [&](std::string_view reason,
                        std::initializer_list<std::span<const std::string_view>> lists) {
    std::vector<std::string> unused;
    for (const std::span<const std::string_view> keys : lists) {
      for (const std::string_view key : keys) {
        // On the command line, even a default counts as set, because it may replace a preset's value.
        const bool typed = plan.e.provenance_of(key).layer == config::Layer::kCommandLine;
        if (typed || config::is_said(plan.e, key)) unused.push_back(plan.e.name_of(key));
      }
    }
    if (!unused.empty())
      plan.log.info("{}, these settings have no effect: {}", reason, fmt::join(unused, ", "));
  };
  const bool mixture = plan.model.moe.experts > 0;
  if (plan.ranks.single()) {
    mixture ? note("with one rank", {kBetweenRanks, kBetweenExperts})
            : note("with one rank", {kBetweenRanks});
  } else if (mixture && plan.shape.expert * plan.shape.expert_tensor == 1) {
    note("as no ranks share experts", {kBetweenExperts});
  } else if (plan.c.overlap_moe_expert_parallel_comm) {
    const std::string why = why_microbatches_do_not_alternate(plan.e, plan.ranks.size());
    constexpr auto kOverlap = std::to_array<std::string_view>({"overlap_moe_expert_parallel_comm"});
    if (!why.empty()) note("as " + why, {kOverlap});
  }
  if (plan.c.moe_keep_received_tokens && recomputes_all_layers(plan)) {
    constexpr auto kKeep = std::to_array<std::string_view>({"moe_keep_received_tokens"});
    note("as all layers are recomputed", {kKeep});
  }
  if (plan.choose_device().kind == "cpu") note("on a CPU", {kOfGpus});
  const bool normalizes_heads = std::ranges::any_of(parameters.parameters(), [](const engine::Parameter& p) {
    return p.vector_decay != engine::VectorDecay::kNever;
  });
  if (plan.shape.pipeline == 1 && plan.c.apply_wd_to_qk_layernorm && !normalizes_heads)
    plan.log.warning(
        "apply_wd_to_qk_layernorm has an effect only with QK norm, which the model does not have");
}

}  // namespace primus
