#include "lm/events/run_job.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "lm/events/event_log.h"
#include "lm/events/run_event.h"

namespace primus {
namespace {

using Json = nlohmann::ordered_json;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::string link_target(const std::string& link) {
  std::error_code none;
  return std::filesystem::read_symlink(link, none).string();
}

// The program of a process, also if its file was replaced since the process started.
std::string program_of(pid_t pid) {
  std::string program = link_target(fmt::format("/proc/{}/exe", pid));
  constexpr std::string_view kReplaced = " (deleted)";
  if (program.ends_with(kReplaced)) program.resize(program.size() - kReplaced.size());
  return program;
}

struct Stat {
  char state = 0;  // 0: there is no such process
  pid_t parent = 0;
  std::uint64_t started = 0;
};

// Reads /proc/PID/stat (proc(5)). The program's name may contain any character, so fields are counted from
// its last parenthesis.
Stat stat_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  Stat stat;
  fields >> stat.state >> stat.parent;
  constexpr int kBetween = 17;  // fields between the parent and the start time
  std::string skipped;
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  fields >> stat.started;
  return fields ? stat : Stat{};
}

// Returns the number of a process in its own pid namespace; 0: unknown.
pid_t number_within(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "NSpid:";
    if (!line.starts_with(kKey)) continue;
    std::istringstream numbers(line.substr(kKey.size()));
    pid_t number = 0;
    while (numbers >> number) continue;
    return number;
  }
  return 0;
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

// Returns whether the variable is the number of a step that srun has started. The numbers of Slurm's own
// steps, such as the batch script, are near 2^32.
bool is_step(const std::string& text) {
  constexpr std::uint64_t kFirstOwnStep = 0xfffffff0;
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  return error == std::errc() && end == text.data() + text.size() && step < kFirstOwnStep;
}

std::string text_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

template <class Number>
Number number_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_unsigned() ? found->get<Number>() : Number{};
}

std::optional<RunJob> job_of(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  RunJob job;
  const std::string scheduler = text_in(json, "scheduler");
  if (scheduler == name_of(RunJob::Scheduler::kSlurm)) {
    job.scheduler = RunJob::Scheduler::kSlurm;
  } else if (scheduler == name_of(RunJob::Scheduler::kKubernetes)) {
    job.scheduler = RunJob::Scheduler::kKubernetes;
  } else if (scheduler != name_of(RunJob::Scheduler::kNone)) {
    return std::nullopt;
  }
  job.id = text_in(json, "id");
  job.step = text_in(json, "step");
  job.cluster = text_in(json, "cluster");
  job.name_space = text_in(json, "namespace");
  job.kind = text_in(json, "kind");
  job.process = {.host = text_in(json, "host"),
                 .pid = number_in<pid_t>(json, "pid"),
                 .started = number_in<std::uint64_t>(json, "started"),
                 .boot = text_in(json, "boot"),
                 .pid_space = text_in(json, "pid_space")};
  return job;
}

}  // namespace

std::optional<ProcessIdentity> process_identity(pid_t pid) {
  const Stat stat = stat_of(pid);
  // A zombie has ended, and takes no signals.
  if (stat.state == 0 || stat.state == 'Z' || stat.state == 'X') return std::nullopt;
  return ProcessIdentity{.host = host_name(),
                         .pid = pid,
                         .started = stat.started,
                         .boot = boot_id(),
                         .pid_space = link_target("/proc/self/ns/pid")};
}

std::optional<ProcessIdentity> seen_from_here(const ProcessIdentity& process) {
  if (process.pid <= 0 || process.boot.empty() || process.boot != boot_id()) return std::nullopt;
  if (is_running(process)) return process;
  std::error_code error;
  std::filesystem::directory_iterator entries("/proc", error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    if (stat_of(pid).started != process.started || number_within(pid) != process.pid) continue;
    if (link_target(fmt::format("/proc/{}/ns/pid", pid)) == process.pid_space) return process_identity(pid);
  }
  return std::nullopt;
}

