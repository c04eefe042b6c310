#include "lm/train/corruption/corruption.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "base/error.h"

namespace primus {
namespace {

template <class Number>
bool read_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace

std::string to_text(const Corruption& finding) {
  if (!finding.found()) return "";
  std::string text;
  for (const int rank : finding.ranks) text += fmt::format("{} ", rank);
  return text + "\n" + finding.text;
}

Corruption corruption_from(const std::string& text) {
  Corruption finding;
  const std::size_t end = text.find('\n');
  if (end == std::string::npos) return finding;
  finding.text = text.substr(end + 1);
  for (std::size_t at = 0; at < end;) {
    const std::size_t space = text.find(' ', at);
    int rank = 0;
    if (!read_number(std::string_view(text).substr(at, space - at), rank)) break;
    finding.ranks.push_back(rank);
    at = space + 1;
  }
  return finding;
}

std::string name_ranks(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  constexpr std::size_t kMost = 8;
  std::string text = "ranks";
  const std::size_t shown = ranks.size() > kMost ? kMost : ranks.size();
  for (std::size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == ranks.size();
    text += fmt::format("{} {}", i == 0 ? "" : last ? " and" : ",", ranks[i]);
  }
  if (shown < ranks.size()) text += fmt::format(" and {} more", ranks.size() - shown);
  return text;
}

BitFlip parse_bit_flip(const std::string& text) {
  const std::size_t first = text.find(':'), second = text.find(':', first + 1);
  BitFlip flip;
  const std::string where = text.substr(0, first);
  const bool known = where == "parameter" || where == "gradient" || where == "product";
  if (!known || first == std::string::npos || second == std::string::npos ||
      !read_number(std::string_view(text).substr(first + 1, second - first - 1), flip.rank) ||
      !read_number(std::string_view(text).substr(second + 1), flip.step)) {
    throw invalid(
        fmt::format("{}='{}' is not WHERE:RANK:STEP", kFlipBit, text),
        "for example parameter:1:5; WHERE is parameter, gradient or product. Unset it outside of tests");
  }
  if (where == "gradient") flip.where = BitFlip::Where::kGradient;
  if (where == "product") flip.where = BitFlip::Where::kProduct;
  return flip;
}

}  // namespace primus
