#include "lm/tokenizer/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text/excerpt.h"
#include "lm/tokenizer/text/regex_dialect.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

namespace {

constexpr std::size_t kMaxPatternBytes = 16 << 10;  // real expressions have less than 1 KiB

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

// Returns the start of the character after the character at `at`.
std::size_t next_character(std::string_view text, std::size_t at) {
  do ++at;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

// Returns the number of start positions that one call tries. A try at one position may read all of the text.
std::size_t places_per_call(std::size_t text_size) {
  constexpr std::size_t kReadsPerCall = std::size_t{1} << 28;
  return std::clamp<std::size_t>(kReadsPerCall / std::max<std::size_t>(text_size, 1), 16, 64 << 10);
}

}  // namespace

struct Regex::Impl {
  std::string pattern;
  Code plain;
  Code exact;  // null if it would equal `plain`
  const pcre2_code* code_for(std::string_view text) const {
    return exact != nullptr && unicode::has_newer(text) ? exact.get() : plain.get();
  }
};

Regex::Regex(std::string_view pattern) {
  auto impl = std::make_unique<Impl>();
  impl->pattern = pattern;
  if (pattern.size() > kMaxPatternBytes) {
    throw unsupported(
        fmt::format("the regular expression {} is not supported: it has {} bytes, and the limit is {}",
                    excerpt(pattern), pattern.size(), kMaxPatternBytes));
  }
  const auto compile = [pattern](const std::string& translated) {
    int code = 0;
    PCRE2_SIZE where = 0;
    Code compiled(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT, &code,
                                &where, nullptr));
    if (compiled == nullptr) {
      throw unsupported(
          fmt::format("the regular expression {} is not supported: {}", excerpt(pattern), message_of(code)));
    }
    // If PCRE2 has no JIT for this CPU, its interpreter gives the same results, but is slower.
    pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
    return compiled;
  };
  const PcrePattern translated = to_pcre(pattern);
  impl->plain = compile(translated.plain);
  if (translated.exact != translated.plain) impl->exact = compile(translated.exact);
  impl_ = std::move(impl);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::for_each_match(std::string_view text, TextBudget& budget,
                           FunctionRef<void(std::size_t, std::size_t)> found) const {
  constexpr std::uint32_t kHeapKiB = 64 << 10;
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const Context context(pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(context.get(), budget.steps_per_match());
  pcre2_set_heap_limit(context.get(), kHeapKiB);
  const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data.get());
  const std::size_t places = places_per_call(text.size());
  const pcre2_code* const code = impl_->code_for(text);
  std::size_t at = 0;
  std::uint32_t options = PCRE2_NO_UTF_CHECK;
  bool due = false;
  while (at <= text.size()) {
    budget.take_match(impl_->pattern, due);
    due = false;
    const std::size_t last = std::min(text.size(), at + places);
    pcre2_set_offset_limit(context.get(), last);
    const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, options,
                               data.get(), context.get());
    if (rc == PCRE2_ERROR_NOMATCH) {
      // After an empty match, this call looked only for a longer match at the same position. Otherwise, it
      // tried all positions up to `last`.
      const bool behind_empty = (options & PCRE2_NOTEMPTY_ATSTART) != 0;
      if (!behind_empty && last == text.size()) return;
      at = next_character(text, behind_empty ? at : last);
      due = !behind_empty;
      options = PCRE2_NO_UTF_CHECK;
      continue;
    }
    if (rc < 0) {
      throw invalid(fmt::format("the regular expression {} failed on a text of {} bytes: {}",
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
