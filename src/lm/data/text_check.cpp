#include "lm/data/text_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::data {

namespace {

// Formats that are not text, recognized by their first bytes.
struct OtherContent {
  std::string_view first_bytes, what, hint;
};
constexpr std::string_view kFromUtf16 = "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE";
constexpr std::string_view kFromUtf32 = "convert it: iconv -f UTF-32 -t UTF-8 FILE > NEW_FILE";
constexpr std::string_view kFromArrow =
    "write it as JSON lines, e.g. with Hugging Face datasets: Dataset.from_file(FILE).to_json(NEW_FILE)";
using namespace std::string_view_literals;
constexpr std::array<OtherContent, 10> kOtherContents = {
    {{"\xFF\xFE\0\0"sv, "the file is UTF-32 text, but UTF-8 is required", kFromUtf32},
     {"\xFF\xFE"sv, "the file is UTF-16 text, but UTF-8 is required", kFromUtf16},
     {"\xFE\xFF"sv, "the file is UTF-16 text, but UTF-8 is required", kFromUtf16},
     {"\x1F\x8B"sv, "the file is gzip-compressed, but its name does not end in .gz",
      "rename it to end in .gz"},
     {"\x28\xB5\x2F\xFD"sv, "the file is zstd-compressed, but its name does not end in .zst",
      "rename it to end in .zst"},
     {"%PDF-"sv, "the file is a PDF, not text", "extract its text: pdftotext FILE.pdf"},
     {"PAR1"sv, "the file is Parquet, not text",
      "write it as JSON lines, e.g. with pandas: read_parquet(FILE).to_json(NEW_FILE, orient='records', "
      "lines=True)"},
     {"ARROW1"sv, "the file is in Arrow's file format, not text", kFromArrow},
     {"PK\x03\x04"sv, "the file is a zip archive, not text", "unpack it, and give the extracted files"},
     {"\xFD"
      "7zXZ"sv,
      "the file is xz-compressed, which is not supported", "unpack it: xz -d"}}};

// Returns "file:7", where 7 is the number of the line that contains text[at].
std::string line_of(std::string_view text, std::size_t at, std::string_view file, std::int64_t first_line) {
  const auto before = text.substr(0, at);
  return fmt::format("{}:{}", file, first_line + std::count(before.begin(), before.end(), '\n'));
}

}  // namespace

void refuse_other_content(std::string_view text, std::string_view file, std::int64_t first_line,
                          bool begins_file) {
  const std::size_t zero = text.find('\0');
  if (begins_file && (zero != std::string_view::npos || !unicode::is_valid(text))) {
    for (const OtherContent& other : kOtherContents) {
      if (!text.starts_with(other.first_bytes)) continue;
      throw invalid(std::string(other.what), std::string(other.hint))
          .at(fmt::format("{}:{}", file, first_line));
    }
  }
  // Refuses text with at least a quarter of NUL bytes: English text has a half in UTF-16, and three quarters
  // in UTF-32.
  const auto zeros = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\0'));
  if (zeros * 4 < text.size() || zeros == 0) return;
  throw zeros == text.size()
      ? invalid("this part of the file has only NUL bytes, so it is not text",
                "get the file again, or remove it")
            .at(line_of(text, zero, file, first_line))
      : invalid("at least a quarter of the bytes are NUL: the file is UTF-16 or not text",
                fmt::format("if it is text, {} (UTF-16LE or UTF-16BE where it has no byte order mark)",
                            kFromUtf16))
            .at(line_of(text, zero, file, first_line));
}

BrokenLines require_utf8(TextBlock& block, std::string_view file, bool skip_bad, const std::string& hint) {
  refuse_other_content(block.text, file, block.first_line, block.begins_file);
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (block.begins_file && block.text.starts_with(kByteOrderMark)) {
    block.text.erase(0, kByteOrderMark.size());
    for (std::size_t& end : block.parts) end -= std::min(end, kByteOrderMark.size());
  }
  BrokenLines broken;
  try {
    unicode::require_valid(block.text, file, block.first_line);
    const std::size_t zero = block.text.find('\0');
    if (zero == std::string::npos) return broken;
    throw invalid("a NUL byte, which text does not have", "remove it: tr -d '\\000' < FILE > NEW_FILE")
        .at(line_of(block.text, zero, file, block.first_line));
  } catch (Error& error) {
    if (!skip_bad) throw error.add_hint(hint);
    broken.first = fmt::format("{}: {}", error.location(), error.what());
  }
  std::string kept;
  std::size_t begin = 0;
  for (std::size_t& end : block.parts) {
    std::string_view part = std::string_view(block.text).substr(begin, end - begin);
    while (!part.empty()) {
      // If there is no newline, find() returns npos, and npos + 1 is 0.
      const std::string_view line = part.substr(0, part.find('\n') + 1);
      const std::string_view whole = line.empty() ? part : line;
      if (whole.find('\0') == std::string_view::npos && unicode::is_valid(whole)) {
        kept += whole;
      } else {
        ++broken.count;
      }
      part.remove_prefix(whole.size());
    }
    begin = end;
    end = kept.size();
  }
  block.text = std::move(kept);
  return broken;
}

}  // namespace primus::data
