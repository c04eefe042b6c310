// Tells the user what a supervisor waits for, since when, and when it gives up. The first line comes after
// ten seconds, and the pauses between the next lines double, up to five minutes.
//
// Times are seconds of a clock that does not go backwards. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace primus::supervise {

class WaitNotice {
 public:
  // `say` must outlive the object.
  explicit WaitNotice(const std::function<void(const std::string&)>& say) : say_(say) {}

  // Call it often while the supervisor waits. `what`: "node 1 (h1) or a spare". `until`: when it gives up;
  // nullopt: never.
  void waits(const std::string& what, double now, std::optional<double> until = {});
  // The wait is over.
  void over() { what_.clear(); }

  static constexpr double kFirst = 10, kLongest = 300;  // pauses, in seconds

 private:
  const std::function<void(const std::string&)>& say_;
  std::string what_ = {};
  double began_ = 0, next_ = 0, pause_ = 0;
};

}  // namespace primus::supervise
