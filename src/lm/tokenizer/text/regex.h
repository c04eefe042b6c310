// Regular expressions of tokenizer files (Oniguruma and Rust dialect), run by PCRE2 with its JIT compiler.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/thread_pool.h"

namespace primus {

// Thread-safety: for_each_match may be called from many threads.
class Regex {
 public:
  // Error(kUnsupported) quoting the expression where PCRE2 does not accept it.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Calls `found(begin, end)` with the byte range of each match of valid UTF-8 `text`, from left to right,
  // not overlapping. Error(kInvalid) where an expression needs more steps than a linear-time one could.
  void for_each_match(std::string_view text, FunctionRef<void(size_t, size_t)> found) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace primus
