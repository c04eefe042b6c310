#include "safe/supervise/nodes/node_roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace primus::supervise {
namespace {

constexpr int kVacant = -1;
constexpr int kSignalled = 128;

std::string node_name(int node, const std::string& host) {
  return host.empty() ? fmt::format("node {}", node) : fmt::format("node {} ({})", node, host);
}

}  // namespace

Roster::Roster(int nodes, int places, const RosterLimits& limits, double now,
               const std::vector<std::vector<int>>& switches, int leader)
    : leader_(leader),
      limits_(limits),
      nodes_(static_cast<std::size_t>(nodes)),
      places_(static_cast<std::size_t>(places), kVacant),
      since_(now) {
  for (std::size_t node = 0; node < std::min(switches.size(), nodes_.size()); ++node)
    nodes_[node].switches = switches[node];
}

void Roster::resume(std::uint64_t attempt, const std::vector<int>& held,
                    const std::vector<std::string>& hosts, double at_time, double now) {
  attempt_ = attempt;
  if (held.size() == places_.size()) held_ = places_ = held;
  for (std::size_t node = 0; node < std::min(hosts.size(), nodes_.size()); ++node)
    if (nodes_[node].host.empty()) nodes_[node].host = hosts[node];
  next(at_time, now);
}

// ---- What the leader hears ----------------------------------------------------------------------

void Roster::joined(int node, std::string host, double now) {
  Node& one = at(node);
  if (one.here) lost(node, "another supervisor took its number", now);
  one = {.here = true,
         .heard = now,
         .joined = now,
         .host = std::move(host),
         .switches = std::move(one.switches)};
  newest_joined_ = now;
}

void Roster::lost(int node, const std::string& why, double now) {
  Node& one = at(node);
  if (!one.here) return;
  one.here = false;
  one.why = why;
  const std::optional<int> place = place_of(node);
  if (!place) return;
  if (!runs()) {
    places_[static_cast<std::size_t>(*place)] = kVacant;
    full_.reset();
    return;
  }
  if (!std::exchange(one.works, false)) return;  // its processes had ended before
  // The peers of a lost node fail, and may report it earlier. A node that is lost later is no cause.
  if (!lost_ && (!told_ || !first_end_)) {
    lost_ = LostNode{.node = node, .text = fmt::format("{} was lost: {}", node_name(node, one.host), why)};
    first_end_ = first_end_.value_or(now);
  }
  must_end_ = true;
}

void Roster::heard(int node, double now) { at(node).heard = std::max(at(node).heard, now); }

void Roster::sees_checkpoint(int node, std::int64_t step) { at(node).checkpoint = step; }

void Roster::ended(int node, std::uint64_t attempt, NodeEnd end, double now) {
  if (!runs() || attempt != attempt_ || !at(node).works) return;
  at(node).works = false;
  if (end.exit_code == 0) return;  // the end of the run: the others may still work, for example save
  first_end_ = first_end_.value_or(now);
  // A killed process explains the errors of its peers, unless this supervisor had it killed.
  const bool explains = end.exit_code > kSignalled && cause_.exit_code <= kSignalled && !told_;
  if (cause_.exit_code != 0 && !explains) return;
  cause_ = std::move(end);
  cause_node_ = node;
}

// ---- What follows -------------------------------------------------------------------------------

Roster::Step Roster::step(double now) {
  find_silent(now);
  switch (state_) {
    case State::kGathering:
      return gather(now);
    case State::kRunning:
    case State::kEnding:
      return run(now);
    case State::kOver:
      return Step::kOver;
  }
  return Step::kNothing;
}

void Roster::find_silent(double now) {
  for (int node = 0; node < static_cast<int>(nodes_.size()); ++node) {
    if (node == leader_ || !at(node).here || now - at(node).heard <= limits_.silence) continue;
    lost(node, fmt::format("no message for {:.0f} s", limits_.silence), now);
    silent_.push_back(node);
  }
}

std::vector<int> Roster::take_silent() { return std::exchange(silent_, {}); }

std::optional<int> Roster::place_of(int node) const {
  const auto found = std::find(places_.begin(), places_.end(), node);
  return found == places_.end() ? std::nullopt : std::optional(static_cast<int>(found - places_.begin()));
}

// Returns the free node that shares the most switches with the node `lost`; of several, the first. kVacant:
// there is none.
int Roster::nearest_spare(int lost) const {
  const auto shared = [&](int node) {
    return std::ranges::mismatch(at(node).switches, at(lost).switches).in1 - at(node).switches.begin();
  };
  int nearest = kVacant;
  for (int node = 0; node < static_cast<int>(nodes_.size()); ++node) {
    const bool waits_for_own = attempt_ == 0 && node < static_cast<int>(places_.size());
    if (!at(node).here || place_of(node) || waits_for_own) continue;
    if (nearest == kVacant || shared(node) > shared(nearest)) nearest = node;
  }
  return nearest;
}

// Gives vacant places to nodes without a place. Returns whether all places are taken.
bool Roster::fill(double now) {
  const auto is_free = [&](int node) { return at(node).here && !place_of(node); };
  for (int place = 0; place < static_cast<int>(places_.size()); ++place) {
    int& holder = places_[static_cast<std::size_t>(place)];
    if (holder != kVacant) continue;
    const int before = held_.empty() ? place : held_[static_cast<std::size_t>(place)];
    if (is_free(before)) {
      holder = before;
      continue;
    }
    // Before the first attempt, a node of the job may be just a little later than a spare.
    if (attempt_ == 0 && now - newest_joined_ < limits_.spare_after) continue;
    holder = nearest_spare(before);
  }
  return std::find(places_.begin(), places_.end(), kVacant) == places_.end();
}

