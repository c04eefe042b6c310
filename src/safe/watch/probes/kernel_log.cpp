// Watches the kernel's log for new messages about faults of the machine: Xid errors, resets of AMD GPUs,
// memory, disks, file servers. A fault may write many messages: of each kind, one is reported at once, and
// the others of a minute are reported together.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string>
#include <utility>

#include "safe/preflight/host_facts.h"
#include "safe/watch/probe.h"

namespace primus::watch {
namespace {

constexpr int kMostPerLook = 1000;
constexpr double kPause = 60;  // seconds between two warnings of one kind

class KernelLog final : public Probe {
 public:
  explicit KernelLog(int file) : file_(file) {}
  ~KernelLog() override { ::close(file_); }
  KernelLog(const KernelLog&) = delete;
  KernelLog& operator=(const KernelLog&) = delete;

  void look(double now, Findings& found) override {
    std::array<char, 8192> record;  // /dev/kmsg returns one record for each read
    for (int i = 0; i < kMostPerLook; ++i) {
      const ssize_t size = ::read(file_, record.data(), record.size());
      if (size < 0 && errno == EPIPE) continue;  // records were overwritten before they were read
      if (size <= 0) break;
      judge(std::string_view(record.data(), static_cast<std::size_t>(size)), now, found);
    }
    for (auto& [key, kind] : kinds_) {
      if (kind.left_out > 0 && now - kind.reported >= kPause) report(kind, now, found);
    }
    std::erase_if(kinds_, [&](const auto& entry) { return now - entry.second.reported >= kPause; });
  }

 private:
  struct Kind {
    double reported = 0;  // time of the last warning
    int left_out = 0;     // messages since then
    RunWarning newest = {};
  };

  // A record is "priority,number,time in us,flags;text\n", followed by lines of properties that begin with a
  // space.
  void judge(std::string_view records, double now, Findings& found) {
    for (const std::string& line : preflight::lines_of(records)) {
      const std::size_t semicolon = line.find(';');
      if (semicolon == std::string::npos || line.starts_with(' ')) continue;
      const std::string text = line.substr(semicolon + 1);
      for (const preflight::KernelProblem& problem : preflight::kernel_problems(text, 1, 1)) {
        // The text before the first comma of an Xid message names the GPU and the Xid, which are kinds of
        // their own: "NVRM: Xid (PCI:0000:00:06): 79, pid=1".
        const std::string key =
            problem.kind + (text.starts_with("NVRM: Xid") ? text.substr(0, text.find(',')) : "");
        const auto [known, is_new] = kinds_.try_emplace(key);
        Kind& kind = known->second;
        kind.newest = {.detector = problem.serious ? "kernel_fault" : "kernel_notice",
                       .text = fmt::format("{}: {}", problem.kind, text),
                       .advice = problem.fix};
        ++kind.left_out;
        if (is_new) report(kind, now, found);
      }
    }
  }

  static void report(Kind& kind, double now, Findings& found) {
    RunWarning warning = kind.newest;
    if (kind.left_out > 1)
      warning.text = fmt::format("{} messages in {:.0f} s; the newest: {}", kind.left_out,
                                 now - kind.reported, warning.text);
    warning.value = kind.left_out;
    found.warnings.push_back(std::move(warning));
    kind.left_out = 0;
    kind.reported = now;
  }

  std::map<std::string, Kind> kinds_;  // the kinds of the last minute
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
