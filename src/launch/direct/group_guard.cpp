#include "launch/direct/group_guard.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/error.h"

namespace primus::launch {
namespace {

// The protocol: a positive word adds a group to watch, a negative word removes that group, and 0 ends the
// guard.
constexpr pid_t kEnd = 0;

void close_all_but(int fd) {
  if (fd > 0) close_range(0, static_cast<unsigned>(fd) - 1, 0);
  close_range(static_cast<unsigned>(fd) + 1, ~0U, 0);
}

// The guard's process. Makes only plain system calls, because the process is forked from a process with
// threads.
[[noreturn]] void watch(int from_starter, std::array<pid_t, GroupGuard::kMaxGroups>& groups) {
  setsid();  // a new session gets no signals of the terminal or of the starter's group
  prctl(PR_SET_NAME, "primus-guard");
  close_all_but(from_starter);
  if (chdir("/") != 0) _exit(1);
  auto end = groups.begin();
  for (;;) {
    pid_t word = kEnd;
    const ssize_t got = read(from_starter, &word, sizeof(word));
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(word)) break;  // the starter has ended
    if (word == kEnd) _exit(0);
    if (word > 0 && end != groups.end()) *end++ = word;
    if (word < 0) end = std::remove(groups.begin(), end, -word);
  }
  for (auto group = groups.begin(); group != end; ++group) kill(-*group, SIGKILL);
  _exit(0);
}

}  // namespace

GroupGuard::GroupGuard() {
  std::array<int, 2> ends{};
  // SOCK_SEQPACKET keeps words complete. If the guard was killed, writing causes no SIGPIPE.
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw io_error("cannot make a socket", errno);
  to_guard_ = comm::Socket(ends[0]);
  const comm::Socket from_starter(ends[1]);
  static std::array<pid_t, kMaxGroups> groups;  // after the fork, the guard uses its own copy of this array
  pid_ = fork();
  if (pid_ < 0) throw io_error("cannot start a process", errno, "check 'ulimit -u' and free memory");
  if (pid_ == 0) watch(from_starter.fd(), groups);
}

GroupGuard::~GroupGuard() {
  tell(kEnd);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

void GroupGuard::tell(pid_t word) const {
  while (send(to_guard_.fd(), &word, sizeof(word), MSG_NOSIGNAL) < 0 && errno == EINTR) continue;
}

}  // namespace primus::launch
