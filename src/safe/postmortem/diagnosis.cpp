#include "safe/postmortem/diagnosis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

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

std::string node_of_rank(const CaseFile& file, int rank) {
  const auto found = std::ranges::find(file.ranks, rank, &RankRecord::rank);
  return found == file.ranks.end() ? std::string() : found->node;
}

// Host names are compared without their domain.
bool same_node(std::string_view a, std::string_view b) {
  return !a.empty() && a.substr(0, a.find('.')) == b.substr(0, b.find('.'));
}

class Judge {
 public:
  explicit Judge(const CaseFile& file) : file_(file), first_(first_stopped(file)), end_(last_progress(file)) {
    begin_ = first_ ? first_->last_time : end_;
    for (const Evidence& one : file.evidence) {
      if (one.cause && one.cause->name == std::string_view("rank-lost") && one.rank >= 0 && !lost_)
        lost_ = one.rank;
    }
    if (first_ && !lost_) lost_ = first_->rank;
  }

  bool is_relevant(const Evidence& one) const {
    if (!one.cause) return false;
    if (one.time > 0 && end_ > 0 && (one.time < begin_ - kBefore || one.time > end_ + kAfter)) return false;
    // A fault of a machine that has no rank of this run.
    const bool foreign = !one.node.empty() && one.source == Source::kKernel && knows_nodes() &&
                         std::ranges::none_of(file_.ranks, [&](const RankRecord& rank) {
                           return same_node(rank.node, one.node);
                         });
    return !foreign;
  }

  // Smaller keys are better explanations.
  auto key(const Evidence& one) const {
    const double time = one.time > 0 ? one.time : std::numeric_limits<double>::max();
    return std::tuple(-static_cast<int>(one.cause->role), !concerns_first(one), time);
  }

  std::optional<int> lost() const { return lost_; }

 private:
  bool knows_nodes() const {
    return std::ranges::all_of(file_.ranks, [](const RankRecord& rank) { return !rank.node.empty(); }) &&
           !file_.ranks.empty();
  }
  bool concerns_first(const Evidence& one) const {
    if (!lost_) return false;
    return one.rank == *lost_ || same_node(one.node, node_of_rank(file_, *lost_));
  }

  const CaseFile& file_;
  const RankRecord* first_;
  std::optional<int> lost_;
  double begin_ = 0, end_ = 0;
};

Confidence confidence_in(const Evidence& best, const std::vector<const Evidence*>& relevant) {
  if (best.cause->role <= Role::kDeath) return Confidence::kPossible;
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
    if (known || one->cause->role <= Role::kDeath || result.alternatives.size() == kMost) continue;
    result.alternatives.push_back(one->cause);
  }
}

}  // namespace

std::string_view name_of(Confidence confidence) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "possible", "likely", "certain"};
  return kNames[static_cast<std::size_t>(confidence)];
}

Diagnosis diagnose(const CaseFile& file) {
  Diagnosis result{.cause = &cause_named("unknown")};
  const Judge judge(file);
  std::vector<const Evidence*> relevant;
  for (const Evidence& one : file.evidence) {
    if (judge.is_relevant(one)) relevant.push_back(&one);
    if (!one.cause || judge.is_relevant(one)) result.timeline.push_back(one);
  }
  std::ranges::stable_sort(result.timeline, {}, [](const Evidence& one) {
    return one.time > 0 ? one.time : std::numeric_limits<double>::max();
  });
  if (file.running || file.state == "finished") return result;
  std::ranges::stable_sort(relevant, {}, [&](const Evidence* one) { return judge.key(*one); });
  if (!relevant.empty()) {
    const Evidence& best = *relevant.front();
    result.cause = best.cause;
    result.confidence = confidence_in(best, relevant);
    result.rank = best.rank;
    result.node = best.node;
    result.time = best.time;
    result.summary = best.text;
    add_alternatives(relevant, result);
  } else if (file.state.empty() || file.state == "running") {
    result.cause = &cause_named("died-silently");
    result.confidence = Confidence::kPossible;
    result.time = last_progress(file);
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
