#include "base/text/display_width.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/text/utf8.h"

namespace primus {
namespace {

struct Range {
  char32_t first, last;
};

// Characters of East Asian Width W and F (Unicode), as ranges.
constexpr std::array<Range, 19> kWide = {{{0x1100, 0x115F},
                                          {0x231A, 0x231B},
                                          {0x23E9, 0x23EC},
                                          {0x2E80, 0x303E},
                                          {0x3041, 0x33FF},
                                          {0x3400, 0x4DBF},
                                          {0x4E00, 0x9FFF},
                                          {0xA000, 0xA4CF},
                                          {0xA960, 0xA97F},
                                          {0xAC00, 0xD7A3},
                                          {0xF900, 0xFAFF},
                                          {0xFE30, 0xFE6F},
                                          {0xFF00, 0xFF60},
                                          {0xFFE0, 0xFFE6},
                                          {0x16FE0, 0x18AFF},
                                          {0x1B000, 0x1B2FF},
                                          {0x1F300, 0x1F64F},
                                          {0x1F680, 0x1F9FF},
                                          {0x20000, 0x3FFFD}}};
// Combining marks and format characters, which have no width, as ranges.
constexpr std::array<Range, 17> kNone = {{{0x0300, 0x036F},
                                          {0x0483, 0x0489},
                                          {0x0591, 0x05BD},
                                          {0x0610, 0x061A},
                                          {0x064B, 0x065F},
                                          {0x06D6, 0x06DC},
                                          {0x0900, 0x0902},
                                          {0x093C, 0x093C},
                                          {0x0941, 0x0948},
                                          {0x0E34, 0x0E3A},
                                          {0x0E47, 0x0E4E},
                                          {0x1AB0, 0x1AFF},
                                          {0x1DC0, 0x1DFF},
                                          {0x200B, 0x200F},
                                          {0x20D0, 0x20FF},
                                          {0xFE00, 0xFE0F},
                                          {0xFE20, 0xFE2F}}};

template <std::size_t N>
bool contains(const std::array<Range, N>& ranges, char32_t c) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), c,
                                      [](char32_t value, const Range& range) { return value < range.first; });
  return after != ranges.begin() && c <= std::prev(after)->last;
}

struct Piece {
  std::size_t bytes, columns;
  bool color;
};

// Returns the first character or escape sequence of `text`, which must not be empty.
Piece first_piece(std::string_view text) {
  if (text.starts_with("\x1b[")) {
    std::size_t end = 2;
    while (end < text.size() && ((text[end] >= '0' && text[end] <= '9') || text[end] == ';')) ++end;
    if (end < text.size() && text[end] == 'm') return {end + 1, 0, true};
  }
  int bad = 0;
  const int length = unicode::well_formed(text, bad);
  if (length <= 0) return {1, 1, false};
  const auto byte = [&](int i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[static_cast<std::size_t>(i)]));
  };
  char32_t c = length == 1 ? byte(0) : byte(0) & (0x7FU >> length);
  for (int i = 1; i < length; ++i) c = c << 6 | (byte(i) & 0x3FU);
  return {static_cast<std::size_t>(length), display_width(c), false};
}

}  // namespace

std::size_t display_width(char32_t c) {
  if (c < 0x20 || (c >= 0x7F && c < 0xA0) || contains(kNone, c)) return 0;
  return contains(kWide, c) ? 2 : 1;
}

std::size_t display_width(std::string_view line) {
  std::size_t columns = 0;
  while (!line.empty()) {
    const Piece piece = first_piece(line);
    columns += piece.columns;
    line.remove_prefix(piece.bytes);
  }
  return columns;
}

std::string fit_width(std::string_view line, std::size_t columns) {
  std::string kept;
  bool full = false;
  while (!line.empty()) {
    const Piece piece = first_piece(line);
    full = full || piece.columns > columns;
    // After the cut, keeps only color sequences, which switch colors off.
    if (!full || piece.color) kept += line.substr(0, piece.bytes);
    if (!full) columns -= piece.columns;
    line.remove_prefix(piece.bytes);
  }
  return kept;
}

}  // namespace primus
