#include "cli/preflight/node_options.h"

#include "base/error.h"

namespace primus::cli {

using namespace preflight;

void NodeArguments::declare(Arguments& args, const std::string& dump_help, const std::string& without_it) {
  args.option("--dump-path", "FOLDER", &dump_path, dump_help);
  args.option("--expected-gpus", "N", &expected_gpus,
              "GPUs that the machine must have (default: " + without_it + ")");
  args.flag("--skip-dmesg", skip_kernel_log, "do not read the kernel's log");
  report.declare(args);
}

void NodeArguments::check() const {
  if (expected_gpus && *expected_gpus < 0) throw invalid("--expected-gpus must be 0 or more");
}

NodeOptions NodeArguments::node_options(std::vector<std::pair<std::string, std::string>> folders) const {
  NodeOptions options;
  options.questions.folders = std::move(folders);
  options.questions.folders.emplace_back("temporary files", "/tmp");
  options.questions.read_kernel_log = !skip_kernel_log;
  options.wanted.allowed_processes = split_text(kAllowedProcesses, ',');
  if (expected_gpus) options.wanted.gpus = Wanted{static_cast<double>(*expected_gpus), "--expected-gpus"};
  return options;
}

}  // namespace primus::cli
