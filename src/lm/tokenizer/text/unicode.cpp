#include "lm/tokenizer/text/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <cstring>
#include <map>
#include <memory>

#include "base/error.h"
#include "lm/tokenizer/text/newer_characters.h"

namespace primus::unicode {

namespace {

constexpr char32_t kCodePoints = 0x110000;

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

struct Range {
  char32_t first, last;
};

// Returns whether the character is punctuation added after Unicode 8, which the pre-tokenizer Punctuation
// does not treat as punctuation.
bool is_punctuation_since_9(char32_t c) {
  static constexpr auto kRanges = std::to_array<Range>(
      {{0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},     {0xC84, 0xC84},
       {0x1B4E, 0x1B4F},   {0x1B7D, 0x1B7F},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},   {0x10D6E, 0x10D6E},
       {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x113D4, 0x113D8}, {0x1144B, 0x1144F},
       {0x1145A, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946},
       {0x119E2, 0x119E2}, {0x11A3F, 0x11A46}, {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09},
       {0x11BE1, 0x11BE1}, {0x11C41, 0x11C45}, {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F},
       {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16D6D, 0x16D6F}, {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2},
       {0x1E5FF, 0x1E5FF}, {0x1E95E, 0x1E95F}});
  return std::ranges::any_of(kRanges,
                             [c](const Range& range) { return c >= range.first && c <= range.last; });
}

bool is_punctuation(char32_t c, std::string_view category) {
  constexpr std::string_view kAsciiSymbols = "$+<=>^`|~";
  if (c < 0x80 && kAsciiSymbols.find(static_cast<char>(c)) != std::string_view::npos) return true;
  if (c == 0x166D || c == 0x111C9) return true;  // already punctuation in Unicode 8
  return category.starts_with('P') && !is_punctuation_since_9(c);
}

// Returns whether \w includes the character. \w also includes the joiners and the circled and squared letters
// (Other_Alphabetic outside L and M).
bool is_word(char32_t c, std::string_view category) {
  return category.starts_with('L') || category.starts_with('M') || category == "Nd" || category == "Nl" ||
         category == "Pc" || c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

// Returns whether the character is a number added in Unicode 17.
bool is_latest_number(char32_t c) { return (c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6); }

Properties property_bits(char32_t c) {
  // Most code points are in these ranges and have no property.
  if ((c >= 0x33500 && c < 0xE0000) || c >= 0xE0200) return 0;
  const std::string_view category = unicode::category(c);
  Properties bits = 0;
  const auto set = [&bits](bool holds, Properties which) {
    if (holds) bits = static_cast<Properties>(bits | which);
  };
  const bool is_mark = category.starts_with('M'), is_number = category.starts_with('N');
  const bool is_caseless = category == "Lm" || category == "Lo" || is_mark;
  set(category.starts_with('L'), kLetter);
  set(is_number, kNumber);
  set(is_number || is_latest_number(c), kNumericDigit);
  set(category == "Lu" || category == "Lt" || is_caseless, kUpperLike);
  set(category == "Ll" || is_caseless, kLowerLike);
  set(is_punctuation(c, category), kPunctuation);
  set(is_word(c, category), kWord);
  set(is_white_space(c), kSpace);
  set(c == '\r' || c == '\n', kNewline);
  return bits;
}

// Characters that were added in Unicode 10 or later and take part in normalisation. The normalizers of the
// tokenizers library do not support these characters: they stay unchanged, and other characters are neither
// reordered nor composed across them.
constexpr auto kUnnormalized = std::to_array<Range>(
    {{0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
     {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x105C9, 0x105C9},
     {0x105E4, 0x105E4}, {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27},
     {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
     {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11383, 0x11383}, {0x11385, 0x11385}, {0x1138E, 0x1138E},
     {0x11391, 0x11391}, {0x113C5, 0x113C5}, {0x113C7, 0x113C8}, {0x113CE, 0x113D0}, {0x1145E, 0x1145E},
     {0x11839, 0x1183A}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
     {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
     {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16121, 0x16128}, {0x1612F, 0x1612F}, {0x16D68, 0x16D6A},
     {0x16FF0, 0x16FF1}, {0x1CCD6, 0x1CCF9}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
     {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1F16C, 0x1F16C},
     {0x1FBF0, 0x1FBF9}});

bool is_unnormalized(char32_t c) {
  const auto range = std::ranges::lower_bound(kUnnormalized, c, {}, &Range::last);
  return range != kUnnormalized.end() && range->first <= c;
}

// Returns the code points that NFC neither changes nor composes with the preceding text. NFC text may
// therefore be cut before such a code point. These code points have combining class 0.
const std::bitset<kCodePoints>& nfc_inert() {
  static const std::unique_ptr<const std::bitset<kCodePoints>> table = [] {
    auto inert = std::make_unique<std::bitset<kCodePoints>>();
    inert->set();
    for (char32_t c = 0xC0; c < kCodePoints; ++c) {
      const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
      if (property->combining_class != 0) inert->reset(c);
      if (property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0) continue;
      utf8proc_int32_t parts[8];
      int boundary = 0;
      const auto count =
          utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 8, UTF8PROC_DECOMPOSE, &boundary);
      for (utf8proc_ssize_t i = 1; i < std::min<utf8proc_ssize_t>(count, 8); ++i) {
        inert->reset(static_cast<std::size_t>(parts[i]));
      }
      const auto composed =
          utf8proc_normalize_utf32(parts, std::min<utf8proc_ssize_t>(count, 8),
                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      if (composed != 1 || static_cast<char32_t>(parts[0]) != c) inert->reset(c);
    }
    for (char32_t c = 0x1161; c <= 0x11FF; ++c)
      inert->reset(c);  // Hangul vowels and finals compose with the preceding character
    for (const Range& range : kUnnormalized) {
      for (char32_t c = range.first; c <= range.last; ++c) inert->set(c);
    }
    return inert;
  }();
  return *table;
}

void append_decomposed(std::string_view text, bool compatibility, std::vector<utf8proc_int32_t>& out) {
  const auto options = static_cast<utf8proc_option_t>(compatibility ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT
                                                                    : static_cast<int>(UTF8PROC_DECOMPOSE));
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    utf8proc_int32_t parts[32];  // the longest decomposition (U+FDFA) has 18 code points
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(decode(p)), parts, 32, options, &boundary);
    out.insert(out.end(), parts, parts + count);
  }
}

// Sorts marks in canonical order. The time of utf8proc's own sorting is quadratic in the length of a run of
// marks.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  const auto mark_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] < 0x300 || mark_class(text[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && mark_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(i),
                     text.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
    i = end;
  }
}

// Appends the normal form of a text without characters in kUnnormalized.
void append_known_normalized(std::string_view text, Form form, std::string& out) {
  std::vector<utf8proc_int32_t> buffer;
  buffer.reserve(text.size() + 1);
  append_decomposed(text, form == Form::kNfkc || form == Form::kNfkd, buffer);
  order_marks(buffer);
  std::size_t length = buffer.size();
  if (form == Form::kNfc || form == Form::kNfkc) {
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const auto composed =
        utf8proc_normalize_utf32(buffer.data(), static_cast<utf8proc_ssize_t>(length), options);
    if (composed < 0) throw Error(ErrorKind::kInvalid, "Unicode normalisation failed");
    length = static_cast<std::size_t>(composed);
  }
  for (std::size_t i = 0; i < length; ++i) append(static_cast<char32_t>(buffer[i]), out);
}

void append_normalized(std::string_view text, Form form, std::string& out) {
  const char* begin = text.data();
  const char* const end = begin + text.size();
  for (const char* p = begin; p < end;) {
    const char* const at = p;
    if (!is_unnormalized(decode(p))) continue;
    append_known_normalized({begin, static_cast<std::size_t>(at - begin)}, form, out);
    out.append(at, p);
    begin = p;
  }
  append_known_normalized({begin, static_cast<std::size_t>(end - begin)}, form, out);
}

}  // namespace

