#include "safe/postmortem/kernel_process.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string>
#include <system_error>

namespace primus::postmortem {
namespace {

// A kernel counts seconds since its start, so its times differ a little from the clock's. A process also dies
// a moment before the launcher records the begin of a rank that never began.
constexpr double kClockMargin = 2;

// Reads the number at `at`; 0 if there is none.
std::int64_t number_at(std::string_view line, std::size_t at) {
  if (at >= line.size()) return 0;
  std::int64_t value = 0;
  const auto result = std::from_chars(line.data() + at, line.data() + line.size(), value);
  return result.ec == std::errc() && value > 0 ? value : 0;
}

// "Killed process 7 (primus)".
std::optional<KernelProcess> killed_process(std::string_view line) {
  constexpr std::string_view kKilled = "illed process ";
  const std::size_t at = line.find(kKilled);
  if (at == std::string_view::npos) return std::nullopt;
  const std::size_t open = line.find('(', at), close = line.find(')', at);
  if (open == std::string_view::npos)
    return KernelProcess{.name = {}, .pid = number_at(line, at + kKilled.size())};
  const std::size_t end = close == std::string_view::npos ? line.size() : close;
  return KernelProcess{.name = line.substr(open + 1, end - open - 1),
                       .pid = number_at(line, at + kKilled.size())};
}

// "oom-kill:constraint=CONSTRAINT_MEMCG,...,task=primus,pid=7,uid=0".
std::optional<KernelProcess> chosen_process(std::string_view line) {
  constexpr std::string_view kTask = ",task=", kPid = ",pid=";
  const std::size_t task = line.find(kTask);
  if (line.find("oom-kill:") == std::string_view::npos || task == std::string_view::npos) return std::nullopt;
  const std::size_t pid = line.find(kPid, task + kTask.size());
  if (pid == std::string_view::npos) return std::nullopt;
  const std::size_t name = task + kTask.size();
  return KernelProcess{.name = line.substr(name, pid - name), .pid = number_at(line, pid + kPid.size())};
}

// "traps: primus[7] general protection fault", "primus[7]: segfault at 0".
std::optional<KernelProcess> trapped_process(std::string_view line) {
  for (const std::string_view fault : {" general protection", " segfault at", " trap "}) {
    const std::size_t at = line.find(fault);
    if (at == std::string_view::npos) continue;
    const std::size_t open = line.rfind('[', at);
    if (open == std::string_view::npos || number_at(line, open + 1) == 0) continue;
    const std::size_t space = open == 0 ? std::string_view::npos : line.rfind(' ', open - 1);
    const std::size_t name = space == std::string_view::npos ? 0 : space + 1;
    return KernelProcess{.name = line.substr(name, open - name), .pid = number_at(line, open + 1)};
  }
  return std::nullopt;
}

// Returns whether the records say that a process of the run died, but not which process number it had.
bool reports_death(const Evidence& one, const CaseFile& file) {
  constexpr std::array kDeaths = {
      "killed",    "rank-lost",          "connection-lost",     "host-out-of-memory",
      "bus-error", "segmentation-fault", "illegal-instruction", "aborted",
      "node-lost"};
  if (!one.cause || one.source == Source::kKernel) return false;
  if (std::ranges::find(kDeaths, one.cause->name) == kDeaths.end() &&
      one.text.find("signal ") == std::string::npos)
    return false;
  const auto rank = std::ranges::find(file.ranks, one.rank, &RankRecord::rank);
  return rank == file.ranks.end() || rank->pid == 0;
}

}  // namespace

std::optional<KernelProcess> kernel_process(std::string_view line) {
  if (auto found = killed_process(line)) return found;
  if (auto found = chosen_process(line)) return found;
  return trapped_process(line);
}

bool same_node(std::string_view a, std::string_view b) {
  return !a.empty() && a.substr(0, a.find('.')) == b.substr(0, b.find('.'));
}

Ownership ownership_of(const Evidence& one, const CaseFile& file) {
  if (one.source != Source::kKernel || one.pid == 0 || file.ranks.empty()) return Ownership::kOwn;
  const auto on_node = [&](const RankRecord& rank) {
    return one.node.empty() || rank.node.empty() || same_node(rank.node, one.node);
  };
  double began = std::numeric_limits<double>::max();
  bool all_known = true;
  for (const RankRecord& rank : file.ranks) {
    if (rank.began > 0) began = std::min(began, rank.began);
    if (!on_node(rank)) continue;
    if (rank.pid == one.pid) return Ownership::kOwn;
    all_known = all_known && rank.pid > 0;
  }
  const bool orderly = file.state == "stopped" || file.state == "finished";
  const bool earlier =
      one.time > 0 && one.time < began - kClockMargin && began < std::numeric_limits<double>::max();
  if (orderly || earlier || all_known) return Ownership::kForeign;
  const bool died =
      std::ranges::any_of(file.evidence, [&](const Evidence& other) { return reports_death(other, file); });
  return died ? Ownership::kOwn : Ownership::kUnproven;
}

}  // namespace primus::postmortem
