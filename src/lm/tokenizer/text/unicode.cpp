#include "lm/tokenizer/text/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <cstring>
#include <map>
#include <memory>

#include "base/error.h"

namespace primus::unicode {

namespace {

constexpr char32_t kCodePoints = 0x110000;

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

uint8_t property_bits(char32_t c) {
  uint8_t bits = 0;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      bits = kLetter | kUpperLike | kWord;
      break;
    case UTF8PROC_CATEGORY_LL:
      bits = kLetter | kLowerLike | kWord;
      break;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      bits = kLetter | kUpperLike | kLowerLike | kWord;
      break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      bits = kUpperLike | kLowerLike | kWord;
      break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      bits = kNumber | kWord;
      break;
    case UTF8PROC_CATEGORY_NO:
      bits = kNumber;
      break;
    case UTF8PROC_CATEGORY_PC:
      bits = kPunctuation | kWord;
      break;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      bits = kPunctuation;
      break;
    default:
      break;
  }
  // \w also holds the joiners and the circled and squared letters (Other_Alphabetic outside L and M).
  if (c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) {
    bits |= kWord;
  }
  if (is_white_space(c)) bits |= kSpace;
  if (c == '\r' || c == '\n') bits |= kNewline;
  return bits;
}

// Code points before which NFC text may be cut, and which are themselves NFC: combining class 0, unchanged by
// NFC, and never the second half of a composition.
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
        inert->reset(static_cast<size_t>(parts[i]));
      }
      const auto composed =
          utf8proc_normalize_utf32(parts, std::min<utf8proc_ssize_t>(count, 8),
                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      if (composed != 1 || static_cast<char32_t>(parts[0]) != c) inert->reset(c);
    }
    for (char32_t c = 0x1161; c <= 0x11FF; ++c)
      inert->reset(c);  // Hangul vowels and finals compose backwards
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

// Canonical ordering. utf8proc's own is quadratic in the length of a run of marks, hence ours.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  const auto mark_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (size_t i = 0; i < text.size();) {
    if (text[i] < 0x300 || mark_class(text[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && mark_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + static_cast<ptrdiff_t>(i), text.begin() + static_cast<ptrdiff_t>(end),
                     [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
    i = end;
  }
}

void append_normalized(std::string_view text, Form form, std::string& out) {
  std::vector<utf8proc_int32_t> buffer;
  buffer.reserve(text.size() + 1);
  append_decomposed(text, form == Form::kNfkc || form == Form::kNfkd, buffer);
  order_marks(buffer);
  size_t length = buffer.size();
  if (form == Form::kNfc || form == Form::kNfkc) {
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const auto composed =
        utf8proc_normalize_utf32(buffer.data(), static_cast<utf8proc_ssize_t>(length), options);
    if (composed < 0) throw Error(ErrorKind::kInvalid, "Unicode normalisation failed");
    length = static_cast<size_t>(composed);
  }
  for (size_t i = 0; i < length; ++i) append(static_cast<char32_t>(buffer[i]), out);
}

}  // namespace

void append_lossy(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const size_t valid = valid_prefix(text);
    out.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) return;
    int bad;
    well_formed(text.substr(0, 4), bad);
    out.append(kReplacement);
    text.remove_prefix(static_cast<size_t>(bad));
  }
}

void require_valid(std::string_view text, std::string_view name, int64_t first_line) {
  const size_t at = valid_prefix(text);
  if (at == text.size()) return;
  const std::string_view before = text.substr(0, at);
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
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
  std::map<std::array<uint8_t, 256>, uint16_t> seen;
  for (size_t block = 0; block < stage1_.size(); ++block) {
    std::array<uint8_t, 256> bits;
    for (size_t i = 0; i < 256; ++i) bits[i] = property_bits(static_cast<char32_t>(block << 8 | i));
    const auto [it, added] = seen.try_emplace(bits, static_cast<uint16_t>(blocks_.size()));
    if (added) blocks_.push_back(bits);
    stage1_[block] = it->second;
  }
}

const PropertyTable& properties() {
  static const PropertyTable table;
  return table;
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
  // Only the stretches around characters that are not inert need the slow path: from the inert character
  // before them up to the next inert one.
  const auto& inert = nfc_inert();
  const char* p = text.data();
  const char* const end = p + text.size();
  const char* copied = p;   // everything before is in `out`
  const char* starter = p;  // the last inert character
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
    append_normalized({starter, static_cast<size_t>(stop - starter)}, form, out);
    copied = starter = p = stop;
  }
  out.append(copied, end);
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char32_t c = decode(p);
    if (c == 0x130) {
      out += "i\xCC\x87";  // the one character whose lower case is two
    } else {
      append(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
    }
  }
  return out;
}

}  // namespace primus::unicode
