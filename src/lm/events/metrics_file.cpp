#include "lm/events/metrics_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/system/thread_pool.h"
#include "lm/events/line_file.h"

namespace primus {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxPending = std::size_t{1} << 20;
// Number of bytes per read when lines are read backwards.
constexpr std::uint64_t kReadStep = 64 << 10;

Json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

// Returns the size of the file up to the end of its last line whose iteration is at most `last`. Reads
// backwards from the end. The time therefore does not depend on the length of the history.
std::uint64_t good_size(File& file, std::int64_t last) {
  const std::uint64_t size = file.size();
  std::uint64_t end = size;  // end of the unchecked part, directly after a newline
  std::uint64_t begin = size;
  std::string text;  // text of the file from begin to end
  bool ends_with_newline = false;
  while (true) {
    // The last line of the unchecked part begins after the last newline before `end - 1`.
    const std::size_t line_end = text.size() - (ends_with_newline ? 1 : 0);
    const std::size_t newline = line_end == 0 ? std::string::npos : text.rfind('\n', line_end - 1);
    if (newline == std::string::npos && begin > 0 && text.size() <= kMaxLine) {
      const std::uint64_t from = begin > kReadStep ? begin - kReadStep : 0;
      text.insert(0, read_range(file, from, begin));
      begin = from;
      ends_with_newline = !text.empty() && text.back() == '\n';
      continue;
    }
    if (text.empty()) return 0;
    const std::size_t line_begin = newline == std::string::npos ? 0 : newline + 1;
    if (ends_with_newline) {
      const std::int64_t iteration =
          iteration_of_line(std::string_view(text).substr(line_begin, line_end - line_begin));
      if (iteration >= 0 && iteration <= last) return end;
    }
    end -= text.size() - line_begin;
    text.resize(line_begin);
    ends_with_newline = !text.empty();
  }
}

// Calls `visit` with each complete line, without its newline, until `visit` returns false.
void for_each_line(const Path& path, Env& env, FunctionRef<bool(std::string_view)> visit) {
  const auto file = env.open(path, OpenMode::kRead);
  std::string text;
  for (std::uint64_t offset = 0;;) {
    const std::size_t before = text.size();
    text.resize(before + kMaxLine);
    const std::size_t got = file->read_at(std::as_writable_bytes(std::span(text)).subspan(before), offset);
    text.resize(before + got);
    offset += got;
    std::size_t begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      if (!visit(std::string_view(text).substr(begin, end - begin))) return;
    }
    text.erase(0, begin);
    if (got == 0 || text.size() > kMaxLine) return;
  }
}

// Finds the iteration in a line that to_json() wrote, without parsing JSON, because the history may be long.
std::int64_t quick_iteration(std::string_view line) {
  constexpr std::string_view kBegin = "{\"iteration\":";
  std::int64_t iteration = -1;
  if (line.starts_with(kBegin) && line.ends_with('}')) {
    const auto [end, error] =
        std::from_chars(line.data() + kBegin.size(), line.data() + line.size(), iteration);
    if (error == std::errc() && (*end == ',' || *end == '}')) return iteration;
  }
  return iteration_of_line(line);
}

// Reads a number in the format that number() writes.
std::optional<double> number_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return std::nullopt;
  if (found->is_number()) return found->get<double>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (*found == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (*found == "Infinity") return kInfinity;
  return *found == "-Infinity" ? std::optional(-kInfinity) : std::nullopt;
}

std::string text_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<RunWarning> warning_in(const Json& json, std::int64_t iteration) {
  RunWarning warning{.iteration = iteration,
                     .detector = text_in(json, "detector"),
                     .value = number_in(json, "value").value_or(0),
                     .usual = number_in(json, "usual").value_or(0),
                     .limit = number_in(json, "limit").value_or(0),
                     .text = text_in(json, "text"),
                     .advice = text_in(json, "advice"),
                     .rank = static_cast<int>(number_in(json, "rank").value_or(-1))};
  return warning.detector.empty() || warning.text.empty() ? std::nullopt : std::optional(std::move(warning));
}

// Calls visit(object, iteration) with each complete, valid line.
void for_each_object(const Path& file, Env& env, FunctionRef<void(const Json&, std::int64_t)> visit) {
  if (!env.status(file)) return;
  for_each_line(file, env, [&](std::string_view line) {
    const std::int64_t iteration = quick_iteration(line);
    const Json json = Json::parse(line, nullptr, false);
    if (iteration >= 0 && json.is_object()) visit(json, iteration);
    return true;
  });
}

void repair(const Path& path, std::int64_t resume_iteration, Env& env) {
  const auto status = env.status(path);
  if (status && status->type != FileStatus::Type::kFile) {
    throw invalid(
        fmt::format("'{}' is not a file, so the metrics of the run cannot be written to it", path.string()),
        "remove it, or move it away");
  }
  if (!status || status->size == 0) return;
  if (resume_iteration <= 0) {
    keep_previous(path, env);
    return;
  }
  const auto file = env.open(path, OpenMode::kUpdate);
  const std::uint64_t keep = good_size(*file, resume_iteration);
  if (keep == status->size) return;
  file->truncate(keep);
  file->sync();
}

