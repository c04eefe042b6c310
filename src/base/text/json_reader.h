// A strict pull parser for JSON text (RFC 8259) that allocates only the strings it returns. Used for
// safetensors headers of 100 MB, tokenizer files with a hundred thousand entries, and corpora with one object
// per line.
//
//   JsonReader json(text, "model.safetensors.index.json");
//   json.object([&](std::string_view key) {
//     if (key == "size") size = json.read_unsigned(); else json.skip();
//   });
//   json.finish();
//
// Errors: Error(kInvalid) at "name:line:column". Nesting and key length are limited, and the parser does not
// recurse. Duplicate keys are not detected. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace primus {

struct JsonReaderOptions {
  std::int64_t first_line = 1;  // number of the text's first line in the file `name`
  // Also accepts extensions that Python's json module writes: NaN and Infinity, and unpaired \u surrogates.
  // Strings with an unpaired surrogate can only be skipped, because they are not valid text.
  bool python = false;
  std::string_view hint = {};  // the hint of errors; must outlive the reader
};

class JsonReader {
 public:
  static constexpr int kMaxDepth = 128;
  static constexpr std::size_t kMaxKeyBytes = 1U << 20;
  enum class Kind { kObject, kArray, kString, kNumber, kBool, kNull };

  // `text` and `name` must outlive the reader.
  explicit JsonReader(std::string_view text, std::string_view name, JsonReaderOptions options = {})
      : text_(text), name_(name), options_(options) {}

  // Returns the kind of the next value.
  Kind peek();
  // Throws unless the next value is of this kind: "<what> '<key>' is a number, not a string" at its position.
  void require(Kind kind, std::string_view what, std::string_view key = {});

  // Calls member(key) for each member of an object; member() must read or skip the value. The key stays valid
  // until member() returns.
  template <typename Member>
  void object(Member member) {
    begin_object();
    for (std::string key; next_key(key);) member(std::string_view(key));
  }
  // Calls element() for each element of an array; element() must read or skip one value.
  template <typename Element>
  void array(Element element) {
    begin_array();
    while (next_element()) element();
  }

  // object() step by step: call begin_object(), then next_key() until it returns false. Each key's value must
  // be read or skipped.
  void begin_object();
  bool next_key(std::string& key);
  // array() step by step, like begin_object() and next_key().
  void begin_array();
  bool next_element();

  // Reads a string into `out`, whose old content is replaced.
  void read_string(std::string& out);
  std::string read_string();
  std::int64_t read_int();
  std::uint64_t read_unsigned();  // no sign, no fraction, no exponent
  std::int64_t read_size();       // an unsigned integer below 2^63
  double read_double();
  bool read_bool();
  bool read_null();  // if the next value is null, skips it and returns true

  // Skips and validates one value of any kind. Returns its text.
  std::string_view skip();
  // Throws unless only whitespace is left.
  void finish();

  [[noreturn]] void fail(std::string_view what) const { fail_at(what, at_); }
  // Throws an error about valid JSON with unsuitable content. The message is that of fail() without the words
  // "broken JSON".
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  [[noreturn]] void fail_at(std::string_view what, std::size_t at) const;
  std::string place(std::size_t at) const;  // "name:line:column"
  char next_character();                    // skips whitespace and returns the next character without
                                            // consuming it; '\0' at the end
  void expect(char c, std::string_view what);
  bool next_item(char close);
  std::string_view scan_number();
  template <typename Integer>
  Integer read_whole(std::string_view what);
  // Consumes a string, starting at its opening quote. If `out` is not null, appends the string to `out`.
  void scan_string(std::string* out, std::size_t limit = SIZE_MAX);
  void append_escape(std::string* out);
  std::uint32_t read_hex4();

  std::string_view text_, name_;
  JsonReaderOptions options_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool first_item_ = false;  // true directly after an opening bracket
};

}  // namespace primus
