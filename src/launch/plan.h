// A launch plan: the chain of programs from the user's command to the last process on each node,
//
//   slurm -> container -> direct -> process
//
// as data. `--dry-run` shows the complete chain. A real run replaces this process by the first program of the
// chain. That program plans the rest of the chain on its own machine. Planning only reads files and
// variables.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"

namespace primus::launch {

// The environment that a plan is made for; tests replace it.
struct Surroundings {
  // Returns an environment variable; nullopt: not set.
  std::function<std::optional<std::string>(const std::string& name)> variable;
  // Returns the names of all variables, sorted.
  std::function<std::vector<std::string>()> variable_names;
  Path root = "/";      // prefix of the paths of devices and system files
  std::string program;  // absolute path of this program, which runs on nodes and in containers
  uid_t user = 0;       // user and group that run this program
  gid_t group = 0;
  // True if the plan is only shown. Then missing programs and devices cause notes instead of errors, and a
  // machine without GPUs is treated as having the GPUs of PRIMUS_GPU_MODEL.
  bool dry_run = false;

  // Returns the environment of this process.
  static Surroundings here();
  // Returns the variable's value, or nullopt if it is unset or empty.
  std::optional<std::string> setting(const std::string& name) const;
  // Returns the program of that name in PATH, or nullopt.
  std::optional<Path> find_program(const std::string& name) const;
};

struct Step {
  std::string name;               // "slurm", "container", "direct", "process"
  std::string where;              // "on this machine", "on each of 2 nodes"
  std::vector<std::string> argv;  // the program, which is looked up in PATH, and its arguments
  std::map<std::string, std::string> environment;  // variables that are added to the inherited environment
  std::vector<std::string> unset;  // variables that are removed from the inherited environment
  std::string input;               // the text of standard input; empty: standard input is inherited
  std::string input_name;          // "batch script"
  std::vector<std::string> notes;  // what Primus does before the step, one sentence each
};

struct Plan {
  std::vector<Step> steps;         // this process runs the first step
  std::vector<std::string> ranks;  // one line per process of the last step, if there are several
};

// Returns the plan as text, with commands in shell syntax and redacted secrets.
std::string render(const Plan& plan);

// Returns `words` quoted for a shell.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace primus::launch
