#include "lm/events/device_peak.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/json_text.h"

namespace primus {
namespace {

constexpr std::uint64_t kLimit = 1 << 20;

// Returns the file's content, {"device": FLOP/s, ...}; an empty object if the file has another format.
nlohmann::json read_peaks(const Path& file, Env& env) {
  try {
    if (!file.empty() && env.status(file)) {
      auto json = nlohmann::json::parse(read_file(file, kLimit, env), nullptr, false);
      if (json.is_object()) return json;
    }
  } catch (const Error&) {
    return nlohmann::json::object();
  }
  return nlohmann::json::object();
}

std::optional<double> peak_in(const nlohmann::json& peaks, const std::string& device) {
  const auto found = peaks.find(device);
  if (found == peaks.end() || !found->is_number()) return std::nullopt;
  const double value = *found;
  return std::isfinite(value) && value > 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

DevicePeak::DevicePeak(std::string device, Path file, Env& env)
    : device_(std::move(device)),
      file_(std::move(file)),
      env_(env),
      value_(peak_in(read_peaks(file_, env), device_)) {}

void DevicePeak::seen(double flops_per_second) {
  if (!std::isfinite(flops_per_second) || flops_per_second <= value_.value_or(0)) return;
  value_ = flops_per_second;
  // Another process may have written the file in the meantime; if its peak is higher, keeps that peak.
  if (const auto other = peak_in(read_peaks(file_, env_), device_); other && *other >= *value_) {
    value_ = other;
    return;
  }
  keep();
}

void DevicePeak::measured(double flops_per_second) {
  const bool is_rate = std::isfinite(flops_per_second) && flops_per_second > 0;
  if (is_rate && value_.value_or(0) > kMistaken * flops_per_second) {
    value_ = flops_per_second;
    keep();
  } else {
    seen(flops_per_second);
  }
}

void DevicePeak::keep() {
  if (file_.empty()) return;
  nlohmann::json peaks = read_peaks(file_, env_);
  peaks[device_] = *value_;
  try {
    make_folders(file_.parent_path(), env_);
    write_file_atomic(file_, json_text(peaks) + "\n", env_);
  } catch (const Error&) {
    file_.clear();  // this run continues without the cache
  }
}

Path DevicePeak::default_file() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  // The XDG specification says to ignore relative paths.
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (cache.starts_with("/")) return Path(cache) / "primus" / "peaks.json";
  if (home.starts_with("/")) return Path(home) / ".cache" / "primus" / "peaks.json";
  return {};
}

}  // namespace primus
