// Collects what is wrong with one input, so that a user fixes five mistakes in one go and not in five runs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace primus::config {

// Several problems as one Error: its text lists them, and programs get each by itself.
class SeveralProblems : public Error {
 public:
  // `problems`: at least two, the first of `count` found.
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
  // What programs get. Each costs time to explain, and a file may have thousands.
  static constexpr std::size_t kMaxKept = 256;

  // Runs `check`; an Error it throws is kept.
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
  // Whether another problem would still be kept: what costs time to explain need not be explained otherwise.
  bool are_kept() const { return problems_.size() < kMaxKept; }

  // Throws the only problem as it is, or several as SeveralProblems.
  void throw_if_any() const;

 private:
  std::vector<Error> problems_;
  std::size_t count_ = 0;
};

}  // namespace primus::config
