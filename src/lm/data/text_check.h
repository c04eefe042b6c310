// Checks that input is text: UTF-8 without NUL bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lm/data/corpus.h"

namespace primus::data {

// The broken lines that were removed from a block.
struct BrokenLines {
  std::uint64_t count = 0;
  std::string first;  // the first of these lines: "file:line:column: why"
};
// Throws Error(kInvalid) at "file:line" if `text` is clearly not UTF-8 text: UTF-16 or UTF-32, a compressed
// file, PDF, Parquet, or data in which at least a quarter of the bytes are NUL. `text` begins at line
// `first_line` of the file.
void refuse_other_content(std::string_view text, std::string_view file, std::int64_t first_line,
                          bool begins_file);
// Calls refuse_other_content(), removes the byte order mark at the beginning of a file, and then throws
// Error(kInvalid) at "file:line:column", with `hint`, if a block of plain text is not UTF-8 or has a NUL
// byte. With `skip_bad`, the function removes and counts lines that are not UTF-8 or have a NUL byte, instead
// of throwing the second error.
BrokenLines require_utf8(TextBlock& block, std::string_view file, bool skip_bad, const std::string& hint);

}  // namespace primus::data
