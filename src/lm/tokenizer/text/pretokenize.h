// Pre-tokenizers cut a text into words, which the model then encodes separately.
//
// The regular expressions of GPT-2, of the cl100k family (Llama 3, Qwen) and of o200k (gpt-oss, Llama 4) have
// hand-written matchers, which read each character about once. Every other expression is executed by PCRE2
// (regex.h).
//
// Thread-safety: all const methods may be called from any number of threads at once.
#pragma once

#include <memory>
#include <string_view>

#include "base/system/thread_pool.h"
#include "lm/tokenizer/text/text_budget.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

// A range of the text. `at_start`: whether the range begins at the start of the user's text.
struct Piece {
  std::string_view text;
  bool at_start = false;
};
using PieceSink = FunctionRef<void(Piece)>;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Splits `piece` and calls `sink` for each resulting piece that is not empty, in order. If the
  // pre-tokenizer changes the text of a piece, the changed text is valid only during the call of `sink`.
  // Throws Error(kInvalid) if splitting costs more than the remaining `budget`, which applies to the full
  // text.
  virtual void split(Piece piece, TextBudget& budget, PieceSink sink) const = 0;
};

// How a split treats the matches of its expression (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Cuts the text at the matches of `regex`; with `invert`, cuts at the text between matches.
std::unique_ptr<PreTokenizer> make_regex_split(std::string_view regex, SplitBehavior behavior, bool invert);
// Like make_regex_split(), but cuts at a literal text.
std::unique_ptr<PreTokenizer> make_text_split(std::string_view text, SplitBehavior behavior, bool invert);
// Cuts at characters with any of the properties (kNumericDigit: Digits, kPunctuation ...).
std::unique_ptr<PreTokenizer> make_property_split(unicode::Properties properties, SplitBehavior behavior);
// Splits into the matches of \w+|[^\w\s]+
std::unique_ptr<PreTokenizer> make_whitespace_words();

// Expressions that have hand-written matchers, from GPT-2, of Llama 3 (and cl100k), of o200k, and of
// Megatron's TikTokenizer.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kO200kPattern;
extern const std::string_view kMegatronPattern;

}  // namespace primus
