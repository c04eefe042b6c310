#include "lm/events/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/text/excerpt.h"

namespace primus {
namespace {

// Returns the path `name` below `parent`.
Path below(const Path& parent, std::string_view key, std::string_view name) {
  Path path = parent;
  std::string_view rest = name;
  while (true) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    constexpr std::size_t kLongest = 255;  // of Linux' file systems, in bytes
    if (part.size() > kLongest) {
      throw invalid(fmt::format("{} has a folder name of {} bytes ('{} ...')", key, part.size(),
                                excerpt(part.substr(0, 40))),
                    fmt::format("use at most {} bytes between slashes", kLongest));
    }
    if (!is_plain_name(part)) {
      throw invalid(fmt::format("{} '{}' is not a valid folder name", key, name),
                    "use letters, digits, '.', '_' and '-'; '/' only between names, and no '..'");
    }
    path /= part;
    if (slash == std::string_view::npos) return path;
    rest.remove_prefix(slash + 1);
  }
}

}  // namespace

RunFolder::RunFolder(const RunIdentity& identity) {
  if (identity.workspace.empty()) throw invalid("workspace is empty", "set workspace, e.g. to ./output");
  root_ = below(identity.workspace, "work_group", identity.work_group);
  root_ = below(root_, "user_name", identity.user_name);
  root_ = below(root_, "exp_name", identity.exp_name);
}

Path RunFolder::rank_logs(std::string_view module, int rank) const {
  return below(logs(), "module", module) / fmt::format("rank-{}", rank);
}

Path timeline_file(const Path& run, int stage) {
  return run / "timelines" / fmt::format("stage-{:04}.jsonl", stage);
}

void RunFolder::create(Env& env) const { make_folders(root_, env); }

std::string hint_for_run_name(const Path& given) {
  namespace fs = std::filesystem;
  if (!is_plain_name(given.string())) return {};
  std::error_code none;
  for (const auto& group : fs::directory_iterator("output", none)) {
    for (const auto& user : fs::directory_iterator(group.path(), none)) {
      const Path run = user.path() / given;
      if (fs::is_directory(run, none)) return fmt::format("did you mean '{}'?", run.string());
    }
  }
  return {};
}

RunLock::RunLock(const Path& folder, const char* hint) {
  const Path path = folder / ".lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) throw io_error(fmt::format("cannot open '{}'", path.string()), errno);
  // Retries, because held() in another process takes the lock for a short time.
  constexpr int kTries = 20;
  constexpr useconds_t kPause = 5000;  // pause between tries in microseconds
  int reason = 0;
  for (int i = 0; i < kTries; ++i) {
    if (::flock(file_, LOCK_EX | LOCK_NB) == 0) return;
    reason = errno;
    if (reason != EWOULDBLOCK && reason != EINTR) break;
    ::usleep(kPause);
  }
  ::close(file_);
  if (reason == EWOULDBLOCK) {
    throw invalid(fmt::format("another process is training in '{}'", folder.string()), hint);
  }
  // The file system does not support locks: continues without a lock.
  file_ = -1;
}

bool RunLock::held(const Path& folder) {
  const int file = ::open((folder / ".lock").c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return false;
  const bool refused = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return refused;
}

RunLock::~RunLock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace primus
