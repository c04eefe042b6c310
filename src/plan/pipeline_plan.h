// Pictures of pipeline schedules, drawn from the same lists of work that training executes
// (engine/parallel/pipeline_schedule.h): each stage's work, its gaps, and the number of activations that it
// holds.
#pragma once

#include <cstddef>
#include <string>

#include "engine/parallel/pipeline_schedule.h"

namespace primus {

struct PipelinePlan {
  engine::PipelineSchedule schedule;
  engine::PipelineCosts costs;
  engine::PipelineTimeline timeline;
};

// Throws Error(kInvalid) for numbers that the schedule does not support, and for invalid costs.
PipelinePlan plan_pipeline(engine::ScheduleKind kind, int stages, int chunks, std::int64_t microbatches,
                           const engine::PipelineCosts& costs = {});

// Draws one row per stage, and below the rows the plan's key numbers. If `width` is sufficient, every piece
// of work shows its letter and microbatch, "F3" (a ' for each chunk after the first). Otherwise it shows its
// letter, repeated in proportion to its time. '.' means that the stage is idle.
std::string to_text(const PipelinePlan& plan, std::size_t width);
// Draws the same picture as an SVG image with the width of a page.
std::string to_svg(const PipelinePlan& plan);
// Returns the shape, the key numbers, and every stage's work with its times.
std::string to_json(const PipelinePlan& plan);

}  // namespace primus
