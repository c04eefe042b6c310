// The options that 'primus preflight' and 'primus node_smoke' share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/preflight/report_files.h"
#include "safe/preflight/node.h"

namespace primus::cli {

// Names of processes that may use a GPU during the checks, as in AMD Primus.
inline constexpr const char* kAllowedProcesses = "gpuagent,rocm-smi-daemon,amd-smi,dcgm-exporter";

struct NodeArguments {
  std::string dump_path = "output/preflight";
  std::optional<std::int64_t> expected_gpus;
  bool skip_kernel_log = false;
  ReportOptions report;

  // Declares --dump-path, --expected-gpus, --skip-dmesg and the report options. `without_it`: behavior
  // without --expected-gpus, for help.
  void declare(Arguments& args, const std::string& dump_help, const std::string& without_it);
  // Throws Error(kInvalid).
  void check() const;
  // Returns the options for inspect_node(). `folders`: pairs of use and path; the folder for temporary files
  // is added.
  preflight::NodeOptions node_options(std::vector<std::pair<std::string, std::string>> folders) const;
};

}  // namespace primus::cli
