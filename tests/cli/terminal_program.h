// Runs a program on its own terminal: tests type keys and read what the terminal shows.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace primus::test {

// The destructor kills and reaps the program if it still runs.
class TerminalProgram {
 public:
  explicit TerminalProgram(const std::vector<std::string>& command,
                           const std::map<std::string, std::string>& environment = {},
                           unsigned short columns = 100) {
    const winsize size{.ws_row = 30, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ < 0) throw std::runtime_error("forkpty");
    if (pid_ == 0) {
      setenv("TERM", "xterm", 1);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      std::vector<char*> argv;
      for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
      argv.push_back(nullptr);
      execvp(argv[0], argv.data());
      _exit(127);
    }
  }
  ~TerminalProgram() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(terminal_);
  }
  TerminalProgram(const TerminalProgram&) = delete;
  TerminalProgram& operator=(const TerminalProgram&) = delete;

  void type(const std::string& keys) const {
    if (write(terminal_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
      throw std::runtime_error("write to a terminal");
  }

  // Reads until `text` appears after the text that earlier calls found. Returns false after `seconds` or at
  // the end.
  bool see(const std::string& text, double seconds = 60) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (true) {
      const std::size_t found = seen_.find(text, at_);
      if (found != std::string::npos) {
        at_ = found + text.size();
        return true;
      }
      const std::chrono::duration<double, std::milli> left = end - std::chrono::steady_clock::now();
      if (left.count() <= 0 || !read_some(static_cast<int>(left.count()) + 1)) return false;
    }
  }

  // Reads until no output has come for `quiet_ms`.
  void settle(int quiet_ms) {
    while (read_some(quiet_ms)) {
    }
  }

  void send(int signal_number) const { kill(pid_, signal_number); }

  // Returns whether the terminal is in raw mode: it passes each key at once, or does not echo.
  bool passes_every_key() const {
    termios mode{};
    if (tcgetattr(terminal_, &mode) != 0) throw std::runtime_error("tcgetattr");
    return (mode.c_lflag & ICANON) == 0 || (mode.c_lflag & ECHO) == 0;
  }

  // The complete output, with control characters.
  const std::string& shown() const { return seen_; }

  // Waits for the end. Returns the exit code, or -signal. Throws if the program prints nothing for a minute
  // and does not end in ten more seconds, so that the destructor kills it.
  int wait() {
    while (read_some(60'000)) {
    }
    int status = 0;
    for (int tries = 0; waitpid(pid_, &status, WNOHANG) == 0; ++tries) {
      if (tries == 1000) throw std::runtime_error("the program does not end; it printed: " + seen_);
      usleep(10'000);
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  bool read_some(int wait_ms) {
    pollfd ready{terminal_, POLLIN, 0};
    if (poll(&ready, 1, wait_ms) <= 0) return false;
    char buffer[4096];
    const ssize_t count = read(terminal_, buffer, sizeof(buffer));
    if (count <= 0) return false;  // EIO: all processes have closed the terminal
    seen_.append(buffer, static_cast<std::size_t>(count));
    return true;
  }

  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string seen_;
  std::size_t at_ = 0;
};

}  // namespace primus::test
