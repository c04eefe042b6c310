#include "safe/supervise/supervision_log.h"

#include <nlohmann/json.hpp>

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
  const std::string text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (waiting_.size() + text.size() <= kMaxWaiting) waiting_ += text;
  std::error_code none;
  if (!std::filesystem::is_directory(run_, none)) return;
  if (file_.append(as_bytes(waiting_))) waiting_.clear();
}

}  // namespace primus::supervise
