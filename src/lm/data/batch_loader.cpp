#include "lm/data/batch_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "base/system/threads.h"

namespace primus::data {

namespace {

// A buffer for one microbatch, which is being filled or waits for next().
struct Slot {
  Batch batch;
  std::int64_t index = -1;  // number of the microbatch in this slot
  bool ready = false;
  std::exception_ptr error;
};

}  // namespace

struct BatchLoader::Impl {
  Impl(const Dataset& data, const BatchLoaderOptions& chosen)
      : dataset(data), options(chosen), slots(static_cast<std::size_t>(chosen.prefetch) + 1) {
    const auto rows = static_cast<std::size_t>(options.micro_batch_size);
    const auto length = static_cast<std::size_t>(dataset.seq_length());
    for (Slot& slot : slots) {
      slot.batch.tokens.resize(rows * length);
      slot.batch.labels.resize(rows * length);
      slot.batch.loss_mask.resize(rows * length);
    }
    if (options.prefetch == 0) return;
    try {
      for (int i = 0; i < options.threads; ++i) threads.start([this] { read_ahead(); }, "reads data ahead");
    } catch (const Error&) {
      // Fewer threads give the same result, but at least one thread is needed.
      if (threads.size() == 0) throw;
    }
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopped = true;
    }
    changed.notify_all();
    threads.join();
  }

  Slot& slot_of(std::int64_t index) { return slots[static_cast<std::size_t>(index) % slots.size()]; }

  std::int64_t samples_per_microbatch() const { return options.micro_batch_size * options.dp_size; }

