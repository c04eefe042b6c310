#include "lm/tokenizer/text/newer_characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace primus::unicode {

namespace {

constexpr std::array kNewer = std::to_array<NewerCharacters>({
#include "lm/tokenizer/text/newer_characters.inc"
});

}  // namespace

std::span<const NewerCharacters> newer_characters() { return kNewer; }

std::string_view category(char32_t c) {
  const auto range = std::ranges::lower_bound(kNewer, c, {}, &NewerCharacters::last);
  if (range != kNewer.end() && range->first <= c) return range->category;
  return utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
}

}  // namespace primus::unicode