bool Roster::all_see_the_checkpoint() const {
  return std::all_of(places_.begin(), places_.end(),
                     [&](int node) { return at(node).checkpoint == at(leader_).checkpoint; });
}

Roster::Step Roster::gather(double now) {
  if (now < at_) return Step::kNothing;
  if (!fill(now)) {
    full_.reset();
    if (now - std::max(since_, at_) < longest_wait()) return Step::kNothing;
    missing();
    return Step::kGiveUp;
  }
  full_ = full_.value_or(now);
  if (all_see_the_checkpoint()) return Step::kStart;
  if (now - *full_ < limits_.checkpoint_wait) return Step::kNothing;
  unseen();
  return Step::kGiveUp;
}

Roster::Step Roster::run(double now) {
  const auto works = [&](int node) { return at(node).works; };
  const bool anyone = std::any_of(places_.begin(), places_.end(), works);
  if (!anyone) {
    // A lost node's peers have ended, too; all others have reported their end.
    state_ = State::kOver;
    return Step::kOver;
  }
  if (state_ == State::kRunning) {
    const bool settled = first_end_ && now - *first_end_ >= (lost_ ? 0 : limits_.settle);
    if (!must_end_ && !settled) return Step::kNothing;
    state_ = State::kEnding;
    since_ = now;
  }
  if (!std::exchange(told_, true)) return Step::kEnd;
  if (now - since_ < limits_.ending) return Step::kNothing;
  for (const int node : places_) {
    if (node == leader_ || !works(node)) continue;
    lost(node, fmt::format("its processes did not end within {:.0f} s", limits_.ending), now);
    silent_.push_back(node);
  }
  return Step::kNothing;
}

std::uint64_t Roster::start(double now) {
  for (int place = 0; place < static_cast<int>(places_.size()); ++place) {
    const int node = places_[static_cast<std::size_t>(place)];
    at(node).works = true;
    const int before = held_.empty() ? place : held_[static_cast<std::size_t>(place)];
    if (before != node) taken_.push_back({node, place});
  }
  held_ = places_;
  state_ = State::kRunning;
  since_ = now;
  first_end_.reset();
  must_end_ = told_ = false;
  cause_ = {};
  cause_node_ = 0;
  lost_.reset();
  return ++attempt_;
}

void Roster::next(double at_time, double now) {
  for (int& node : places_) {
    if (node != kVacant && !at(node).here) node = kVacant;
  }
  state_ = State::kGathering;
  since_ = now;
  at_ = at_time;
  full_.reset();
}

std::vector<Roster::Taken> Roster::take_replacements() { return std::exchange(taken_, {}); }

// The nodes whose places no node has taken.
std::vector<int> Roster::vacant() const {
  std::vector<int> nodes;
  for (int place = 0; place < static_cast<int>(places_.size()); ++place) {
    if (places_[static_cast<std::size_t>(place)] != kVacant) continue;
    nodes.push_back(held_.empty() ? place : held_[static_cast<std::size_t>(place)]);
  }
  return nodes;
}

std::string Roster::names_of(const std::vector<int>& nodes) const {
  std::vector<std::string> names;
  for (const int node : nodes) names.push_back(node_name(node, at(node).host));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::optional<Roster::Wait> Roster::awaited(double now) const {
  if (state_ != State::kGathering || now < at_) return std::nullopt;
  if (!full_) {
    const std::vector<int> nodes = vacant();
    if (nodes.empty()) return std::nullopt;
    return Wait{names_of(nodes) + (places_.size() < nodes_.size() ? " or a spare" : ""),
                std::max(since_, at_) + longest_wait()};
  }
  if (all_see_the_checkpoint()) return std::nullopt;
  return Wait{fmt::format("the newest checkpoint (step {}) on all machines", at(leader_).checkpoint),
              *full_ + limits_.checkpoint_wait};
}

void Roster::missing() {
  const std::vector<int> nodes = vacant();
  std::vector<std::string> hosts;
  for (const int node : nodes)
    if (!at(node).host.empty()) hosts.push_back(at(node).host);
  problem_ = {
      .reason = "lost node",
      .text = fmt::format("{} {} missing after {:.0f} s, and no spare is left", names_of(nodes),
                          nodes.size() == 1 ? "is" : "are", longest_wait()),
      .hint = attempt_ == 0
                  ? "start the same command on all machines, with the same MASTER_ADDR and MASTER_PORT"
                  : fmt::format("the same command continues from the newest checkpoint; under Slurm, "
                                "--exclude={} leaves the machine out",
                                fmt::join(hosts, ","))};
}

void Roster::unseen() {
  for (const int node : places_) {
    if (at(node).checkpoint == at(leader_).checkpoint) continue;
    problem_ = {.reason = "checkpoint not shared",
                .text = fmt::format(
                    "{} sees the checkpoint of step {} as the newest one, but node {} that of "
                    "step {}",
                    node_name(node, at(node).host), at(node).checkpoint, leader_, at(leader_).checkpoint),
                .hint = "put the run's folder, or `save`, on a file system that all machines share"};
    return;
  }
}

}  // namespace primus::supervise
