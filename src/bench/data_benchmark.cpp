// Measures the speed of an experiment's data path: opening the data, and reading batches as training does.
// Runs in one thread plus the loader's threads. Cases: `open` (tokenizes files that are not tokenized yet,
// and computes sample orders); `read` (reads each batch in the training thread); `read ahead` (prefetches as
// training does, with a consumer that never pauses). Reads samples of the training set in training order, and
// starts over if the data set is too small.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "bench/benchmark_entry.h"
#include "bench/device_timer.h"
#include "config/experiment.h"
#include "config/trainer_config.h"
#include "lm/data/batch_loader.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

// Returns samples of the seconds per batch. Each sample covers several batches, so that the clock's
// resolution does not matter.
std::pair<std::vector<double>, std::int64_t> read_batches(const data::Dataset& dataset,
                                                          const data::BatchLoaderOptions& options,
                                                          double seconds) {
  const std::int64_t batches = dataset.size() / options.micro_batch_size;
  std::unique_ptr<data::BatchLoader> loader;
  std::int64_t left = 0;
  const auto next = [&] {
    if (left == 0) {
      loader = std::make_unique<data::BatchLoader>(dataset, options);
      left = batches;
    }
    loader->next();
    --left;
  };
  const auto time_of = [&](std::int64_t calls) {
    const double begin = steady_seconds();
    for (std::int64_t i = 0; i < calls; ++i) next();
    return std::max((steady_seconds() - begin) / static_cast<double>(calls), 1e-9);
  };
  time_of(2);  // warm-up: maps files and fills the read-ahead buffer
  const std::int64_t calls = std::clamp<std::int64_t>(static_cast<std::int64_t>(0.01 / time_of(8)), 1, 10000);
  std::vector<double> samples;
  const double begin = steady_seconds();
  while (samples.size() < 5 || steady_seconds() - begin < seconds) samples.push_back(time_of(calls));
  return {std::move(samples), calls};
}

BenchmarkReport benchmark_data(const config::Experiment& given, const BenchmarkRun& run) {
  check_seconds(run.seconds);
  const std::unique_ptr<Objective> objective = make_objective(given.trainer);
  config::Experiment experiment = objective->plan(given, builtin_families(), 1).experiment;
  const config::TrainerConfig& c = experiment.trainer;
  std::vector<std::string> notes;
  const std::unique_ptr<const Tokenizer> tokenizer = tokenizer_of(experiment, &notes);
  // If the number of steps is unset, it is set to 1, which is enough to open the data.
  if (config::length_is_open(c)) config::set_train_iters(experiment, 1);
  const auto say = [&](std::string_view what, std::int64_t done = 0, std::int64_t total = 0) {
    run.progress(what, done, total);
  };
  const DataRequest request{.experiment = experiment,
                            .tokenizer = *tokenizer,
                            .progress =
                                [&](const data::TokenizeProgress& now) {
                                  say("tokenizing", static_cast<std::int64_t>(now.bytes_done),
                                      static_cast<std::int64_t>(now.bytes_total));
                                },
                            .cyclic = {.micro_batch_size = c.micro_batch_size, .sharded = c.data_sharding}};
  BenchmarkReport report{.suite = "data", .dtype = {}, .notes = std::move(notes)};
  std::vector<double> openings;
  data::Datasets datasets;
  for (int i = 0; i < 5; ++i) {
    datasets = {};
    say(i == 0 ? "opening the data" : "reopening the data");
    const double begin = steady_seconds();
    datasets = objective->open(request);
    openings.push_back(std::max(steady_seconds() - begin, 1e-9));
  }
  if (!datasets.train) throw invalid("the experiment has no training data", "set data_path or mock_data");
  report.notes.insert(report.notes.end(), datasets.notes.begin(), datasets.notes.end());
  const data::Dataset& dataset = *datasets.train;
  report.device = fmt::format("{}, {} x {} tokens", dataset.description(), c.micro_batch_size, c.seq_length);
  data::BatchLoaderOptions loader{.micro_batch_size = c.micro_batch_size,
                                  .prefetch = 0,
                                  .reset_position_ids = c.reset_position_ids,
                                  .reset_attention_mask = c.reset_attention_mask,
                                  .eod = tokenizer->special_ids().eod};
  if (dataset.size() < loader.micro_batch_size)
    throw invalid(
        fmt::format("{} has {} samples, fewer than a microbatch", dataset.description(), dataset.size()),
        "set a smaller micro_batch_size");
  // The first opening has a separate result, because it tokenizes the data and writes files that later
  // openings reuse.
  report.results.push_back({.name = "open, first", .timing = summarize({openings.front()})});
  report.results.push_back(
      {.name = "open, again", .timing = summarize({openings.begin() + 1, openings.end()})});
  const auto tokens = static_cast<double>(c.micro_batch_size * c.seq_length);
  for (const bool ahead : {false, true}) {
    loader.prefetch = ahead ? batches_read_ahead(c.global_batch_size / c.micro_batch_size) : 0;
    say(ahead ? "reading batches ahead" : "reading batches");
    auto [samples, calls] = read_batches(dataset, loader, run.seconds);
    report.results.push_back(
        {.name = ahead ? fmt::format("prefetched ({} batches)", loader.prefetch) : "read",
         .timing = summarize(std::move(samples)),
         .calls = calls,
         .tokens = tokens});
  }
  return report;
}

class DataBenchmark final : public Benchmark {
  std::vector<BenchmarkOption> options() override { return {}; }
  BenchmarkReport measure(const BenchmarkRun& run) override { return benchmark_data(*run.experiment, run); }
};

}  // namespace

extern const BenchmarkEntry kDataEntry{.name = "data",
                                       .make = make_benchmark<DataBenchmark>,
                                       .subject = BenchmarkSubject::kExperiment,
                                       .seconds = 2};

}  // namespace primus
