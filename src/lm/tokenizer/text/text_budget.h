// Limits the cost of a tokenizer file's rules on one text.
//
// The rules (normalizers, expressions, marks between words) come from a file that may be malicious: a few
// kilobytes of rules can cause hours of work or terabytes of text. Rules of real tokenizers need work
// proportional to the length of the text. Therefore each text gets a budget proportional to its length, and a
// text that exceeds its budget is an error.
//
// Not thread-safe: each text needs its own budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace primus {

class TextBudget {
 public:
  // Creates the budget for a text of `bytes` bytes.
  explicit TextBudget(std::size_t bytes);

  // Checks that stages may produce `bytes` more bytes of changed text. All stages together may produce 32
  // times the length of the text plus 4 KiB. The largest growth by a real rule is a factor of 13 (U+FDFA
  // under NFKC, with its spaces marked). Throws Error(kInvalid), which names `stage` ("the normalizer
  // 'Replace'"), if the budget is exceeded.
  void require_output(std::size_t bytes, std::string_view stage) const {
    if (bytes > output_left_) refuse_output(stage);
  }
  void take_output(std::size_t bytes, std::string_view stage) {
    require_output(bytes, stage);
    output_left_ -= bytes;
  }

  // Throws Error(kInvalid), which quotes `expression`, if matching this text has used more CPU time of this
  // thread than 1 s plus 2 us per byte. The slowest expressions of real tokenizers need a tenth of this time.
  // Reads the clock at the first call, at every 64th call, and if `due` is set.
  void take_match(std::string_view expression, bool due = false) {
    if (due || calls_ % kCallsPerCheck == 0) check_time(expression);
    ++calls_;
  }
  // Returns the maximum number of steps of one match (PCRE2's match limit).
  std::uint32_t steps_per_match() const { return steps_per_match_; }

 private:
  // Reads the clock only at every 64th call, because reading the clock costs as much as a few matches.
  static constexpr std::uint64_t kCallsPerCheck = 64;
  void check_time(std::string_view expression);
  [[noreturn]] void refuse_output(std::string_view stage) const;

  std::size_t bytes_, output_left_;
  std::uint32_t steps_per_match_;
  std::uint64_t calls_ = 0;
  double start_ = 0;  // CPU time of the thread at the first call, in seconds
};

}  // namespace primus
