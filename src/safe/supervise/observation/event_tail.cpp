#include "safe/supervise/observation/event_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "lm/events/line_file.h"

namespace primus::supervise {

EventTail::EventTail(const Path& run, int ranks, int first) : first_(first) {
  for (int rank = first; rank < first + ranks; ++rank) {
    Source& source = sources_.emplace_back(Source{.path = event_file(run, rank)});
    if (!open(source)) continue;
    source.end = ::lseek(source.file, 0, SEEK_END);
    char last = '\n';
    const bool torn = source.end > 0 && ::pread(source.file, &last, 1, source.end - 1) == 1 && last != '\n';
    if (torn) source.line = "?";  // the rest of a line that another process did not finish is damaged
  }
}

EventTail EventTail::of_rank_zero(const Path& run, std::int64_t from) {
  EventTail tail;
  Source& source = tail.sources_.emplace_back(Source{.path = event_file(run, 0)});
  // A file that is shorter now is another one, and read from its begin.
  if (open(source) && ::lseek(source.file, 0, SEEK_END) >= from) source.end = from;
  return tail;
}

EventTail::~EventTail() {
  for (Source& source : sources_) {
    if (source.file >= 0) ::close(source.file);
  }
}

// Opens the file that has the path now. Returns false if there is none.
bool EventTail::open(Source& source) {
  struct stat status {};
  if (source.file >= 0) {
    if (::stat(source.path.c_str(), &status) != 0) return false;
    if (status.st_ino == source.inode && status.st_size >= source.end) return true;
    ::close(source.file);
  }
  // On NFS, stat() may not show a new file yet; only open() gets the newest lines from the server.
  source.file = ::open(source.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (source.file >= 0) ::fstat(source.file, &status);
  source.inode = status.st_ino;
  source.end = 0;
  source.line.clear();
  return source.file >= 0;
}

void EventTail::read(const std::function<void(const EventLine&, int)>& event) {
  std::array<char, 64 << 10> buffer;
  EventLine parsed;
  for (int rank = first_; Source & source : sources_) {
    const int number = rank++;
    if (!open(source)) continue;
    for (;;) {
      const ssize_t got = ::pread(source.file, buffer.data(), buffer.size(), source.end);
      if (got <= 0) break;
      source.end += got;
      std::string_view rest(buffer.data(), static_cast<std::size_t>(got));
      for (std::size_t at = rest.find('\n'); at != rest.npos; at = rest.find('\n')) {
        source.line += rest.substr(0, at);
        rest.remove_prefix(at + 1);
        const std::string line = std::exchange(source.line, {});
        if (line.size() <= kMaxLine && read_event(line, parsed)) event(parsed, number);
      }
      // The begin of a line that is too long suffices to skip it as damaged.
      if (source.line.size() <= kMaxLine) source.line += rest;
    }
  }
}

}  // namespace primus::supervise
