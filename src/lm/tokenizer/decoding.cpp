#include "lm/tokenizer/decoding.h"

#include "lm/tokenizer/text/unicode.h"

namespace primus {

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_;
    joined += bytes;
    bytes = joined;
  }
  std::size_t incomplete = 0;
  // Finds the incomplete character at the end, which the next bytes may complete.
  std::string_view rest = bytes;
  while (true) {
    const std::size_t valid = unicode::valid_prefix(rest, &incomplete);
    if (valid + incomplete == rest.size()) break;
    rest.remove_prefix(valid + 1);
  }
  unicode::append_lossy(bytes.substr(0, bytes.size() - incomplete), out);
  std::string tail(bytes.substr(bytes.size() - incomplete));
  pending_.swap(tail);
}

void Utf8Stream::finish(std::string& out) {
  if (!pending_.empty()) out += unicode::kReplacement;
  pending_.clear();
}

}  // namespace primus
