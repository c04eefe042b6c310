// Turns token ids into text one at a time: the one code path behind Tokenizer::decode and StreamDecoder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace primus {

// The state of one stream of tokens. push() and finish() append whole UTF-8 characters only (raw bytes for
// the byte tokenizer); an implementation holds back what a later token may still change.
class Decoding {
 public:
  virtual ~Decoding() = default;
  virtual void push(std::int32_t id, std::string& out) = 0;
  virtual void finish(std::string& out) = 0;  // flushes, and starts a new stream
};

// Bytes that arrive in arbitrary cuts, given out as valid UTF-8: an unfinished character is held back, wrong
// bytes become U+FFFD. The result does not depend on the cuts.
class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);

 private:
  std::string pending_;  // the start of one character
};

}  // namespace primus
