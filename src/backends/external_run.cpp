#include "backends/external_run.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>

#include "backends/log_lines.h"
#include "base/error.h"
#include "base/files/append_file.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "config/trainer_config.h"
#include "launch/process.h"
#include "lm/events/training_monitor.h"
#include "lm/train/settings/training_settings.h"

namespace primus::backends {
namespace {

constexpr int kWriteMilliseconds = 1000;

void do_nothing(int) {}

// A stop signal goes to the complete process group. The framework handles the signal, and this process only
// waits for the framework. So this process installs handlers that do nothing. If this process ignored the
// signals, the framework would inherit that and ignore the signals, too.
void outlive_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction action {};
    action.sa_handler = do_nothing;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

// Closes rank 0's socket from the launcher, because the framework will listen on the same port.
void close_rendezvous() {
  const char* text = std::getenv("PRIMUS_RENDEZVOUS_FD");
  if (!text) return;
  const int descriptor = std::atoi(text);
  if (descriptor > 2) close(descriptor);
  unsetenv("PRIMUS_RENDEZVOUS_FD");
}

// Puts the folder of the Python program first on PATH, as the activation of its environment does. The
// framework runs some programs by name, such as the compiler for its data set helpers. Does nothing for a
// system Python, which is not in an environment.
void activate(const std::string& python, launch::Step& step) {
  const Path folder = Path(python).parent_path();
  if (folder.empty() || !Env::posix().status(folder.parent_path() / "pyvenv.cfg")) return;
  const char* path = std::getenv("PATH");
  step.environment["PATH"] = folder.string() + (path && *path ? ":" + std::string(path) : "");
  step.environment["VIRTUAL_ENV"] = folder.parent_path().string();
}

// Writes the run's files from the framework's log.
class Reporter {
 public:
  Reporter(const config::Experiment& experiment, const ExternalJob& job, int ranks)
      : folder_(run_folder_of(experiment)),
        reader_(experiment.framework, {.train_iters = experiment.trainer->train_iters,
                                       .global_batch_size = experiment.trainer->global_batch_size,
                                       .tokens_per_sample = experiment.trainer->seq_length,
                                       .ranks = ranks,
                                       .second_line_is_mean = job.second_line_is_mean}),
        experiment_(config::to_yaml(experiment)),
        train_iters_(experiment.trainer->train_iters),
        ranks_(ranks) {
    folder_.create();
    lock_.emplace(folder_.root());
    write_file_atomic(folder_.experiment_file(), experiment_);
  }

  void line(std::string_view text) {
    if (const auto record = reader_.iteration(text)) {
      // The run begins after the step before the first reported one: 0, or the step of the checkpoint if
      // resumed.
      if (!monitor_) begin(record->iteration - 1);
      last_ = record->iteration;
      monitor_->iteration(*record);
    } else if (const auto evaluation = reader_.evaluation(text); evaluation && monitor_) {
      monitor_->evaluation(*evaluation);
    }
  }

  // `code`: the framework's exit code.
  void finish(int code) {
    if (!monitor_) return;
    using State = RunEnding::State;
    RunEnding ending{.state = last_ >= train_iters_ ? State::kFinished : State::kStopped, .iteration = last_};
    if (code != 0) {
      ending.state = State::kFailed;
      ending.reason = "error";
      ending.text = fmt::format("the framework ended with exit code {}", code);
    }
    monitor_->end(ending);
  }

 private:
  // Creates the files of metrics. The run's other outputs are off: the framework writes its own TensorBoard
  // files, and the framework's log is already on the screen.
  void begin(std::int64_t done) {
    monitor_.emplace(folder_,
                     MonitorOptions{.resume_iteration = done, .log_interval = 0, .tensorboard = false}, log_);
    monitor_->begin({.folder = folder_.root().string(),
                     .first_iteration = done,
                     .train_iters = train_iters_,
                     .world = ranks_,
                     .experiment = experiment_});
  }

  RunFolder folder_;
  LogReader reader_;
  std::string experiment_;
  std::int64_t train_iters_;
  int ranks_;
  std::int64_t last_ = 0;
  std::optional<RunLock> lock_;
  Logger log_{{}};
  std::optional<TrainingMonitor> monitor_;
};

}  // namespace

std::vector<std::string> full_command(const ExternalJob& job, const Installation& installation) {
  std::vector<std::string> words{installation.python, "-u"};
  words.insert(words.end(), job.command.begin(), job.command.end());
  return words;
}

int run_process(const ExternalJob& job, const Installation& installation,
                const config::Experiment& experiment, const ProcessPlace& place, bool quiet) {
  launch::Step step{.name = "process", .where = "here", .argv = full_command(job, installation)};
  activate(installation.python, step);
  for (const auto& [name, value] : job.environment) {
    const char* before = std::getenv(name.c_str());
    if (name == "PYTHONPATH" && before && *before) {
      step.environment[name] = value + ":" + before;
    } else if (name == "XLA_FLAGS" && before && *before) {
      step.environment[name] = value + " " + before;  // if both values set a flag, XLA uses the later one
    } else if (!before) {
      step.environment[name] = value;
    }
  }
  for (const auto& [name, value] : job.required) step.environment[name] = value;
  const bool reports = place.rank == (job.last_rank_reports ? place.world - 1 : 0);
  const bool shows = !quiet && (reports || place.rank == 0);
  const RunFolder folder = run_folder_of(experiment);
  const Path logs = folder.rank_logs(experiment.module_name, place.rank);
  make_folders(logs);
  for (const JobFile& file : job.files) {
    // On shared storage, several processes write files of equal names and contents. This is safe, because
    // each process writes a temporary file and renames it atomically.
    make_folders(file.path.parent_path());
    const Path own = fmt::format("{}.rank-{}", file.path.string(), place.rank);
    write_file_atomic(own, file.text);
    Env::posix().rename(own, file.path);
  }
  std::optional<Reporter> reporter;
  if (reports) reporter.emplace(experiment, job, place.world);
  // A single process needs no output file, because its launcher keeps the output (cli/train/external.cpp).
  std::optional<AppendFile> output;
  if (place.local_world > 1) output.emplace(logs / "output.log", Env::posix());
  outlive_signals();
  close_rendezvous();
  const int code = launch::run_and_read(step, [&](std::string_view line) {
    const std::string whole = std::string(line) + "\n";
    if (output) output->append(as_bytes(whole));
    if (shows || place.local_world == 1) try_write(1, whole, kWriteMilliseconds);
    if (reporter) reporter->line(line);
  });
  if (reporter) reporter->finish(code);
  return code;
}

}  // namespace primus::backends
