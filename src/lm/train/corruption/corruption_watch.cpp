#include "lm/train/corruption/corruption_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "config/validation/without_effect.h"
#include "lm/events/corruption_error.h"
#include "lm/events/training_monitor.h"
#include "lm/train/corruption/replica_check.h"

namespace primus {
namespace {

constexpr const char* kKeys[] = {"check_weight_hash_across_dp_replicas_interval", "replay_step_interval",
                                 "golden_product_interval"};
constexpr const char* kAdviceOnCopies =
    "training with different weights gives wrong gradients: test the memory and the GPU of the machine "
    "('primus preflight'), and leave it out until it is repaired";
constexpr const char* kAdviceOnReplay =
    "the device computes the same step differently: test the machine ('primus preflight'), and leave it out "
    "until it is repaired";

}  // namespace

CorruptionWatch::CorruptionWatch(const CorruptionSettings& settings, RunPlan& plan, RunProgress& progress,
                                 TrainingSession& session, Checkpointer& checkpointer)
    : settings_(settings),
      plan_(plan),
      progress_(progress),
      session_(session),
      checkpointer_(checkpointer),
      interval_{settings.copies, settings.replay, settings.products} {
  restore_good_steps();
  if (std::ranges::all_of(interval_, [](std::int64_t steps) { return steps == 0; })) {
    progress.good_checks.clear();
    if (plan.ranks.first() && config::is_said(plan.e, "corruption_action"))
      plan.log.warning("corruption_action has no effect, because no check for silent corruption is on");
    return;
  }
  if (progress.iteration >= progress.last_iteration) {  // no step is left
    interval_.fill(0);
    return;
  }
  refuse_settings();
  if (plan.ranks.single() && std::exchange(interval_[kCopies], 0) > 0)
    plan.log.warning("{} has no effect: one rank has no copies of its weights", kKeys[kCopies]);
  if (const char* const text = std::getenv(kFlipBit)) flip_ = parse_bit_flip(text);
  // A later process of the run, which continues behind the damage, repeats the step without the flip.
  if (flip_ && Env::posix().status(flip_file())) flip_.reset();
  hash_.emplace(session.rank());
  if (interval_[kCopies] > 0) {
    session.rank().synchronize();
    bool copied = false;
    const double began = monotonic_seconds();
    const Corruption finding = check_copies(&copied);
    if (plan.ranks.first() && !copied)
      plan.log.warning("{} has no effect: each rank stores another part of the weights and states",
                       kKeys[kCopies]);
    if (plan.ranks.first() && copied)
      plan.log.info(
          "copies of weights and optimizer states are compared every {} steps, before saves and snapshots: "
          "{:.1f} ms each time",
          interval_[kCopies], 1e3 * (monotonic_seconds() - began));
    // A good check at the start is no proof for the loaded state: loading distributes weights, so copies that
    // differed in a snapshot may be equal now.
    if (finding.found()) conclude(kCopies, progress.iteration, finding, kAdviceOnCopies);
  }
  if (interval_[kProducts] > 0) {
    products_ = std::make_unique<GoldenProducts>(session.rank(), plan.settings.compute, *hash_);
    const double began = monotonic_seconds();
    if (!plan.ranks.any(!products_->repeatable())) {
      const Corruption finding = check_products(progress.iteration);
      // A good check at the start tells nothing about the steps of the processes before this one.
      if (finding.found()) conclude(kProducts, progress.iteration, finding, kAdviceOnReplay);
      plan.log.info(
          "golden products are repeated every {} steps, before saves and snapshots: {:.1f} ms each time",
          interval_[kProducts], 1e3 * (monotonic_seconds() - began));
    } else {
      products_.reset();
      interval_[kProducts] = 0;
      plan.log.warning("{} has no effect: a device gives the same product different bits each time",
                       kKeys[kProducts]);
    }
  }
  record_good_steps();
}

void CorruptionWatch::restore_good_steps() {
  for (int kind = 0; kind < kKinds; ++kind) {
    const auto recorded = progress_.good_checks.find(kKeys[kind]);
    // If the check was off, the user has chosen to trust the state.
    good_[kind] = recorded == progress_.good_checks.end() ? progress_.iteration
                                                          : std::min(recorded->second, progress_.iteration);
  }
}

void CorruptionWatch::record_good_steps() {
  std::int64_t all = progress_.iteration;
  for (int kind = 0; kind < kKinds; ++kind) {
    if (interval_[kind] == 0) {
      progress_.good_checks.erase(kKeys[kind]);
      continue;
    }
    all = std::min(all, good_[kind]);
    progress_.good_checks[kKeys[kind]] = good_[kind];
  }
  checkpointer_.keep_behind(all);
}

void CorruptionWatch::refuse_settings() const {
  if (interval_[kReplay] > 0 && !settings_.deterministic)
    throw plan_.e.error_for(kKeys[kReplay],
                            "a step that is computed twice has equal bits only with deterministic_mode",
                            "set deterministic_mode=true, or remove replay_step_interval");
}

bool CorruptionWatch::is_due(bool saves) const {
  if (checked_ == progress_.iteration) return false;
  const auto due = [&](Kind kind) {
    return interval_[kind] > 0 && (saves || progress_.iteration % interval_[kind] == 0);
  };
  return due(kCopies) || due(kProducts);
}

void CorruptionWatch::check() {
  const comm::Activity busy = plan_.ranks.busy("checking for silent corruption");
  const std::int64_t step = checked_ = progress_.iteration;
  session_.rank().synchronize();
  if (interval_[kCopies] > 0) {
    conclude(kCopies, step, check_copies(), kAdviceOnCopies);
  }
  if (interval_[kProducts] > 0) {
    if (flips(BitFlip::Where::kProduct, step)) products_->damage();
    conclude(kProducts, step, check_products(step), kAdviceOnReplay);
  }
}

Corruption CorruptionWatch::check_copies(bool* copied) {
  std::vector<StoredTensor> tensors = stored_tensors(session_.store(), session_.rank().mesh(), "");
  if (session_.has_second()) {
    std::vector<StoredTensor> second =
        stored_tensors(session_.second().store(), session_.rank().mesh(), "second model: ");
    tensors.insert(tensors.end(), std::make_move_iterator(second.begin()),
                   std::make_move_iterator(second.end()));
  }
  Corruption finding = compare_copies(tensors, *hash_, *plan_.ranks.group(), copied);
  if (finding.found()) finding.text += fmt::format(" after step {}", progress_.iteration);
  return finding;
}

Corruption CorruptionWatch::check_products(std::int64_t iteration) {
  const std::vector<std::string> answers = gather(products_->repeat() ? "" : "wrong");
  Corruption finding;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].empty()) finding.ranks.push_back(static_cast<int>(rank));
  }
  if (!finding.ranks.empty()) {
    finding.text = fmt::format(
        "{} {} found to compute a fixed matrix product with other bits than at the start, "
        "after step {}",
        name_ranks(finding.ranks), finding.ranks.size() == 1 ? "was" : "were", iteration);
  }
  return corruption_from(broadcast(to_text(finding)));
}

