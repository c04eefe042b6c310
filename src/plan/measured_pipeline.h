// The measured timeline of a pipeline and the timeline of its schedule. The measured timeline comes from the
// traces of the ranks (key `profile`, lm/train/run_trace.h). Free functions without state.
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
               // step: the step that is shown; first_step to last_step: the steps that the traces contain
      last_step = 0;
  std::vector<int> ranks;  // for each stage, the rank whose trace is shown
  double transfer = 0;     // mean time of a transfer, from the time when both sides are ready
  // The maximum time by which a receive ends before its send begins. The clocks of two hosts differ by at
  // least this time. 0: no receive ends before its send begins.
  double clocks_apart = 0;
  std::vector<std::string> notes = {};
};

// `names`: trace files, folders of them, or run folders, whose newest traces are used. `step`: the step's
// number in the log; default: the last step. Throws Error(kInvalid) if a name has no pipeline trace, if a
// stage has no trace, or if the traces lack the step.
MeasuredPipeline measure_pipeline(const std::vector<std::string>& names,
                                  std::optional<std::int64_t> step = {});

// These functions draw the measured and the generated timeline on the same time scale, in the formats of
// pipeline_plan.h.
std::string to_text(const MeasuredPipeline& pipeline, std::size_t width);
std::string to_svg(const MeasuredPipeline& pipeline);
std::string to_json(const MeasuredPipeline& pipeline);

}  // namespace primus
