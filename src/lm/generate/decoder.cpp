#include "lm/generate/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tensor/bfloat16.h"

namespace primus {

using engine::Value;

Decoder::Parts::Parts(engine::Rank& rank, const ModelConfig& config, const FamilyRegistry& families,
                      const DecoderSettings& settings)
    : model(config, families, store) {
  store.allocate({.compute = settings.compute, .gradients = false, .optimizer_states = false},
                 rank.persistent());
  model.allocate_tables(rank, settings.capacity);
  cache = make_kv_cache(rank, config, settings.compute, 1, settings.capacity);
}

void Decoder::Parts::set_length(std::int64_t length) {
  for (engine::KvCacheLayer& layer : cache.layers) layer.length = length;
}

Decoder::Decoder(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
                 const DecoderSettings& settings)
    : config_(config), settings_(settings), rank_(std::move(device)) {
  if (settings.capacity < 1 || settings.capacity > config.max_positions) {
    throw invalid(fmt::format("a context of {} tokens is not from 1 to the model's {}", settings.capacity,
                              config.max_positions));
  }
  rank_.reserve(measure(families));
  parts_ = std::make_unique<Parts>(rank_, config_, families, settings_);
}

// What a pass needs depends on how many tokens it reads and how many are there already; every size that can
// occur is tried, at the largest length it can occur at.
engine::MemoryPlan Decoder::measure(const FamilyRegistry& families) {
  parts_ = std::make_unique<Parts>(rank_, config_, families, settings_);
  const std::vector<std::int32_t> tokens(std::min(settings_.chunk, settings_.capacity));
  for (std::size_t count = 1; count <= tokens.size(); ++count) {
    parts_->set_length(settings_.capacity - static_cast<std::int64_t>(count));
    forward(std::span(tokens).first(count), count == 1);
  }
  parts_.reset();
  return rank_.high_water();
}

std::span<const float> Decoder::read(std::span<const std::int32_t> tokens) {
  if (tokens.empty()) throw invalid("there is no token to read");
  if (static_cast<std::int64_t>(tokens.size()) > settings_.capacity - length()) {
    throw invalid(fmt::format("{} more tokens do not fit a context of {} that holds {}", tokens.size(),
                              settings_.capacity, length()));
  }
  for (const std::int32_t id : tokens) {
    if (id < 0 || id >= config_.vocab) {
      throw invalid(fmt::format("token {} is outside the vocabulary of {}", id, config_.vocab));
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

void Decoder::truncate(std::int64_t length) {
  if (length < this->length()) parts_->set_length(std::max<std::int64_t>(length, 0));
}

void Decoder::forward(std::span<const std::int32_t> tokens, bool logits) {
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
                 .cache = &parts_->cache};
  if (!rank_.measuring()) {
    stream.copy_to_device(in.tokens.tensor().data, tokens.data(), 4 * count);
    stream.copy_to_device(in.positions.tensor().data, positions_.data(), 4 * count);
  }
  const Value hidden = parts_->model.forward(in);
  if (logits) {
    const Value last = parts_->model.logits(hidden);
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
  parts_->set_length(length() + count);
}

}  // namespace primus
