// The options that 'primus preflight' and 'primus node_smoke' have in common, each declared once.
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

// Processes that Primus's own checks let be on a GPU.
inline constexpr const char* kAllowedProcesses = "gpuagent,rocm-smi-daemon,amd-smi,dcgm-exporter";

struct NodeArguments {
  std::string dump_path = "output/preflight";
  std::optional<std::int64_t> expected_gpus;
  bool skip_kernel_log = false;
  ReportOptions report;

  // --dump-path, --expected-gpus (`without_it`: what holds where it is not given), --skip-dmesg, and those of
  // reports.
  void declare(Arguments& args, const std::string& dump_help, const std::string& without_it);
  // Throws Error(kInvalid).
  void check() const;
  // What inspect_node() is to look for. `folders`: use and path; the one for temporary files is added.
  preflight::NodeOptions node_options(std::vector<std::pair<std::string, std::string>> folders) const;
};

}  // namespace primus::cli
