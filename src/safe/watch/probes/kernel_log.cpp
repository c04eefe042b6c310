// Watches the kernel's log for new messages about faults of the machine: Xid errors, resets of AMD GPUs,
// memory, disks, file servers.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "safe/preflight/host_facts.h"
#include "safe/watch/probe.h"

namespace primus::watch {
namespace {

constexpr int kMostPerLook = 1000;

class KernelLog final : public Probe {
 public:
  explicit KernelLog(int file) : file_(file) {}
  ~KernelLog() override { ::close(file_); }
  KernelLog(const KernelLog&) = delete;
  KernelLog& operator=(const KernelLog&) = delete;

  void look(double /*now*/, Findings& found) override {
    std::array<char, 8192> record;  // /dev/kmsg returns one record for each read
    for (int i = 0; i < kMostPerLook; ++i) {
      const ssize_t size = ::read(file_, record.data(), record.size());
      if (size < 0 && errno == EPIPE) continue;  // records were overwritten before they were read
      if (size <= 0) return;
      judge(std::string_view(record.data(), static_cast<std::size_t>(size)), found);
    }
  }

 private:
  // A record is "priority,number,time in us,flags;text\n", followed by lines of properties that begin with a
  // space.
  static void judge(std::string_view records, Findings& found) {
    for (const std::string& line : preflight::lines_of(records)) {
      const std::size_t semicolon = line.find(';');
      if (semicolon == std::string::npos || line.starts_with(' ')) continue;
      const std::string text = line.substr(semicolon + 1);
      for (const preflight::KernelProblem& problem : preflight::kernel_problems(text, 1, 1)) {
        found.warnings.push_back({.detector = problem.serious ? "kernel_fault" : "kernel_notice",
                                  .text = fmt::format("{}: {}", problem.kind, text),
                                  .advice = problem.fix});
      }
    }
  }

  int file_;
};

}  // namespace

extern const ProbeEntry kKernelLog{
    "kernel_log", false, [](const ProbeContext& context) -> std::unique_ptr<Probe> {
      const int file = ::open(context.machine->path("/dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
      if (file < 0) return nullptr;  // usual for programs without privileges
      if (::lseek(file, 0, SEEK_END) < 0) {
        ::close(file);
        return nullptr;
      }
      return std::make_unique<KernelLog>(file);
    }};

}  // namespace primus::watch
