// Counts generations of answers without any reward, and collects the reasons. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace primus {

class MissingRewards {
 public:
  // Begins an attempt to generate and score answers: discards the reasons of the last attempt.
  void begin() { problems_.clear(); }
  void add(std::string problem) { problems_.push_back(std::move(problem)); }
  bool has_problem() const { return !problems_.empty(); }
  // Returns the reasons: " (a; b)", or "" if there are none.
  std::string why() const;

  // Returns true at the first call for a function and a reason, for at most 20 reasons of a function: a
  // program may give another reason each time.
  bool is_new(std::size_t function, const std::string& problem);

  // Records that an answer of a step has a reward.
  void found() { steps_ = 0; }
  // Records that none of the `answers` answers of a step has a reward. A single such step does not end the
  // run: it happens, for example, if only some records have the column that a function reads. Logs a warning,
  // or throws Error(kInvalid) for step 1 and for the third such step in a row. `warn` may be empty.
  void none(std::int64_t step, std::int64_t answers, const std::function<void(const std::string&)>& warn);

 private:
  std::vector<std::string> problems_;          // reasons for missing rewards on this rank
  std::vector<std::set<std::string>> warned_;  // the reasons of each function
  int steps_ = 0;                              // number of generations in a row without any reward
};

}  // namespace primus
