#include "safe/dashboard/workspace.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/files/sha256.h"
#include "lm/events/event_log.h"
#include "lm/events/supervision.h"
#include "safe/dashboard/run_events.h"

namespace primus::dashboard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kForgetAfter = std::chrono::minutes(10);
// The state of a running process also depends on its lock, so it is read again without a change of files.
constexpr auto kRunningRefresh = std::chrono::seconds(2);
constexpr std::size_t kTurns = 6;

std::string id_of(const Path& folder) {
  constexpr std::size_t kDigits = 16;
  return hex(as_text(sha256(folder.string()))).substr(0, kDigits);
}

std::vector<FileState> files_of(const Path& folder) {
  return {file_state(folder / "metrics.jsonl"),   file_state(event_file(folder, 0)),
          file_state(folder / "experiment.yaml"), file_state(folder / "ending.json"),
          file_state(supervision_file(folder)),   file_state(folder / "evaluations.jsonl")};
}

// Returns `records`. If they are null, opens the records of the run in `folder` and reads their first part.
template <class Records>
Records& opened(std::unique_ptr<Records>& records, const Path& folder) {
  if (!records) {
    records = std::make_unique<Records>(folder);
    constexpr std::chrono::milliseconds kFirst{60};
    records->advance(kFirst);
  }
  return *records;
}

std::string name_in(const Path& root, const Path& folder) {
  const Path name = folder.lexically_relative(root);
  if (name.empty() || name == ".") {
    const Path last = folder.filename();
    return last.empty() ? folder.string() : last.string();
  }
  return name.string();
}

}  // namespace

Workspace::Workspace(std::vector<Path> folders, Pauses pauses)
    : folders_(std::move(folders)), pauses_(pauses) {
  for (const Path& folder : folders_) find_runs(folder);  // throws if a folder does not exist
  Work none;
  search(none);
}

Run* Workspace::find(const std::string& id) {
  const auto found = runs_.find(id);
  return found == runs_.end() ? nullptr : &found->second;
}

void Workspace::search(Work& work) {
  const auto begin = Clock::now();
  std::set<std::string> there;
  notes_.clear();
  for (const Path& root : folders_) {
    try {
      RunSearch found = find_runs(root);
      notes_.insert(notes_.end(), found.notes.begin(), found.notes.end());
      for (const Path& folder : found.folders) {
        std::error_code none;
        const Path whole = std::filesystem::weakly_canonical(folder, none);
        const std::string id = id_of(none ? folder : whole);
        there.insert(id);
        if (runs_.contains(id)) continue;
        const std::string name = name_in(root, folder);
        Run& run = runs_[id];
        run.id = id;
        run.name = folders_.size() > 1 && name != folder.filename() ? (root / name).string() : name;
        run.status.folder = folder;
        refresh(run);
        work.changed.push_back(id);
      }
    } catch (const Error& error) {
      notes_.emplace_back(error.what());
    }
  }
  std::erase_if(runs_, [&](const auto& run) {
    if (there.contains(run.first)) return false;
    work.removed.push_back(run.first);
    return true;
  });
  // A search of a slow file system takes at most a twentieth of the time.
  constexpr int kShare = 20;
  const auto now = Clock::now();
  next_search_ = now + std::max<Clock::duration>(pauses_.search, kShare * (now - begin));
}

// Reads the status of a run if its files have changed. Returns whether it was read.
bool Workspace::refresh(Run& run) {
  const auto now = Clock::now();
  std::vector<FileState> files = files_of(run.status.folder);
  const bool lock = run.status.state == RunState::kRunning && now - run.seen.read > kRunningRefresh;
  if (files == run.seen.files && !lock) return false;
  const bool changed = files != run.seen.files;
  const RunState before = run.status.state;
  run.seen.files = std::move(files);
  run.seen.read = now;
  run.status = run_status(run.status.folder);
  run.status.settings.clear();
  if (!changed && run.status.state == before) return false;
  run.newest_event = newest_event(run.status.folder);
  ++run.version;
  return true;
}

void Workspace::poll(Work& work) {
  std::size_t place = 0;
  for (auto& [id, run] : runs_) {
    const bool active = run.status.state == RunState::kRunning || run.index;
    if (!active && place++ % kTurns != turn_ % kTurns) continue;
    if (refresh(run)) work.changed.push_back(id);
  }
  ++turn_;
}

Workspace::Work Workspace::work(std::chrono::milliseconds budget) {
  Work work;
  const auto begin = Clock::now();
  if (begin >= next_search_) search(work);
  const bool due = begin - polled_ >= pauses_.poll;
  if (due) {
    polled_ = begin;
    poll(work);
    forget();
  }
  for (auto& [id, run] : runs_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(begin + budget - Clock::now());
    if (left.count() <= 0) {
      work.more = work.more || run.index;
      continue;
    }
    if (!run.index) continue;
    if (!due && run.index->progress() == 1 && !run.ranks) continue;
    const std::uint64_t before = run.index->version() + (run.ranks ? run.ranks->version() : 0);
    work.more = run.index->advance(left) || work.more;
    if (run.ranks) work.more = run.ranks->advance(left) || work.more;
    if (run.index->version() + (run.ranks ? run.ranks->version() : 0) == before) continue;
    ++run.version;
    work.changed.push_back(id);
  }
  return work;
}

// Drops the records of runs that no viewer has asked for recently, and of the oldest ones if there are many.
void Workspace::forget() {
  const auto now = Clock::now();
  std::vector<Run*> indexed;
  for (auto& [id, run] : runs_) {
    if (run.ranks && now - run.seen.ranks_viewed > kForgetAfter) run.ranks.reset();
    if (run.index && now - run.seen.viewed > kForgetAfter) run.index.reset();
    if (run.index) indexed.push_back(&run);
  }
  std::ranges::sort(indexed, std::greater<>(), [](const Run* run) { return run->seen.viewed; });
  for (std::size_t i = kMaxIndexed; i < indexed.size(); ++i) {
    indexed[i]->index.reset();
    indexed[i]->ranks.reset();
  }
}

RunIndex& Workspace::view(Run& run) {
  run.seen.viewed = Clock::now();
  return opened(run.index, run.status.folder);
}

RankTimes& Workspace::view_ranks(Run& run) {
  run.seen.ranks_viewed = Clock::now();
  return opened(run.ranks, run.status.folder);
}

}  // namespace primus::dashboard
