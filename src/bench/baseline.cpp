#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/json_text.h"
#include "bench/report.h"

namespace primus {
namespace {

using Verdict = BaselineCase::Verdict;

struct Earlier {
  double median = 0, spread = 0;
};

[[noreturn]] void refuse(const std::string& source, const std::string& why) {
  throw invalid(fmt::format("{} cannot be used as a baseline: {}", source, why),
                "make a baseline with --baseline save FILE: run the same suite on the same device");
}

std::string text_in(const nlohmann::json& json, const char* key, const std::string& source) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) refuse(source, fmt::format("it has no string '{}'", key));
  return found->get<std::string>();
}

double positive_in(const nlohmann::json& json, const char* key, const std::string& source, bool zero) {
  const auto found = json.find(key);
  const double value = found != json.end() && found->is_number() ? found->get<double>() : -1;
  if (!(zero ? value >= 0 : value > 0) || value > 1e9)
    refuse(source, fmt::format("a result has no usable number '{}'", key));
  return value;
}

std::map<std::string, Earlier> read(const BenchmarkReport& report, const std::string& text,
                                    const std::string& source) {
  const nlohmann::json json = parse_json_object(text, source);
  const std::tuple<const char*, const char*, const std::string*> same[] = {
      {"suite", "suite", &report.suite},
      {"device", "device", &report.device},
      {"dtype", "type", &report.dtype}};
  for (const auto& [key, what, mine] : same) {
    const std::string theirs = text_in(json, key, source);
    if (theirs != *mine)
      refuse(source, fmt::format("its {} is '{}', but this report's is '{}'", what, theirs, *mine));
  }
  const auto results = json.find("results");
  if (results == json.end() || !results->is_array()) refuse(source, "it has no list 'results'");
  std::map<std::string, Earlier> cases;
  for (const nlohmann::json& line : *results) {
    if (!line.is_object()) refuse(source, "a result is not a JSON object");
    const auto seconds = line.find("seconds");
    if (seconds == line.end() || !seconds->is_object()) refuse(source, "a result has no 'seconds'");
    cases[text_in(line, "case", source)] = {.median = positive_in(*seconds, "median", source, false),
                                            .spread = positive_in(line, "spread", source, true)};
  }
  return cases;
}

}  // namespace

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFaster:
      return "faster";
    case Verdict::kSlower:
      return "slower";
    case Verdict::kNew:
      return "not in the baseline";
    case Verdict::kGone:
      return "not measured now";
    default:
      return "same";
  }
}

bool BaselineComparison::slower() const {
  return std::any_of(cases.begin(), cases.end(),
                     [](const BaselineCase& c) { return c.verdict == Verdict::kSlower; });
}

BaselineComparison compare_with_baseline(const BenchmarkReport& report, const std::string& baseline,
                                         const std::string& source) {
  std::map<std::string, Earlier> earlier = read(report, baseline, source);
  BaselineComparison comparison{.source = source, .cases = {}};
  bool any = false;
  for (const BenchmarkResult& result : report.results) {
    BaselineCase line{.name = result.name, .now = result.timing.median, .verdict = Verdict::kNew};
    if (const auto found = earlier.find(result.name); found != earlier.end()) {
      any = true;
      line.before = found->second.median;
      // The limit is the sum of both runs' spreads, but at least Timing::kRepeats.
      line.limit = std::max(Timing::kRepeats, result.timing.spread + found->second.spread);
      const double change = line.now / line.before - 1;
      line.verdict = change > line.limit                       ? Verdict::kSlower
                     : change < -line.limit / (1 + line.limit) ? Verdict::kFaster
                                                               : Verdict::kSame;
      earlier.erase(found);
    }
    comparison.cases.push_back(line);
  }
  if (!any) refuse(source, "it shares no case with this report");
  for (const auto& [name, line] : earlier)
    comparison.cases.push_back({.name = name, .before = line.median, .verdict = Verdict::kGone});
  return comparison;
}

std::string to_text(const BaselineComparison& comparison) {
  std::size_t width = 4;
  for (const BaselineCase& c : comparison.cases) width = std::max(width, c.name.size());
  std::string text = fmt::format("\ncompared with {}\n\n{:<{}}  {:>12}  {:>12}  {:>8}  {:>8}\n",
                                 comparison.source, "case", width, "before us", "now us", "change", "noise");
  for (const BaselineCase& c : comparison.cases) {
    const bool both = c.before > 0 && c.now > 0;
    const auto micro = [](double s) { return s > 0 ? fmt::format("{:.1f}", s * 1e6) : std::string("-"); };
    text += fmt::format("{:<{}}  {:>12}  {:>12}  {:>8}  {:>8}  {}\n", c.name, width, micro(c.before),
                        micro(c.now), both ? fmt::format("{:+.1f} %", 100 * (c.now / c.before - 1)) : "-",
                        both ? fmt::format("{:.1f} %", 100 * c.limit) : "-", name_of(c.verdict));
  }
  return text;
}

nlohmann::ordered_json to_json(const BaselineComparison& comparison) {
  nlohmann::ordered_json json{{"file", comparison.source},
                              {"slower", comparison.slower()},
                              {"cases", nlohmann::ordered_json::array()}};
  for (const BaselineCase& c : comparison.cases) {
    json["cases"].push_back({{"case", c.name},
                             {"before_seconds", c.before},
                             {"now_seconds", c.now},
                             {"limit", c.limit},
                             {"verdict", name_of(c.verdict)}});
  }
  return json;
}

}  // namespace primus
