#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/program.h"

namespace {

// The parent may have closed a standard stream (2>&-). The next opened file would then get the stream's
// descriptor, and messages would be written to that file. Therefore opens /dev/null on the descriptor: for
// writing on standard input, for reading on the other streams. Using such a stream still fails, as on a
// closed descriptor.
void keep_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is `stream`.
    if (::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) ::_exit(3);
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace primus;
  keep_standard_streams();
  // Ignores SIGXFSZ, so that a write beyond the file size limit (ulimit -f) fails with an error. By default,
  // the signal would end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const std::string called = argc > 0 ? argv[0] : "primus";
  const std::string name = std::filesystem::path(called).filename().string();
  cli::Console console{.out = Terminal::detect(1),
                       .err = Terminal::detect(2),
                       .debug = false,
                       .program = name == "primus-cli" ? name : "primus",
                       .invocation = called};
  return cli::run(words, console);
}