bool CorruptionWatch::replays(std::int64_t iteration) const {
  return interval_[kReplay] > 0 && iteration % interval_[kReplay] == 0;
}

void CorruptionWatch::begin_last_microbatch(std::int64_t iteration) {
  bits_ = {};
  const bool damaged = first_.own.empty() && flips(BitFlip::Where::kGradient, iteration);
  session_.step().observe_weight_gradients([this, damaged](const Tensor& gradient) {
    session_.rank().compute().synchronize();
    if (damaged && bits_.own.empty()) flip_bit(session_.rank(), gradient);
    bits_.own.push_back(hash_->of({&gradient, 1}));
  });
}

std::uint64_t CorruptionWatch::hash_of_gradients() {
  session_.rank().synchronize();
  std::vector<Tensor> gradients;
  const auto add = [&](const engine::ParameterStore& store) {
    for (const engine::ParameterUnit& unit : store.units()) {
      if (unit.trained) gradients.push_back(unit.reduced);
    }
  };
  add(session_.store());
  if (session_.has_second()) add(session_.second().store());
  gradients.push_back(session_.optimizer().gradient_norm());
  return hash_->of(gradients);
}

void CorruptionWatch::keep_bits() {
  bits_.summed = hash_of_gradients();
  first_ = std::exchange(bits_, {});
  session_.step().observe_weight_gradients({});
  // The second computation of the step has a separate result.
  session_.step().result();
}

