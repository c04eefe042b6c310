// primus version
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include <nlohmann/json.hpp>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::cli {
namespace {

#ifdef __clang__
constexpr std::string_view kCompiler = "clang " __clang_version__;
#else
constexpr std::string_view kCompiler = "g++ " __VERSION__;
#endif

class Version final : public Command {
 public:
  void declare(Arguments& args) override {
    args.flag("--json", json_, "print as JSON, with what a report of a fault needs");
  }

  int run(Console& console) override {
    if (!json_) {
      console.print("primus " PRIMUS_VERSION "\n");
      return 0;
    }
    utsname system{};
    uname(&system);
    const nlohmann::ordered_json json{
        {"version", PRIMUS_VERSION},
        {"compiler", kCompiler},
        {"build_type", PRIMUS_BUILD_TYPE},
        {"glibc", gnu_get_libc_version()},
        {"cpu_kernels", turbo::name_of(turbo::best_isa_level())},
        {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)}};
    console.write(json_text(json) + "\n");
    return 0;
  }

 private:
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kVersion{"version",
                                   "Prints the version",
                                   {},
                                   "primus version\n"
                                   "primus version --json",
                                   make_command<Version>,
                                   {Section::kProgram, 3}};

}  // namespace primus::cli
