// Pictures of pipeline schedules: what each stage does when, its gaps and how many activations it holds,
// drawn from the lists that training runs (engine/pipeline_schedule.h).
#pragma once

#include <cstddef>
#include <string>

#include "engine/pipeline_schedule.h"

namespace primus {

struct PipelinePlan {
  engine::PipelineSchedule schedule;
  engine::PipelineCosts costs;
  engine::PipelineTimeline timeline;
};

// Throws Error(kInvalid) for numbers that the schedule cannot have, and for costs that are no times.
PipelinePlan plan_pipeline(engine::ScheduleKind kind, int stages, int chunks, std::int64_t microbatches,
                           const engine::PipelineCosts& costs = {});

// The drawing, a row for each stage, and the figures below it. With room in `width` columns every piece of
// work has its letter and the number of its microbatch, "F3" (a ' for each chunk but the first); otherwise
// its letter alone, over as many columns as it takes of the time. '.': the stage waits.
std::string to_text(const PipelinePlan& plan, std::size_t width);
// The same as a page-wide SVG image.
std::string to_svg(const PipelinePlan& plan);
// Shape, figures, and every stage's work with its times.
std::string to_json(const PipelinePlan& plan);

}  // namespace primus
