#include "safe/preflight/finding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/json_text.h"

namespace primus::preflight {
namespace {

constexpr std::array<std::string_view, 4> kVerdicts{"pass", "skip", "warn", "fail"};

// Limits for the number of entries and the length of texts in reports of other processes.
constexpr std::size_t kMaxEntries = 65536, kMaxText = 16384;

class Reader {
 public:
  Reader(const nlohmann::json& object, const std::string& source) : object_(object), source_(source) {
    if (!object.is_object()) fail("an entry is not an object");
  }

  std::string text(const char* key) const {
    const nlohmann::json& value = member(key);
    if (!value.is_string()) fail(std::string("'") + key + "' is not a string");
    auto text = value.get<std::string>();
    if (text.size() > kMaxText) fail(std::string("'") + key + "' is too long");
    return text;
  }
  double number(const char* key) const {
    const nlohmann::json& value = member(key);
    if (!value.is_number()) fail(std::string("'") + key + "' is not a number");
    return value.get<double>();
  }
  int count(const char* key) const {
    const double value = number(key);
    if (!(value >= 0 && value < (1 << 24))) fail(std::string("'") + key + "' is out of range");
    return static_cast<int>(value);
  }
  bool boolean(const char* key) const {
    const nlohmann::json& value = member(key);
    if (!value.is_boolean()) fail(std::string("'") + key + "' is neither true nor false");
    return value.get<bool>();
  }
  Verdict verdict(const char* key) const {
    const auto found = std::find(kVerdicts.begin(), kVerdicts.end(), text(key));
    if (found == kVerdicts.end()) fail(std::string("'") + key + "' is not a verdict");
    return static_cast<Verdict>(found - kVerdicts.begin());
  }
  const nlohmann::json& list(const char* key) const {
    const nlohmann::json& value = member(key);
    if (!value.is_array() || value.size() > kMaxEntries) fail(std::string("'") + key + "' is not a list");
    return value;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw invalid(source_ + " is not a preflight report: " + what,
                  "run the same version of primus on all nodes");
  }

 private:
  const nlohmann::json& member(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(std::string("'") + key + "' is missing");
    return *found;
  }

  const nlohmann::json& object_;
  const std::string& source_;
};

}  // namespace

std::string_view name_of(Verdict verdict) { return kVerdicts[static_cast<std::size_t>(verdict)]; }

Verdict verdict_of(const std::vector<Finding>& findings) {
  if (findings.empty()) return Verdict::kFail;
  Verdict worst = Verdict::kPass;
  for (const Finding& finding : findings) worst = std::max(worst, finding.verdict);
  return worst == Verdict::kSkip ? Verdict::kPass : worst;
}

nlohmann::ordered_json to_json(const NodeReport& report) {
  using Json = nlohmann::ordered_json;
  Json json{{"host", report.host},
            {"rank", report.rank},
            {"node", report.node},
            {"verdict", name_of(verdict_of(report.findings))},
            {"wall_clock", report.wall_clock},
            {"seconds", report.seconds},
            {"findings", Json::array()},
            {"measurements", Json::array()},
            {"facts", Json::array()}};
  for (const Finding& f : report.findings) {
    json["findings"].push_back({{"check", f.check},
                                {"category", f.category},
                                {"verdict", name_of(f.verdict)},
                                {"where", f.where},
                                {"measured", f.measured},
                                {"wanted", f.wanted},
                                {"source", f.source},
                                {"fix", f.fix}});
  }
  for (const Measurement& m : report.measurements) {
    json["measurements"].push_back({{"name", m.name},
                                    {"where", m.where},
                                    {"unit", m.unit},
                                    {"value", std::isfinite(m.value) ? m.value : 0.0},
                                    {"wanted", m.wanted},
                                    {"size", m.size},
                                    {"compared", m.compared}});
  }
  for (const Fact& f : report.facts) {
    json["facts"].push_back({{"category", f.category},
                             {"name", f.name},
                             {"value", f.value},
                             {"drift", name_of(f.drift)},
                             {"where", f.where}});
  }
  return json;
}

NodeReport node_report(std::string_view text, const std::string& source) {
  const nlohmann::json json = parse_json_object(text, source);
  const Reader top(json, source);
  NodeReport report;
  report.host = top.text("host");
  report.rank = top.count("rank");
  report.node = top.count("node");
  report.wall_clock = top.number("wall_clock");
  report.seconds = top.number("seconds");
  for (const nlohmann::json& entry : top.list("findings")) {
    const Reader in(entry, source);
    report.findings.push_back({.check = in.text("check"),
                               .category = in.text("category"),
                               .verdict = in.verdict("verdict"),
                               .where = in.text("where"),
                               .measured = in.text("measured"),
                               .wanted = in.text("wanted"),
                               .source = in.text("source"),
                               .fix = in.text("fix")});
  }
  for (const nlohmann::json& entry : top.list("measurements")) {
    const Reader in(entry, source);
    report.measurements.push_back({.name = in.text("name"),
                                   .where = in.text("where"),
                                   .unit = in.text("unit"),
                                   .value = in.number("value"),
                                   .wanted = in.number("wanted"),
                                   .size = in.number("size"),
                                   .compared = in.boolean("compared")});
  }
  for (const nlohmann::json& entry : top.list("facts")) {
    const Reader in(entry, source);
    report.facts.push_back(
        {in.text("category"), in.text("name"), in.text("value"), in.verdict("drift"), in.text("where")});
  }
  return report;
}

}  // namespace primus::preflight
