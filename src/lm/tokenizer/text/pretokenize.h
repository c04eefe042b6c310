// Pre-tokenizers cut a text into the words that a model then encodes one by one.
//
// The regular expressions of GPT-2, of the cl100k family (Llama 3, Qwen) and of o200k (gpt-oss, Llama 4) have
// hand-written matchers here, which read each character about once; any other expression runs on PCRE2
// (regex.h).
//
// Thread-safety: all const methods.
#pragma once

#include <memory>
#include <string_view>

#include "base/system/thread_pool.h"
#include "lm/tokenizer/text/text_budget.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

// A piece of the text; `at_start` where it begins the text that the user gave.
struct Piece {
  std::string_view text;
  bool at_start = false;
};
using PieceSink = FunctionRef<void(Piece)>;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Gives the pieces of `piece`, in order and none of them empty, to `sink`. A piece's text is valid only
  // during the call where the pre-tokenizer had to change it. Error(kInvalid) where that costs more than
  // `budget`, of the text that the piece is from, has left.
  virtual void split(Piece piece, TextBudget& budget, PieceSink sink) const = 0;
};

// What becomes of the matches of a splitting expression (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Cuts at the matches of `regex`; `invert` cuts at what lies between them instead.
std::unique_ptr<PreTokenizer> make_regex_split(std::string_view regex, SplitBehavior behavior, bool invert);
// The same for a literal text.
std::unique_ptr<PreTokenizer> make_text_split(std::string_view text, SplitBehavior behavior, bool invert);
// Cuts where characters with any of the properties stand (kNumericDigit: Digits, kPunctuation ...).
std::unique_ptr<PreTokenizer> make_property_split(unicode::Properties properties, SplitBehavior behavior);
// \w+|[^\w\s]+
std::unique_ptr<PreTokenizer> make_whitespace_words();

// Known expressions: of GPT-2, of Llama 3 (and cl100k), of o200k, and of Megatron's TikTokenizer.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kO200kPattern;
extern const std::string_view kMegatronPattern;

}  // namespace primus