void append_lossy(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const std::size_t valid = valid_prefix(text);
    out.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) return;
    int bad;
    well_formed(text.substr(0, 4), bad);
    out.append(kReplacement);
    text.remove_prefix(static_cast<std::size_t>(bad));
  }
}

void require_valid(std::string_view text, std::string_view name, std::int64_t first_line) {
  const std::size_t at = valid_prefix(text);
  if (at == text.size()) return;
  const std::string_view before = text.substr(0, at);
  const std::size_t line_begin = before.rfind('\n') + 1;  // if there is no newline, npos + 1 is 0
  throw invalid(fmt::format("not valid UTF-8 (byte 0x{:02X})", static_cast<unsigned char>(text[at])),
                "convert the text to UTF-8, e.g. with iconv")
      .at(fmt::format("{}:{}:{}", name, first_line + std::count(before.begin(), before.end(), '\n'),
                      at - line_begin + 1));
}

std::string_view valid_or_repaired(std::string_view text, std::string& storage) {
  if (is_valid(text)) return text;
  storage.clear();
  append_lossy(text, storage);
  return storage;
}

PropertyTable::PropertyTable() {
  std::map<std::array<Properties, 256>, std::uint16_t> seen;
  auto newer = newer_characters().begin();
  for (std::size_t block = 0; block < stage1_.size(); ++block) {
    std::array<Properties, 256> bits;
    for (std::size_t i = 0; i < 256; ++i) {
      const auto c = static_cast<char32_t>(block << 8 | i);
      bits[i] = property_bits(c);
      while (newer != newer_characters().end() && newer->last < c) ++newer;
      if (newer != newer_characters().end() && newer->first <= c)
        bits[i] = static_cast<Properties>(bits[i] | kNewer);
    }
    const auto [it, added] = seen.try_emplace(bits, static_cast<std::uint16_t>(blocks_.size()));
    if (added) blocks_.push_back(bits);
    stage1_[block] = it->second;
  }
}