bool is_running(const ProcessIdentity& process) {
  return process.pid > 0 && process_identity(process.pid) == process;
}

std::string_view name_of(RunJob::Scheduler scheduler) {
  switch (scheduler) {
    case RunJob::Scheduler::kSlurm:
      return "slurm";
    case RunJob::Scheduler::kKubernetes:
      return "kubernetes";
    default:
      return "local";
  }
}

pid_t topmost_of_program(pid_t pid) {
  const std::string program = program_of(pid);
  if (program.empty()) return pid;
  for (pid_t parent = stat_of(pid).parent; parent > 0 && program_of(parent) == program;) {
    pid = parent;
    parent = stat_of(pid).parent;
  }
  return pid;
}

RunJob this_job() {
  RunJob job;
  job.process = process_identity(topmost_of_program(::getpid())).value_or(ProcessIdentity{});
  if (!variable(kKubernetesJob).empty()) {
    job.scheduler = RunJob::Scheduler::kKubernetes;
    job.id = variable(kKubernetesJob);
    job.kind = variable(kKubernetesKind);
    job.name_space = variable(kKubernetesNamespace);
  } else if (!variable("SLURM_JOB_ID").empty() && is_step(variable("SLURM_STEP_ID"))) {
    job.scheduler = RunJob::Scheduler::kSlurm;
    job.id = variable("SLURM_JOB_ID");
    job.step = variable("SLURM_STEP_ID");
    job.cluster = variable("SLURM_CLUSTER_NAME");
  }
  job.node_order = variable(kNodeOrder);
  return job;
}

std::string to_json(const RunJob& job) {
  Json json{{"scheduler", name_of(job.scheduler)}};
  for (const auto& [key, text] : {std::pair("id", &job.id),
                                  {"step", &job.step},
                                  {"cluster", &job.cluster},
                                  {"namespace", &job.name_space},
                                  {"kind", &job.kind},
                                  {"host", &job.process.host}}) {
    if (!text->empty()) json[key] = *text;
  }
  json["pid"] = static_cast<std::uint64_t>(job.process.pid);
  json["started"] = job.process.started;
  json["boot"] = job.process.boot;
  json["pid_space"] = job.process.pid_space;
  if (const Json order = Json::parse(job.node_order, nullptr, false); order.is_object())
    json["node_order"] = order;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<RunJob> job_from_json(std::string_view text) {
  return job_of(Json::parse(text, nullptr, false));
}

std::optional<RunStart> read_run_start(const Path& run) {
  std::optional<RunStart> start;
  bool ended = false;
  std::error_code none;
  const Path file = event_file(run, 0);
  if (!std::filesystem::is_regular_file(file, none)) return std::nullopt;
  read_rare_events(file, [&](const EventLine& event) {
    if (event.event == "end") ended = true;
    if (event.event != "begin") return true;
    start = RunStart{.time = event.time, .ended = ended};
    const Json facts = Json::parse(event.facts, nullptr, false);
    if (facts.is_object() && facts.contains("job")) start->job = job_of(facts["job"]);
    return false;
  });
  return start;
}

std::optional<ProcessIdentity> lock_holder(const Path& run) {
  struct stat status {};
  if (::lstat((run / ".lock").c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  const std::string wanted =
      fmt::format("{:02x}:{:02x}:{}", major(status.st_dev), minor(status.st_dev), status.st_ino);
  // "1: FLOCK  ADVISORY  WRITE 42 fd:01:1234 0 EOF". Waiting processes have "->" in the second column.
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, access, file;
    pid_t pid = 0;
    words >> number >> kind >> advisory >> access >> pid >> file;
    if (words && kind == "FLOCK" && access == "WRITE" && file == wanted && pid > 0)
      return process_identity(topmost_of_program(pid));
  }
  return std::nullopt;
}

}  // namespace primus
