#include "plan/pipeline_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace primus {
namespace {

using engine::TimedWork;
using Kind = engine::Work::Kind;

char letter_of(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return 'F';
    case Kind::kBackward:
      return 'B';
    default:
      return 'W';
  }
}

std::string label_of(const engine::Work& work) {
  return fmt::format("{}{}{}", letter_of(work.kind), work.microbatch,
                     std::string(static_cast<std::size_t>(work.chunk), '\''));
}

std::size_t label_width(const PipelinePlan& plan) {
  std::size_t width = 0;
  for (const auto& stage : plan.timeline.stages) {
    for (const TimedWork& t : stage) {
      if (!t.work.transfer()) width = std::max(width, label_of(t.work).size());
    }
  }
  return width;
}

// A stage's row of `columns` columns, `per_column` of time each.
std::string draw(const std::vector<TimedWork>& stage, std::size_t columns, double per_column, bool labels) {
  std::string row(columns, '.');
  for (const TimedWork& t : stage) {
    if (t.work.transfer()) continue;
    const auto begin = static_cast<std::size_t>(std::lround(t.start / per_column));
    const auto end = std::min(columns, static_cast<std::size_t>(std::lround(t.end / per_column)));
    const std::string label = labels ? label_of(t.work) : std::string();
    for (std::size_t i = begin; i < end; ++i) {
      row[i] = !labels ? letter_of(t.work.kind) : i - begin < label.size() ? label[i - begin] : ' ';
    }
  }
  return row;
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

// In microbatches of a stage's whole share of the model.
double stash_in_microbatches(const PipelinePlan& plan) {
  return static_cast<double>(largest_stash(plan)) / plan.schedule.shape.chunks;
}

std::string many(std::int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what,
                     count == 1                                              ? ""
                     : what[std::char_traits<char>::length(what) - 1] == 'h' ? "es"
                                                                             : "s");
}

std::string title_of(const PipelinePlan& plan) {
  const engine::PipelineSchedule& s = plan.schedule;
  return fmt::format("{}: {} of {}, {}", engine::traits_of(s.kind).title, many(s.shape.stages, "stage"),
                     many(s.shape.chunks, "chunk"), many(s.microbatches, "microbatch"));
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
  constexpr std::size_t kMargin = 10;  // "stage 12  "
  const std::size_t room = std::max<std::size_t>(width, kMargin + 20) - kMargin;
  const double unit = shortest_work(plan.costs);
  const std::size_t cell = label_width(plan) + 1;
  const double labelled = timeline.makespan / unit * static_cast<double>(cell);
  const bool labels = labelled <= static_cast<double>(room);
  const auto columns = labels ? static_cast<std::size_t>(std::lround(labelled)) : room;
  std::string text = title_of(plan) + "\n\n";
  for (int s = 0; s < shape.stages; ++s) {
    text += fmt::format("{:<{}}{}\n", fmt::format("stage {}", s), kMargin,
                        draw(timeline.stages[static_cast<std::size_t>(s)], columns,
                             timeline.makespan / static_cast<double>(columns), labels));
  }
  const bool splits = engine::traits_of(plan.schedule.kind).splits_backward;
  text += fmt::format("\nF forward, B backward{}{}{}\n", splits ? " of inputs, W of weights" : "",
                      labels ? ", with the number of the microbatch" : "",
                      labels && shape.chunks > 1 ? "; ' for each further chunk" : "");
  text += fmt::format("time         {:.6g}, of which a stage's own work is {:.6g}\n", timeline.makespan,
                      timeline.makespan * (1 - timeline.bubble));
  text += fmt::format("bubble       {:.1f} % of all stages' time\n", 100 * timeline.bubble);
  text += fmt::format("peak stash   {} at most, {:.3g} of a stage's whole share\n",
                      many(largest_stash(plan), shape.chunks == 1 ? "microbatch" : "chunk"),
                      stash_in_microbatches(plan));
  text += fmt::format("by stage     {}\n", fmt::join(timeline.peak_stash, " "));
  return text;
}

std::string to_svg(const PipelinePlan& plan) {
  const engine::PipelineTimeline& timeline = plan.timeline;
  constexpr double kLeft = 80, kTop = 46, kRow = 30, kWidth = 1200;
  const double scale = (kWidth - kLeft - 20) / timeline.makespan;
  const auto stages = static_cast<double>(plan.schedule.shape.stages);
  const double height = kTop + kRow * stages + 60;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n"
      "<text x=\"10\" y=\"24\" font-size=\"16\">{2}</text>\n",
      kWidth, height, title_of(plan));
  // By kind of work; further chunks are darker.
  const auto color = [](const engine::Work& work) {
    static constexpr const char* kColors[3][2] = {
        {"#9ecae8", "#5a9bc8"}, {"#b5dfa0", "#74b35a"}, {"#f6c89a", "#dd9550"}};
    const int row = work.kind == Kind::kForward ? 0 : work.kind == Kind::kBackward ? 1 : 2;
    return kColors[row][work.chunk % 2];
  };
  for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
    const double y = kTop + kRow * static_cast<double>(s);
    svg += fmt::format("<text x=\"10\" y=\"{:.0f}\">stage {}</text>\n", y + 19, s);
    svg +=
        fmt::format("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"#eeeeee\"/>\n",
                    kLeft, y, timeline.makespan * scale, kRow - 4);
    for (const TimedWork& t : timeline.stages[s]) {
      if (t.work.transfer() || t.end <= t.start) continue;
      const double x = kLeft + t.start * scale, w = (t.end - t.start) * scale;
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\" "
          "stroke=\"#ffffff\"/>\n",
          x, y, w, kRow - 4, color(t.work));
      const std::string label = label_of(t.work);
      if (w < 8 * static_cast<double>(label.size())) continue;
      svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n", x + w / 2,
                         y + 17, label);
    }
  }
  const bool splits = engine::traits_of(plan.schedule.kind).splits_backward;
  svg += fmt::format(
      "<text x=\"10\" y=\"{:.0f}\">F forward, B backward{} · bubble {:.1f} % · peak stash {:.3g} "
      "microbatches of a "
      "stage's share</text>\n</svg>\n",
      height - 22, splits ? " of inputs, W of weights" : "", 100 * timeline.bubble,
      stash_in_microbatches(plan));
  return svg;
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
          first ? "" : ",", stage, letter_of(t.work.kind), t.work.chunk, t.work.microbatch, t.start, t.end);
      first = false;
    }
  }
  return json + "]}\n";
}

}  // namespace primus