  void fill(std::int64_t index, Slot& slot) const {
    Batch& batch = slot.batch;
    const std::int64_t first = options.consumed_samples + index * samples_per_microbatch() +
                               options.dp_rank * options.micro_batch_size;
    const auto length = static_cast<std::size_t>(dataset.seq_length());
    std::vector<std::int32_t> tokens(length + 1);
    for (std::int64_t row = 0; row < options.micro_batch_size; ++row) {
      const std::int64_t sample = first + row;
      if (sample >= dataset.size()) {
        throw invalid(fmt::format("the data is used up: {} has {} samples, but sample {} was requested",
                                  dataset.description(), dataset.size(), sample),
                      "train for fewer steps, or give the data set a weight, which lets it repeat");
      }
      const std::size_t at = static_cast<std::size_t>(row) * length;
      dataset.sample(sample, tokens, std::span(batch.loss_mask).subspan(at, length));
      std::copy(tokens.begin(), tokens.end() - 1, batch.tokens.begin() + static_cast<std::ptrdiff_t>(at));
      std::copy(tokens.begin() + 1, tokens.end(), batch.labels.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (dataset.separates_documents()) {
      take_documents(first, batch);
    } else if (options.reset_position_ids || options.reset_attention_mask) {
      mark_documents(batch);
    }
    batch.loss_divisor = loss_divisor(index);
  }

  // Returns the mean number of learned labels per microbatch. The mean is over all samples that share one
  // loss mean.
  double loss_divisor(std::int64_t index) const {
    if (options.samples_per_mean == 0) return 0;
    // Number of microbatches per rank that share one loss mean.
    const std::int64_t together = options.samples_per_mean / samples_per_microbatch();
    const std::lock_guard lock(mean_mutex);
    if (mean_of != index / together) {
      mean_of = index / together;
      const std::int64_t begin = options.consumed_samples + mean_of * options.samples_per_mean;
      double learned = 0;
      for (std::int64_t i = 0; i < options.samples_per_mean && begin + i < dataset.size(); ++i)
        learned += dataset.learned_tokens(begin + i);
      learned_in_mean = learned;
    }
    // If a step has no learned label, its loss is 0 whatever the divisor is.
    const double microbatches =
        static_cast<double>(options.samples_per_mean) / static_cast<double>(options.micro_batch_size);
    return std::max(learned_in_mean, 1.0) / microbatches;
  }

  void take_documents(std::int64_t first, Batch& batch) const {
    const auto length = static_cast<std::int32_t>(dataset.seq_length());
    batch.positions.resize(batch.tokens.size());
    batch.document_starts.clear();
    batch.document_roles.clear();
    batch.document_values.clear();
    batch.document_records.clear();
    std::vector<std::int32_t> starts;
    std::vector<DocumentRole> roles;
    std::vector<float> values;
    std::vector<std::int64_t> records;
    for (std::int64_t row = 0; row < options.micro_batch_size; ++row) {
      dataset.document_starts(first + row, starts);
      const auto at = static_cast<std::int32_t>(row) * length;
      for (std::size_t i = 0; i < starts.size(); ++i) {
        const std::int32_t end = i + 1 < starts.size() ? starts[i + 1] : length;
        batch.document_starts.push_back(at + starts[i]);
        std::iota(batch.positions.begin() + at + starts[i], batch.positions.begin() + at + end, 0);
      }
      dataset.document_marks(first + row, roles, values);
      batch.document_roles.insert(batch.document_roles.end(), roles.begin(), roles.end());
      batch.document_values.insert(batch.document_values.end(), values.begin(), values.end());
      dataset.document_records(first + row, records);
      batch.document_records.insert(batch.document_records.end(), records.begin(), records.end());
    }
    batch.document_starts.push_back(static_cast<std::int32_t>(batch.tokens.size()));
  }

  void mark_documents(Batch& batch) const {
    const auto length = static_cast<std::size_t>(dataset.seq_length());
    batch.positions.clear();
    batch.document_starts.clear();
    std::int32_t start = 0;
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      const auto at = static_cast<std::int32_t>(i);
      const bool begins = i % length == 0 || batch.tokens[i - 1] == *options.eod;
      if (begins) start = at;
      if (begins && options.reset_attention_mask) batch.document_starts.push_back(start);
      if (options.reset_position_ids) batch.positions.push_back(at - start);
    }
    if (options.reset_attention_mask)
      batch.document_starts.push_back(static_cast<std::int32_t>(batch.tokens.size()));
  }

  void fill_or_keep_error(std::int64_t index, Slot& slot) const {
    slot.error = nullptr;
    try {
      fill(index, slot);
    } catch (...) {
      slot.error = std::current_exception();
    }
    slot.index = index;
  }

  void read_ahead() {
    std::unique_lock lock(mutex);
    while (true) {
      // A slot is free after the consumer has returned its microbatch.
      changed.wait(
          lock, [this] { return stopped || to_fill < given_back + static_cast<std::int64_t>(slots.size()); });
      if (stopped) return;
      const std::int64_t index = to_fill++;
      Slot& slot = slot_of(index);
      lock.unlock();
      fill_or_keep_error(index, slot);
      lock.lock();
      slot.ready = true;
      changed.notify_all();
    }
  }

  const Batch& next() {
    const auto begin = std::chrono::steady_clock::now();
    Slot& slot = slot_of(taken);
    if (options.prefetch == 0) {
      fill_or_keep_error(taken, slot);
    } else {
      std::unique_lock lock(mutex);
      given_back = taken;
      changed.notify_all();
      changed.wait(lock, [&] { return slot.ready && slot.index == taken; });
      slot.ready = slot.error != nullptr;  // keeps the error, so that all further calls throw it, too
    }
    wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (slot.error != nullptr) std::rethrow_exception(slot.error);
    ++taken;
    return slot.batch;
  }

  const Dataset& dataset;
  const BatchLoaderOptions options;
  std::vector<Slot> slots;
  double wait_seconds = 0;  // used only by the thread that calls next()
  std::int64_t taken = 0;   // number of microbatches that next() has returned; used only by its thread

  mutable std::mutex mean_mutex;      // guards the next two members
  mutable std::int64_t mean_of = -1;  // the mean for which `learned_in_mean` was counted; -1: none
  mutable double learned_in_mean = 0;

  std::mutex mutex;  // guards the following members and each slot's `ready`
  std::condition_variable changed;
  std::int64_t to_fill = 0;
  std::int64_t given_back = 0;
  bool stopped = false;
  ThreadGroup threads;
};

BatchLoader::BatchLoader(const Dataset& dataset, const BatchLoaderOptions& options) {
  const std::int64_t round = options.micro_batch_size * options.dp_size;
  if (options.micro_batch_size < 1 || options.dp_size < 1 || options.dp_rank < 0 ||
      options.dp_rank >= options.dp_size || options.prefetch < 0 || options.threads < 1 ||
      options.consumed_samples < 0) {
    throw invalid("a batch loader needs a positive micro-batch size and a rank below the data-parallel size");
  }
  if (options.samples_per_mean < 0 || options.samples_per_mean % round != 0) {
    throw invalid(fmt::format(
        "a mean over {} samples needs a multiple of {}, the samples of one microbatch on all ranks",
        options.samples_per_mean, round));
  }
  if ((options.reset_position_ids || options.reset_attention_mask) && !dataset.separates_documents() &&
      !options.eod) {
    throw invalid(
        "reset_position_ids and reset_attention_mask need a tokenizer with an end-of-document token");
  }
  checked_cast<std::int32_t>(
      checked_mul(options.micro_batch_size, dataset.seq_length(), "tokens of a microbatch"),
      "tokens of a microbatch");
  if (options.consumed_samples % round != 0) {
    throw invalid(fmt::format(
        "{} consumed samples are not a multiple of {}, the samples of one microbatch on all ranks",
        options.consumed_samples, round));
  }
  impl_ = std::make_unique<Impl>(dataset, options);
}

BatchLoader::~BatchLoader() = default;

const Batch& BatchLoader::next() { return impl_->next(); }

std::int64_t BatchLoader::consumed_samples() const {
  return impl_->options.consumed_samples + impl_->taken * impl_->samples_per_microbatch();
}

double BatchLoader::wait_seconds() const { return impl_->wait_seconds; }

}  // namespace primus::data
