// The timeline of a pipeline as it ran, read from the traces that its ranks wrote (key `profile`,
// lm/train/run_trace.h), beside the timeline that its schedule promises. Free functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "plan/pipeline_plan.h"

namespace primus {

// Times in milliseconds.
struct MeasuredPipeline {
  PipelinePlan measured;   // its costs are the means of what was measured
  PipelinePlan generated;  // the same schedule, if all work took those means and transfers no time
  std::int64_t step = 0, first_step = 0,
               last_step = 0;  // the one that is shown, and those that the traces hold
  std::vector<int> ranks;      // of each stage, the rank whose trace is shown
  double transfer = 0;         // mean time of a transfer, from when both sides were ready
  // How far receives seem to end before their sends began: clocks of hosts differ at least that much. 0:
  // none.
  double clocks_apart = 0;
  std::vector<std::string> notes = {};
};

// `names`: trace files, folders of them, or folders of runs, of which the newest traces are taken. `step`: by
// its number in the log; default: the last one. Throws Error(kInvalid) where a name holds no trace of a
// pipeline, a stage has none, or the step is not in them.
MeasuredPipeline measure_pipeline(const std::vector<std::string>& names,
                                  std::optional<std::int64_t> step = {});

// Both timelines on one scale of time, as pipeline_plan.h draws them.
std::string to_text(const MeasuredPipeline& pipeline, std::size_t width);
std::string to_svg(const MeasuredPipeline& pipeline);
std::string to_json(const MeasuredPipeline& pipeline);

}  // namespace primus
