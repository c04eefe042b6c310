// The runs that a dashboard shows: all runs in and below some folders. Reads their status when their files
// change, and follows the records of the runs that viewers look at.
//
// Clients name a run by its id, which only a listing of the folders creates. So no text of a request becomes
// a path. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lm/report/run_list.h"
#include "safe/dashboard/rank_times.h"
#include "safe/dashboard/run_index.h"

namespace primus::dashboard {

struct Run {
  std::string id;    // 16 hexadecimal digits
  std::string name;  // the folder relative to the searched folder
  RunStatus status;  // without settings
  std::string newest_event;
  std::uint64_t version = 0;         // changes with every change that viewers see
  std::unique_ptr<RunIndex> index;   // null if no viewer asked for the run recently
  std::unique_ptr<RankTimes> ranks;  // null if no viewer asked for its ranks recently

  // The files as they were last read, to detect changes.
  struct Seen {
    std::vector<FileState> files;
    std::chrono::steady_clock::time_point read = {}, viewed = {}, ranks_viewed = {};
  } seen;
};

class Workspace {
 public:
  // Pauses between looks at the files. Tests use shorter ones.
  struct Pauses {
    std::chrono::milliseconds poll{500};     // of running and viewed runs
    std::chrono::milliseconds search{5000};  // for new runs
  };
  static constexpr std::size_t kMaxIndexed = 12;  // runs whose records are in memory

  // Searches the folders. Throws Error(kInvalid) if one does not exist.
  Workspace(std::vector<Path> folders, Pauses pauses);
  explicit Workspace(std::vector<Path> folders) : Workspace(std::move(folders), Pauses()) {}

  struct Work {
    std::vector<std::string> changed, removed;  // ids of runs
    bool more = false;                          // records are left to read
  };
  // Looks for changes, and reads records for about `budget`.
  Work work(std::chrono::milliseconds budget);

  // All runs by id.
  const std::map<std::string, Run>& runs() const { return runs_; }
  // Returns the run; null if there is no run with this id.
  Run* find(const std::string& id);
  // Returns the index of a run, and reads it until it has something to show.
  RunIndex& view(Run& run);
  RankTimes& view_ranks(Run& run);
  const std::vector<std::string>& notes() const { return notes_; }  // folders that could not be searched

 private:
  void search(Work& work);
  void poll(Work& work);
  bool refresh(Run& run);
  void forget();

  std::vector<Path> folders_;
  Pauses pauses_;
  std::map<std::string, Run> runs_;
  std::vector<std::string> notes_;
  std::chrono::steady_clock::time_point polled_ = {}, next_search_ = {};
  std::size_t turn_ = 0;  // counts polls: other runs than the active ones are looked at in turns
};

}  // namespace primus::dashboard
