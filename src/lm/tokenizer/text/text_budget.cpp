#include "lm/tokenizer/text/text_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "base/text/excerpt.h"

namespace primus {

namespace {

constexpr std::size_t kGrowth = 32, kMinOutput = 4 << 10;
constexpr double kMinSeconds = 1, kSecondsPerByte = 2e-6;
// The limit of PCRE2's steps per match is kMinSteps plus kStepsPerByte per byte of text, at most kMaxSteps.
// An expression whose backtracking grows faster than the text exceeds the limit on a long text and is
// refused.
constexpr std::size_t kStepsPerByte = 16, kMinSteps = 1'000'000, kMaxSteps = 1'000'000'000;

constexpr const char* kHint =
    "the tokenizer file needs far more work than the text's length allows: it is damaged or hostile; get it "
    "again";

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

TextBudget::TextBudget(std::size_t bytes)
    : bytes_(bytes),
      output_left_(kGrowth * bytes + kMinOutput),
      steps_per_match_(static_cast<std::uint32_t>(
          std::min(kMaxSteps, kMinSteps + kStepsPerByte * std::min(bytes, kMaxSteps)))) {}

void TextBudget::refuse_output(std::string_view stage) const {
  throw invalid(fmt::format("{} produces more than {} times the text ({} B)", stage, kGrowth, bytes_), kHint);
}

void TextBudget::check_time(std::string_view expression) {
  const double now = thread_seconds();
  if (calls_ == 0) start_ = now;
  const double limit = kMinSeconds + kSecondsPerByte * static_cast<double>(bytes_);
  if (now - start_ <= limit) return;
  throw invalid(fmt::format("the regular expression {} needs more than {:.1f} s for a text of {} bytes",
                            excerpt(expression), limit, bytes_),
                kHint);
}

}  // namespace primus
