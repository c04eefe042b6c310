#include "plan/pipeline_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/text/counted.h"
#include "plan/pipeline_drawing.h"

namespace primus {
namespace {

using engine::TimedWork;

std::size_t label_width(const PipelinePlan& plan) {
  std::size_t width = 0;
  for (const auto& stage : plan.timeline.stages) {
    for (const TimedWork& t : stage) {
      if (!t.work.transfer()) width = std::max(width, label_of(t.work).size());
    }
  }
  return width;
}

double shortest_work(const engine::PipelineCosts& costs) {
  double shortest = 0;
  for (const double cost : {costs.forward, costs.backward, costs.weight}) {
    if (cost > 0 && (shortest == 0 || cost < shortest)) shortest = cost;
  }
  return shortest;
}

int largest_stash(const PipelinePlan& plan) {
  return *std::max_element(plan.timeline.peak_stash.begin(), plan.timeline.peak_stash.end());
}

// Returns the stash in units of one microbatch's activations of all chunks of a stage.
double stash_in_microbatches(const PipelinePlan& plan) {
  return static_cast<double>(largest_stash(plan)) / plan.schedule.shape.chunks;
}

}  // namespace

PipelinePlan plan_pipeline(engine::ScheduleKind kind, int stages, int chunks, std::int64_t microbatches,
                           const engine::PipelineCosts& costs) {
  for (const double cost : {costs.forward, costs.backward, costs.weight, costs.transfer}) {
    if (!(cost >= 0 && cost <= 1e9)) throw invalid("times must be from 0 to 1e9");
  }
  if (shortest_work(costs) == 0) throw invalid("forward and backward work cannot all take no time");
  PipelinePlan plan{
      .schedule = engine::make_schedule(kind, stages, chunks, microbatches), .costs = costs, .timeline = {}};
  plan.timeline = engine::simulate(plan.schedule, costs);
  return plan;
}

std::string to_text(const PipelinePlan& plan, std::size_t width) {
  const engine::PipelineTimeline& timeline = plan.timeline;
  const engine::PipelineShape& shape = plan.schedule.shape;
  using drawing::kMargin;
  const std::size_t room = std::max<std::size_t>(width, kMargin + 20) - kMargin;
  const double unit = shortest_work(plan.costs);
  const std::size_t cell = label_width(plan) + 1;
  const double labelled = timeline.makespan / unit * static_cast<double>(cell);
  const bool labels = labelled <= static_cast<double>(room);
  const auto columns = labels ? static_cast<std::size_t>(std::lround(labelled)) : room;
  std::string text = drawing::title_of(plan) + "\n\n";
  text += drawing::text_rows(timeline, columns, timeline.makespan / static_cast<double>(columns),
                             labels ? drawing::Labels::kAll : drawing::Labels::kNone);
  text +=
      fmt::format("\n{}{}{}\n", drawing::legend_of(plan), labels ? ", with the number of the microbatch" : "",
                  labels && shape.chunks > 1 ? "; ' for each further chunk" : "");
  text += fmt::format("time         {:.6g}, of which a stage's own work is {:.6g}\n", timeline.makespan,
                      timeline.makespan * (1 - timeline.bubble));
  text += fmt::format("bubble       {:.1f} % of all stages' time\n", 100 * timeline.bubble);
  text += fmt::format("peak stash   {} at most, {:.3g} of a stage's whole share\n",
                      counted(largest_stash(plan), shape.chunks == 1 ? "microbatch" : "chunk"),
                      stash_in_microbatches(plan));
  text += fmt::format("by stage     {}\n", fmt::join(timeline.peak_stash, " "));
  return text;
}

std::string to_svg(const PipelinePlan& plan) {
  using namespace drawing;
  const engine::PipelineTimeline& timeline = plan.timeline;
  const double height = kTop + kRow * static_cast<double>(plan.schedule.shape.stages) + 60;
  return svg_begin(height, title_of(plan)) + svg_rows(timeline, kTop, svg_scale(timeline.makespan)) +
         svg_text(height - 22,
                  fmt::format("{} · bubble {:.1f} % · peak stash {:.3g} microbatches of a stage's share",
                              legend_of(plan), 100 * timeline.bubble, stash_in_microbatches(plan))) +
         svg_end();
}

std::string to_json(const PipelinePlan& plan) {
  const engine::PipelineSchedule& s = plan.schedule;
  std::string json = fmt::format(
      "{{\"schedule\": \"{}\", \"stages\": {}, \"chunks\": {}, \"microbatches\": {}, \"time\": {}, "
      "\"bubble\": {}, "
      "\"peak_stash\": [{}], \"work\": [",
      engine::traits_of(s.kind).name, s.shape.stages, s.shape.chunks, s.microbatches, plan.timeline.makespan,
      plan.timeline.bubble, fmt::join(plan.timeline.peak_stash, ", "));
  bool first = true;
  for (std::size_t stage = 0; stage < plan.timeline.stages.size(); ++stage) {
    for (const TimedWork& t : plan.timeline.stages[stage]) {
      if (t.work.transfer()) continue;
      json += fmt::format(
          "{}\n  {{\"stage\": {}, \"kind\": \"{}\", \"chunk\": {}, \"microbatch\": {}, \"start\": {}, "
          "\"end\": {}}}",
          first ? "" : ",", stage, engine::letter_of(t.work.kind), t.work.chunk, t.work.microbatch, t.start,
          t.end);
      first = false;
    }
  }
  return json + "]}\n";
}

}  // namespace primus
