// Drawing of pipeline timelines, shared by pipeline_plan.cpp and measured_pipeline.cpp. Internal to plan.
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/parallel/pipeline_schedule.h"
#include "plan/pipeline_plan.h"

namespace primus::drawing {

inline constexpr std::size_t kMargin = 10;  // left margin of text rows: "stage 12  "

enum class Labels : std::uint8_t { kAll, kNone, kWhereTheyFit };
// Draws one row per stage with `columns` columns. A column represents the time `per_column`. Without labels,
// a piece of work is drawn as its letter, repeated. '.' means that the stage is idle.
std::string text_rows(const engine::PipelineTimeline& timeline, std::size_t columns, double per_column,
                      Labels labels);

inline constexpr double kLeft = 80, kTop = 46, kRow = 30, kWidth = 1200;
// Returns the number of pixels per unit of time with which `makespan` fills the width of an image.
inline double svg_scale(double makespan) { return (kWidth - kLeft - 20) / makespan; }
// Begins an image of this height, including its title; svg_end() closes it.
std::string svg_begin(double height, const std::string& title);
std::string svg_rows(const engine::PipelineTimeline& timeline, double top, double scale);
std::string svg_text(double y, const std::string& text);
inline std::string svg_end() { return "</svg>\n"; }

std::string title_of(const PipelinePlan& plan);
// Returns a legend: "F forward, B backward of inputs, W of weights".
std::string legend_of(const PipelinePlan& plan);

}  // namespace primus::drawing
