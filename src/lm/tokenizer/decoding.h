// Converts token ids to text one by one. Used by Tokenizer::decode and StreamDecoder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace primus {

// The state of decoding one stream of tokens. push() and finish() append only complete UTF-8 characters;
// implementations hold back a character that a later token may still change.
class Decoding {
 public:
  virtual ~Decoding() = default;
  virtual void push(std::int32_t id, std::string& out) = 0;
  virtual void finish(std::string& out) = 0;  // appends the text held back, and starts a new stream
};

// Converts chunks of bytes to valid UTF-8. An incomplete character at the end of a chunk is held back;
// invalid bytes become U+FFFD. The result does not depend on how the bytes are divided into chunks.
class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);

 private:
  std::string pending_;  // the bytes of an incomplete character
};

}  // namespace primus
