#include "lm/reward/search_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <chrono>
#include <cstdint>
#include <new>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"

namespace primus {
namespace {

constexpr std::size_t kMaxPatternBytes = 16 << 10;
constexpr std::int64_t kMaxSteps = 4'000'000;
constexpr std::uint32_t kHeapKiB = 64 << 10;
constexpr std::chrono::seconds kMaxTime{5};

struct Steps {
  std::int64_t left = kMaxSteps;
  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::now() + kMaxTime;
};

// PCRE2 calls this function before each item of the pattern. PCRE2's own limit counts the steps from one
// start position only, so it does not bound the time of a search.
int count_step(pcre2_callout_block*, void* data) {
  Steps& steps = *static_cast<Steps*>(data);
  if (--steps.left < 0) return PCRE2_ERROR_CALLOUT;
  constexpr std::int64_t kStepsPerClock = 64;
  const bool late = steps.left % kStepsPerClock == 0 && std::chrono::steady_clock::now() > steps.end;
  return late ? PCRE2_ERROR_CALLOUT : 0;
}

template <class Object, void (*kFree)(Object*)>
struct FreePattern {
  void operator()(Object* object) const { kFree(object); }
};
using SearchContext =
    std::unique_ptr<pcre2_match_context, FreePattern<pcre2_match_context, pcre2_match_context_free>>;
using SearchData = std::unique_ptr<pcre2_match_data, FreePattern<pcre2_match_data, pcre2_match_data_free>>;

}  // namespace

struct SearchPattern::Impl {
  std::unique_ptr<pcre2_code, FreePattern<pcre2_code, pcre2_code_free>> code;
};

SearchPattern::SearchPattern(const std::string& pattern) : impl_(std::make_unique<Impl>()) {
  if (pattern.size() > kMaxPatternBytes) {
    throw invalid(fmt::format("the regular expression {} has {} bytes, and the limit is {}",
                              printable(excerpt(pattern)), pattern.size(), kMaxPatternBytes));
  }
  int error = 0;
  PCRE2_SIZE where = 0;
  impl_->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_AUTO_CALLOUT | PCRE2_NEVER_BACKSLASH_C, &error,
      &where, nullptr));
  if (impl_->code == nullptr) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    throw invalid(fmt::format("the regular expression '{}' is invalid at character {}: {}",
                              printable(excerpt(pattern)), where, reinterpret_cast<const char*>(message)),
                  "write it in the syntax of Perl");
  }
}

SearchPattern::~SearchPattern() = default;
SearchPattern::SearchPattern(SearchPattern&&) noexcept = default;
SearchPattern& SearchPattern::operator=(SearchPattern&&) noexcept = default;

SearchResult SearchPattern::find(std::string_view text) const {
  const SearchData data(pcre2_match_data_create(1, nullptr));
  const SearchContext context(pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) throw std::bad_alloc();
  Steps steps;
  pcre2_set_heap_limit(context.get(), kHeapKiB);
  pcre2_set_callout(context.get(), count_step, &steps);
  const int found = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                0, data.get(), context.get());
  if (found >= 0) return SearchResult::kFound;
  return found == PCRE2_ERROR_NOMATCH ? SearchResult::kMissing : SearchResult::kLimit;
}

}  // namespace primus
