#include "safe/postmortem/kernel_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/system/subprocess.h"
#include "lm/events/run_event.h"

namespace primus::postmortem {

std::string kernel_log(const std::string& path, CaseFile& into) {
  const std::string host = host_name();
  const auto is_here = [&](const RankRecord& rank) { return rank.node == host; };
  if (std::ranges::none_of(into.ranks, is_here)) return {};
  // The newest lines are the last ones, so the limit must not cut them off.
  const SubprocessOptions options{.output_limit = std::size_t{64} << 20, .path = path};
  const SubprocessResult result = run_subprocess({"dmesg", "--time-format", "iso"}, options);
  if (!result.ok()) {
    into.notes.push_back(
        fmt::format("the kernel's log of this machine was not read, because 'dmesg' {}; pass a copy by --log",
                    result.found ? "failed (it may need root)" : "does not exist"));
    return {};
  }
  // dmesg names no host.
  std::string lines;
  std::string_view text = result.out;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t space = line.find(' ');
    if (space != std::string_view::npos)
      lines += fmt::format("{} {} kernel:{}\n", line.substr(0, space), host, line.substr(space));
  }
  return lines;
}

}  // namespace primus::postmortem
