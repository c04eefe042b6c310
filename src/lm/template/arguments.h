// Reads the arguments of a function by position or name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "lm/template/interpreter.h"

namespace primus::jinja {

class Parameters {
 public:
  // `names`: the names of all parameters. Throws Failure("TypeError") if one of the first `required`
  // parameters is missing, or if an argument matches no parameter.
  Parameters(Interpreter& run, std::string_view function, Args& args,
             std::initializer_list<std::string_view> names, std::size_t required = 0);

  bool has(std::size_t index) const { return values_[index] != nullptr; }
  const Value& operator[](std::size_t index) const { return *values_[index]; }
  Value get(std::size_t index, const Value& otherwise) const {
    return has(index) ? *values_[index] : otherwise;
  }
  // Returns an argument that must be a text; `otherwise` if the argument is not given. Throws
  // Failure("TypeError") for another type.
  std::string text(std::size_t index, std::string_view otherwise = {}) const;
  std::int64_t integer(std::size_t index, std::int64_t otherwise) const;
  bool flag(std::size_t index, bool otherwise) const {
    return has(index) ? is_true(*values_[index]) : otherwise;
  }

 private:
  std::string_view function_;
  std::vector<const Value*> values_;
};

// Returns the integer of a value that Python accepts as an index, clamped to 64 bits. Throws
// Failure("TypeError") for any other value.
std::int64_t index_of(const Value& value);

}  // namespace primus::jinja