const PropertyTable& properties() {
  static const PropertyTable table;
  return table;
}

bool has_newer(std::string_view text) {
  const PropertyTable& table = properties();
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    // Skips encodings shorter than that of U+0897, the first newer character.
    if (static_cast<unsigned char>(*p) < 0xE0) {
      ++p;
    } else if ((table[decode(p)] & kNewer) != 0) {
      return true;
    }
  }
  return false;
}

bool is_surely_nfc(std::string_view text) {
  const char* p = text.data();
  const char* const end = p + text.size();
  const std::bitset<kCodePoints>* inert = nullptr;
  while (p < end) {
    if (static_cast<unsigned char>(*p) < 0x80) {
      ++p;
      continue;
    }
    if (inert == nullptr) inert = &nfc_inert();
    if (!inert->test(decode(p))) return false;
  }
  return true;
}

std::string normalize(std::string_view text, Form form) {
  std::string out;
  out.reserve(text.size());
  if (form != Form::kNfc) {
    append_normalized(text, form, out);
    return out;
  }
  // Only text around characters that are not inert needs the slow path: from the preceding inert character up
  // to the next inert character.
  const auto& inert = nfc_inert();
  const char* p = text.data();
  const char* const end = p + text.size();
  const char* copied = p;   // the text before this position is in `out`
  const char* starter = p;  // start of the last inert character
  while (p < end) {
    const char* const at = p;
    if (inert.test(decode(p))) {
      starter = at;
      continue;
    }
    const char* stop = p;
    while (stop < end) {
      const char* next = stop;
      if (inert.test(decode(next))) break;
      stop = next;
    }
    out.append(copied, starter);
    append_normalized({starter, static_cast<std::size_t>(stop - starter)}, form, out);
    copied = starter = p = stop;
  }
  out.append(copied, end);
  return out;
}

namespace {

// Returns the lower case of letters whose lower case was added in Unicode 16 and 17.
char32_t lowercase_of(char32_t c) {
  if (c >= 0x10D50 && c <= 0x10D65) return c + 0x20;
  if (c >= 0x16EA0 && c <= 0x16EB8) return c + 0x1B;
  switch (c) {
    case 0xA7CB:
      return 0x264;
    case 0xA7DC:
      return 0x19B;
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA:
      return c + 1;
    default:
      return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  }
}

}  // namespace

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char32_t c = decode(p);
    if (c == 0x130) {
      out += "i\xCC\x87";  // the only character whose lower case has two code points
    } else {
      append(lowercase_of(c), out);
    }
  }
  return out;
}

}  // namespace primus::unicode
