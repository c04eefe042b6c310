#include "launch/ranks/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"

namespace primus::launch {

bool is_stopped(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(") ");
  return name_end != text.npos && text.substr(name_end + 2, 1) == "T";
}

Signals::Signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  // nohup(1) ignores SIGHUP, so that a closed terminal does not end the job. Linux delivers a blocked signal
  // even if it is ignored.
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  descriptor_ = comm::Socket(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!descriptor_.valid()) throw io_error("cannot wait for signals", errno);
}

Signals::~Signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::optional<int> Signals::next() {
  signalfd_siginfo info;
  if (read(descriptor_.fd(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace primus::launch
