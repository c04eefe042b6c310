#include "lm/generate/batch_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "tensor/bfloat16.h"

namespace primus {
namespace {

using engine::Value;

// The sizes a pass of up to `most` rows may have: powers of two, then multiples of 16, so that no more than a
// few rows are computed for nothing.
std::vector<std::int64_t> pass_sizes(std::int64_t most) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size < most; size += std::min<std::int64_t>(size, 16)) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

std::int64_t pass_size(std::int64_t rows, std::int64_t most) {
  const std::vector<std::int64_t> sizes = pass_sizes(most);
  return *std::lower_bound(sizes.begin(), sizes.end(), rows);
}

}  // namespace

BatchReader::BatchReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings)
    : rank_(rank), model_(model), settings_(settings) {
  if (settings.capacity < 1 || settings.capacity > config().max_positions) {
    throw invalid(fmt::format("a context of {} tokens is not from 1 to the model's {}", settings.capacity,
                              config().max_positions));
  }
  if (settings.sequences < 1) throw invalid(fmt::format("{} sequences cannot be read", settings.sequences));
  if (settings.all_pages() < settings.pages_for(settings.capacity)) {
    throw invalid(fmt::format("a cache of {} pages of {} tokens does not hold one sequence of {}",
                              settings.all_pages(), ReaderSettings::kPageTokens, settings.capacity),
                  "give the cache more pages, or sequences less room");
  }
  PRIMUS_CHECK("BatchReader", settings.chunk > 0);
  settings_.chunk = std::min(settings.chunk, settings.capacity * settings.sequences);
  cache_ = make_kv_cache(rank, config(), settings.compute, settings.sequences, settings.capacity,
                         settings.all_pages(), ReaderSettings::kPageTokens);
  slots_.resize(static_cast<std::size_t>(settings.sequences));
  for (std::int64_t page = settings.all_pages(); page > 0; --page)
    free_.push_back(static_cast<std::int32_t>(page - 1));
}

void BatchReader::measure() {
  for (const std::int64_t rows : pass_sizes(settings_.chunk)) {
    fill({}, rows);
    forward(rows, false);
  }
  for (const std::int64_t rows : pass_sizes(settings_.sequences)) {
    fill({}, rows);
    forward(rows, true);
  }
}

