// Whether what is read as text is text: UTF-8 without NUL bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lm/data/corpus.h"

namespace primus::data {

// What was wrong with the lines of a block.
struct BrokenLines {
  std::uint64_t count = 0;
  std::string first;  // "file:line:column: why"
};
// Error(kInvalid) at "file:line" where `text`, which begins at `first_line` of a file, is no UTF-8 text as a
// whole: UTF-16 or UTF-32, a packed file, PDF, Parquet, or NUL bytes in at least a quarter of its places.
void refuse_other_content(std::string_view text, std::string_view file, std::int64_t first_line,
                          bool begins_file);
// refuse_other_content(); then Error(kInvalid) at "file:line:column", with `hint`, where a block of plain
// text is not UTF-8 or has a NUL byte; with `skip_bad` such lines are taken out of the block, and counted.
BrokenLines require_utf8(TextBlock& block, std::string_view file, bool skip_bad, const std::string& hint);

}  // namespace primus::data
