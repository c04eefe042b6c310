#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/program.h"

int main(int argc, char** argv) {
  using namespace primus;
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
