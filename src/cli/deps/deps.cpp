// primus deps list, check and sync
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "backends/dependencies.h"
#include "backends/installation.h"
#include "base/text/json_text.h"
#include "base/text/suggest.h"
#include "cli/command.h"
#include "config/loading/inherit.h"
#include "launch/dependency_folder.h"

namespace primus::cli {
namespace {

using backends::Pin;
using backends::PinState;
using backends::PinStatus;

class DependencyCommand : public Command {
 protected:
  void declare_common(Arguments& args) {
    args.rest("NAMES", names_, "names from 'deps list' (default: megatron, torchtitan and maxtext)");
    args.option("--dir", "FOLDER", &folder_,
                "folder of the sources (default: PRIMUS_THIRDPARTY_DIR, or ~/.cache/Primus/third_party)");
  }

  // Returns the pins that the user named. If the user named none, returns the pins of the frameworks that
  // experiments can name. With `all_of_them`, also returns all other pins.
  std::vector<Pin> pins(bool all_of_them = false) const {
    const launch::Surroundings here = launch::Surroundings::here();
    std::vector<Pin> all = backends::read_pins(config::default_preset_dirs(here.variable));
    std::vector<std::string_view> known;
    for (const Pin& pin : all) known.push_back(pin.framework);
    for (const std::string& name : names_) {
      if (std::ranges::find(known, name) != known.end()) continue;
      const std::string near = did_you_mean(name, known);
      throw invalid(fmt::format("'{}' is not a framework that Primus lists", name),
                    near.empty() ? fmt::format("choose one of {}", fmt::join(known, ", ")) : near);
    }
    std::erase_if(all, [&](const Pin& pin) {
      if (names_.empty()) return !all_of_them && !pin.purpose.empty();
      return std::ranges::find(names_, pin.framework) == names_.end();
    });
    return all;
  }

  bool was_named(const Pin& pin) const { return std::ranges::find(names_, pin.framework) != names_.end(); }

  backends::Path folder() const {
    return folder_ ? backends::Path(*folder_) : launch::dependency_folder(launch::Surroundings::here());
  }

  std::string python_of(const Pin& pin) const {
    const launch::Surroundings here = launch::Surroundings::here();
    if (const auto activate = here.setting("VENV_ACTIVATE"))
      return (backends::Path(*activate).parent_path() / "python3").string();
    const backends::Path own = folder() / (pin.name + ".venv") / "bin" / "python3";
    std::error_code error;
    return std::filesystem::exists(own, error) ? own.string() : "python3";
  }

 private:
  std::vector<std::string> names_;
  std::optional<std::string> folder_;
};

class DepsList final : public DependencyCommand {
 public:
  void declare(Arguments& args) override {
    declare_common(args);
    args.flag("--json", json_, "as JSON");
  }
  int run(Console& console) override {
    nlohmann::json json = nlohmann::json::array();
    for (const Pin& pin : pins(true)) {
      json.push_back({{"framework", pin.framework},
                      {"name", pin.name},
                      {"repository", pin.repository},
                      {"commit", pin.commit},
                      {"packages", pin.packages},
                      {"purpose", pin.purpose},
                      {"folder", (folder() / pin.name).string()}});
      if (!json_)
        console.print(fmt::format(
            "{:<19} {}  {}\n{:<19} {}\n", pin.framework, pin.commit.substr(0, 12), pin.repository, "",
            pin.purpose.empty() ? (folder() / pin.name).string()
                                : fmt::format("for {}: fetched only by name", pin.purpose)));
    }
    if (json_) console.write(json_text(json) + "\n");
    return 0;
  }

