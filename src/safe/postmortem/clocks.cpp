#include "safe/postmortem/clocks.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace primus::postmortem {
namespace {

constexpr double kLeast = 2;       // seconds; smaller differences are the time of messages
constexpr double kMostApart = 30;  // seconds between the begins of the ranks of one job
constexpr double kMostAhead = 7200;

// Returns the median difference between the times of common steps; 0 if there are none.
double difference(const StepTimes& of, const StepTimes& reference) {
  std::vector<double> found;
  for (const auto& [step, time] : of) {
    if (const auto other = reference.find(step); other != reference.end())
      found.push_back(time - other->second);
  }
  if (found.empty()) return 0;
  std::ranges::nth_element(found, found.begin() + static_cast<std::ptrdiff_t>(found.size() / 2));
  return found[found.size() / 2];
}

std::string_view short_name(std::string_view node) { return node.substr(0, node.find('.')); }

double ahead_of(const CaseFile& file, const Evidence& one) {
  if (one.writer >= 0) {
    const auto found = std::ranges::find(file.ranks, one.writer, &RankRecord::rank);
    return found == file.ranks.end() ? 0 : found->ahead;
  }
  if (one.source != Source::kKernel || one.node.empty()) return 0;
  for (const RankRecord& rank : file.ranks) {
    if (short_name(rank.node) == short_name(one.node)) return rank.ahead;
  }
  return 0;
}

}  // namespace

void align_clocks(const std::map<int, StepTimes>& steps, CaseFile& file) {
  const auto reference = std::ranges::find_if(file.ranks, [&](const RankRecord& rank) {
    const auto found = steps.find(rank.rank);
    return found != steps.end() && !found->second.empty();
  });
  if (reference == file.ranks.end()) return;
  const double began = reference->began;
  const StepTimes& times = steps.at(reference->rank);
  for (RankRecord& rank : file.ranks) {
    const auto found = steps.find(rank.rank);
    const double ahead = found == steps.end() ? 0 : difference(found->second, times);
    if (std::abs(ahead) < kLeast || std::abs(ahead) > kMostAhead) continue;
    if (std::abs(rank.began - began - ahead) > kMostApart) continue;
    rank.ahead = ahead;
    rank.began -= ahead;
    rank.last_time -= ahead;
  }
  align_evidence(0, file);
}

void align_evidence(std::size_t first, CaseFile& file) {
  for (std::size_t i = first; i < file.evidence.size(); ++i) {
    Evidence& one = file.evidence[i];
    if (one.time > 0) one.time -= ahead_of(file, one);
  }
}

}  // namespace primus::postmortem
