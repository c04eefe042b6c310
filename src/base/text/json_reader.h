// A strict pull reader of JSON text (RFC 8259) that allocates nothing but the strings it hands out: for
// safetensors headers of 100 MB, tokenizer files with a hundred thousand entries, and corpora with one object
// a line.
//
//   JsonReader json(text, "model.safetensors.index.json");
//   json.object([&](std::string_view key) {
//     if (key == "size") size = json.read_unsigned(); else json.skip();
//   });
//   json.finish();
//
// Errors: Error(kInvalid) at "name:line:column". Nesting and the length of keys are limited, and nothing here
// recurses. Equal keys are not looked for. Thread-safety: none; a reader is used on one stack.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace primus {

struct JsonReaderOptions {
  std::int64_t first_line = 1;  // the number of the text's first line in `name`
  // Also reads what Python's json module writes beyond the standard: NaN and Infinity, and half of a \u
  // surrogate pair, which is no text: it may stand in what is skipped, not in what is read.
  bool python = false;
  std::string_view hint = {};  // the next step that errors name; must outlive the reader
};

class JsonReader {
 public:
  static constexpr int kMaxDepth = 128;
  static constexpr std::size_t kMaxKeyBytes = 1U << 20;
  enum class Kind { kObject, kArray, kString, kNumber, kBool, kNull };

  // `text` and `name` must outlive the reader.
  explicit JsonReader(std::string_view text, std::string_view name, JsonReaderOptions options = {})
      : text_(text), name_(name), options_(options) {}

  // What the next value is.
  Kind peek();
  // Fails unless the next value is of this kind: "<what> '<key>' is a number, not a string" at its place.
  void require(Kind kind, std::string_view what, std::string_view key = {});

  // Calls member(key) for each member of an object; it must read or skip the value. The key stays valid
  // until member() returns.
  template <typename Member>
  void object(Member member) {
    begin_object();
    for (std::string key; next_key(key);) member(std::string_view(key));
  }
  // Calls element() for each element of an array; it must read or skip it.
  template <typename Element>
  void array(Element element) {
    begin_array();
    while (next_element()) element();
  }

  // The same step by step: begin_object(), then next_key() until it returns false; each key's value must be
  // read or skipped.
  void begin_object();
  bool next_key(std::string& key);
  // Arrays likewise.
  void begin_array();
  bool next_element();

  // Appends nothing: `out` is replaced.
  void read_string(std::string& out);
  std::string read_string();
  std::int64_t read_int();
  std::uint64_t read_unsigned();  // no sign, no fraction, no exponent
  std::int64_t read_size();       // the same, below 2^63
  double read_double();
  bool read_bool();
  bool read_null();  // true, and past it, where the next value is null

  // Passes one value of any kind, checking it. Returns its text.
  std::string_view skip();
  // Fails unless only blanks are left.
  void finish();

  [[noreturn]] void fail(std::string_view what) const { fail_at(what, at_); }
  // The same for what is JSON, but not what the file must hold: without the words "broken JSON".
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  [[noreturn]] void fail_at(std::string_view what, std::size_t at) const;
  std::string place(std::size_t at) const;  // "name:line:column"
  char next_character();                    // the next that is no blank, not passed; '\0' at the end
  void expect(char c, std::string_view what);
  bool next_item(char close);
  std::string_view scan_number();
  template <typename Integer>
  Integer read_whole(std::string_view what);
  // Passes a string, its opening quote being next; appends it to `out` unless that is null.
  void scan_string(std::string* out, std::size_t limit = SIZE_MAX);
  void append_escape(std::string* out);
  std::uint32_t read_hex4();

  std::string_view text_, name_;
  JsonReaderOptions options_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool first_item_ = false;  // just behind an opening bracket
};

}  // namespace primus
