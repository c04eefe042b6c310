// A launch plan: the chain of programs from the command that a user typed to the last process on each node,
//
//   slurm -> container -> direct -> process
//
// as data. `--dry-run` shows all of it; otherwise this process becomes the first program of the chain, which
// plans the rest where it runs. Making a plan reads files and variables and changes nothing.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"

namespace primus::launch {

// Where a plan's facts come from; a test gives its own.
struct Surroundings {
  // A variable of the environment; nullopt: not set.
  std::function<std::optional<std::string>(const std::string& name)> variable;
  // All variables, sorted by name.
  std::function<std::vector<std::string>()> variable_names;
  Path root = "/";      // devices and system files are looked up below it
  std::string program;  // this program, by its absolute path: what runs on nodes and in containers
  uid_t user = 0;       // who runs it, and their group
  gid_t group = 0;
  // The plan is shown and not run: what this machine lacks for it is a note, and PRIMUS_GPU_MODEL stands in
  // for GPUs that are not here.
  bool dry_run = false;

  // This process's own.
  static Surroundings here();
  // The variable's value, or nullopt where it is not set or empty.
  std::optional<std::string> setting(const std::string& name) const;
  // The program of that name in PATH, or nullopt.
  std::optional<Path> find_program(const std::string& name) const;
};

struct Step {
  std::string name;                                // "slurm", "container", "direct", "process"
  std::string where;                               // "on this machine", "on each of 2 nodes"
  std::vector<std::string> argv;                   // looked up in PATH
  std::map<std::string, std::string> environment;  // set besides the inherited one
  std::vector<std::string> unset;                  // not inherited
  std::string input;                               // its standard input; empty: inherited
  std::string input_name;                          // "batch script"
  std::vector<std::string> notes;                  // what happens before it, one sentence each
};

struct Plan {
  std::vector<Step> steps;         // the first one is run from here
  std::vector<std::string> ranks;  // one line for each process of the last step, where it has several
};

// The plan as text, with commands as a shell takes them. Values of secrets are redacted.
std::string render(const Plan& plan);

// `words` as a shell takes them.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace primus::launch