void CorruptionWatch::compare_bits(std::int64_t iteration) {
  bits_.summed = hash_of_gradients();
  session_.step().observe_weight_gradients({});
  const Bits first = std::exchange(first_, {}), second = std::exchange(bits_, {});
  const bool summed = first.summed != second.summed;
  const bool own = first.own != second.own;
  const std::vector<std::string> answers = gather(std::string(own ? "own" : "") + (summed ? "summed" : ""));
  Corruption finding;
  bool any = false;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    any = any || !answers[rank].empty();
    const bool of_rank = answers[rank].starts_with("own") || answers.size() == 1;
    if (!answers[rank].empty() && of_rank) finding.ranks.push_back(static_cast<int>(rank));
  }
  if (any) {
    finding.text =
        finding.ranks.empty()
            ? fmt::format(
                  "step {} gave other gradients when it was computed again, but the gradients of each rank "
                  "before the sum over ranks had equal bits: a collective may be at fault",
                  iteration)
            : fmt::format(
                  "{} {} found to compute other gradients when step {} was computed again{}",
                  name_ranks(finding.ranks), finding.ranks.size() == 1 ? "was" : "were", iteration,
                  finding.ranks.size() > 1 ? " (one of them may have spread the error to the others)" : "");
  }
  conclude(kReplay, iteration, corruption_from(broadcast(to_text(finding))), kAdviceOnReplay);
}

void CorruptionWatch::conclude(Kind kind, std::int64_t iteration, const Corruption& finding,
                               const std::string& advice) {
  const bool was_bad = std::exchange(bad_[kind], finding.found());
  if (!finding.found()) {
    good_[kind] = iteration;
    record_good_steps();
    return;
  }
  if (!was_bad && plan_.ranks.first()) {
    plan_.monitor->warn({.iteration = iteration,
                         .detector = std::string(kCorruptionWarning),
                         .text = finding.text,
                         .advice = advice,
                         .rank = finding.ranks.size() == 1 ? finding.ranks[0] : -1});
  }
  if (settings_.stop) stop(kind, finding, advice);
}

void CorruptionWatch::stop(Kind kind, const Corruption& finding, const std::string& advice) {
  const Checkpointer::SetAside aside = checkpointer_.set_aside_after(good_[kind]);
  const std::string found =
      fmt::format("silent corruption: {} (the last good check of this kind was after step {})", finding.text,
                  good_[kind]);
  if (aside.recovers) throw CorruptionError(found, aside.text + "; " + advice, true);
  throw CorruptionError(
      found,
      fmt::format("{}: continue from an older copy, or with the damaged state and {}=null; {}", aside.text,
                  kKeys[kind], advice),
      false);
}

Path CorruptionWatch::flip_file() const { return plan_.folder.root() / ".bit-flipped"; }

bool CorruptionWatch::flips(BitFlip::Where where, std::int64_t iteration) {
  if (!flip_ || flip_->where != where || flip_->rank != plan_.ranks.rank() || flip_->step != iteration)
    return false;
  write_file(flip_file(), "PRIMUS_FLIP_BIT has inverted a bit of this run\n");
  return true;
}

void CorruptionWatch::updated(std::int64_t iteration) {
  if (!flips(BitFlip::Where::kParameter, iteration)) return;
  session_.rank().synchronize();
  const engine::StoredWeights& stored = session_.store().units().front().stored;
  flip_bit(session_.rank(), stored.values);
  // Otherwise the next update would compute the value again from the master weight.
  if (!stored.master.absent() && stored.master.data != stored.values.data)
    flip_bit(session_.rank(), stored.master);
}

std::vector<std::string> CorruptionWatch::gather(const std::string& own) const {
  return plan_.ranks.single() ? std::vector{own} : plan_.ranks.group()->gather(own);
}

std::string CorruptionWatch::broadcast(const std::string& own) const {
  return plan_.ranks.single() ? own : plan_.ranks.group()->broadcast(own);
}

}  // namespace primus
