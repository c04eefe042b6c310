#include "safe/postmortem/diagnosis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <tuple>

#include "safe/postmortem/kernel_process.h"

namespace primus::postmortem {
namespace {

// Evidence is relevant from this long before the last progress of the rank that stopped first: kernels report
// a fault when it happens, but a program may continue for a while.
constexpr double kBefore = 120;
// Schedulers and clocks of other machines may be late by this much.
constexpr double kAfter = 900;

// Returns the rank without a recorded end whose events stop first, if other ranks recorded their end or there
// is only one rank; else null.
const RankRecord* first_stopped(const CaseFile& file) {
  const RankRecord* silent = nullptr;
  std::size_t ended = 0;
  for (const RankRecord& rank : file.ranks) {
    if (rank.ended) ++ended;
    if (!rank.ended && (!silent || rank.last_time < silent->last_time)) silent = &rank;
  }
  return silent && (ended > 0 || file.ranks.size() == 1) ? silent : nullptr;
}

double last_progress(const CaseFile& file) {
  double last = 0;
  for (const RankRecord& rank : file.ranks) last = std::max(last, rank.last_time);
  return last;
}

// Returns the node of a rank whose records are missing: launchers fill the listed nodes in blocks. Returns an
// empty text if a known rank is on another node than this order says.
std::string listed_node(const CaseFile& file, int rank) {
  const auto world = static_cast<std::size_t>(std::max(file.world, 0)), nodes = file.hosts.size();
  if (nodes == 0 || world < nodes || rank < 0 || static_cast<std::size_t>(rank) >= world) return {};
  const std::size_t each = (world + nodes - 1) / nodes;
  const auto listed = [&](int of) -> const std::string& {
    return file.hosts[std::min(static_cast<std::size_t>(of) / each, nodes - 1)];
  };
  const bool fits = std::ranges::all_of(file.ranks, [&](const RankRecord& one) {
    return one.node.empty() || same_node(one.node, listed(one.rank));
  });
  return fits ? listed(rank) : std::string();
}

std::string node_of_rank(const CaseFile& file, int rank) {
  const auto found = std::ranges::find(file.ranks, rank, &RankRecord::rank);
  if (found != file.ranks.end() && !found->node.empty()) return found->node;
  return listed_node(file, rank);
}

class Judge {
 public:
  explicit Judge(const CaseFile& file) : file_(file), first_(first_stopped(file)), end_(last_progress(file)) {
    // A job that failed before its run began has only logs.
    if (file.ranks.empty()) {
      for (const Evidence& one : file.evidence)
        end_ = std::max(end_, one.source == Source::kKernel ? 0 : one.time);
    }
    begin_ = first_ ? first_->last_time : end_;
    find_lost();
    for (const Evidence& one : file.evidence) {
      if (!is_relevant(one)) continue;
      const bool of_machine = one.source == Source::kKernel || one.source == Source::kScheduler;
      (of_machine ? by_machine_ : by_program_).insert(one.cause);
    }
  }

  bool is_relevant(const Evidence& one) const {
    if (!one.cause) return false;
    if (one.time > 0 && end_ > 0 && (one.time < begin_ - kBefore || one.time > end_ + kAfter)) return false;
    // A fault of a machine that has no rank of this run.
    const bool foreign = !one.node.empty() && one.source == Source::kKernel && knows_nodes() &&
                         std::ranges::none_of(file_.ranks, [&](const RankRecord& rank) {
                           return same_node(rank.node, one.node);
                         });
    return !foreign && ownership_of(one, file_) != Ownership::kForeign;
  }

  // A machine's fault that may be another job's explains no more than a death.
  Role role_of(const Evidence& one) const {
    return is_unproven(one) ? std::min(one.cause->role, Role::kDeath) : one.cause->role;
  }
  bool is_unproven(const Evidence& one) const { return ownership_of(one, file_) == Ownership::kUnproven; }

  // Smaller keys are better explanations.
  auto key(const Evidence& one) const {
    const double time = one.time > 0 ? one.time : std::numeric_limits<double>::max();
    const bool both = by_machine_.contains(one.cause) && by_program_.contains(one.cause);
    return std::tuple(-static_cast<int>(role_of(one)), is_about_others(one), is_symptom(one.cause->name),
                      !concerns_first(one), !both, time);
  }

