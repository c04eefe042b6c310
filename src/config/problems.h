// Collects what is wrong with one input, so that a user fixes five mistakes in one go and not in five runs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace primus::config {

class Problems {
 public:
  static constexpr size_t kMaxShown = 20;

  // Runs `check`; an Error it throws is kept.
  template <class Check>
  void collect(Check&& check) {
    try {
      std::forward<Check>(check)();
    } catch (const Error& problem) {
      add(problem);
    }
  }
  void add(Error problem) { problems_.push_back(std::move(problem)); }
  bool empty() const { return problems_.empty(); }
  // Whether another problem would still be shown: what costs time to explain need not be explained otherwise.
  bool are_shown() const { return problems_.size() < kMaxShown; }

  // Throws the only problem as it is, or several as one Error with all of them in its snippet.
  void throw_if_any() const;

 private:
  std::vector<Error> problems_;
};

}  // namespace primus::config
