// Turns token ids into text one at a time; used by Tokenizer::decode and StreamDecoder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace primus {

// The state of one stream of tokens. push() and finish() append only complete UTF-8 characters; an
// implementation holds back characters that a later token may still change.
class Decoding {
 public:
  virtual ~Decoding() = default;
  virtual void push(std::int32_t id, std::string& out) = 0;
  virtual void finish(std::string& out) = 0;  // outputs the rest, and starts a new stream
};

// Converts byte chunks to valid UTF-8: an unfinished character is held back, invalid bytes become U+FFFD. The
// result does not depend on the chunk borders.
class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);

 private:
  std::string pending_;  // the bytes of an incomplete character
};

}  // namespace primus