 private:
  bool json_ = false;
};

class DepsCheck final : public DependencyCommand {
 public:
  void declare(Arguments& args) override {
    declare_common(args);
    args.flag("--json", json_, "as JSON");
  }
  int run(Console& console) override {
    bool ready = true;
    nlohmann::json json = nlohmann::json::array();
    for (const Pin& pin : pins()) {
      const PinStatus status = backends::pin_status(pin, folder(), python_of(pin));
      const std::string problem = problem_of(pin, status);
      const bool good = problem.empty() && status.missing_imports.empty();
      ready = ready && good;
      if (json_) {
        json.push_back({{"framework", pin.framework},
                        {"ready", good},
                        {"sources", problem},
                        {"commit", status.commit},
                        {"changed", status.changed},
                        {"python", status.python},
                        {"missing_imports", status.missing_imports}});
        continue;
      }
      std::string text = fmt::format("{:<11} {}\n", pin.framework, good ? "ready" : "not ready");
      if (!problem.empty())
        text += fmt::format("  {}\n  next: primus deps sync {}\n", problem, pin.framework);
      if (problem.empty() && status.changed) text += "  its files were changed\n";
      if (!status.missing_imports.empty()) {
        text += fmt::format("  {} lacks {}\n  next: primus deps sync --venv {}\n", status.python,
                            fmt::join(status.missing_imports, ", "), pin.framework);
      }
      console.print(text);
    }
    if (json_) console.write(json_text(json) + "\n");
    return ready ? 0 : 1;
  }

 private:
  std::string problem_of(const Pin& pin, const PinStatus& status) const {
    const std::string where = (folder() / pin.name).string();
    switch (status.state) {
      case PinState::kMissing:
        return fmt::format("the sources are not in {}", where);
      case PinState::kNoRepository:
        return fmt::format("{} is not a clone of a repository", where);
      case PinState::kOtherCommit:
        return fmt::format("{} is at {}, but Primus was checked with {}", where, status.commit.substr(0, 12),
                           pin.commit.substr(0, 12));
      case PinState::kReady:
        break;
    }
    return {};
  }

  bool json_ = false;
};

class DepsSync final : public DependencyCommand {
 public:
  void declare(Arguments& args) override {
    declare_common(args);
    args.flag("--venv", venv_,
              "also make a Python environment for each framework, and install its packages with pip");
    args.flag("--dry-run,--dry_run", dry_run_, "show what would be fetched, and fetch nothing");
  }
  int run(Console& console) override {
    for (const Pin& pin : pins(dry_run_)) {
      const std::string where = (folder() / pin.name).string();
      if (dry_run_ && !pin.purpose.empty() && !was_named(pin)) {
        console.print(fmt::format("{}: for {}, fetched only by name\n", pin.framework, pin.purpose));
        continue;
      }
      if (dry_run_) {
        console.print(fmt::format("{}: {} at {} into {}\n", pin.framework, pin.repository,
                                  pin.commit.substr(0, 12), where));
        if (venv_)
          console.print(
              fmt::format("{}: {} into {}.venv\n", pin.framework, fmt::join(pin.packages, ", "), where));
        continue;
      }
      console.note(fmt::format("{}: {} into {}", pin.framework, pin.repository, where));
      const auto show = [&](std::string_view line) { console.note(line); };
      backends::sync_sources(pin, folder(), show);
      if (venv_) backends::sync_environment(pin, folder(), show);
      console.print(fmt::format("{}: {} at {}\n", pin.framework, where, pin.commit.substr(0, 12)));
    }
    return 0;
  }

 private:
  bool venv_ = false, dry_run_ = false;
};

}  // namespace

extern const CommandEntry kDepsList{
    "deps list",
    "Lists the versions of other frameworks that Primus was checked with",
    "Lists the frameworks that experiments can name, Megatron-LM, TorchTitan and MaxText, and the other "
    "dependencies of AMD Primus, which are fetched only by name. presets/backends/pins.yaml has the pinned "
    "versions.",
    "primus deps list\nprimus deps list megatron --json",
    make_command<DepsList>,
    {Section::kDependencies, 1}};

extern const CommandEntry kDepsCheck{
    "deps check",
    "Checks which of the other frameworks can run on this machine",
    "The exit code is 0 if all named frameworks are ready, and 1 if something is missing; the output shows "
    "the next step.",
    "primus deps check\nprimus deps check torchtitan --dir /shared/frameworks",
    make_command<DepsCheck>,
    {Section::kDependencies, 2}};

extern const CommandEntry kDepsSync{
    "deps sync",
    "Fetches the pinned versions of other frameworks",
    "Clones each repository at its pinned commit, submodules included. An existing clone is moved to the "
    "pinned commit, unless its files were changed.",
    "primus deps sync megatron\nprimus deps sync --venv torchtitan --dir /shared/frameworks\n"
    "primus deps sync --dry-run",
    make_command<DepsSync>,
    {Section::kDependencies, 3}};

}  // namespace primus::cli
