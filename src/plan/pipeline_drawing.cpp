#include "plan/pipeline_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text/counted.h"

namespace primus::drawing {
namespace {

using engine::TimedWork;
using Kind = engine::Work::Kind;

// Draws a stage's row.
std::string draw(const std::vector<TimedWork>& stage, std::size_t columns, double per_column, Labels labels) {
  std::string row(columns, '.');
  for (const TimedWork& t : stage) {
    if (t.work.transfer()) continue;
    const auto begin = static_cast<std::size_t>(std::lround(t.start / per_column));
    const auto end = std::min(columns, static_cast<std::size_t>(std::lround(t.end / per_column)));
    const std::string label = label_of(t.work);
    const bool labelled =
        labels == Labels::kAll || (labels == Labels::kWhereTheyFit && begin + label.size() < end);
    for (std::size_t i = begin; i < end; ++i) {
      row[i] = !labelled ? letter_of(t.work.kind) : i - begin < label.size() ? label[i - begin] : ' ';
    }
  }
  return row;
}

}  // namespace

std::string text_rows(const engine::PipelineTimeline& timeline, std::size_t columns, double per_column,
                      Labels labels) {
  std::string text;
  for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
    text += fmt::format("{:<{}}{}\n", fmt::format("stage {}", s), kMargin,
                        draw(timeline.stages[s], columns, per_column, labels));
  }
  return text;
}

std::string svg_begin(double height, const std::string& title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n"
      "<text x=\"10\" y=\"24\" font-size=\"16\">{2}</text>\n",
      kWidth, height, title);
}

std::string svg_rows(const engine::PipelineTimeline& timeline, double top, double scale) {
  // The color depends on the kind of work; further chunks are darker.
  const auto color = [](const engine::Work& work) {
    static constexpr const char* kColors[3][2] = {
        {"#9ecae8", "#5a9bc8"}, {"#b5dfa0", "#74b35a"}, {"#f6c89a", "#dd9550"}};
    const int row = work.kind == Kind::kForward ? 0 : work.kind == Kind::kBackward ? 1 : 2;
    return kColors[row][work.chunk % 2];
  };
  std::string svg;
  for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
    const double y = top + kRow * static_cast<double>(s);
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
  return svg;
}

std::string svg_text(double y, const std::string& text) {
  return fmt::format("<text x=\"10\" y=\"{:.0f}\">{}</text>\n", y, text);
}

std::string title_of(const PipelinePlan& plan) {
  const engine::PipelineSchedule& s = plan.schedule;
  return fmt::format("{}: {} of {}, {}", engine::traits_of(s.kind).title, counted(s.shape.stages, "stage"),
                     counted(s.shape.chunks, "chunk"), counted(s.microbatches, "microbatch"));
}

std::string legend_of(const PipelinePlan& plan) {
  const bool splits = engine::traits_of(plan.schedule.kind).splits_backward;
  return fmt::format("F forward, B backward{}", splits ? " of inputs, W of weights" : "");
}

}  // namespace primus::drawing
