// Who watches a run while it goes on, besides log and files: the live view of a terminal. Every call comes
// from the trainer's thread and must return soon; nothing that is shown changes what is trained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lm/events/iteration.h"

namespace primus {

// What is known before the first step.
struct RunFacts {
  std::string folder;       // of the run
  std::string description;  // of model and device, one line
  std::int64_t first_iteration = 0, train_iters = 0;
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;
  // What is being done now, besides steps: "tokenizing corpus.txt". `share`: how much of it is done, 0..1,
  // where that is known. Empty: steps go on.
  virtual void phase(std::string_view what, std::optional<double> share) = 0;
  virtual void begin(const RunFacts& facts) = 0;
  virtual void iteration(const IterationRecord& record) = 0;
  virtual void evaluation(const EvaluationRecord& record) = 0;
  virtual void sample(const SampleRecord& record) = 0;
  // A checkpoint of that iteration is being written.
  virtual void saving(std::int64_t iteration) = 0;
};

}  // namespace primus
