#include "lm/report/metrics_line.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/text/json_reader.h"

namespace primus {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// In these files NaN and infinities are strings.
std::optional<double> named_number(std::string_view text) {
  if (text == "NaN") return kNaN;
  if (text == "Infinity") return kInfinity;
  if (text == "-Infinity") return -kInfinity;
  return std::nullopt;
}

std::optional<double> read_number(JsonReader& json, std::string& text) {
  switch (json.peek()) {
    case JsonReader::Kind::kNumber:
      return json.read_double();
    case JsonReader::Kind::kString:
      json.read_string(text);
      return named_number(text);
    default:
      json.skip();
      return std::nullopt;
  }
}

struct Spread {
  double sum = 0, largest = -kInfinity;
  int count = 0;
};

Spread read_layers(JsonReader& json, std::string& text) {
  Spread spread;
  json.array([&] {
    const std::optional<double> value = read_number(json, text);
    if (!value) return;
    spread.sum += *value;
    spread.largest = std::max(spread.largest, *value);
    ++spread.count;
  });
  return spread;
}

void read_routing(JsonReader& json, std::string& text,
                  const std::function<void(std::string_view, double)>& number) {
  json.object([&](std::string_view key) {
    if ((key != "imbalance" && key != "dropped") || json.peek() != JsonReader::Kind::kArray) {
      json.skip();
      return;
    }
    const Spread spread = read_layers(json, text);
    if (spread.count == 0) return;
    number(key, spread.sum / spread.count);
    if (key == "imbalance") number("imbalance_worst", spread.largest);
  });
}

}  // namespace

bool read_metrics_line(std::string_view line, const std::function<void(std::string_view, double)>& number,
                       std::string* data_set) {
  bool has_iteration = false;
  try {
    JsonReader json(line, "metrics");
    std::string text;
    json.object([&](std::string_view key) {
      if (key == "routing" && json.peek() == JsonReader::Kind::kObject) {
        read_routing(json, text, number);
        return;
      }
      if (key == "data_set" && data_set && json.peek() == JsonReader::Kind::kString) {
        json.read_string(*data_set);
        return;
      }
      const std::optional<double> value = read_number(json, text);
      if (!value) return;
      // Iterations are integers that a double represents exactly.
      constexpr double kMaxIterations = 9007199254740992.0;
      if (key == "iteration") {
        if (!(*value >= 0 && *value < kMaxIterations && *value == std::floor(*value))) return;
        has_iteration = true;
      }
      number(key, *value);
    });
    json.finish();
  } catch (const Error&) {
    return false;
  }
  return has_iteration;
}

}  // namespace primus
