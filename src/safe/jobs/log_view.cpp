#include "safe/jobs/log_view.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <tuple>

namespace primus::jobs {
namespace {

std::function<bool(int)> or_all(const std::function<bool(int)>& wanted) {
  return wanted ? wanted : [](int) { return true; };
}

}  // namespace

LogView::LogView(LogQuery query)
    : query_(std::move(query)), found_(find_rank_logs(query_.run, query_.level, or_all(query_.wanted))) {}

bool LogView::fits(const LogEntry& entry) const {
  if ((entry.time > 0 || entry.continued) && entry.level < query_.level) return false;
  return !query_.matches || query_.matches(entry);
}

// With many ranks, blocks are small, so that memory is bounded.
std::size_t LogView::block() const {
  constexpr std::size_t kAllBlocks = std::size_t{64} << 20, kSmallest = std::size_t{4} << 10;
  return std::clamp(kAllBlocks / std::max<std::size_t>(found_.size(), 1), kSmallest, kLogBlock);
}

void LogView::last(std::size_t count, const EntryFn& entry) {
  struct Source {
    EntriesBackward entries;
    LogEntry newest = {};
  };
  std::deque<Source> sources;
  const auto is_earlier = [&](std::size_t a, std::size_t b) {
    return std::tie(sources[a].newest.order, a) < std::tie(sources[b].newest.order, b);
  };
  std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(is_earlier)> queue(is_earlier);
  for (const RankLog& log : found_) {
    sources.push_back({EntriesBackward(log, block(), query_.unfinished)});
    Source& source = sources.back();
    readers_[log.folder] = std::make_unique<EntriesForward>(log, source.entries.end());
    if (source.entries.previous(source.newest)) queue.push(sources.size() - 1);
  }
  std::vector<LogEntry> chosen;
  while (!queue.empty() && chosen.size() < count) {
    const std::size_t i = queue.top();
    queue.pop();
    if (fits(sources[i].newest)) chosen.push_back(std::move(sources[i].newest));
    if (sources[i].entries.previous(sources[i].newest)) queue.push(i);
  }
  std::for_each(chosen.rbegin(), chosen.rend(), entry);
}

void LogView::all(const EntryFn& entry) {
  struct Source {
    EntriesForward* reader;
    std::vector<LogEntry> entries = {};
    std::size_t next = 0;
    bool more = true, unfinished = false;
    // Returns false if no entry is left.
    bool fill(std::size_t bytes) {
      if (next < entries.size()) return true;
      entries.clear();
      next = 0;
      while (more && entries.empty()) more = reader->next(entries, !unfinished, bytes);
      if (!more && unfinished) reader->finish(entries);
      return !entries.empty();
    }
  };
  std::deque<Source> sources;
  const auto is_later = [&](std::size_t a, std::size_t b) {
    return std::tie(sources[a].entries[sources[a].next].order, a) >
           std::tie(sources[b].entries[sources[b].next].order, b);
  };
  std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(is_later)> queue(is_later);
  for (const RankLog& log : found_) {
    auto& reader = readers_[log.folder];
    reader = std::make_unique<EntriesForward>(log);
    sources.push_back({.reader = reader.get(), .unfinished = query_.unfinished});
    if (sources.back().fill(block())) queue.push(sources.size() - 1);
  }
  while (!queue.empty()) {
    const std::size_t i = queue.top();
    queue.pop();
    const LogEntry& next = sources[i].entries[sources[i].next++];
    if (fits(next)) entry(next);
    if (sources[i].fill(block())) queue.push(i);
  }
}

void LogView::follow(const EntryFn& entry, std::optional<double> now) {
  read_new(entry, [&](EntriesForward& reader, std::vector<LogEntry>& entries) {
    while (reader.next(entries, !now)) continue;
    if (now) reader.settle(entries, *now);
  });
}

void LogView::finish(const EntryFn& entry) {
  read_new(entry, [](EntriesForward& reader, std::vector<LogEntry>& entries) {
    while (reader.next(entries, false)) continue;
    reader.finish(entries);
  });
}

void LogView::read_new(const EntryFn& entry,
                       const std::function<void(EntriesForward&, std::vector<LogEntry>&)>& read) {
  found_ = find_rank_logs(query_.run, query_.level, or_all(query_.wanted));
  std::vector<LogEntry> entries;
  for (const RankLog& log : found_) {
    auto& reader = readers_[log.folder];
    if (!reader) reader = std::make_unique<EntriesForward>(log);
    read(*reader, entries);
  }
  std::ranges::stable_sort(entries, {}, [](const LogEntry& e) { return std::pair(e.order, e.rank); });
  for (const LogEntry& next : entries)
    if (fits(next)) entry(next);
}

}  // namespace primus::jobs