bool BatchReader::reserve(std::int64_t sequence, std::int64_t length) {
  PRIMUS_CHECK("BatchReader::reserve", length <= settings_.capacity);
  std::vector<std::int32_t>& pages = slots_[static_cast<std::size_t>(sequence)].pages;
  const std::int64_t more = settings_.pages_for(length) - static_cast<std::int64_t>(pages.size());
  if (more > free_pages()) return false;
  for (std::int64_t i = 0; i < more; ++i) {
    pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void BatchReader::check(std::span<const Input> inputs) const {
  std::int64_t previous = -1;
  for (const Input& input : inputs) {
    PRIMUS_CHECK("BatchReader", input.sequence > previous && input.sequence < settings_.sequences);
    previous = input.sequence;
    if (input.tokens.empty()) throw invalid("there is no token to read");
    const Slot& s = slot(input.sequence);
    const std::int64_t room = std::min(settings_.capacity, static_cast<std::int64_t>(s.pages.size()) *
                                                               ReaderSettings::kPageTokens) -
                              s.length;
    if (static_cast<std::int64_t>(input.tokens.size()) > room) {
      throw invalid(fmt::format("{} more tokens do not fit a context of {} that holds {}",
                                input.tokens.size(), s.length + room, s.length));
    }
    for (const std::int32_t id : input.tokens) {
      if (id < 0 || id >= config().vocab) {
        throw invalid(fmt::format("token {} is outside the vocabulary of {}", id, config().vocab));
      }
    }
  }
}

void BatchReader::fill(std::span<const Input> inputs, std::int64_t rows) {
  tokens_.clear(), positions_.clear();
  starts_.assign(1, 0);
  lengths_.clear();
  const std::int64_t blocks = cache_.sequences.blocks();
  table_.assign(static_cast<std::size_t>(settings_.sequences * blocks), 0);
  for (std::int64_t sequence = 0; sequence < settings_.sequences; ++sequence) {
    const Slot& s = slot(sequence);
    std::copy(s.pages.begin(), s.pages.end(), table_.begin() + sequence * blocks);
    std::int64_t length = s.length;
    if (!inputs.empty() && inputs.front().sequence == sequence) {
      for (const std::int32_t token : inputs.front().tokens) {
        tokens_.push_back(token);
        positions_.push_back(static_cast<std::int32_t>(length++));
      }
      inputs = inputs.subspan(1);
    }
    starts_.push_back(static_cast<std::int32_t>(tokens_.size()));
    lengths_.push_back(static_cast<std::int32_t>(length));
  }
  tokens_.resize(static_cast<std::size_t>(rows), 0);
  positions_.resize(static_cast<std::size_t>(rows), 0);
}

void BatchReader::read(std::span<const Input> inputs) {
  std::int64_t rows = 0;
  for (const Input& input : inputs) rows += static_cast<std::int64_t>(input.tokens.size());
  if (rows > settings_.chunk) {
    throw invalid(fmt::format("{} tokens do not fit a pass of {}", rows, settings_.chunk));
  }
  check(inputs);
  if (rows == 0) return;
  rows = pass_size(rows, settings_.chunk);
  fill(inputs, rows);
  forward(rows, false);
  for (const Input& input : inputs) {
    slots_[static_cast<std::size_t>(input.sequence)].length += static_cast<std::int64_t>(input.tokens.size());
  }
}

std::span<const float> BatchReader::read_next(std::span<const Input> inputs) {
  for (const Input& input : inputs) PRIMUS_CHECK("BatchReader::read_next", input.tokens.size() == 1);
  check(inputs);
  if (inputs.empty()) return {};
  const std::int64_t rows = pass_size(static_cast<std::int64_t>(inputs.size()), settings_.sequences);
  fill(inputs, rows);
  forward(rows, true);
  for (const Input& input : inputs) ++slots_[static_cast<std::size_t>(input.sequence)].length;
  return std::span<const float>(logits_).first(inputs.size() * static_cast<std::size_t>(config().vocab));
}

void BatchReader::truncate(std::int64_t sequence, std::int64_t length) {
  Slot& s = slots_[static_cast<std::size_t>(sequence)];
  s.length = std::clamp<std::int64_t>(length, 0, s.length);
}

void BatchReader::release(std::int64_t sequence) {
  Slot& s = slots_[static_cast<std::size_t>(sequence)];
  s.length = 0;
  free_.insert(free_.end(), s.pages.rbegin(), s.pages.rend());
  s.pages.clear();
}

void BatchReader::forward(std::int64_t rows, bool logits) {
  Stream& stream = rank_.compute();
  engine::Tape tape(rank_.context(), rank_.stash());
  tape.begin({.train = false});
  const ModelInputs in{.batch = 1,
                       .sequence = rows,
                       .tokens = tape.input(DType::kI32, {rows}, false),
                       .positions = tape.input(DType::kI32, {rows}, false),
                       .cache = &cache_};
  const bool measuring = rank_.measuring();
  const auto upload = [&](const Tensor& to, const std::vector<std::int32_t>& from) {
    if (!measuring) stream.copy_to_device(to.data, from.data(), to.bytes());
  };
  upload(in.tokens.tensor(), tokens_);
  upload(in.positions.tensor(), positions_);
  upload(cache_.sequences.query_starts, starts_);
  upload(cache_.sequences.key_lengths, lengths_);
  upload(cache_.sequences.block_table, table_);
  const Value hidden = model_.forward(in);
  if (!logits) {
    if (!measuring) stream.synchronize();  // the host's tokens and tables are used again
    return;
  }
  const Value last = model_.logits(hidden);
  const Tensor out = last.tensor();
  downloaded_.resize(static_cast<std::size_t>(out.bytes()));
  logits_.resize(static_cast<std::size_t>(out.elements()));
  if (measuring) return;
  stream.copy_to_host(downloaded_.data(), out.data, out.bytes());
  stream.synchronize();
  if (out.dtype == DType::kF32) {
    std::memcpy(logits_.data(), downloaded_.data(), downloaded_.size());
    return;
  }
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    BFloat16 element;
    std::memcpy(&element, downloaded_.data() + 2 * i, 2);
    logits_[i] = static_cast<float>(element);
  }
}

}  // namespace primus
