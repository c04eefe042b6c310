// Small models for the tests of generation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/runtime/tape.h"
#include "lm/decode/decoder.h"
#include "lm/decode/token_reader.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::test {

inline ModelConfig tiny_config() {
  ModelConfig c;
  c.layers = 2;
  c.hidden = 32;
  c.ffn = 64;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 8;
  c.vocab = 96;
  c.max_positions = 64;
  c.init_std = 0.3;  // large, so that token probabilities differ clearly
  return c;
}

inline std::unique_ptr<Device> cpu() { return turbo::make_cpu_device(2); }

inline std::vector<std::int32_t> some_tokens(std::size_t count, std::int64_t vocab) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<std::int32_t>((i * i * 7 + 3 * i + 5) % vocab);
  return tokens;
}

inline void fill(engine::Rank& rank, engine::ParameterStore& store, std::string_view name,
                 const std::vector<float>& values) {
  for (engine::Parameter& p : store.parameters()) {
    if (p.name != name) continue;
    if (p.value.elements() != static_cast<std::int64_t>(values.size())) throw invalid("wrong size");
    rank.compute().copy_to_device(p.value.data, values.data(), p.value.bytes());
    rank.compute().synchronize();
    return;
  }
  throw invalid("no such parameter");
}

// Returns the fp32 logits of every position of a sequence, from one pass without a cache. Decoding must agree
// with them. `documents`: lengths of the documents packed into the sequence.
inline std::vector<std::vector<float>> teacher_forcing(const ModelConfig& config, std::uint64_t seed,
                                                       const std::vector<std::int32_t>& tokens,
                                                       const FamilyRegistry& families = builtin_families(),
                                                       const std::vector<std::int32_t>& documents = {}) {
  engine::Rank rank(cpu());
  const auto length = static_cast<std::int64_t>(tokens.size());
  std::vector<std::int32_t> positions(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) positions[i] = static_cast<std::int32_t>(i);
  std::vector<std::int32_t> first_key;
  for (const std::int32_t document : documents) {
    const auto start = static_cast<std::int32_t>(first_key.size());
    first_key.insert(first_key.end(), static_cast<std::size_t>(document), start);
  }
  for (std::size_t i = 0; i < first_key.size(); ++i) positions[i] -= first_key[i];
  std::vector<float> logits(static_cast<std::size_t>(length * config.vocab));
  auto run = [&] {
    engine::ParameterStore store;
    LanguageModel model(config, families, store);
    store.allocate({.compute = DType::kF32, .train = false}, rank.persistent());
    model.allocate_tables(rank, length);
    store.initialize(rank.context(), seed);
    engine::Tape tape(rank.context(), rank.stash());
    tape.begin({.train = false});
    ModelInputs in{
        .tokens = tape.input(DType::kI32, {length}, false),
        .blocks = {.batch = 1, .sequence = length, .positions = tape.input(DType::kI32, {length}, false)}};
    BlockInputs& blocks = in.blocks;
    if (!documents.empty()) blocks.first_key = tape.input(DType::kI32, {length}, false);
    if (!rank.measuring()) {
      if (blocks.first_key)
        rank.compute().copy_to_device(blocks.first_key.tensor().data, first_key.data(), 4 * length);
      rank.compute().copy_to_device(in.tokens.tensor().data, tokens.data(), 4 * length);
      rank.compute().copy_to_device(blocks.positions.tensor().data, positions.data(), 4 * length);
    }
    const engine::Value out = model.logits(model.forward(in));
    if (rank.measuring()) return;
    rank.compute().copy_to_host(logits.data(), out.tensor().data, out.tensor().bytes());
    rank.compute().synchronize();
  };
  run();
  rank.reserve(rank.high_water());
  run();
  std::vector<std::vector<float>> rows;
  for (std::int64_t i = 0; i < length; ++i) {
    rows.emplace_back(logits.begin() + i * config.vocab, logits.begin() + (i + 1) * config.vocab);
  }
  return rows;
}

// A decoder with direct access to its reader.
struct TestDecoder : Decoder, TokenReader {
  TestDecoder(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
              const ReaderSettings& settings)
      : Decoder(std::move(device), config, families, settings), TokenReader(reader()) {}
};

// Returns a decoder with random weights, which depend on `seed`.
inline std::unique_ptr<TestDecoder> random_decoder(std::unique_ptr<Device> device, const ModelConfig& config,
                                                   std::uint64_t seed, const ReaderSettings& settings,
                                                   const FamilyRegistry& families = builtin_families()) {
  auto decoder = std::make_unique<TestDecoder>(std::move(device), config, families, settings);
  decoder->store().initialize(decoder->rank().context(), seed);
  decoder->rank().compute().synchronize();
  return decoder;
}

// Returns a decoder whose model always continues a byte (or the byte tokenizer's end of text) with
// next[byte]. The embedding is the identity, the block adds nothing, and the head maps each byte to the next
// byte.
inline std::unique_ptr<Decoder> chain_decoder(const std::vector<std::pair<int, int>>& next,
                                              std::int64_t capacity) {
  ModelConfig c = tiny_config();
  c.layers = 1;
  c.vocab = c.hidden = 288;
  c.heads = c.kv_heads = 9;
  c.head_dim = 32;
  c.max_positions = 4096;
  auto decoder =
      std::make_unique<Decoder>(cpu(), c, builtin_families(), ReaderSettings{.capacity = capacity});
  const std::size_t n = 288;
  std::vector<float> identity(n * n, 0.0F), head(n * n, 0.0F);
  for (std::size_t i = 0; i < n; ++i) identity[i * n + i] = 1.0F;
  for (const auto& [from, to] : next)
    head[static_cast<std::size_t>(to) * n + static_cast<std::size_t>(from)] = 1.0F;
  engine::Rank& rank = decoder->rank();
  fill(rank, decoder->store(), "embedding", identity);
  fill(rank, decoder->store(), "head", head);
  fill(rank, decoder->store(), "final_norm", std::vector<float>(n, 1.0F));
  return decoder;  // all other weights are zero
}

// Returns the `next` for chain_decoder(): each byte of `text` is followed by its successor.
inline std::vector<std::pair<int, int>> chain_of(std::string_view text) {
  std::vector<std::pair<int, int>> next;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    next.emplace_back(static_cast<unsigned char>(text[i]), static_cast<unsigned char>(text[i + 1]));
  }
  return next;
}

}  // namespace primus::test
