// Translates regular expressions of tokenizer files (Oniguruma's Ruby syntax, Unicode 16) to PCRE2 syntax.
#pragma once

#include <string>
#include <string_view>

namespace primus {

struct PcrePattern {
  std::string plain;  // expression for text without unicode::kNewer characters
  std::string exact;  // expression for any text; its classes also list the newer characters, so it is slower
};

// Error(kUnsupported) quoting the expression if a part of it has another meaning in PCRE2 and no translation.
PcrePattern to_pcre(std::string_view pattern);

}  // namespace primus