  std::optional<int> lost() const { return lost_; }

 private:
  bool knows_nodes() const {
    return std::ranges::all_of(file_.ranks, [](const RankRecord& rank) { return !rank.node.empty(); }) &&
           !file_.ranks.empty();
  }
  // The rank that failed first. Other ranks name it: "rank 2 was lost". The clocks of nodes differ, so the
  // words count before the times: a rank that "ended with exit code 3" may have reacted to another one.
  void find_lost() {
    std::pair<int, double> best{0, 0};
    for (const Evidence& one : file_.evidence) {
      if (!one.cause || one.rank < 0 || !is_relevant(one)) continue;
      const int weight = weight_of(one);
      const double time = one.time > 0 ? one.time : std::numeric_limits<double>::max();
      if (weight == 0 || (lost_ && std::pair(-weight, time) >= best)) continue;
      best = {-weight, time};
      lost_ = one.rank;
    }
    // A run that ended in order has lost no rank, also if the records of a rank are incomplete.
    const bool orderly = file_.state == "stopped" || file_.state == "finished";
    if (first_ && -best.first < kNamed && !orderly) lost_ = first_->rank;
  }
  static constexpr int kNamed = 2;
  static int weight_of(const Evidence& one) {
    const std::string_view name = one.cause->name;
    if (name == "hang") return kNamed + 1;
    if (one.text.find("ended with exit code") != std::string::npos) return 1;
    if (name == "rank-lost" || one.text.find("killed by signal") != std::string::npos) return kNamed;
    return name == "slow-rank" ? 1 : 0;
  }
  // A cause that only repeats what another cause of its role explains.
  static bool is_symptom(std::string_view name) {
    constexpr std::array kNames = {"node-lost",   "aborted",   "segmentation-fault", "bus-error",
                                   "other-error", "rank-lost", "rank-never-started", "collective-failed"};
    return std::ranges::find(kNames, name) != kNames.end();
  }
  bool is_about_others(const Evidence& one) const {
    return lost_ && (one.rank >= 0 || !one.node.empty()) && !concerns_first(one);
  }
  bool concerns_first(const Evidence& one) const {
    if (!lost_) return false;
    return one.rank == *lost_ || same_node(one.node, node_of_rank(file_, *lost_));
  }

  const CaseFile& file_;
  const RankRecord* first_;
  std::optional<int> lost_;
  std::set<const Cause*> by_machine_,
      by_program_;  // the causes that kernels and schedulers, or programs, report
  double begin_ = 0, end_ = 0;
};

Confidence confidence_in(const Evidence& best, const std::vector<const Evidence*>& relevant,
                         const CaseFile& file) {
  // The run has recorded that it ended on request or at a limit.
  if (best.cause->role == Role::kStop && file.state == "stopped") return Confidence::kCertain;
  if (best.cause->role <= Role::kDeath && best.cause->role != Role::kTrouble) return Confidence::kPossible;
  // RUN/.stop does not say how the run was asked, so another kill may have ended it after the request.
  if (best.cause->name == "stopped-now") return Confidence::kLikely;
  // Another cause of the same role that was reported earlier or at an unknown time.
  const bool contested = std::ranges::any_of(relevant, [&](const Evidence* other) {
    return other->cause != best.cause && other->cause->role == best.cause->role &&
           (other->time == 0 || best.time == 0 || other->time <= best.time);
  });
  return contested || best.time == 0 ? Confidence::kLikely : Confidence::kCertain;
}

void add_alternatives(const std::vector<const Evidence*>& relevant, Diagnosis& result) {
  constexpr std::size_t kMost = 3;
  for (const Evidence* one : relevant) {
    const bool known = one->cause == result.cause ||
                       std::ranges::find(result.alternatives, one->cause) != result.alternatives.end();
    const bool weak = one->cause->role <= Role::kDeath && one->cause->role != Role::kTrouble;
    if (known || weak || result.alternatives.size() == kMost) continue;
    result.alternatives.push_back(one->cause);
  }
}

// Takes a missing rank or node from other evidence of the same cause.
void complete(const std::vector<const Evidence*>& relevant, Diagnosis& result) {
  for (const Evidence* one : relevant) {
    if (one->cause != result.cause) continue;
    if (result.node.empty() && (result.rank < 0 || one->rank == result.rank)) result.node = one->node;
    if (result.rank < 0 && same_node(one->node, result.node)) result.rank = one->rank;
  }
}

}  // namespace

std::string_view name_of(Confidence confidence) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "possible", "likely", "certain"};
  return kNames[static_cast<std::size_t>(confidence)];
}

