// Limits the steps (time), bytes (memory) and nesting of one rendering, so that hostile templates are
// harmless. Also declares the error of a template.
//
// Not thread-safe: each rendering has its own Budget.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace primus::jinja {

// An error of a template or of its data: Error(kInvalid) whose text is "TYPE: MESSAGE".
class Failure : public Error {
 public:
  // `type`: the name of the exception that transformers raises ("TypeError"); "LimitError" for the limits of
  // this interpreter.
  Failure(std::string type, const std::string& message)
      : Error(ErrorKind::kInvalid, type + ": " + message), type_(std::move(type)), message_(message) {}

  const std::string& type() const { return type_; }
  const std::string& message() const { return message_; }

 private:
  std::string type_, message_;
};

struct Limits {
  std::int64_t steps = 20'000'000;  // number of evaluated expressions, elements and 16-byte units of text
  std::int64_t bytes = std::int64_t{256} << 20;  // size of all values made, including released values
  int nesting = 1000;                            // depth of nested expressions and statements at run time
};

class Budget {
 public:
  static constexpr int kMaxDepth = 200;  // max depth of nested lists

  explicit Budget(const Limits& limits) : limits_(limits), steps_(limits.steps), bytes_(limits.bytes) {}

  void take_steps(std::int64_t count = 1) {
    if ((steps_ -= count) < 0) refuse_steps();
  }
  // Takes bytes, and also the steps for writing them.
  void take_bytes(std::int64_t count) {
    if (count > bytes_) refuse_bytes();
    bytes_ -= count;
    take_steps(count / 16);
  }
  // Like take_bytes(count * size), but without overflow. Both arguments must be >= 0.
  void take_product(std::int64_t count, std::int64_t size) {
    if (size > 0 && count > bytes_ / size) refuse_bytes();
    take_bytes(count * size);
  }
  void require_depth(int depth) const {
    if (depth > kMaxDepth) refuse_depth();
  }

  // Counts as one level of nesting at run time while the object exists.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (++budget_.level_ > budget_.limits_.nesting) {
        --budget_.level_;
        budget_.refuse_nesting();
      }
    }
    ~Level() { --budget_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  [[noreturn]] void refuse_steps() const;
  [[noreturn]] void refuse_bytes() const;
  [[noreturn]] static void refuse_depth();
  [[noreturn]] void refuse_nesting() const;

  Limits limits_;
  std::int64_t steps_, bytes_;
  int level_ = 0;
};

}  // namespace primus::jinja
