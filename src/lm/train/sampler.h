// Writes the texts that a training run shows of its model as it is now (sample_interval). All ranks make the
// same calls; rank 0's record decides what was written before, by this process or an earlier one. Internal to
// lm/train. One thread.
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
  // All must outlive this. Reads the prompt from the experiment or the data.
  Sampler(RunPlan& plan, const RunProgress& progress, TrainingSession& session);

  // Whether a text of this iteration is due and rank 0 has no record of it.
  bool is_due();
  // Writes the text that is due. The last step must have been asked for. False: `stop` came first, and it is
  // still due.
  bool write(const std::atomic<bool>& stop);

 private:
  bool write_own(const std::atomic<bool>& stop, bool together);
  GenerateSettings settings() const;
  // The experiment's prompt, or whole words near the beginning of the data.
  std::vector<std::int32_t> find_prompt() const;

  RunPlan& plan_;
  const RunProgress& progress_;
  TrainingSession& session_;
  std::vector<std::int32_t> prompt_;
};

}  // namespace primus
