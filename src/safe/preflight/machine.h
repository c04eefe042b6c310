// What preflight asks the operating system: files below a root folder, programs, file systems, the clock, the
// environment. Everything goes through here, so that a test can show another machine: a root folder with
// proc/, sys/, etc/ and dev/ of its own, and programs (nvidia-smi ...) on a PATH of its own. `root` is also
// for containers that have the host's files mounted somewhere.
//
// Thread-safe: nothing changes after construction.
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

// A file system, as the one user that runs this program sees it.
struct Space {
  std::uint64_t total = 0, available = 0;          // bytes
  std::uint64_t inodes = 0, inodes_available = 0;  // 0 in all: the file system does not count them
  bool read_only = false;
};

struct ClockState {
  bool known = false, synchronised = false;
  double error_seconds = 0;  // the most that the clock may be off, as the kernel estimates it; 0: not known
  std::string told_by = {};  // "chronyc", "timedatectl", "the kernel"
};

struct MachineOptions {
  Path root = "/";
  // getenv, or a test's. PATH of it is where programs are looked up.
  std::function<std::optional<std::string>(const std::string&)> environment = {};
  // The names of all that `environment` knows; this process's, where none is given.
  std::function<std::vector<std::string>()> variables = {};
  std::chrono::milliseconds command_timeout = std::chrono::seconds(10);
};

class Machine {
 public:
  explicit Machine(MachineOptions options = {});
  virtual ~Machine() = default;

  // `name`: absolute, "/proc/meminfo".
  Path path(std::string_view name) const;
  // The file's beginning (a MiB at most) without blanks at its end; nullopt where it cannot be read.
  std::optional<std::string> text(std::string_view name) const;
  // The first number in that file.
  std::optional<std::int64_t> number(std::string_view name) const;
  // Sorted names in a folder; none where there is no such folder.
  std::vector<std::string> list(std::string_view name) const;
  bool exists(std::string_view name) const;
  // The last name of what a symlink leads to: drivers and devices in /sys. Empty where it is none.
  std::string link_name(std::string_view name) const;

  std::optional<std::string> variable(const std::string& name) const;  // empty ones are not set
  std::vector<std::string> variables() const;                          // sorted names
  // Runs a program with the usual time limit, or with `timeout`.
  SubprocessResult command(const std::vector<std::string>& words,
                           std::optional<std::chrono::milliseconds> timeout = {}) const;
  std::string program(const std::string& name) const;  // its file; empty where there is none

  // Whether this is the machine that the program runs on, and not files that show another.
  bool is_this_one() const { return options_.root == "/"; }
  // What stands before names of its files: "" of this machine.
  std::string prefix() const { return is_this_one() ? std::string() : options_.root.string(); }

  virtual std::string host_name() const;
  // What the machine is called in lists of nodes: by Slurm's name within a job of Slurm's, which may be
  // another one than the host's; else the host's.
  std::string node_name() const;
  virtual std::optional<Space> space(std::string_view name) const;
  virtual ClockState clock() const;
  virtual double wall_clock() const;
  // The IPv4 address of a host by /etc/hosts or, on this machine, the system's resolver.
  virtual std::optional<std::uint32_t> resolve(const std::string& host) const;

 private:
  MachineOptions options_;
};

// The nodes of Slurm's step, or of its job, in the order of their numbers; none outside of Slurm. Throws
// Error(kInvalid) for a list that Slurm does not write.
std::vector<std::string> slurm_nodes(const Machine& machine);

// --- texts of the system, in pieces

// The words of a line, between blanks.
std::vector<std::string> words_of(std::string_view line);
// Empty where the text is.
std::string first_line_of(std::string_view text);
std::vector<std::string> lines_of(std::string_view text);
// The parts between `separator`, blanks around them removed; none of an empty text.
std::vector<std::string> split_text(std::string_view text, char separator);
std::string trimmed(std::string_view text);
// The number that `text` begins with: "24684092 kB" -> 24684092.
std::optional<std::int64_t> leading_number(std::string_view text);
std::optional<double> leading_real(std::string_view text);
// How many numbers a list as Linux writes it names: "0-3,8" -> 5.
int count_of_list(std::string_view list);

}  // namespace primus::preflight
