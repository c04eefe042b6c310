// A strict pull reader of JSON text (RFC 8259) that allocates nothing but the strings it hands out: for
// tokenizer files with a hundred thousand entries, and for corpora with one object a line.
//
// Also reads what Python's json module writes beyond the standard: NaN and Infinity. A lone \u surrogate,
// which that module writes too, is no text: it may stand in what is skipped, not in what is read. Errors:
// Error(kInvalid) at "name:line:column". Nesting is limited, and nothing here recurses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace primus {

class JsonReader {
 public:
  static constexpr int kMaxDepth = 128;
  enum class Kind { kObject, kArray, kString, kNumber, kBool, kNull };

  // `text` and `name` must outlive the reader. `first_line`: the number of the text's first line in `name`.
  explicit JsonReader(std::string_view text, std::string_view name, int64_t first_line = 1)
      : text_(text), name_(name), first_line_(first_line) {}

  // What the next value is.
  Kind peek();
  // Fails unless the next value is of this kind: "<what> '<key>' is a number, not a string" at its place.
  void require(Kind kind, std::string_view what, std::string_view key = {});

  // Objects: begin_object(), then next_key() until it returns false; each key's value must be read or
  // skipped.
  void begin_object();
  bool next_key(std::string& key);
  // Arrays likewise.
  void begin_array();
  bool next_element();

  // Appends nothing: `out` is replaced.
  void read_string(std::string& out);
  std::string read_string();
  int64_t read_int();
  double read_double();
  bool read_bool();
  bool read_null();  // true, and past it, where the next value is null

  // Passes one value of any kind, checking it. Returns its text.
  std::string_view skip();
  // Fails unless only blanks are left.
  void finish();

  [[noreturn]] void fail(std::string_view what) const { fail_at(what, at_); }

 private:
  [[noreturn]] void fail_at(std::string_view what, size_t at) const;
  std::string place(size_t at) const;  // "name:line:column"
  char next_character();               // the next that is no blank, not passed; '\0' at the end
  void expect(char c, std::string_view what);
  bool next_item(char close);
  std::string_view scan_number();
  // Passes a string, its opening quote being next; appends it to `out` unless that is null.
  void scan_string(std::string* out);
  void append_escape(std::string* out);
  uint32_t read_hex4();

  std::string_view text_, name_;
  int64_t first_line_;
  size_t at_ = 0;
  int depth_ = 0;
  bool first_item_ = false;  // just behind an opening bracket
};

}  // namespace primus
