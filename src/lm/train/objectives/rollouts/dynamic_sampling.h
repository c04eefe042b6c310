// Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2). A group of answers with equal rewards has
// advantages of 0 and teaches nothing. A step discards such groups and generates groups for further prompts
// in their place, until all groups of the step have different rewards or the step has used all its attempts.
//
// The prompts of the run are numbered in the order of the data, without end. A step takes the next numbers,
// so its prompts depend on the number of groups that earlier steps discarded. Checkpoints contain the next
// number.
//
// All ranks of the mesh make the same calls. Host functions; not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lm/checkpoint/checkpoint.h"
#include "lm/train/objectives/rules/advantages.h"

namespace primus {

class DynamicSampling {
 public:
  struct Settings {
    std::int64_t groups = 1;      // number of groups of a step
    std::int64_t attempts = 1;    // max number of times that a step generates groups, at least 1
    std::int64_t iterations = 1;  // number of consecutive steps that learn from the same answers
    bool writes = true;           // whether this rank writes the next number into checkpoints
    // Logs a warning. Called at most once.
    std::function<void(const std::string& text)> warn = {};
  };

  explicit DynamicSampling(Settings settings) : settings_(std::move(settings)) {}

  // Begins a step that generates answers. take() then returns the number of the next prompt.
  void begin(std::int64_t step);
  std::int64_t take() { return next_++; }

  // Counts the groups of an attempt. `groups`: their indices in the step. `attempt`: their advantages.
  // `rewarded`: number of their answers with a reward. Returns the indices of the groups to generate again;
  // empty if there are none, or if this was the last attempt. Throws Error(kInvalid) after the last attempt
  // if no group of the step has different rewards; `reason`, if not empty, becomes part of the message.
  std::vector<std::int64_t> discard(std::span<const std::int64_t> groups, const Advantages& attempt,
                                    std::int64_t rewarded, const std::string& reason);

  // Ends the step: later steps continue with the numbers that take() has not returned.
  void finish() { committed_ = next_; }

  // Returns the metrics of the step.
  std::vector<std::pair<std::string, double>> metrics() const;

  // Returns the tensor of a checkpoint after step `done`.
  TensorSource state(std::int64_t done) const;
  // Reads the next number from a checkpoint. A checkpoint of a run without dynamic sampling has none; the
  // next number is then the one that this run would have reached. Throws Error(kInvalid) for an impossible
  // number.
  void restore(const CheckpointReader& checkpoint);

 private:
  // Returns the number of prompts that `done` steps use if they discard no group.
  std::int64_t undiscarded(std::int64_t done) const;

  const Settings settings_;
  std::optional<std::int64_t> committed_;  // the next number after the last finished step
  std::int64_t next_ = 0;
  // The current step.
  struct Step {
    std::int64_t number = 0;
    std::int64_t attempts = 0, generated = 0, discarded = 0;  // attempts; groups
    std::int64_t varied = 0;                                  // groups that the step keeps
    double rewards = 0, rewarded = 0;  // sum of the rewards of all generated answers; number of answers
  } step_;
  bool warned_ = false;
};

}  // namespace primus
