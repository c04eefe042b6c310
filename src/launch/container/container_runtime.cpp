#include "launch/container/container_runtime.h"

#include <fmt/format.h>

#include <chrono>
#include <string_view>

#include "base/error.h"
#include "base/system/subprocess.h"
#include "base/terminal/terminal.h"

namespace primus::launch {
namespace {

// Returns docker's error if the docker daemon does not answer; empty if the daemon answers. The request lists
// at most one container. In every version, including podman's emulation of docker, this is the cheapest
// request that fails without a daemon.
std::string why_docker_fails(const Surroundings& surroundings) {
  constexpr std::chrono::seconds kPatience{10};
  const SubprocessResult asked = run_subprocess(
      {"docker", "ps", "--quiet", "--last", "1"},
      {.timeout = kPatience, .path = surroundings.variable("PATH").value_or("/usr/local/bin:/usr/bin:/bin")});
  if (asked.timed_out) return fmt::format("its daemon did not answer within {} s", kPatience.count());
  if (asked.ok()) return {};
  std::string said = asked.err.substr(0, asked.err.find('\n'));
  if (said.empty()) said = fmt::format("'docker ps' ended with exit code {}", asked.exit_code);
  return printable(said);
}

}  // namespace

Step removal(const std::string& runtime, const std::string& label) {
  return {
      .name = "clean",
      .where = "on this node",
      .argv = {"/bin/sh", "-c",
               fmt::format(
                   "{0} ps -aq --filter label={1} | while read -r id; do "
                   "by=$({0} inspect --format '{{{{index .Config.Labels \"{2}\"}}}}' \"$id\" 2>/dev/null); "
                   "now=$(sed 's/.*) //' \"/proc/${{by%.*}}/stat\" 2>/dev/null | cut -d' ' -f20); "
                   "[ -n \"$now\" ] && [ \"$now\" = \"${{by#*.}}\" ] || "
                   "{0} rm -f \"$id\" >/dev/null || true; done",
                   runtime, label, kLauncherLabel)}};
}

std::string find_runtime(const std::string& wanted, const Surroundings& surroundings,
                         std::vector<std::string>& notes) {
  constexpr std::string_view kInstall = "install one, or run without a container: primus direct -- ...";
  constexpr std::string_view kElsewhere = "the plan is for a machine that has it";
  if (wanted != "auto") {
    if (surroundings.find_program(wanted)) return wanted;
    if (surroundings.dry_run) {
      notes.push_back(fmt::format("{} is not installed here: {}", wanted, kElsewhere));
      return wanted;
    }
    throw Error(ErrorKind::kDependency, fmt::format("{} is not installed here", wanted),
                std::string(kInstall));
  }
  std::string docker_fails;
  for (const char* name : {"docker", "podman", "apptainer", "singularity"}) {
    if (!surroundings.find_program(name)) continue;
    // Docker needs a running daemon; the other runtimes do not.
    if (name == std::string_view("docker")) docker_fails = why_docker_fails(surroundings);
    if (name == std::string_view("docker") && !docker_fails.empty()) continue;
    if (!docker_fails.empty())
      notes.push_back(fmt::format("with {}, because docker fails: {}", name, docker_fails));
    return name;
  }
  if (surroundings.dry_run) {
    notes.push_back(
        docker_fails.empty()
            ? fmt::format("docker, podman and apptainer are not installed here: the plan uses docker; {}",
                          kElsewhere)
            : fmt::format("docker is installed but fails: {}; {}", docker_fails,
                          "the plan is for a machine where it works"));
    return "docker";
  }
  if (docker_fails.empty())
    throw Error(ErrorKind::kDependency, "docker, podman and apptainer are not installed here",
                std::string(kInstall));
  throw Error(
      ErrorKind::kDependency,
      fmt::format("docker is installed but fails: {}; podman and apptainer are not installed", docker_fails),
      "start docker's daemon, join its group, or install podman; to run without a container: primus direct "
      "-- ...");
}

}  // namespace primus::launch
