#include "lm/events/mlperf_log.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lm/events/metrics_file.h"

namespace primus {
namespace {

constexpr std::size_t kMaxHeldBytes = std::size_t{1} << 20;

constexpr const char* kSuccess = "success";
constexpr const char* kAborted = "aborted";
constexpr const char* kNone = "null";

std::string text_of(const MlperfValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        // NaN and infinities are written as strings, as in metrics.jsonl.
        if constexpr (std::is_same_v<T, double>) {
          if (std::isnan(v)) return "\"NaN\"";
          if (std::isinf(v)) return v > 0 ? "\"Infinity\"" : "\"-Infinity\"";
        }
        // The names come from the environment. Invalid UTF-8 in a name must not stop the run.
        return nlohmann::json(v).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      },
      value);
}

std::string stat(std::string_view name, double value) {
  return fmt::format("{{\"{}\": {}}}", name, text_of(value));
}

// Returns the path of the source file from src/ on, so that logs do not depend on the build folder.
std::string_view name_of(const std::source_location& place) {
  const std::string_view name = place.file_name();
  const std::size_t source = name.rfind("src/");
  return source == std::string_view::npos ? name : name.substr(source);
}

}  // namespace

std::int64_t unix_milliseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

MlperfLog::MlperfLog(MlperfOptions options, Env& env)
    : options_(std::move(options)), env_(env), file_(options_.file, env) {}

MlperfLog::~MlperfLog() { end(); }

void MlperfLog::begin(std::int64_t iteration) {
  const auto status = env_.status(options_.file);
  if (status && status->type != FileStatus::Type::kFile) {
    throw invalid(
        fmt::format("'{}' is not a file, so the MLPerf log cannot be written to it", options_.file.string()),
        "set MLLOG_OUTPUT_FILE to the path of a file, or unset it");
  }
  if (status && status->size > 0) {
    if (iteration == 0) {
      keep_previous(options_.file, env_);
    } else {
      pending_ += '\n';
    }
  }
  iteration_ = iteration;
  add(Event::kPoint, "cache_clear", "false", {}, options_.init_ms);
  add(Event::kStart, "init_start", kNone, {}, options_.init_ms);
  for (const auto& [key, value] : options_.entries) add(Event::kPoint, key, text_of(value));
  add(Event::kEnd, "init_stop", kNone);
  add(Event::kStart, "run_start", kNone);
  begin_block();
  if (!flush()) {
    pending_.clear();
    throw Error(ErrorKind::kIo, fmt::format("the MLPerf log cannot be written: {}", last_error()),
                "set MLLOG_OUTPUT_FILE to a writable path, or unset it");
  }
  running_ = true;
}

bool MlperfLog::begin_evaluation(std::int64_t iteration) {
  if (!running_) begin(iteration);
  iteration_ = iteration;
  end_block();
  in_evaluation_ = true;
  add(Event::kStart, "eval_start", kNone, samples());
  return flush();
}

bool MlperfLog::iteration(const IterationRecord& record) {
  iteration_ = record.iteration;
  if (!running_ || options_.loss_interval <= 0 || iteration_ % options_.loss_interval != 0) return true;
  Metadata metadata = samples();
  metadata.emplace_back("step_num", iteration_);
  metadata.emplace_back("lr", record.learning_rate);
  add(Event::kPoint, "tracked_stats", stat("train_loss", record.lm_loss), metadata);
  return flush();
}

bool MlperfLog::evaluation(const EvaluationRecord& record, bool reached) {
  if (!running_) return true;
  add(Event::kPoint, "eval_accuracy", text_of(record.lm_loss), samples());
  add(Event::kEnd, "eval_stop", kNone, samples());
  in_evaluation_ = false;
  if (reached) {
    running_ = false;
    Metadata metadata = samples();
    metadata.emplace_back("status", kSuccess);
    add(Event::kEnd, "run_stop", kNone, metadata);
  } else if (iteration_ < options_.train_iters) {
    begin_block();
  }
  return flush();
}

bool MlperfLog::end() {
  if (!std::exchange(running_, false)) return true;
  // Ends an evaluation that was interrupted before it had a loss.
  if (in_evaluation_) add(Event::kEnd, "eval_stop", kNone, samples());
  end_block();
  Metadata metadata = samples();
  metadata.emplace_back("status", kAborted);
  add(Event::kEnd, "run_stop", kNone, metadata);
  return flush();
}

void MlperfLog::begin_block() {
  in_block_ = true;
  block_iteration_ = iteration_;
  block_ms_ = unix_milliseconds();
  add(Event::kStart, "block_start", kNone, samples(), block_ms_);
}

void MlperfLog::end_block() {
  if (!std::exchange(in_block_, false)) return;
  const std::int64_t now = unix_milliseconds();
  const std::int64_t trained = (iteration_ - block_iteration_) * options_.global_batch_size;
  if (options_.throughput && trained > 0 && now > block_ms_) {
    const double seconds = 1e-3 * static_cast<double>(now - block_ms_);
    add(Event::kPoint, "tracked_stats", stat("throughput", static_cast<double>(trained) / seconds), samples(),
        now);
  }
  add(Event::kEnd, "block_stop", kNone, samples(), now);
}

MlperfLog::Metadata MlperfLog::samples() const {
  return {{"samples_count", iteration_ * options_.global_batch_size}};
}

// Writes the same separators as Python's json, because scripts search for '"key": "run_stop"'.
void MlperfLog::add(Event event, std::string_view key, const std::string& value, const Metadata& metadata,
                    std::int64_t time_ms, std::source_location place) {
  constexpr const char* kEvents[] = {"INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"};
  std::string about = fmt::format("{{\"file\": \"{}\", \"lineno\": {}", name_of(place), place.line());
  for (const auto& [name, what] : metadata) about += fmt::format(", \"{}\": {}", name, text_of(what));
  const std::string line = fmt::format(
      ":::MLLOG {{\"namespace\": \"\", \"time_ms\": {}, \"event_type\": \"{}\", \"key\": \"{}\", \"value\": "
      "{}, "
      "\"metadata\": {}}}}}\n",
      time_ms, kEvents[static_cast<std::size_t>(event)], key, value, about);
  if (pending_.size() + line.size() > kMaxHeldBytes && !flush()) {
    ++dropped_;
    return;
  }
  pending_ += line;
}

bool MlperfLog::flush() {
  if (pending_.empty()) return true;
  if (!file_.append(as_bytes(pending_))) return false;
  pending_.clear();
  return true;
}

}  // namespace primus
