#include "lm/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text/json_text.h"
#include "lm/report/page_files.h"

namespace primus {
namespace {

using Json = nlohmann::ordered_json;

struct ChartKind {
  std::string_view key, title, unit, format;
  bool evaluations = false, wide = false;
};

// The charts are in page order. Other curves follow, titled by their names.
constexpr ChartKind kCharts[] = {
    {"lm_loss", "Loss", "nats per token", "number", false, true},
    {"validation", "Validation loss", "nats per token", "number", true},
    {"bits_per_byte", "Validation loss, comparable across tokenizers", "bits per byte", "number", true},
    {"test", "Test loss", "nats per token", "number", true},
    {"grad_norm", "Gradient norm", "before clipping", "number"},
    {"learning_rate", "Learning rate", "", "number"},
    {"tokens_per_second_per_device", "Throughput", "tokens per second and device", "number"},
    {"tflops_per_device", "Model FLOP/s", "TFLOP/s per device", "number"},
    {"mfu", "Model FLOPs utilisation", "share of the device's peak", "percent"},
    {"data_wait_share", "Waiting for data", "share of step time", "percent"},
    {"memory_used_bytes", "Memory", "of a device", "bytes"},
    {"imbalance", "Expert balance", "largest load over the mean; 1 is even", "number"},
    {"imbalance_worst", "Expert balance, worst layer", "largest load over the mean", "number"},
    {"dropped", "Dropped expert assignments", "share", "percent"},
    {"mtp_loss", "Multi-token prediction loss", "nats per token", "number"},
    {"load_balancing_loss", "Balance loss", "1 is even", "number"},
    {"seq_load_balancing_loss", "Balance loss per sequence", "1 is even", "number"},
    {"global_load_balancing_loss", "Balance loss per step", "1 is even", "number"},
    {"z_loss", "Router z-loss", "", "number"},
};

// Returns whether the curve is shown. Some curves are shown only if their values change.
bool is_shown(std::string_view key, const std::vector<Bucket>& buckets) {
  const bool only_if_changing =
      key == "loss_scale" || key == "skipped_iterations" || key == "nan_iterations" || key == "dropped";
  if (!only_if_changing) return true;
  Bucket all;
  for (const Bucket& bucket : buckets) all.add(bucket);
  return all.other > 0 || (all.finite > 0 && all.minimum != all.largest);
}

// Rounds to six digits. A screen shows fewer digits, and the full number needs three times as many bytes.
Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

Json curve_json(const std::vector<Bucket>& buckets, bool single) {
  Json mean = Json::array(), minimum = Json::array(), largest = Json::array(), other = Json::array();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& bucket = buckets[i];
    const bool any = bucket.finite > 0;
    mean.push_back(any ? rounded(bucket.mean()) : Json());
    minimum.push_back(any ? rounded(bucket.minimum) : Json());
    largest.push_back(any ? rounded(bucket.largest) : Json());
    if (bucket.other > 0) other.push_back({i, bucket.other});
  }
  Json curve{{"mean", std::move(mean)}};
  if (!single) {
    curve["least"] = std::move(minimum);
    curve["largest"] = std::move(largest);
  }
  if (!other.empty()) curve["other"] = std::move(other);
  return curve;
}

Json curves_json(const Curves& curves) {
  Json first = Json::array(), last = Json::array(), samples = Json::array(), seconds = Json::array();
  for (const Curves::Position& position : curves.positions()) {
    first.push_back(position.first);
    last.push_back(position.last);
    samples.push_back(rounded(position.samples));
    seconds.push_back(rounded(position.seconds));
  }
  Json all = Json::object();
  const bool single = curves.points_per_bucket() == 1;
  for (const auto& [name, buckets] : curves.curves()) {
    if (is_shown(name, buckets)) all[name] = curve_json(buckets, single);
  }
  return {{"positions", {{"first", first}, {"last", last}, {"samples", samples}, {"seconds", seconds}}},
          {"steps_per_point", curves.points_per_bucket()},
          {"curves", std::move(all)}};
}

Json optional_number(const std::optional<double>& value) { return value ? rounded(*value) : Json(); }

Json text_json(const SampleRecord& text) {
  Json json{{"step", text.iteration}, {"prompt", text.prompt}, {"text", text.text}, {"tokens", text.tokens}};
  if (text.finished) json["finished"] = *text.finished;
  for (const auto& [name, reward] : text.rewards) json["rewards"][name] = optional_number(reward);
  return json;
}

Json run_json(const RunHistory& run) {
  const RunStatus& status = run.status;
  Json json{{"name", run.name},
            {"folder", status.folder.string()},
            {"state", name_of(status.state)},
            {"step", status.step},
            {"steps", status.steps ? Json(*status.steps) : Json()},
            {"loss", optional_number(status.loss)}};
  if (status.loss && !std::isfinite(*status.loss)) {
    json["loss_text"] = std::isnan(*status.loss) ? "NaN" : "infinite";
  }
  json["validation_loss"] = optional_number(status.validation_loss);
  json["best_validation"] = run.best_validation ? Json{{"step", run.best_validation->first},
                                                       {"loss", rounded(run.best_validation->second)}}
                                                : Json();
  json["tokens_per_second"] = optional_number(status.tokens_per_second);
  json["seconds"] = rounded(run.seconds);
  json["notes"] = run.notes;
  json["reason"] = status.reason;
  json["failure"] = status.failure;
  json["next"] = status.next;
  if (status.supervision) {
    json["restarts"] = status.supervision->restarts;
    if (const auto goodput = status.supervision->goodput()) {
      json["goodput"] = rounded(*goodput);
      json["times"] = Json::parse(to_json(status.supervision->times));
      json["times_text"] = describe(status.supervision->times);
    }
  }
  json["warnings"] = Json::array();
  for (const RunWarning& warning : status.warnings) {
    json["warnings"].push_back(
        {{"step", warning.iteration}, {"text", warning.text}, {"advice", warning.advice}});
  }
  json["texts"] = Json::array();
  for (const SampleRecord& text : run.texts) json["texts"].push_back(text_json(text));
  json.update(curves_json(run.metrics));
  json["evaluations"] = curves_json(run.evaluations);
  json["settings"] = Json::object();
  for (const auto& [key, value] : run.settings) json["settings"][key] = value;
  return json;
}

Json charts_json(const Json& runs) {
  std::set<std::string> metrics, evaluations;
  for (const Json& run : runs) {
    for (const auto& [key, curve] : run["curves"].items()) metrics.insert(key);
    for (const auto& [key, curve] : run["evaluations"]["curves"].items()) evaluations.insert(key);
  }
  Json charts = Json::array();
  auto add = [&](const ChartKind& kind) {
    charts.push_back({{"key", kind.key},
                      {"title", kind.title},
                      {"unit", kind.unit},
                      {"format", kind.format},
                      {"evaluations", kind.evaluations},
                      {"wide", kind.wide}});
  };
  for (const ChartKind& kind : kCharts) {
    if ((kind.evaluations ? evaluations : metrics).erase(std::string(kind.key)) > 0) add(kind);
  }
  for (const std::string& key : metrics) add({.key = key, .title = key, .unit = "", .format = "number"});
  for (const std::string& key : evaluations) {
    const std::string title = "Loss on " + key;
    add({.key = key, .title = title, .unit = "nats per token", .format = "number", .evaluations = true});
  }
  return charts;
}

// Returns the settings that differ between runs, except run names, which always differ.
Json differences_json(const std::vector<RunHistory>& runs) {
  std::set<std::string> keys;
  for (const RunHistory& run : runs) {
    for (const auto& [key, value] : run.settings) keys.insert(key);
  }
  keys.erase("exp_name");
  Json rows = Json::array();
  for (const std::string& key : keys) {
    Json values = Json::array();
    for (const RunHistory& run : runs) {
      const auto found = run.settings.find(key);
      values.push_back(found == run.settings.end() ? Json() : Json(found->second));
    }
    if (std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end()) continue;
    rows.push_back({{"key", key}, {"values", std::move(values)}});
  }
  return rows;
}

void replace_first(std::string& text, std::string_view mark, std::string_view by) {
  const std::size_t at = text.find(mark);
  text.replace(at, mark.size(), by);
}

}  // namespace

Json report_json(const std::vector<RunHistory>& runs, const std::string& generated,
                 const std::string& version) {
  Json list = Json::array();
  for (const RunHistory& run : runs) list.push_back(run_json(run));
  Json charts = charts_json(list);
  return {{"generated", generated},
          {"version", version},
          {"runs", std::move(list)},
          {"charts", std::move(charts)},
          {"differences", differences_json(runs)}};
}

std::string report_page(const Json& report) {
  // In a script element only "</script" and "<!--" are special; both contain '<', so escaping '<' is enough.
  std::string data;
  for (const char c : json_text(report, -1)) c == '<' ? data += "\\u003c" : data += c;
  std::string page(k_page_html);
  replace_first(page, "{{style}}", k_page_css);
  replace_first(page, "{{program}}", "'use strict';\n" + std::string(k_charts_js) + std::string(k_page_js));
  replace_first(page, "{{data}}", data);
  return page;
}

}  // namespace primus
