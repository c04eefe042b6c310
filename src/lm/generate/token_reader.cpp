#include "lm/generate/token_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "tensor/bfloat16.h"

namespace primus {

using engine::Value;

TokenReader::TokenReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings)
    : rank_(rank), model_(model), settings_(settings) {
  if (settings.capacity < 1 || settings.capacity > config().max_positions) {
    throw invalid(fmt::format("a context of {} tokens is not from 1 to the model's {}", settings.capacity,
                              config().max_positions));
  }
  cache_ = make_kv_cache(rank, config(), settings.compute, 1, settings.capacity);
}

void TokenReader::set_length(std::int64_t length) {
  for (engine::KvCacheLayer& layer : cache_.layers) layer.length = length;
}

void TokenReader::measure() {
  const std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(std::min(settings_.chunk, settings_.capacity)));
  for (std::size_t count = 1; count <= tokens.size(); ++count) {
    set_length(settings_.capacity - static_cast<std::int64_t>(count));
    forward(std::span(tokens).first(count), count == 1);
  }
  set_length(0);
}

std::span<const float> TokenReader::read(std::span<const std::int32_t> tokens) {
  if (tokens.empty()) throw invalid("there is no token to read");
  if (static_cast<std::int64_t>(tokens.size()) > settings_.capacity - length()) {
    throw invalid(fmt::format("{} more tokens do not fit a context of {} that holds {}", tokens.size(),
                              settings_.capacity, length()));
  }
  for (const std::int32_t id : tokens) {
    if (id < 0 || id >= config().vocab) {
      throw invalid(fmt::format("token {} is outside the vocabulary of {}", id, config().vocab));
    }
  }
  // Only the last token's logits are of interest, so it goes alone: the head then multiplies one row.
  while (tokens.size() > 1) {
    const auto chunk = tokens.first(std::min<std::size_t>(tokens.size() - 1, settings_.chunk));
    forward(chunk, false);
    tokens = tokens.subspan(chunk.size());
  }
  forward(tokens, true);
  return logits_;
}

void TokenReader::truncate(std::int64_t length) {
  if (length < this->length()) set_length(std::max<std::int64_t>(length, 0));
}

void TokenReader::forward(std::span<const std::int32_t> tokens, bool logits) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  positions_.resize(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i)
    positions_[i] = static_cast<std::int32_t>(length()) + static_cast<std::int32_t>(i);

  Stream& stream = rank_.compute();
  engine::Tape tape(rank_.context(), rank_.stash());
  tape.begin({.train = false});
  ModelInputs in{.batch = 1,
                 .sequence = count,
                 .tokens = tape.input(DType::kI32, {count}, false),
                 .positions = tape.input(DType::kI32, {count}, false),
                 .cache = &cache_};
  if (!rank_.measuring()) {
    stream.copy_to_device(in.tokens.tensor().data, tokens.data(), 4 * count);
    stream.copy_to_device(in.positions.tensor().data, positions_.data(), 4 * count);
  }
  const Value hidden = model_.forward(in);
  if (logits) {
    const Value last = model_.logits(hidden);
    const Tensor out = last.tensor();
    downloaded_.resize(static_cast<std::size_t>(out.bytes()));
    logits_.resize(static_cast<std::size_t>(out.elements()));
    if (!rank_.measuring()) {
      stream.copy_to_host(downloaded_.data(), out.data, out.bytes());
      stream.synchronize();
      for (std::size_t i = 0; i < logits_.size(); ++i) {
        if (out.dtype == DType::kF32) {
          std::memcpy(&logits_[i], downloaded_.data() + 4 * i, 4);
        } else {
          BFloat16 element;
          std::memcpy(&element, downloaded_.data() + 2 * i, 2);
          logits_[i] = static_cast<float>(element);
        }
      }
    }
  } else if (!rank_.measuring()) {
    stream.synchronize();  // the host's tokens and positions are used again
  }
  set_length(length() + count);
}

}  // namespace primus
