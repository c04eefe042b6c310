#include "cli/train/metrics_tail.h"

#include <nlohmann/json.hpp>

namespace primus::cli {

std::vector<MetricsPoint> MetricsTail::read() {
  std::vector<MetricsPoint> points;
  Env& env = Env::posix();
  const auto status = env.status(path_);
  if (!status || status->size <= offset_) return points;
  std::string text(status->size - offset_, '\0');
  const std::size_t count =
      env.open(path_, OpenMode::kRead)
          ->read_at(std::as_writable_bytes(std::span(text.data(), text.size())), offset_);
  offset_ += count;
  partial_.append(text, 0, count);
  std::size_t begin = 0;
  for (std::size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const auto json = nlohmann::json::parse(partial_.data() + begin, partial_.data() + end, nullptr, false);
    if (!json.is_object() || !json.contains("iteration") || !json.contains("lm_loss")) continue;
    if (!json["iteration"].is_number_integer() || !json["lm_loss"].is_number()) continue;
    MetricsPoint point{.iteration = json["iteration"], .loss = json["lm_loss"]};
    const auto speed = json.find("tokens_per_second_per_device");
    if (speed != json.end() && speed->is_number()) point.tokens_per_second = *speed;
    points.push_back(point);
  }
  partial_.erase(0, begin);
  return points;
}

}  // namespace primus::cli
