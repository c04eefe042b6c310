// Reads JSON in one pass, value by value, without building a tree: a header of 100 MB costs no memory beyond
// what its reader keeps. Strict RFC 8259: UTF-8 checked, no leading byte-order mark, nothing after the value.
//
//   JsonCursor json(text, "model.safetensors");
//   json.object([&](std::string_view key) { if (key == "size") size = json.unsigned_number(); else
//   json.skip(); }); json.end();
//
// Errors: kInvalid with `where` and the byte offset. Thread-safety: none; a cursor is used on one stack.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace primus {

// Text from a file as an error holds it: cut when long, and without a NUL, which would end what().
std::string excerpt(std::string_view text);

class JsonCursor {
 public:
  static constexpr std::size_t kMaxKeyBytes = 1U << 20;

  JsonCursor(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  // Calls member(key) for each member; it must read the value. Equal keys are not looked for, and those over
  // kMaxKeyBytes are refused. The key is valid until the cursor's next call.
  template <typename Member>
  void object(Member member) {
    expect('{');
    for (bool first = true; next('}', first); first = false) {
      read_key();
      expect(':');
      member(std::string_view(key_));
    }
  }
  // Calls element() for each element; it must read it.
  template <typename Element>
  void array(Element element) {
    expect('[');
    for (bool first = true; next(']', first); first = false) element();
  }
  std::string string();
  // A number without sign, fraction or exponent, below 2^64.
  std::uint64_t unsigned_number();
  // The same, as a non-negative int64.
  std::int64_t size_number();
  // The first character of the next token, which tells its type: { [ " t f n - or a digit.
  char peek();
  // Checks and passes over any value, at most 64 levels deep.
  void skip() { skip(0); }
  // Only white space may be left.
  void end();
  // Throws, naming the place of the value read last.
  [[noreturn]] void fail(std::string_view message) const;

 private:
  void space();
  bool next(char bracket, bool first);
  void expect(char c);
  void skip(int depth);
  void skip_number();
  void literal(std::string_view word);
  void escape(std::string* out);
  std::uint32_t hex4();
  void utf8();
  void read_key();
  void read_string(std::string* out, std::size_t limit = SIZE_MAX);

  std::string_view text_;
  std::string where_;
  std::size_t at_ = 0;
  std::string key_;
};

}  // namespace primus
