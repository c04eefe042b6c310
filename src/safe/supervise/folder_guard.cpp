#include "safe/supervise/folder_guard.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "base/error.h"

namespace primus::supervise {
namespace {

using namespace std::chrono_literals;

void close_all_but(int fd) {
  if (fd > 0) ::close_range(0, static_cast<unsigned>(fd) - 1, 0);
  ::close_range(static_cast<unsigned>(fd) + 1, ~0U, 0);
}

[[noreturn]] void watch(int from_starter, const Path& folder) {
  ::setsid();  // a new session gets no signals of the terminal or of the starter's group
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "primus-guard");
  close_all_but(from_starter);
  if (::chdir("/") != 0) ::_exit(1);
  char word = 0;
  ssize_t got = 0;
  do got = ::read(from_starter, &word, 1);
  while (got < 0 && errno == EINTR);
  if (got == 1) ::_exit(0);  // the starter removes the folder itself
  // The starter's other processes end with it, and may still write for a moment.
  constexpr int kTries = 100;
  std::error_code none;
  for (int i = 0; i < kTries && std::filesystem::exists(folder, none); ++i) {
    try_remove_tree(folder);
    std::this_thread::sleep_for(100ms);
  }
  ::_exit(0);
}

}  // namespace

FolderGuard::FolderGuard(const Path& folder) {
  // If the guard was killed, writing to a socket with MSG_NOSIGNAL causes no SIGPIPE.
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw io_error("cannot make a socket", errno);
  to_guard_ = comm::Socket(ends[0]);
  const comm::Socket from_starter(ends[1]);
  const Path absolute = std::filesystem::absolute(folder);
  pid_ = ::fork();
  if (pid_ < 0) throw io_error("cannot start a process", errno, "check 'ulimit -u' and free memory");
  if (pid_ == 0) watch(from_starter.fd(), absolute);
}

FolderGuard::~FolderGuard() {
  const char word = 1;
  while (::send(to_guard_.fd(), &word, 1, MSG_NOSIGNAL) < 0 && errno == EINTR) continue;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

}  // namespace primus::supervise
