#include "lm/train/job_start.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/file.h"
#include "config/trainer_config.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

constexpr const char* kVariable = "PRIMUS_JOB_START";
constexpr const char* kFile = "job_start";

struct JobStart {
  std::string job;
  std::int64_t restarts = 0;
};

std::optional<JobStart> parse(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  const std::size_t dot = text.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return std::nullopt;
  JobStart start{.job = std::string(text.substr(0, dot))};
  const std::string_view number = text.substr(dot + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), start.restarts);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  return start;
}

}  // namespace

bool starts_anew(const config::Experiment& experiment) { return !experiment.trainer->auto_continue_train; }

bool continue_own_job(config::Experiment& experiment) {
  const char* const text = std::getenv(kVariable);
  if (!text || experiment.trainer->auto_continue_train) return false;
  const Path file = checkpoint_root_of(experiment) / kFile;
  if (!Env::posix().status(file)) return false;
  const std::optional<JobStart> now = parse(text), before = parse(read_file(file));
  // Ranks of the start that began the run may read the file, too: their numbers are equal.
  if (!now || !before || now->job != before->job || now->restarts <= before->restarts) return false;
  experiment.trainer->auto_continue_train = true;
  return true;
}

void record_start(const Path& checkpoints) {
  if (const char* const text = std::getenv(kVariable); text && parse(text))
    write_file_atomic(checkpoints / kFile, std::string(text) + "\n");
}

}  // namespace primus
