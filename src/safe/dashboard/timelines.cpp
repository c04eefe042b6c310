#include "safe/dashboard/timelines.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "lm/events/line_file.h"
#include "lm/events/run_folder.h"

namespace primus::dashboard {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kKinds = "FBWPS";
constexpr std::size_t kMaxSpans = 4096;
constexpr std::size_t kSpanFields = 5;
constexpr std::int64_t kMaxMicroseconds = std::int64_t{1} << 50;

std::optional<std::int64_t> count_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  const auto value = found->get<std::int64_t>();
  return value >= 0 && value <= kMaxMicroseconds ? std::optional(value) : std::nullopt;
}

bool is_span(const Json& span) {
  if (!span.is_array() || span.size() != kSpanFields || !span[0].is_string()) return false;
  const auto& kind = span[0].get_ref<const std::string&>();
  if (kind.size() != 1 || kKinds.find(kind[0]) == std::string_view::npos) return false;
  return std::all_of(span.begin() + 1, span.end(), [](const Json& number) {
    return number.is_number_integer() && number.get<std::int64_t>() >= 0 &&
           number.get<std::int64_t>() <= kMaxMicroseconds;
  });
}

// Returns the step of a line, which begins with it. Parsing all lines completely would take too long.
std::optional<std::int64_t> step_of(std::string_view line) {
  constexpr std::string_view kBegin = R"({"step":)";
  if (!line.starts_with(kBegin)) return std::nullopt;
  line.remove_prefix(kBegin.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  const bool complete = error == std::errc() && end != line.data() + line.size() && *end == ',';
  return complete && step >= 0 ? std::optional(step) : std::nullopt;
}

// Returns the object of a line; null if the line is damaged.
Json record_of(std::string_view line) {
  Json record = Json::parse(line, nullptr, false);
  if (!record.is_object() || !count_in(record, "step") || !count_in(record, "microseconds")) return {};
  return record;
}

// Returns the stage's record of a step, for the page.
Json stage_of(const Json& record, int stage) {
  Json spans = Json::array();
  if (const auto found = record.find("spans"); found != record.end() && found->is_array())
    for (const Json& span : *found)
      if (is_span(span) && spans.size() < kMaxSpans) spans.push_back(span);
  return {{"stage", stage},
          {"rank", count_in(record, "rank").value_or(0)},
          {"microseconds", *count_in(record, "microseconds")},
          {"left_out", count_in(record, "left_out").value_or(0)},
          {"spans", std::move(spans)}};
}

// Reads the file backwards, up to kMaxSteps lines. A restart may have repeated steps; the newest line counts.
// `steps`: gets the steps, if it is not null. Returns the record of `wanted`, or of the newest step.
Json find_record(const Path& path, std::optional<std::int64_t> wanted, std::vector<std::int64_t>* steps) {
  Json found;
  const auto file = Env::posix().open(path, OpenMode::kRead);
  LinesBackward lines(*file);
  std::string_view line;
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < kMaxSteps && lines.previous(line, offset); ++i) {
    const std::optional<std::int64_t> step = step_of(line);
    if (!step) continue;
    if (found.is_null() && (!wanted || *step == *wanted)) found = record_of(line);
    if (!steps && !found.is_null()) break;
    if (steps && std::ranges::find(*steps, *step) == steps->end()) steps->push_back(*step);
  }
  return found;
}

}  // namespace

Json timelines_json(const Path& run, std::optional<std::int64_t> wanted) {
  std::vector<std::int64_t> steps;
  Json stages = Json::array(), step;
  int missing = 0;
  for (int stage = 0; stage < kMaxStages; ++stage) {
    const Path path = timeline_file(run, stage);
    if (!Env::posix().status(path)) break;
    try {
      const Json record = find_record(path, wanted, stage == 0 ? &steps : nullptr);
      if (record.is_null()) {
        ++missing;
        continue;
      }
      // The other stages show the step that was chosen for stage 0.
      if (!wanted) wanted = count_in(record, "step");
      step = *wanted;
      stages.push_back(stage_of(record, stage));
    } catch (const Error&) {
      ++missing;
    }
  }
  std::ranges::sort(steps, std::greater<>());
  return {{"steps", steps}, {"step", std::move(step)}, {"stages", std::move(stages)}, {"missing", missing}};
}

}  // namespace primus::dashboard
