#include "lm/tokenizer/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text/excerpt.h"

namespace primus {

namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;  // those of real tokenizers have less than 1 KiB

// The classes whose members differ between the two, spelled out. PCRE2's \s also holds U+180E, which left
// White_Space in Unicode 6.3; its \w lacks marks and connectors.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNonSpaces =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWordCharacters =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

// Rewrites what Oniguruma (in its default Ruby syntax) and PCRE2 read differently, and refuses what cannot
// be.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else {
        character(c);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw unsupported(fmt::format("the regular expression {} is not supported: {}", excerpt(pattern_), what));
  }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) refuse("it ends in a backslash");
    const char c = pattern_[at_ + 1];
    constexpr std::string_view kDifferent = "hHKGXyYOZzARNgkCMc";
    if (kDifferent.find(c) != std::string_view::npos) refuse(fmt::format("\\{}", c));
    std::string_view members;
    bool negated = false;
    if (c == 's') members = kSpaces;
    if (c == 'S') members = kNonSpaces;
    if (c == 'w' || c == 'W') members = kWordCharacters;
    if (c == 'W') negated = true;
    if (members.empty()) {
      // The braces of a property are no counted repetition.
      const size_t close =
          next_is("\\p{") || next_is("\\P{") ? pattern_.find('}', at_) : std::string_view::npos;
      return copy(close == std::string_view::npos ? 2 : close + 1 - at_);
    }
    if (negated && in_class_) refuse("\\W inside a class");
    out_ += in_class_ ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
    at_ += 2;
  }

  void class_character(char c) {
    if (c == '[') refuse("a class inside a class");
    if (next_is("&&")) refuse("an intersection of classes");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void character(char c) {
    if (c == '[') {
      in_class_ = true;
      return copy(next_is("[^") ? 2 : 1);
    }
    if (next_is("{,")) refuse("a repetition without a lower bound");
    // Possessive for PCRE2, a second repetition for Oniguruma.
    if (next_is("}+")) refuse("a + behind a counted repetition");
    if (next_is("(?")) {
      for (const std::string_view group : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i)"}) {
        if (next_is(group)) return copy(group.size());
      }
      refuse("a group that starts with " + std::string(pattern_.substr(at_, 3)));
    }
    if (next_is("(*")) refuse("(*");
    copy(1);
  }

  std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

namespace {

template <class Object, void (*kFree)(Object*)>
struct Free {
  void operator()(Object* object) const { kFree(object); }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code, pcre2_code_free>>;
using Context = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context, pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data, pcre2_match_data_free>>;

std::string message_of(int code) {
  unsigned char message[256] = {};
  pcre2_get_error_message(code, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

// Where the character behind the one at `at` begins.
size_t next_character(std::string_view text, size_t at) {
  do ++at;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

// At how many places one call looks for a match. A look at one place may read all of the text.
size_t places_per_call(size_t text_size) {
  constexpr size_t kReadsPerCall = size_t{1} << 28;
  return std::clamp<size_t>(kReadsPerCall / std::max<size_t>(text_size, 1), 16, 64 << 10);
}

}  // namespace

struct Regex::Impl {
  std::string pattern;
  Code code;
};

Regex::Regex(std::string_view pattern) {
  auto impl = std::make_unique<Impl>();
  impl->pattern = pattern;
  if (pattern.size() > kMaxPatternBytes) {
    throw unsupported(
        fmt::format("the regular expression {} is not supported: it has {} bytes, at most {} do",
                    excerpt(pattern), pattern.size(), kMaxPatternBytes));
  }
  const std::string exact = Translator(pattern).run();
  int code = 0;
  PCRE2_SIZE where = 0;
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(exact.data()), exact.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT, &code,
                                 &where, nullptr));
  if (impl->code == nullptr) {
    throw unsupported(
        fmt::format("the regular expression {} is not supported: {}", excerpt(pattern), message_of(code)));
  }
  // Without a JIT for this CPU the interpreter does the same, slower.
  pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  impl_ = std::move(impl);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::for_each_match(std::string_view text, TextBudget& budget,
                           FunctionRef<void(size_t, size_t)> found) const {
  constexpr uint32_t kHeapKiB = 64 << 10;
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const Context context(pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(context.get(), budget.steps_per_match());
  pcre2_set_heap_limit(context.get(), kHeapKiB);
  const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data.get());
  const size_t places = places_per_call(text.size());
  size_t at = 0;
  uint32_t options = PCRE2_NO_UTF_CHECK;
  bool due = false;
  while (at <= text.size()) {
    budget.take_match(impl_->pattern, due);
    due = false;
    const size_t last = std::min(text.size(), at + places);
    pcre2_set_offset_limit(context.get(), last);
    const int rc = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                               options, data.get(), context.get());
    if (rc == PCRE2_ERROR_NOMATCH) {
      // At the place of an empty match there is no further one, or none begins up to `last`.
      const bool behind_empty = (options & PCRE2_NOTEMPTY_ATSTART) != 0;
      if (!behind_empty && last == text.size()) return;
      at = next_character(text, behind_empty ? at : last);
      due = !behind_empty;
      options = PCRE2_NO_UTF_CHECK;
      continue;
    }
    if (rc < 0) {
      throw invalid(fmt::format("the regular expression {} gave up on a text of {} bytes: {}",
                                excerpt(impl_->pattern), text.size(), message_of(rc)));
    }
    if (range[1] < range[0]) {
      throw unsupported(fmt::format("the regular expression {} uses \\K", excerpt(impl_->pattern)));
    }
    found(range[0], range[1]);
    options = PCRE2_NO_UTF_CHECK | (range[0] == range[1] ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : 0u);
    at = range[1];
  }
}

}  // namespace primus
