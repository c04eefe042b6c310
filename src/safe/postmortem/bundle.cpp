#include "safe/postmortem/bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "base/text/secrets.h"
#include "lm/events/event_log.h"
#include "lm/events/line_file.h"
#include "lm/events/run_event.h"
#include "safe/postmortem/tar_archive.h"

namespace primus::postmortem {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLogEnd = 256 << 10;  // bytes of each log of a rank
constexpr std::uint64_t kFileEnd = 8 << 20;   // bytes of other files
constexpr std::size_t kSteps = 200;           // steps of each rank
constexpr const char* kFormat = "primus-postmortem-bundle";

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns the last `most` bytes of a file, from the beginning of a line.
std::string end_of(const Path& path, std::uint64_t most) {
  const std::unique_ptr<File> file = Env::posix().open(path, OpenMode::kRead);
  const std::uint64_t size = file->size(), from = size > most ? size - most : 0;
  std::string text(size - from, '\0');
  text.resize(file->read_at(std::as_writable_bytes(std::span(text)), from));
  const std::size_t line_end = text.find('\n');
  if (from > 0 && line_end != std::string::npos) text.erase(0, line_end + 1);
  return text;
}

// Returns the lines of the events of a rank's last process, without most steps.
std::string last_events(const Path& path) {
  std::deque<std::pair<bool, std::string>> lines;  // whether the line is a step
  std::size_t steps = 0;
  read_lines(path, [&](std::string_view line) {
    EventLine event;
    if (!read_event(line, event)) return;
    if (event.event == "begin") {
      lines.clear();
      steps = 0;
    }
    const bool is_step = event.event == "step" || event.event == "phase";
    steps += is_step ? 1 : 0;
    lines.emplace_back(is_step, line);
    if (steps <= kSteps) return;
    lines.erase(std::ranges::find_if(lines, [](const auto& one) { return one.first; }));
    --steps;
  });
  std::string text;
  for (const auto& [is_step, line] : lines) text += line + "\n";
  return text;
}

class Packer {
 public:
  Bundle pack(const BundleContent& content) {
    add("bundle.json", json_text(Json{{"format", kFormat},
                                      {"version", 1},
                                      {"run", content.run.string()},
                                      {"host", host_name()},
                                      {"running", content.running},
                                      {"state", content.shown.state},
                                      {"reason", content.shown.reason},
                                      {"next", content.shown.next},
                                      {"time", now()}}));
    add("report.txt", content.report);
    pack_run(content.run);
    if (!content.kernel_log.empty()) add("kernel.log", content.kernel_log);
    int number = 0;
    for (const Path& log : content.logs) {
      constexpr std::size_t kLongest = 60;
      const std::string name = log.filename().string();
      add_file(log, fmt::format("logs/{}-{}", ++number, name.substr(0, kLongest)), kFileEnd);
    }
    bundle_.archive = tar_.finish();
    return std::move(bundle_);
  }

 private:
  void add(const std::string& name, std::string_view content) {
    if (tar_.add(name, without_secrets(content), now())) {
      ++bundle_.files;
    } else {
      bundle_.notes.push_back(fmt::format("{} is not in the bundle, because its name is too long", name));
    }
  }

  template <class Read>
  void add_read(const Path& file, const std::string& name, const Read& read) {
    try {
      add(name, read(file));
    } catch (const Error& error) {
      bundle_.notes.push_back(fmt::format("{} is not in the bundle: {}", name, error.what()));
    }
  }

  void add_file(const Path& file, const std::string& name, std::uint64_t most) {
    add_read(file, name, [&](const Path& path) { return end_of(path, most); });
  }

  // Adds regular files of the run's folder itself, its events, and its logs. Checkpoints, traces and texts
  // are left out.
  void pack_run(const Path& run) {
    for (const char* name : {"experiment.yaml", "ending.json", "warnings.jsonl", "metrics.jsonl"}) {
      if (Env::posix().status(run / name)) add_file(run / name, fmt::format("run/{}", name), kFileEnd);
    }
    for (const Path& path : files_below(run / kEventsFolder)) {
      if (path.extension() == ".reserve") continue;  // it only reserves space on the disk
      const std::string name = "run/" + path.lexically_relative(run).string();
      const bool is_rank = path.filename().string().starts_with("rank-");
      if (is_rank) add_read(path, name, last_events);
      if (!is_rank) add_file(path, name, kFileEnd);
    }
    for (const Path& path : files_below(run / "logs")) {
      if (path.extension() == ".log" && path.filename() == "debug.log")
        continue;  // info.log has what matters
      const bool is_flight = path.filename().string().starts_with("flight-");
      add_file(path, "run/" + path.lexically_relative(run).string(), is_flight ? kFileEnd : kLogEnd);
    }
  }

  static std::vector<Path> files_below(const Path& folder) {
    std::vector<Path> files;
    std::error_code error;
    std::filesystem::recursive_directory_iterator at(folder, error), end;
    for (; !error && at != end; at.increment(error)) {
      if (at->is_regular_file(error) && !at->is_symlink(error)) files.push_back(at->path());
    }
    std::ranges::sort(files);
    return files;
  }

  TarWriter tar_;
  Bundle bundle_;
};

}  // namespace

Bundle pack(const BundleContent& content) { return Packer().pack(content); }

OpenedBundle open_bundle(const Path& file, const Path& folder) {
  extract_tar(file, folder);
  const Path about = folder / "bundle.json";
  constexpr std::uint64_t kMost = 1 << 20;
  const Json json =
      Env::posix().status(about) ? Json::parse(read_file(about, kMost), nullptr, false) : Json();
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    throw invalid(fmt::format("'{}' is not a bundle: it has no bundle.json of one", file.string()),
                  "'primus postmortem RUN --bundle FILE' writes bundles");
  }
  OpenedBundle bundle{.run = folder / "run", .name = file.string()};
  const auto text = [&](const char* key, std::string& into) {
    if (const Json value = json.value(key, Json()); value.is_string())
      into = printable(value.get<std::string>());
  };
  text("run", bundle.name);
  text("state", bundle.shown.state);
  text("reason", bundle.shown.reason);
  text("next", bundle.shown.next);
  if (const Json running = json.value("running", Json()); running.is_boolean())
    bundle.running = running.get<bool>();
  if (Env::posix().status(folder / "kernel.log")) bundle.kernel_log = folder / "kernel.log";
  if (Env::posix().status(folder / "logs")) {
    for (const std::string& name : Env::posix().list(folder / "logs"))
      bundle.logs.push_back(folder / "logs" / name);
  }
  return bundle;
}

}  // namespace primus::postmortem
