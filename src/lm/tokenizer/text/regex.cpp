#include "lm/tokenizer/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <utility>

#include "base/error.h"

namespace primus {

namespace {

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
    throw unsupported(fmt::format("the regular expression {} is not supported: {}", pattern_, what));
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
    if (members.empty()) return copy(2);
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

struct Regex::Impl {
  struct FreeCode {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  };
  struct FreeContext {
    void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  };
  std::string pattern;
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_match_context, FreeContext> context;
};

Regex::Regex(std::string_view pattern) {
  auto impl = std::make_unique<Impl>();
  impl->pattern = pattern;
  const std::string exact = Translator(pattern).run();
  int code = 0;
  PCRE2_SIZE where = 0;
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(exact.data()), exact.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &where, nullptr));
  if (impl->code == nullptr) {
    unsigned char message[256] = {};
    pcre2_get_error_message(code, message, sizeof message);
    throw unsupported(fmt::format("the regular expression {} is not supported: {}", impl->pattern,
                                  reinterpret_cast<const char*>(message)));
  }
  // Without a JIT for this CPU the interpreter does the same, slower.
  pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  impl->context.reset(pcre2_match_context_create(nullptr));
  if (impl->context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(impl->context.get(), 50'000'000);
  pcre2_set_heap_limit(impl->context.get(), 64 << 10);  // KiB
  impl_ = std::move(impl);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::for_each_match(std::string_view text, FunctionRef<void(size_t, size_t)> found) const {
  const std::unique_ptr<pcre2_match_data, decltype([](pcre2_match_data* p) { pcre2_match_data_free(p); })>
      data(pcre2_match_data_create(1, nullptr));
  if (data == nullptr) throw std::bad_alloc();
  const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data.get());
  size_t at = 0;
  uint32_t options = PCRE2_NO_UTF_CHECK;
  while (at <= text.size()) {
    const int rc = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                               options, data.get(), impl_->context.get());
    if (rc == PCRE2_ERROR_NOMATCH && (options & PCRE2_NOTEMPTY_ATSTART) == 0) return;
    if (rc == PCRE2_ERROR_NOMATCH) {
      // No further match at the place of an empty one: go on behind the next character.
      options = PCRE2_NO_UTF_CHECK;
      do ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
      continue;
    }
    if (rc < 0) {
      unsigned char message[256] = {};
      pcre2_get_error_message(rc, message, sizeof message);
      throw invalid(fmt::format("the regular expression {} gave up on a text of {} bytes: {}", impl_->pattern,
                                text.size(), reinterpret_cast<const char*>(message)));
    }
    if (range[1] < range[0]) throw unsupported("the regular expression " + impl_->pattern + " uses \\K");
    found(range[0], range[1]);
    options = PCRE2_NO_UTF_CHECK | (range[0] == range[1] ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : 0u);
    at = range[1];
  }
}

}  // namespace primus
