// Pre-tokenizers cut a text into words, which the model then encodes separately.
//
// The regular expressions of GPT-2, of the cl100k family (Llama 3, Qwen) and of o200k (gpt-oss, Llama 4) have
// hand-written matchers here, which read each character about once; any other expression runs on PCRE2
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

// A piece of the text. `at_start`: whether the piece is at the start of the user's text.
struct Piece {
  std::string_view text;
  bool at_start = false;
};
using PieceSink = FunctionRef<void(Piece)>;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Passes the pieces of `piece`, none of them empty, to `sink` in order. If the pre-tokenizer changes a
  // piece, the changed text is valid only during the call of `sink`. Error(kInvalid) if splitting costs more
  // than the rest of `budget`, which is the budget of the full text.
  virtual void split(Piece piece, TextBudget& budget, PieceSink sink) const = 0;
};

// How a split treats the matches of its expression (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Cuts at the matches of `regex`; with `invert`, cuts at the text between the matches instead.
std::unique_ptr<PreTokenizer> make_regex_split(std::string_view regex, SplitBehavior behavior, bool invert);
// Like make_regex_split(), but cuts at a literal text.
std::unique_ptr<PreTokenizer> make_text_split(std::string_view text, SplitBehavior behavior, bool invert);
// Cuts at characters with any of the properties (kNumericDigit: Digits, kPunctuation ...).
std::unique_ptr<PreTokenizer> make_property_split(unicode::Properties properties, SplitBehavior behavior);
// Splits into the matches of \w+|[^\w\s]+
std::unique_ptr<PreTokenizer> make_whitespace_words();

// Expressions that have hand-written matchers: GPT-2, Llama 3 (and cl100k), o200k, and Megatron's
// TikTokenizer.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kO200kPattern;
extern const std::string_view kMegatronPattern;

}  // namespace primus
