#include "backends/dependencies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/files/file.h"
#include "config/readers.h"
#include "launch/process.h"

namespace primus::backends {
namespace {

using config::Value;

launch::Step step_of(std::vector<std::string> argv) {
  launch::Step step{.name = "program", .where = "here", .argv = std::move(argv)};
  step.environment["GIT_TERMINAL_PROMPT"] = "0";  // git fails instead of asking for a password
  return step;
}

struct Result {
  int code = 0;
  std::string output;  // limited to about a page
};

Result run(std::vector<std::string> argv, const Show& show = {}) {
  constexpr std::size_t kMax = 16 << 10;
  Result result;
  result.code = launch::run_group_and_read(step_of(std::move(argv)), [&](std::string_view line) {
    if (show) show(line);
    if (result.output.size() < kMax) result.output += std::string(line) + "\n";
  });
  while (result.output.ends_with('\n')) result.output.pop_back();
  return result;
}

void run_or_throw(const std::vector<std::string>& argv, const Show& show, const std::string& what,
                  const std::string& hint) {
  const Result result = run(argv, show);
  if (result.code == 0) return;
  const std::size_t last = result.output.rfind('\n');
  throw Error(ErrorKind::kDependency,
              fmt::format("{}: {} ended with exit code {}: {}", what, argv[0], result.code,
                          result.output.substr(last == std::string::npos ? 0 : last + 1)),
              hint);
}

std::string required(const Value& pin, std::string_view key, const std::string& framework) {
  const Value* value = pin.find(key);
  if (!value || value->text.empty()) {
    throw config::error_at(pin.origin, fmt::format("the pin of {} has no {}", framework, key),
                           "restore the table that came with the program");
  }
  return value->text;
}

std::vector<std::string> words(const Value& pin, std::string_view key) {
  std::vector<std::string> list;
  if (const Value* value = pin.find(key)) {
    for (const Value& item : value->items) list.push_back(item.text);
  }
  return list;
}

bool is_commit(const std::string& text) {
  return text.size() == 40 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c) != 0; });
}

bool is_clone(const Path& sources) {
  std::error_code error;
  return std::filesystem::exists(sources / ".git", error);
}

}  // namespace

std::vector<Pin> read_pins(std::span<const Path> preset_dirs) {
  for (const Path& dir : preset_dirs) {
    const Path file = dir / "backends" / "pins.yaml";
    std::error_code error;
    if (!std::filesystem::is_regular_file(file, error)) continue;
    const Value document = config::read_document(file);
    const Value* pins = document.find("pins");
    if (!pins || !pins->is_map()) throw invalid(fmt::format("'{}' has no pins", file.string()));
    std::vector<Pin> result;
    for (const config::Member& member : pins->members) {
      Pin pin{.framework = member.key,
              .name = required(member.value, "name", member.key),
              .repository = required(member.value, "repository", member.key),
              .commit = required(member.value, "commit", member.key),
              .packages = words(member.value, "packages"),
              .imports = words(member.value, "imports"),
              .purpose = member.value.find("purpose") ? required(member.value, "purpose", member.key) : ""};
      // Repository and commit become arguments of git, and the name becomes a folder. So repository, commit
      // and name are checked.
      if (!is_plain_name(pin.name) || pin.repository.starts_with('-') || !is_commit(pin.commit)) {
        throw config::error_at(
            member.origin, fmt::format("the pin of {} is damaged", member.key),
            "the name must be a folder name, and the commit must have 40 hexadecimal digits",
            member.key.size());
      }
      result.push_back(std::move(pin));
    }
    return result;
  }
  throw invalid("the preset folders have no table backends/pins.yaml",
                "restore the presets that came with the program, or set PRIMUS_PRESETS to their folder");
}

PinStatus pin_status(const Pin& pin, const Path& folder, const std::string& python) {
  PinStatus status{.python = python};
  const Path sources = folder / pin.name;
  std::error_code error;
  if (std::filesystem::exists(sources, error)) {
    status.state = PinState::kNoRepository;
    if (is_clone(sources)) {
      const std::string where = sources.string();
      const Result head = run({"git", "-C", where, "rev-parse", "HEAD"});
      status.commit = head.code == 0 ? head.output : "";
      status.state = status.commit == pin.commit ? PinState::kReady : PinState::kOtherCommit;
      const Result changes = run({"git", "-C", where, "status", "--porcelain", "--untracked-files=no"});
      status.changed = changes.code == 0 && !changes.output.empty();
    }
  }
  for (const std::string& name : pin.imports) {
    Result result;
    try {
      // The command only searches for the module, because importing PyTorch takes seconds.
      result =
          run({python, "-c",
               "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)", name});
    } catch (const Error&) {
      result.code = 1;  // Python itself was not found
    }
    if (result.code != 0) status.missing_imports.push_back(name);
  }
  return status;
}

void sync_sources(const Pin& pin, const Path& folder, const Show& show) {
  const Path sources = folder / pin.name, partial = folder / (pin.name + ".partial");
  const std::string hint = "see the line above; this needs 'git' and network access to the repository";
  std::error_code error;
  const bool there = std::filesystem::exists(sources, error);
  if (there && !is_clone(sources)) {
    throw invalid(fmt::format("'{}' exists, but is not a clone of a repository", sources.string()),
                  "move it away, or choose another folder with --dir");
  }
  if (there) {
    const PinStatus status = pin_status({.name = pin.name, .commit = pin.commit}, folder, "");
    if (status.state == PinState::kReady) return;
    if (status.changed) {
      throw invalid(
          fmt::format("'{}' has changed files, but is not at {}", sources.string(), pin.commit.substr(0, 12)),
          "commit or stash them, or choose another folder with --dir");
    }
  } else {
    make_folders(folder);
    remove_tree(partial);
    run_or_throw({"git", "init", "--quiet", partial.string()}, show,
                 fmt::format("cannot make '{}'", partial.string()), hint);
    run_or_throw({"git", "-C", partial.string(), "remote", "add", "origin", pin.repository}, show,
                 "cannot name the repository", hint);
  }
  const std::string where = (there ? sources : partial).string();
  const std::string what = fmt::format("cannot fetch {} from {}", pin.commit.substr(0, 12), pin.repository);
  // Fetches only the pin's commit. If the server does not serve single commits, fetches all commits.
  if (run({"git", "-C", where, "fetch", "--quiet", "--depth", "1", "origin", pin.commit}).code != 0) {
    run_or_throw({"git", "-C", where, "fetch", "--quiet", "origin"}, show, what, hint);
  }
  run_or_throw({"git", "-C", where, "checkout", "--quiet", "--detach", pin.commit}, show, what, hint);
  run_or_throw({"git", "-C", where, "submodule", "update", "--quiet", "--init", "--recursive"}, show,
               "cannot fetch its submodules", hint);
  if (!there) Env::posix().rename(partial, sources);
}

void sync_environment(const Pin& pin, const Path& folder, const Show& show) {
  const Path environment = folder / (pin.name + ".venv");
  make_folders(folder);
  const std::string hint =
      "this needs python3 with its modules venv and pip, and network access to a package index";
  run_or_throw({"python3", "-m", "venv", environment.string()}, show, "cannot make a Python environment",
               hint);
  std::vector<std::string> install{(environment / "bin" / "python3").string(), "-m", "pip", "install",
                                   "--quiet"};
  install.insert(install.end(), pin.packages.begin(), pin.packages.end());
  run_or_throw(install, show, fmt::format("cannot install the packages of {}", pin.name), hint);
}

}  // namespace primus::backends
