// The error that ends a run after a check for silent corruption has found wrong bits.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace primus {

// The reason of such an end (RunEnding::reason), and the name of the warnings about such findings.
inline constexpr std::string_view kCorruptionReason = "silent corruption";
inline constexpr std::string_view kCorruptionWarning = "silent_corruption";

class CorruptionError : public Error {
 public:
  // `recovers`: whether the same command, and a supervisor, can continue from a state before the damage.
  // Otherwise the user must decide, and the exit code is that of bad input.
  CorruptionError(const std::string& what, std::string hint, bool recovers)
      : Error(recovers ? ErrorKind::kIo : ErrorKind::kInvalid, what, std::move(hint)) {}
};

}  // namespace primus
