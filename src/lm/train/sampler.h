// Generates sample texts during training, which show the progress of the model (sample_interval). All ranks
// make the same calls. The records of rank 0 show which texts are already written, by this process or an
// earlier one. Internal to lm/train. Not thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "lm/generate/generate.h"
#include "lm/train/run_plan.h"
#include "lm/train/step/session.h"

namespace primus {

class Sampler {
 public:
  // All arguments must outlive this object. Reads the prompt from the experiment or the data.
  Sampler(RunPlan& plan, const RunProgress& progress, TrainingSession& session);

  // Returns whether a text is due at this iteration, and rank 0 has not recorded it yet.
  bool is_due();
  // Writes the text that is due. The result of the last step must have been read before. If `stop` is set
  // before the text is complete, returns false, and the text remains due.
  bool write(const std::atomic<bool>& stop);

 private:
  bool write_own(const std::atomic<bool>& stop, bool together);
  GenerateSettings settings() const;
  // Returns the tokens of the experiment's prompt, or of complete words near the beginning of the data.
  std::vector<std::int32_t> find_prompt() const;

  RunPlan& plan_;
  const RunProgress& progress_;
  TrainingSession& session_;
  std::vector<std::int32_t> prompt_;
};

}  // namespace primus
