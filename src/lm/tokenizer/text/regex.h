// Regular expressions of tokenizer files (Oniguruma and Rust dialect), executed by PCRE2 with its JIT
// compiler.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/system/thread_pool.h"
#include "lm/tokenizer/text/text_budget.h"

namespace primus {

// Thread-safety: for_each_match may be called from several threads at once.
class Regex {
 public:
  // Throws Error(kUnsupported), which quotes the expression, if the expression is longer than 16 KiB or PCRE2
  // does not accept it.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Calls `found(begin, end)` with the byte range of each match in `text`, which must be valid UTF-8. Matches
  // do not overlap and are found from left to right. Throws Error(kInvalid) if the expression needs more
  // steps or time than the remaining `budget`.
  void for_each_match(std::string_view text, TextBudget& budget,
                      FunctionRef<void(std::size_t, std::size_t)> found) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace primus
