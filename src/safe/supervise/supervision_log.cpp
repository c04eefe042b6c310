#include "safe/supervise/supervision_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace primus::supervise {
namespace {

constexpr std::size_t kMaxWaiting = 64 << 10;

}  // namespace

SupervisionLog::SupervisionLog(Path run)
    : run_(std::move(run)), file_(supervision_file(run_), Env::posix()) {}

void SupervisionLog::write(const Line& line, nlohmann::ordered_json facts,
                           const std::optional<RunTimes>& times) {
  nlohmann::ordered_json json{{"event", line.kind}, {"step", line.step}};
  if (line.rank) json["rank"] = *line.rank;
  json["time"] = line.time;
  if (!line.cause.empty()) json["cause"] = line.cause;
  if (times) facts["times"] = nlohmann::ordered_json::parse(to_json(*times));
  json["facts"] = std::move(facts);
  std::string text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (!line.is_decision && !held_.empty()) return;
  if (!holds_ || !line.is_decision) return append(text);
  held_.push_back(std::move(text));
}

bool SupervisionLog::release(std::size_t lines, bool again) {
  const std::size_t count = std::min(lines, held_.size());
  std::string file;
  std::error_code none;
  if (!std::filesystem::is_directory(run_, none)) return false;
  if (again && std::filesystem::exists(file_.path(), none)) {
    try {
      file = read_file(file_.path());
    } catch (const Error&) {
      // The lines are then written again, if the file can be written.
    }
  }
  for (std::size_t i = 0; i < count; ++i)
    if (file.find(held_[i]) == std::string::npos) append(held_[i]);
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
  std::vector<News> later;
  for (News& news : news_) {
    if (news.after <= count) {
      news.to(news.event);
    } else {
      news.after -= count;
      later.push_back(std::move(news));
    }
  }
  news_ = std::move(later);
  return true;
}

void SupervisionLog::take(std::vector<std::string> lines) {
  held_ = std::move(lines);
  news_.clear();
}

void SupervisionLog::tell(const RunEvent& event, const std::function<void(const RunEvent&)>& to) {
  if (!holds_) return to(event);
  news_.push_back({.after = held_.size(), .event = event, .to = to});
}

void SupervisionLog::append(const std::string& text) {
  if (waiting_.size() + text.size() <= kMaxWaiting) waiting_ += text;
  std::error_code none;
  if (!std::filesystem::is_directory(run_, none)) return;
  if (file_.append(as_bytes(waiting_))) waiting_.clear();
}

}  // namespace primus::supervise
