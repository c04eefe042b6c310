// Regular expressions of tokenizer files (Oniguruma's Ruby syntax, Unicode 16) in the words of PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace primus {

struct PcrePattern {
  std::string plain;  // for text without the characters that unicode::kNewer marks
  std::string exact;  // for any text: its classes list those characters, and are slower
};

// Error(kUnsupported) quoting the expression where it holds something that PCRE2 reads differently and that
// has no other form here.
PcrePattern to_pcre(std::string_view pattern);

}  // namespace primus
