#include "safe/supervise/observation/wait_notice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/terminal/terminal.h"

namespace primus::supervise {

void WaitNotice::waits(const std::string& what, double now, std::optional<double> until) {
  if (what != what_) {
    what_ = what;
    began_ = now;
    pause_ = kFirst;
    next_ = now + pause_;
  }
  if (now < next_) return;
  pause_ = std::min(2 * pause_, kLongest);
  next_ = now + pause_;
  const std::string end =
      until ? fmt::format("; the job ends in {} without it", human_duration(std::max(0.0, *until - now)))
            : "";
  say_(fmt::format("supervise: waiting for {} ({} so far){}", what, human_duration(now - began_), end));
}

}  // namespace primus::supervise
