// OMP_NUM_THREADS: the default number of threads for programs without their own setting.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace primus {

struct OpenMpThreads {
  std::optional<std::int64_t> count;
  std::string warning;  // why the variable is invalid; empty: it is valid or unset
};

// Parses the variable's value: a number, or a list with one number per nesting level. Only the first number
// of a list is used. `where` names the value's source in the warning.
OpenMpThreads parse_openmp_threads(std::string_view text, std::string_view where);

}  // namespace primus
