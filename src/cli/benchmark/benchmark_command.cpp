#include "cli/benchmark/benchmark_command.h"

#include <map>
#include <optional>
#include <string>
#include <variant>

#include "base/files/file.h"
#include "bench/device_timer.h"
#include "cli/benchmark/benchmark_ranks.h"
#include "cli/options/device.h"
#include "cli/options/experiment.h"

namespace primus::cli {
namespace {

void declare_option(Arguments& args, const BenchmarkOption& option) {
  if (bool* const* const is_set = std::get_if<bool*>(&option.target)) {
    args.flag(option.names, **is_set, option.help);
    return;
  }
  Argument& argument =
      args.option(option.names, std::string(option.value),
                  std::visit([](auto* target) -> Target { return target; }, option.target), option.help);
  if (!option.shown_default.empty()) argument.default_note(option.shown_default);
  if (option.range) argument.between(option.range->first, option.range->second);
  argument.choices = option.choices;
  for (const RefusedOption& word : option.refused)
    argument.refused.push_back(
        {std::string(word.names), std::string(word.reason), std::string(word.instead)});
  argument.several = option.several;
  argument.reads = option.reads;
}

class EntryCommand final : public Command {
 public:
  explicit EntryCommand(const BenchmarkEntry& entry)
      : entry_(entry), benchmark_(entry.make()), seconds_(entry.seconds.value_or(0)) {}

  void declare(Arguments& args) override {
    if (is(BenchmarkSubject::kExperiment)) experiment_.declare(args);
    for (const BenchmarkOption& option : benchmark_->options()) declare_option(args, option);
    for (const RefusedOption& option : benchmark_->refused())
      args.refuse(option.names, std::string(option.reason), std::string(option.instead));
    if (entry_.seconds) args.option("--seconds,--duration", "S", &seconds_, "time for each measurement");
    if (is(BenchmarkSubject::kRanks)) ranks_.declare(args);
    if (has_device() && entry_.types)
      device_.declare(args, entry_.dtype, *entry_.types);
    else if (has_device())
      device_.declare_without_type(args);
    output_.declare(args, entry_.output_names, entry_.appended);
  }

  void check_job(int, int, const std::map<std::string, std::string>& variables) override {
    check_words();
    const std::string input = benchmark_->input();
    if (input.empty() || Env::posix().status(input)) benchmark_->prepare();
    if (is(BenchmarkSubject::kExperiment)) experiment_.check_where_it_is(variables);
  }

  int run(Console& console) override {
    check_words();
    if (is(BenchmarkSubject::kRanks)) {
      const SideBySide jobs = jobs_side_by_side(launch::Surroundings::here(), ranks_.nodes());
      output_.check(jobs);
      benchmark_->prepare();
      return ranks_.run(device_, output_, jobs, console, [&](comm::Communicator& world, Device& device) {
        BenchmarkRun run = run_of(console);
        run.world = &world, run.rank_device = &device;
        return measure(run, console, world.rank() == 0);
      });
    }
    output_.check();
    benchmark_->prepare();
    BenchmarkRun run = run_of(console);
    std::optional<config::Experiment> experiment;
    if (is(BenchmarkSubject::kExperiment)) {
      experiment = experiment_.load(console);
      apply_environment(*experiment);
      run.experiment = &*experiment;
    }
    if (has_device()) run.device = device_.spec(console);
    return output_.finish(measure(run, console, true), console);
  }

 private:
  bool is(BenchmarkSubject subject) const { return entry_.subject == subject; }
  bool has_device() const { return is(BenchmarkSubject::kDevice) || is(BenchmarkSubject::kRanks); }

  // Checks the options without examining the machine. Throws Error.
  void check_words() {
    if (is(BenchmarkSubject::kRanks)) ranks_.check_words();
    device_.check_words();
    output_.check_words();
    if (entry_.seconds) check_seconds(seconds_);
    benchmark_->check();
  }

  BenchmarkRun run_of(Console& console) const {
    return {.dtype = device_.compute(),
            .fp8 = device_.fp8(),
            .fp4 = device_.fp4(),
            .seconds = seconds_,
            .report_file = output_.file(),
            .note = [&console](const std::string& text) { console.note(text); },
            .own_file = [this](const std::string& file) { return output_.own(file); }};
  }

  BenchmarkReport measure(BenchmarkRun& run, const Console& console, bool shows) {
    BenchmarkProgress progress(console);  // the destructor erases the line on a terminal
    if (shows) {
      run.measured = [&](std::int64_t done) { progress.count(done); };
      run.progress = [&](std::string_view what, std::int64_t done, std::int64_t total) {
        progress.show(what, done, total);
      };
    }
    return benchmark_->measure(run);
  }

  const BenchmarkEntry& entry_;
  std::unique_ptr<Benchmark> benchmark_;
  double seconds_;
  ExperimentArguments experiment_;
  BenchmarkRanks ranks_;
  DeviceOptions device_;
  BenchmarkOutput output_;
};

}  // namespace

std::unique_ptr<Command> make_entry_command(const BenchmarkEntry& entry) {
  return std::make_unique<EntryCommand>(entry);
}

}  // namespace primus::cli
