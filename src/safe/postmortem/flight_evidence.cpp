#include "safe/postmortem/flight_evidence.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text/counted.h"
#include "safe/postmortem/json_fields.h"

namespace primus::postmortem {
namespace {

constexpr std::uint64_t kMaxBytes = 8 << 20;  // a recorder of 2 000 records has 800 KB
constexpr std::string_view kExchange = "exchange";
constexpr std::size_t kMaxNamed = 8;  // ranks that a text lists

// One record of a collective.
struct Call {
  std::string group, kind, dtype;
  std::int64_t group_size = 0, sequence = 0, count = 0;
  bool pending = false;       // enqueued or running
  std::int64_t waiting = -1;  // rank for which this rank waits
  double enqueued = 0;

  std::string to_string() const { return fmt::format("{} #{} of group '{}'", kind, sequence, group); }
};

struct Flight {
  std::string file, reason;
  double written = 0;
  std::int64_t pid = 0;
  std::vector<Call> calls;
  bool waits() const {
    return std::ranges::any_of(calls, [](const Call& call) { return call.pending; });
  }
};

// Returns the rank and its flight, or nothing if the file has another form.
std::optional<std::pair<int, Flight>> read_flight(const Path& path) {
  const nlohmann::json json = nlohmann::json::parse(read_file(path, kMaxBytes), nullptr, false);
  if (!json.is_object() || !json.contains("records") || !json["records"].is_array()) return std::nullopt;
  Flight flight{.file = path.string(),
                .reason = text_field(json, "reason"),
                .written = number_field(json, "written"),
                .pid = whole_field(json, "pid", 0)};
  for (const nlohmann::json& one : json["records"]) {
    if (!one.is_object()) continue;
    const std::string state = text_field(one, "state");
    flight.calls.push_back({.group = text_field(one, "group"),
                            .kind = text_field(one, "kind"),
                            .dtype = text_field(one, "dtype"),
                            .group_size = whole_field(one, "group_size", 0),
                            .sequence = whole_field(one, "sequence", 0),
                            .count = whole_field(one, "count", 0),
                            .pending = state != "done",
                            .waiting = whole_field(one, "waiting_for", -1),
                            .enqueued = number_field(one, "enqueued")});
  }
  const int rank = rank_field(json);
  if (rank < 0) return std::nullopt;
  return std::pair(rank, std::move(flight));
}

class FlightAnalysis {
 public:
  FlightAnalysis(std::map<int, Flight> flights, CaseFile& into) : flights_(std::move(flights)), into_(into) {
    for (const auto& [rank, flight] : flights_) {
      for (const Call& call : flight.calls) {
        if (call.kind == kExchange) continue;
        const auto [at, added] = newest_.try_emplace(std::pair(call.group, rank), call.sequence);
        if (!added) at->second = std::max(at->second, call.sequence);
      }
    }
  }

  void run() {
    report_different_calls();
    for (const auto& [rank, flight] : flights_) {
      const auto first = std::ranges::find_if(flight.calls, [](const Call& call) { return call.pending; });
      if (first == flight.calls.end()) continue;
      waiting_[{first->group, first->kind, first->sequence}].emplace_back(rank, &*first);
    }
    for (const auto& [place, waiters] : waiting_) report_waiting(waiters);
  }

 private:
  using Waiters = std::vector<std::pair<int, const Call*>>;

  // Ranks exchange different numbers of elements in an all-to-all, and different pairs in an exchange.
  void report_different_calls() {
    std::map<std::pair<std::string, std::int64_t>, std::pair<int, const Call*>> first;
    for (const auto& [rank, flight] : flights_) {
      for (const Call& call : flight.calls) {
        if (!call.pending || call.kind == kExchange) continue;
        const auto [at, added] = first.try_emplace({call.group, call.sequence}, rank, &call);
        const Call& other = *at->second.second;
        const bool equal = call.kind == other.kind && call.dtype == other.dtype &&
                           (call.kind == "all_to_all" || call.count == other.count);
        if (added || equal) continue;
        add(rank, fmt::format(
                      "ranks differ in what they call: rank {} calls {} of {} {}, rank {} calls {} of {} {}",
                      at->second.first, other.to_string(), other.count, other.dtype, rank, call.to_string(),
                      call.count, call.dtype));
        return;
      }
    }
  }

  void report_waiting(const Waiters& waiters) {
    const Call& call = *waiters.front().second;
    std::vector<int> ranks;
    for (const auto& [rank, one] : waiters) ranks.push_back(rank);
    std::set<int> behind, silent;
    for (const auto& [rank, one] : waiters) {
      if (one->waiting < 0) continue;
      const int awaited = static_cast<int>(one->waiting);
      const auto flight = flights_.find(awaited);
      if (flight == flights_.end()) {
        silent.insert(awaited);
      } else if (!flight->second.waits() && !has_called(awaited, call)) {
        behind.insert(awaited);
      }
    }
    const std::string waiting =
        fmt::format("{} wait{} in {}", list(ranks), ranks.size() == 1 ? "s" : "", call.to_string());
    for (const int rank : behind) add(rank, fmt::format("{}, and rank {} has not called it", waiting, rank));
    for (const int rank : silent) {
      add(rank, fmt::format("{} for rank {}, which has left no flight recorder", waiting, rank));
    }
  }

  // The sequences of exchanges differ between ranks, so they cannot be compared.
  bool has_called(int rank, const Call& call) const {
    const auto found = newest_.find(std::pair(call.group, rank));
    return call.kind != kExchange && found != newest_.end() && found->second >= call.sequence;
  }

  static std::string list(const std::vector<int>& ranks) {
    const std::size_t shown = std::min(ranks.size(), kMaxNamed);
    std::string text =
        fmt::format("{} {}", noun_for(std::ssize(ranks), "rank"),
                    fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
    if (ranks.size() > shown) text += fmt::format(" and {} more", ranks.size() - shown);
    return text;
  }

  void add(int rank, std::string text) {
    const auto& source = flights_.contains(rank) ? flights_.at(rank) : flights_.begin()->second;
    const Cause* const cause = match(Source::kEvent, text);
    into_.evidence.push_back({.source = Source::kEvent,
                              .file = source.file,
                              .time = source.written,
                              .rank = rank,
                              .text = std::move(text),
                              .cause = cause});
  }

  std::map<int, Flight> flights_;
  CaseFile& into_;
  std::map<std::pair<std::string, int>, std::int64_t> newest_;  // by group and rank: the newest sequence
  std::map<std::tuple<std::string, std::string, std::int64_t>, Waiters> waiting_;  // by group, kind, sequence
};

}  // namespace

void read_flights(const Path& logs, double began, CaseFile& into) {
  std::map<int, Flight> flights;
  std::error_code error;
  for (std::filesystem::directory_iterator at(logs, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with("flight-rank-") || !name.ends_with(".json")) continue;
    try {
      auto flight = read_flight(at->path());
      if (!flight) {
        into.notes.push_back(fmt::format("{}: is not a flight recorder", at->path().string()));
      } else if (flight->second.written >= began) {
        flights.insert(std::move(*flight));
      }
    } catch (const Error& failure) {
      into.notes.push_back(failure.what());
    }
  }
  for (RankRecord& rank : into.ranks) {
    if (const auto found = flights.find(rank.rank); found != flights.end()) rank.pid = found->second.pid;
  }
  if (!flights.empty()) FlightAnalysis(std::move(flights), into).run();
}

}  // namespace primus::postmortem
