#include "lm/report/metrics_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/text/json_reader.h"

namespace primus {
namespace {

constexpr std::uint64_t kMaxLine = 1 << 20;
constexpr std::uint64_t kStep = 64 << 10;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string read_range(File& file, std::uint64_t begin, std::uint64_t end) {
  std::string text(end - begin, '\0');
  text.resize(file.read_at(std::as_writable_bytes(std::span(text.data(), text.size())), begin));
  return text;
}

// What JSON has no number for is a string in these files.
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
      // Iterations are whole numbers that a double holds exactly.
      constexpr double kMostIterations = 9007199254740992.0;
      if (key == "iteration") {
        if (!(*value >= 0 && *value < kMostIterations && *value == std::floor(*value))) return;
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

std::string last_line(const Path& path, Env& env) {
  const auto file = env.open(path, OpenMode::kRead);
  const std::uint64_t size = file->size();
  std::string text;  // of the file's end
  for (std::uint64_t begin = size; begin > 0;) {
    const std::uint64_t from = begin > kStep ? begin - kStep : 0;
    text.insert(0, read_range(*file, from, begin));
    begin = from;
    const std::size_t end = text.rfind('\n');  // what lies behind is torn, or still being written
    if (end != std::string::npos) {
      const std::size_t newline = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
      if (newline != std::string::npos) return text.substr(newline + 1, end - newline - 1);
      if (begin == 0) return text.substr(0, end);
    }
    if (text.size() > kMaxLine + kStep) {
      throw invalid(fmt::format("'{}' ends in a line of more than a mebibyte", path.string()));
    }
  }
  return {};
}

void read_lines(const Path& path, const std::function<void(std::string_view)>& line, Env& env) {
  const auto file = env.open(path, OpenMode::kRead);
  constexpr std::uint64_t kReadBytes = 1 << 20;
  std::string text;
  bool too_long = false;
  for (std::uint64_t at = 0;;) {
    const std::string piece = read_range(*file, at, at + kReadBytes);
    if (piece.empty()) return;
    at += piece.size();
    text += piece;
    std::size_t begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      line(too_long ? std::string_view() : std::string_view(text).substr(begin, end - begin));
      too_long = false;
    }
    text.erase(0, begin);
    if (text.size() > kMaxLine) {
      text.clear();
      too_long = true;
    }
  }
}

}  // namespace primus
