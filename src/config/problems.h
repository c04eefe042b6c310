// Collects the problems of one input, so that a user can fix all problems after one run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace primus::config {

// Several problems as one Error. The text of the Error lists all problems, and programs can read every
// problem separately.
class SeveralProblems : public Error {
 public:
  // `count` is the number of problems that were found. `problems` contains the first of these, and at least
  // two.
  SeveralProblems(std::vector<Error> problems, std::size_t count);
  const std::vector<Error>& problems() const { return problems_; }
  std::size_t count() const { return count_; }

 private:
  std::vector<Error> problems_;
  std::size_t count_;
};

class Problems {
 public:
  static constexpr std::size_t kMaxShown = 20;
  // Maximum number of kept problems: each explanation takes time, and a file may have thousands of problems.
  static constexpr std::size_t kMaxKept = 256;

  // Runs `check` and keeps the Error that it throws, if any.
  template <class Check>
  void collect(Check&& check) {
    try {
      std::forward<Check>(check)();
    } catch (const Error& problem) {
      add(problem);
    }
  }
  void add(Error problem) {
    ++count_;
    if (problems_.size() < kMaxKept) problems_.push_back(std::move(problem));
  }
  bool empty() const { return count_ == 0; }
  // Returns whether one more problem would be kept. If not, callers need not compute its explanation.
  bool are_kept() const { return problems_.size() < kMaxKept; }

  // Throws a single problem unchanged, and several problems as SeveralProblems.
  void throw_if_any() const;

 private:
  std::vector<Error> problems_;
  std::size_t count_ = 0;
};

}  // namespace primus::config
