// What the rules of a tokenizer's file may cost on one text.
//
// The rules (normalizers, expressions, word marks) come from a file that anybody may have written, and a few
// kilobytes of them can ask for hours of work or terabytes of text. Rules of real tokenizers do an amount of
// work that is proportional to the text, so each text gets a budget that is: whoever is beyond it is refused.
//
// Not thread-safe: one per text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace primus {

class TextBudget {
 public:
  // For a text of `bytes`.
  explicit TextBudget(std::size_t bytes);

  // Bytes of changed text that may still be made, of all stages together: 32 times the text and 4 KiB. The
  // largest growth of a real rule is 13 (U+FDFA under NFKC, with its spaces marked).
  // Error(kInvalid) naming `stage` ("the normalizer 'Replace'") where they are fewer than `bytes`.
  void require_output(std::size_t bytes, std::string_view stage) const {
    if (bytes > output_left_) refuse_output(stage);
  }
  void take_output(std::size_t bytes, std::string_view stage) {
    require_output(bytes, stage);
    output_left_ -= bytes;
  }

  // Error(kInvalid) quoting `expression` where the expressions took more processor time of this thread for
  // this text than 1 s and 2 us for each byte: ten times what the slowest expressions of real tokenizers
  // need. The clock is read at the first call and every 64th, and where it is `due`.
  void take_match(std::string_view expression, bool due = false) {
    if (due || calls_ % kCallsPerCheck == 0) check_time(expression);
    ++calls_;
  }
  // Steps that one match may take (PCRE2's match limit).
  std::uint32_t steps_per_match() const { return steps_per_match_; }

 private:
  // Asking for the time of this thread costs as much as a few matches.
  static constexpr std::uint64_t kCallsPerCheck = 64;
  void check_time(std::string_view expression);
  [[noreturn]] void refuse_output(std::string_view stage) const;

  std::size_t bytes_, output_left_;
  std::uint32_t steps_per_match_;
  std::uint64_t calls_ = 0;
  double start_ = 0;  // of the thread's processor time, in seconds
};

}  // namespace primus
