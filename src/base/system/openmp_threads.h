// OMP_NUM_THREADS, which says how many threads a program may take where nobody says so to the program itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace primus {

struct OpenMpThreads {
  std::optional<std::int64_t> count;
  std::string warning;  // what is wrong with the variable; empty: nothing
};

// `text` is the variable's value, a number or a list with one for each level of nesting, of which the first
// counts; `where` names the place it comes from in the warning.
OpenMpThreads parse_openmp_threads(std::string_view text, std::string_view where);

}  // namespace primus
