// primus version
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

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
    args.flag("--json", json_, "print as JSON, with the details that a bug report needs");
  }

  int run(Console& console) override {
    if (!json_) {
      console.print("primus " PRIMUS_VERSION "\n");
      return 0;
    }
    std::vector<std::string_view> built;
    for (const turbo::IsaLevel level : turbo::built_isa_levels()) built.push_back(turbo::name_of(level));
    const std::vector<turbo::IsaLevel> supported = turbo::supported_isa_levels();
    utsname system{};
    uname(&system);
    const nlohmann::ordered_json json{
        {"version", PRIMUS_VERSION},
        {"compiler", kCompiler},
        {"build_type", PRIMUS_BUILD_TYPE},
        {"glibc", gnu_get_libc_version()},
        {"cpu_kernels", supported.empty() ? nlohmann::ordered_json()
                                          : nlohmann::ordered_json(turbo::name_of(supported.back()))},
        {"cpu_kernels_built", built},
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
