// Translates regular expressions of tokenizer files (Oniguruma's Ruby syntax, Unicode 16) to PCRE2 syntax.
#pragma once

#include <string>
#include <string_view>

namespace primus {

struct PcrePattern {
  std::string plain;  // expression for text that contains no character with unicode::kNewer
  std::string exact;  // expression for any text; it is slower, because its character classes also list the
                      // newer characters
};

// Throws Error(kUnsupported), which quotes the expression, if a part of the expression means something else
// in PCRE2 and has no translation.
PcrePattern to_pcre(std::string_view pattern);

}  // namespace primus
