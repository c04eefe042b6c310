// Generates the sample texts that show the model's progress during training (sample_interval). All ranks make
// the same calls. Rank 0's record decides which texts this or an earlier process has already written.
// Internal to lm/train. One thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "lm/generate/generate.h"
#include "lm/train/run_plan.h"
#include "lm/train/session.h"

namespace primus {

class Sampler {
 public:
  // All arguments must outlive this object. Reads the prompt from the experiment or the data.
  Sampler(RunPlan& plan, const RunProgress& progress, TrainingSession& session);

  // Whether a text is due at this iteration and rank 0 has no record of it.
  bool is_due();
  // Writes the text that is due. Requires that the result of the last step has been read. Returns false if
  // `stop` was set first; the text is then still due.
  bool write(const std::atomic<bool>& stop);

 private:
  bool write_own(const std::atomic<bool>& stop, bool together);
  GenerateSettings settings() const;
  // Returns the experiment's prompt, or complete words near the beginning of the data.
  std::vector<std::int32_t> find_prompt() const;

  RunPlan& plan_;
  const RunProgress& progress_;
  TrainingSession& session_;
  std::vector<std::int32_t> prompt_;
};

}  // namespace primus
