#include <filesystem>
#include <string>
#include <vector>

#include "cli/program.h"

int main(int argc, char** argv) {
  using namespace primus;
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  cli::Console console{
      .out = Terminal::detect(1), .err = Terminal::detect(2), .debug = false, .program = "primus"};
  if (argc > 0) {
    const std::string name = std::filesystem::path(argv[0]).filename().string();
    if (name == "primus-cli") console.program = name;
  }
  return cli::run(words, console);
}
