// Preflight's access to the operating system: files below a root folder, programs, file systems, the clock,
// the environment. All access goes through this class, so that a test can simulate another machine by a root
// folder with its own proc/, sys/, etc/ and dev/, and a PATH with its own programs (nvidia-smi ...). `root`
// is also used in containers in which the host's files are mounted in some folder.
//
// Thread-safe: immutable after construction.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "base/system/subprocess.h"

namespace primus::preflight {

// Capacity of a file system, as available to the current user.
struct Space {
  std::uint64_t total = 0, available = 0;          // bytes
  std::uint64_t inodes = 0, inodes_available = 0;  // all 0: the file system does not count inodes
  bool read_only = false;
};

struct ClockState {
  bool known = false, synchronised = false;
  double error_seconds = 0;  // maximum error estimated by the kernel; 0: unknown
  std::string source = {};   // source: "chronyc", "timedatectl", "the kernel"
};

struct MachineOptions {
  Path root = "/";
  // getenv, or a replacement in tests. Its PATH is searched for programs.
  std::function<std::optional<std::string>(const std::string&)> environment = {};
  // Returns the names of all variables; by default, of this process's variables.
  std::function<std::vector<std::string>()> variables = {};
  std::chrono::milliseconds command_timeout = std::chrono::seconds(10);
};

class Machine {
 public:
  explicit Machine(MachineOptions options = {});
  virtual ~Machine() = default;

  // Returns the path of `name` below the root folder. `name` is absolute, such as "/proc/meminfo".
  Path path(std::string_view name) const;
  // Returns the start of the file (at most 1 MiB), without trailing whitespace; nullopt if the file cannot be
  // read.
  std::optional<std::string> text(std::string_view name) const;
  // Returns the first number in that file.
  std::optional<std::int64_t> number(std::string_view name) const;
  // Returns the sorted names in a folder; empty if the folder does not exist.
  std::vector<std::string> list(std::string_view name) const;
  bool exists(std::string_view name) const;
  // Returns the last name of a symlink's target, for drivers and devices in /sys. Empty if `name` is not a
  // symlink.
  std::string link_name(std::string_view name) const;

  std::optional<std::string> variable(const std::string& name) const;  // returns nullopt if it is unset or
                                                                       // empty
  std::vector<std::string> variables() const;                          // sorted names
  // Runs a program with the default time limit or `timeout`.
  SubprocessResult command(const std::vector<std::string>& words,
                           std::optional<std::chrono::milliseconds> timeout = {}) const;
  std::string program(const std::string& name) const;  // returns its path; empty if not found

  // Returns whether this object accesses the real machine, not a simulated one.
  bool is_this_one() const { return options_.root == "/"; }
  // Returns the prefix of the machine's file names: "" for the real machine.
  std::string prefix() const { return is_this_one() ? std::string() : options_.root.string(); }

  virtual std::string host_name() const;
  // Returns the machine's name in lists of nodes: in a Slurm job, the name that Slurm uses, which may differ
  // from the host name; otherwise the host name.
  std::string node_name() const;
  virtual std::optional<Space> space(std::string_view name) const;
  virtual ClockState clock() const;
  virtual double wall_clock() const;
  // Returns the IPv4 address of a host, from /etc/hosts or, for this machine, the system's resolver.
  virtual std::optional<std::uint32_t> resolve(const std::string& host) const;

 private:
  MachineOptions options_;
};

// Returns the nodes of the Slurm step, or of the job, in order of their numbers; empty outside of Slurm.
// Throws Error(kInvalid) for a malformed list.
std::vector<std::string> slurm_nodes(const Machine& machine);

// --- functions that parse texts of the system

// Splits a line at whitespace.
std::vector<std::string> words_of(std::string_view line);
// Returns the first line; empty if the text is empty.
std::string first_line_of(std::string_view text);
std::vector<std::string> lines_of(std::string_view text);
// Splits at `separator` and trims the parts; returns no parts for an empty text.
std::vector<std::string> split_text(std::string_view text, char separator);
std::string trimmed(std::string_view text);
// Returns the number at the start of `text`: "24684092 kB" -> 24684092.
std::optional<std::int64_t> leading_number(std::string_view text);
std::optional<double> leading_real(std::string_view text);
// Returns the count of numbers in a Linux list: "0-3,8" -> 5.
int count_of_list(std::string_view list);

}  // namespace primus::preflight