void add_speed(Json& json, const Speed& speed, const std::string& suffix) {
  json["elapsed_time_per_iteration_ms" + suffix] = number(speed.seconds_per_iteration * 1e3);
  json["tokens_per_second_per_device" + suffix] = number(speed.tokens_per_second);
  json["tflops_per_device" + suffix] = number(speed.flops_per_second / 1e12);
  if (speed.mfu) json["mfu" + suffix] = number(*speed.mfu);
  json["data_wait_share" + suffix] = number(speed.data_wait_share);
}

void add_memory(Json& json, const IterationRecord& record) {
  if (!record.memory) return;
  json["memory_used_bytes"] = number(record.memory->used);
  json["memory_total_bytes"] = number(record.memory->total);
}

// Writes each quantity as a list over layers, because lists are easier to compress, plot and compare than
// objects.
void add_routing(Json& json, const std::vector<ExpertLoads>& routing) {
  Json& lists = json["routing"];
  for (const ExpertLoads& layer : routing) {
    lists["layer"].push_back(layer.layer);
    lists["imbalance"].push_back(number(layer.imbalance));
    lists["dropped"].push_back(number(layer.dropped));
    if (layer.balance_loss) lists["balance_loss"].push_back(number(*layer.balance_loss));
  }
}

}  // namespace

std::string to_json(const IterationRecord& record) {
  Json json;
  json["iteration"] = record.iteration;
  if (record.train_iters > 0) json["train_iters"] = record.train_iters;
  json["consumed_samples"] = record.consumed_samples;
  json["global_batch_size"] = record.global_batch_size;
  json["lm_loss"] = number(record.lm_loss);
  for (const auto& [name, value] : record.other_losses) json[name] = number(value);
  if (!record.routing.empty()) add_routing(json, record.routing);
  json["learning_rate"] = number(record.learning_rate);
  json["loss_scale"] = number(record.loss_scale);
  if (record.grad_norm) json["grad_norm"] = number(*record.grad_norm);
  if (record.num_zeros) json["num_zeros"] = *record.num_zeros;
  json["skipped_iterations"] = record.skipped_iterations;
  json["nan_iterations"] = record.nan_iterations;
  add_speed(json, record.throughput.now, "");
  if (record.throughput.average) add_speed(json, *record.throughput.average, "_avg");
  if (record.throughput.eta) json["eta_seconds"] = number(*record.throughput.eta);
  add_memory(json, record);
  // The names of losses come from the experiment. Invalid UTF-8 in a name must not stop the run.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string rank_json(const IterationRecord& record) {
  Json json;
  json["iteration"] = record.iteration;
  json["nan_iterations"] = record.nan_iterations;
  json["elapsed_time_per_iteration_ms"] = number(record.throughput.now.seconds_per_iteration * 1e3);
  json["data_wait_share"] = number(record.throughput.now.data_wait_share);
  add_memory(json, record);
  return json.dump();
}

