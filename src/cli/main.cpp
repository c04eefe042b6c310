#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/program.h"

namespace {

// Whoever starts us may have closed a standard stream (2>&-). The next file to be opened would then get its
// number, and messages would land in that file. A descriptor that cannot be used the way the stream is keeps
// the number taken: reading or writing still fails, as it does on a closed one.
void keep_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is this one.
    if (::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) ::_exit(3);
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace primus;
  keep_standard_streams();
  // A file beyond the limit (ulimit -f) is then an error of the write, which says what happened and cleans
  // up.
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