std::string_view explanation_of(Confidence confidence) {
  constexpr std::array<std::string_view, 4> kTexts = {
      "nothing that was read names a cause",
      "no record says why a process ended or hung, or the evidence may be about another job",
      "further causes are named, or the evidence has no time or could have another reason",
      "evidence of that time names this cause, and none names another one"};
  return kTexts[static_cast<std::size_t>(confidence)];
}

Diagnosis diagnose(const CaseFile& file) {
  Diagnosis result{.cause = &cause_named("unknown"), .last_event = last_progress(file)};
  const Judge judge(file);
  std::vector<const Evidence*> relevant;
  for (const Evidence& one : file.evidence) {
    if (judge.is_relevant(one)) relevant.push_back(&one);
    if (!one.cause || judge.is_relevant(one)) result.timeline.push_back(one);
  }
  std::ranges::stable_sort(result.timeline, {}, [](const Evidence& one) {
    return one.time > 0 ? one.time : std::numeric_limits<double>::max();
  });
  if (file.running) return result;
  // A finished run may have had trouble, or a rank of a later attempt logged an error before it began.
  if (file.state == "finished") {
    const double end = std::floor(last_progress(file));  // times of logs are whole seconds
    std::erase_if(relevant, [&](const Evidence* one) {
      const bool later = one->writer >= 0 && one->source == Source::kLog && one->time >= end &&
                         one->cause->role >= Role::kFault;
      return one->cause->role != Role::kTrouble && !later;
    });
  }
  std::ranges::stable_sort(relevant, {}, [&](const Evidence* one) { return judge.key(*one); });
  if (!relevant.empty()) {
    const Evidence& best = *relevant.front();
    result.cause = best.cause;
    result.confidence = confidence_in(best, relevant, file);
    result.rank = best.rank;
    result.node = best.node;
    for (const Evidence* one : relevant) {
      if (one->cause != best.cause || one->time <= 0) continue;
      if (result.first_sign == 0 || one->time < result.first_sign) result.first_sign = one->time;
    }
    result.summary = best.text;
    complete(relevant, result);
    add_alternatives(relevant, result);
    if (judge.is_unproven(best)) result.confidence = Confidence::kPossible;
    if (!result.alternatives.empty()) result.confidence = std::min(result.confidence, Confidence::kLikely);
  } else if (file.state != "finished" && !file.ranks.empty() &&
             (file.state.empty() || file.state == "running")) {
    result.cause = &cause_named("died-silently");
    result.confidence = Confidence::kPossible;
    result.first_sign = result.last_event;
  }
  // A request or a limit concerns all ranks.
  if (result.cause->role == Role::kStop) {
    result.rank = -1;
    result.node.clear();
    return result;
  }
  // A kernel names only its node. The ranks of the node are known.
  if (result.rank < 0 && judge.lost() &&
      (result.node.empty() || same_node(result.node, node_of_rank(file, *judge.lost()))))
    result.rank = *judge.lost();
  if (result.rank < 0 && !result.node.empty()) {
    const auto on_node = std::ranges::find_if(
        file.ranks, [&](const RankRecord& rank) { return same_node(rank.node, result.node); });
    const bool single = on_node != file.ranks.end() &&
                        std::none_of(on_node + 1, file.ranks.end(), [&](const RankRecord& rank) {
                          return same_node(rank.node, result.node);
                        });
    if (single) result.rank = on_node->rank;
  }
  if (result.node.empty() && result.rank >= 0) result.node = node_of_rank(file, result.rank);
  return result;
}

}  // namespace primus::postmortem
