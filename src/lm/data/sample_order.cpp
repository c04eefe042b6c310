#include "lm/data/sample_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "lm/data/numpy_random.h"

namespace primus::data {

namespace {

constexpr std::int64_t kExtra = 1;  // the label of a sample's last input is one token after its inputs

// Number of epochs, and whether the last epoch is shuffled separately.
struct Epochs {
  std::int64_t count = 1;
  std::int64_t rows = 0;  // number of rows in all epochs together
  bool separate_last = false;
  std::int64_t rows_before_last = 0;  // with separate_last: number of rows in all epochs before the last
};

Epochs plan_epochs(std::int64_t tokens, const OrderOptions& options) {
  const std::int64_t length = options.seq_length;
  Epochs plan;
  if (options.samples >= 0) {
    const std::int64_t needed =
        checked_add(checked_mul(options.samples, length, "requested tokens"), kExtra, "requested tokens");
    plan.count = std::max<std::int64_t>(1, needed / tokens + (needed % tokens != 0));
  }
  const std::int64_t total = checked_mul(plan.count, tokens, "tokens of all epochs");
  plan.rows = (total - kExtra) / length;
  if (plan.count > 1) {
    plan.rows_before_last = ((plan.count - 1) * tokens - kExtra) / length;
    const std::int64_t rows_of_last = options.samples - plan.rows_before_last;
    const std::int64_t rows_per_epoch = (tokens - kExtra) / length;
    plan.separate_last = rows_of_last < static_cast<std::int64_t>(0.80 * static_cast<double>(rows_per_epoch));
  }
  return plan;
}

// The arrays of a SampleOrder under construction.
struct Arrays {
  std::vector<std::int32_t> documents;
  std::vector<SampleOrder::Place> rows;
  std::vector<std::uint32_t> shuffle;
};

// Appends `epochs` passes over the split's sequences, shuffled together.
void append_shuffled(const OrderOptions& options, std::int64_t epochs, RandomState& random,
                     std::vector<std::int32_t>& documents) {
  const auto begin = static_cast<std::ptrdiff_t>(documents.size());
  const std::int64_t count = options.last - options.first;
  documents.resize(documents.size() + static_cast<std::size_t>(count * epochs));
  auto at = documents.begin() + begin;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch, at += count) {
    std::iota(at, at + count, static_cast<std::int32_t>(options.first));
  }
  random.shuffle(std::span(documents).subspan(static_cast<std::size_t>(begin)));
}

void append_rows(std::int64_t rows, std::int64_t seq_length, FunctionRef<std::int32_t(std::int64_t)> length,
                 Arrays& order) {
  order.rows.push_back({});
  std::uint32_t document = 0;
  std::int64_t offset = 0;  // token offset within sequence `document`
  for (std::int64_t row = 0; row < rows; ++row) {
    // Skips L tokens, because the next row begins with the last token of this row.
    std::int64_t remaining = seq_length;
    std::int64_t left;
    while ((left = length(order.documents[document]) - offset) <= remaining) {
      remaining -= left;
      ++document;
      offset = 0;
    }
    offset += remaining;
    order.rows.push_back({document, static_cast<std::uint32_t>(offset)});
  }
}

void reserve(const Epochs& plan, std::int64_t documents, std::string_view name, Arrays& order) {
  try {
    order.documents.reserve(static_cast<std::size_t>(documents));
    order.rows.reserve(static_cast<std::size_t>(plan.rows) + 1);
    order.shuffle.reserve(static_cast<std::size_t>(plan.rows));
  } catch (const std::bad_alloc&) {
    const double bytes =
        static_cast<double>(documents) * sizeof(std::int32_t) +
        static_cast<double>(plan.rows) * (sizeof(SampleOrder::Place) + sizeof(std::uint32_t));
    throw unsupported(
        fmt::format("the order of {} has {} samples of {} sequences: {:.1f} GB, and this machine has "
                    "less free memory",
                    name, plan.rows, documents, bytes / 1e9),
        "train for fewer steps or epochs, or with a longer seq_length");
  }
}

}  // namespace

SampleOrder build_sample_order(const OrderOptions& options, FunctionRef<std::int32_t(std::int64_t)> length,
                               std::string_view name) {
  std::int64_t tokens = 0;
  for (std::int64_t i = options.first; i < options.last; ++i) tokens += length(i);
  if (tokens == 0) {
    throw invalid(fmt::format("{} holds no tokens ({} sequences)", name, options.last - options.first),
                  "increase its share (split), or add data; or request no samples of it");
  }
  const Epochs plan = plan_epochs(tokens, options);
  const std::int64_t documents =
      checked_mul(plan.count, options.last - options.first, "sequences of all epochs");
  if (plan.rows >= UINT32_MAX || documents >= UINT32_MAX || options.last > INT32_MAX) {
    throw unsupported(fmt::format("{} has {} samples of {} sequences; the limit of each is 2^32", name,
                                  plan.rows, documents),
                      name.ends_with("(train)")
                          ? "reduce train_iters x global_batch_size, or train_samples"
                          : "reduce eval_iters x global_batch_size, or the number of evaluations");
  }
  const auto arrays = std::make_shared<Arrays>();
  reserve(plan, documents, name, *arrays);
  RandomState random(static_cast<std::uint32_t>(options.seed));
  append_shuffled(options, plan.count - plan.separate_last, random, arrays->documents);
  if (plan.separate_last) append_shuffled(options, 1, random, arrays->documents);
  append_rows(plan.rows, options.seq_length, length, *arrays);
  arrays->shuffle.resize(static_cast<std::size_t>(plan.rows));
  std::iota(arrays->shuffle.begin(), arrays->shuffle.end(), 0u);
  const auto first = static_cast<std::size_t>(plan.separate_last ? plan.rows_before_last : plan.rows);
  random.shuffle(std::span(arrays->shuffle).first(first));
  random.shuffle(std::span(arrays->shuffle).subspan(first));
  return {arrays->documents, arrays->rows, arrays->shuffle, plan.count, plan.separate_last, arrays, {}};
}

}  // namespace primus::data
