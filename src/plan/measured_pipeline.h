// The measured timeline of a pipeline, read from the traces of its ranks (key `profile`,
// lm/train/run_trace.h), next to the timeline of its schedule. Free functions without state.
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
  PipelinePlan measured;   // its costs are means of the measured times
  PipelinePlan generated;  // the same schedule with all work at the mean costs and instant transfers
  std::int64_t step = 0, first_step = 0,
               last_step = 0;  // the displayed step, and the range in the traces
  std::vector<int> ranks;      // for each stage, the rank whose trace is shown
  double transfer = 0;         // mean time of a transfer, from the time when both sides are ready
  // The maximum time by which a receive ends before its send begins: clocks of hosts differ by at least this.
  // 0: none.
  double clocks_apart = 0;
  std::vector<std::string> notes = {};
};

// `names`: trace files, folders of them, or run folders, whose newest traces are used. `step`: the step's
// number in the log; default: the last step. Throws Error(kInvalid) if a name has no pipeline trace, if a
// stage has no trace, or if the traces lack the step.
MeasuredPipeline measure_pipeline(const std::vector<std::string>& names,
                                  std::optional<std::int64_t> step = {});

// These functions draw both timelines on one time scale, like the functions of pipeline_plan.h.
std::string to_text(const MeasuredPipeline& pipeline, std::size_t width);
std::string to_svg(const MeasuredPipeline& pipeline);
std::string to_json(const MeasuredPipeline& pipeline);

}  // namespace primus