std::string to_json(const EvaluationRecord& record) {
  Json json;
  json["iteration"] = record.iteration;
  json["data_set"] = record.data_set;
  json["lm_loss"] = number(record.lm_loss);
  json["tokens"] = record.tokens;
  json["seconds"] = number(record.seconds);
  if (record.bits_per_byte) json["bits_per_byte"] = number(*record.bits_per_byte);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_json(const SampleRecord& record) {
  Json json;
  json["iteration"] = record.iteration;
  json["prompt"] = record.prompt;
  json["text"] = record.text;
  json["tokens"] = record.tokens;
  json["seconds"] = number(record.seconds);
  for (const auto& [name, reward] : record.rewards) json["rewards"][name] = reward ? number(*reward) : Json();
  if (record.finished) json["finished"] = *record.finished;
  // A generated text may end in the middle of a character.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_json(const RunWarning& warning) {
  Json json;
  json["iteration"] = warning.iteration;
  json["detector"] = warning.detector;
  json["value"] = number(warning.value);
  json["usual"] = number(warning.usual);
  json["limit"] = number(warning.limit);
  if (warning.rank >= 0) json["rank"] = warning.rank;
  json["text"] = warning.text;
  json["advice"] = warning.advice;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::int64_t iteration_of_line(std::string_view line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return -1;
  const auto found = json.find("iteration");
  if (found == json.end() || !found->is_number_integer()) return -1;
  if (found->is_number_unsigned() && !std::in_range<std::int64_t>(found->get<std::uint64_t>())) return -1;
  return std::max<std::int64_t>(found->get<std::int64_t>(), -1);
}

std::string missing_iterations(const Path& file, std::int64_t last, Env& env) {
  constexpr int kMaxRanges = 5;
  int ranges = 0;
  std::string text;
  // Records the missing iterations [first, end).
  const auto lacks = [&](std::int64_t first, std::int64_t end) {
    if (first >= end || ++ranges > kMaxRanges + 1) return;
    if (!text.empty()) text += ", ";
    text += ranges > kMaxRanges ? "..."
            : end - first == 1  ? fmt::format("{}", first)
                                : fmt::format("{}-{}", first, end - 1);
  };
  std::int64_t expected = -1;
  if (env.status(file)) {
    for_each_line(file, env, [&](std::string_view line) {
      const std::int64_t iteration = quick_iteration(line);
      if (iteration > last) return false;
      if (expected >= 0) lacks(expected, iteration);
      if (iteration >= 0) expected = std::max(expected, iteration + 1);
      return true;
    });
  }
  lacks(std::max<std::int64_t>(expected, 1), last + 1);
  return text;
}

std::map<std::string, double> evaluated_losses(const Path& file, std::int64_t iteration, Env& env) {
  std::map<std::string, double> losses;
  if (!env.status(file)) return losses;
  for_each_line(file, env, [&](std::string_view line) {
    if (quick_iteration(line) != iteration) return true;
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) return true;
    const auto name = json.find("data_set"), loss = json.find("lm_loss");
    if (name == json.end() || !name->is_string()) return true;
    const bool number = loss != json.end() && loss->is_number();
    losses[name->get<std::string>()] =
        number ? loss->get<double>() : std::numeric_limits<double>::quiet_NaN();
    return true;
  });
  return losses;
}

bool has_iteration(const Path& file, std::int64_t iteration, Env& env) {
  bool found = false;
  if (!env.status(file)) return false;
  for_each_line(file, env, [&](std::string_view line) {
    found = found || quick_iteration(line) == iteration;
    return !found;
  });
  return found;
}

std::vector<EvaluationRecord> recorded_evaluations(const Path& file, std::int64_t last, Env& env) {
  std::vector<EvaluationRecord> records;
  for_each_object(file, env, [&](const Json& json, std::int64_t iteration) {
    const std::string set = text_in(json, "data_set");
    const std::optional<double> loss = number_in(json, "lm_loss");
    if (iteration <= last && !set.empty() && loss)
      records.push_back({.iteration = iteration, .data_set = set, .lm_loss = *loss});
    if (records.size() > kMaxRecorded) records.erase(records.begin());
  });
  return records;
}

std::vector<RunWarning> recorded_warnings(const Path& file, Env& env) {
  std::vector<RunWarning> warnings;
  for_each_object(file, env, [&](const Json& json, std::int64_t iteration) {
    if (auto warning = warning_in(json, iteration)) warnings.push_back(std::move(*warning));
    if (warnings.size() > kMaxRecorded) warnings.erase(warnings.begin());
  });
  return warnings;
}

std::optional<RunWarning> warning_from_json(std::string_view line) {
  const std::int64_t iteration = iteration_of_line(line);
  return iteration < 0 ? std::nullopt : warning_in(Json::parse(line), iteration);
}

void keep_previous(const Path& path, Env& env) {
  Path name;
  for (int i = 1; name.empty() || env.is_link(name) || env.status(name); ++i) {
    const std::string number = i == 1 ? "" : fmt::format("-{}", i);
    name = path.parent_path() / (path.stem().string() + ".previous" + number + path.extension().string());
  }
  env.rename(path, name);
}

MetricsFile::MetricsFile(Path path, std::int64_t resume_iteration, Env& env)
    : env_(env), file_(std::move(path), env) {
  repair(file_.path(), resume_iteration, env);
}

bool MetricsFile::write(const IterationRecord& record) { return write_line(to_json(record)); }
bool MetricsFile::write(const EvaluationRecord& record) { return write_line(to_json(record)); }
bool MetricsFile::write(const SampleRecord& record) { return write_line(to_json(record)); }
bool MetricsFile::write(const RunWarning& warning) { return write_line(to_json(warning)); }

bool MetricsFile::write_line(std::string line) {
  line += '\n';
  if (pending_.size() + line.size() > kMaxPending && !flush()) {
    ++dropped_;
    return false;
  }
  pending_ += line;
  return flush();
}

bool MetricsFile::flush() {
  if (pending_.empty()) return true;
  if (!file_.append(as_bytes(pending_))) return false;
  pending_.clear();
  look_after_file();
  return true;
}

// Ignores errors, because the next write encounters and reports them.
void MetricsFile::look_after_file() {
  try {
    const auto there = env_.status(file_.path());
    if (!there) {
      if (!open_file_) return;
      const std::string content = read_range(*open_file_, 0, file_.size());
      const bool whole = content.size() == file_.size();
      make_folders(file_.path().parent_path(), env_);
      write_file_atomic(file_.path(), content, env_);
      file_.close();
      open_file_.reset();
      trouble_ = whole ? "was removed during the run and has been rewritten"
                       : "was removed during the run; part of it is lost";
    } else if (there->size != file_.size() && !std::exchange(changed_, true)) {
      trouble_ = "was changed by another program during the run: lines may be missing or repeated";
    }
    if (!open_file_) open_file_ = env_.open(file_.path(), OpenMode::kRead);
  } catch (const Error&) {
  }
}

bool MetricsFile::sync() { return flush() && file_.sync(); }

}  // namespace primus
