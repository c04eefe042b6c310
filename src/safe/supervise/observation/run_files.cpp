#include "safe/supervise/observation/run_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "lm/events/line_file.h"

namespace primus::supervise {
namespace {

namespace fs = std::filesystem;

// The name of the newest checkpoint's folder; empty: there is none.
std::string newest_name(const Path& checkpoints) {
  try {
    constexpr std::uint64_t kLimit = 4096;
    std::string name = read_file(checkpoints / "latest", kLimit);
    name.erase(name.find_last_not_of(" \r\n") + 1);
    return is_plain_name(name) ? name : "";
  } catch (const std::exception&) {
    return "";
  }
}

std::int64_t step_of(const std::string& name) {
  std::int64_t step = 0;
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  std::from_chars(name.data() + digits, name.data() + name.size(), step);
  return step;
}

}  // namespace

std::uint64_t free_bytes(const Path& folder) {
  std::error_code error;
  Path place = fs::absolute(folder, error);
  while (!fs::exists(place, error) && place.has_relative_path()) place = place.parent_path();
  const fs::space_info space = fs::space(place, error);
  return error ? 0 : space.available;
}

std::string free_space_text(std::uint64_t bytes) {
  return human_bytes(static_cast<double>(bytes)) + " of free space on the disk";
}

NewestCheckpoint newest_checkpoint(const Path& checkpoints) {
  std::error_code error;
  NewestCheckpoint newest;
  const std::string name = newest_name(checkpoints);
  if (name.empty()) return {};
  newest.step = step_of(name);
  for (fs::recursive_directory_iterator entry(checkpoints / name, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    if (entry->is_regular_file(gone)) newest.bytes += entry->file_size(gone);
  }
  return newest;
}

std::int64_t newest_step(const Path& checkpoints) { return step_of(newest_name(checkpoints)); }

namespace {

constexpr std::string_view kGaveUp = ".gave-up";

}  // namespace

bool is_first_to_give_up(const Path& run, std::uint64_t job) {
  const Path path = run / fmt::format("{}-{:016x}", kGaveUp, job);
  const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  if (file < 0) return errno != EEXIST;
  ::close(file);
  return true;
}

void forget_given_up(const Path& run) {
  std::error_code none;
  std::vector<Path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, none))
    if (entry.path().filename().string().starts_with(kGaveUp)) old.push_back(entry.path());
  for (const Path& path : old) fs::remove(path, none);
}

namespace {

// Returns the time of the file's last change, in seconds since 1970; 0: there is no file.
double changed_at(const Path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return 0;
  return static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
}

// Returns the error with which the output ends; empty: none. An earlier error belongs to an earlier process.
std::string last_shown_error(const Path& file) {
  constexpr std::string_view kError = "error: ";
  constexpr int kTried = 16;  // lines at the end: the error's further lines, and its hint
  const auto opened = Env::posix().open(file, OpenMode::kRead);
  LinesBackward lines(*opened);
  std::string_view line;
  std::uint64_t offset = 0;
  for (int i = 0; i < kTried && lines.previous(line, offset) && !line.starts_with('['); ++i)
    if (line.starts_with(kError)) return std::string(line.substr(kError.size()));
  return "";
}

// "[time][rank-0/1][ERROR]    [file:line] : message" (docs/formats/run-folder.md)
std::string message_of(const std::string& line) {
  constexpr std::string_view kBefore = "] : ";
  const std::size_t at = line.find(kBefore);
  return at == line.npos ? line : line.substr(at + kBefore.size());
}

}  // namespace

std::string last_error(const Path& logs, int ranks, double since, int first) {
  std::string text, shown;
  double newest = since, newest_shown = since;
  for (int rank = first; rank < first + ranks; ++rank) {
    const Path folder = logs / fmt::format("rank-{}", rank);
    try {
      if (const double changed = changed_at(folder / "error.log"); changed >= newest && changed > 0) {
        text = message_of(last_log_entry(folder / "error.log"));
        newest = changed;
      }
      if (const double changed = changed_at(folder / "output.log"); changed >= newest_shown && changed > 0) {
        const std::string error = last_shown_error(folder / "output.log");
        if (error.empty()) continue;
        shown = error;
        newest_shown = changed;
      }
    } catch (const Error&) {
      // The file was removed meanwhile.
    }
  }
  return text.empty() ? shown : text;
}

}  // namespace primus::supervise
