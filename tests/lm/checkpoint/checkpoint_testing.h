// Helpers that the tests of this folder share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../../base/temporary_folder.h"
#include "base/files/file.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/safetensors.h"

namespace primus {

using test::TemporaryFolder;

// A source of random test bytes and choices (splitmix64).
class TestRandom {
 public:
  explicit TestRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }

 private:
  std::uint64_t state_;
};

// Builds a safetensors file with any header, valid or not.
inline std::string raw_safetensors(const std::string& header, std::size_t data_bytes) {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, 'x');
}

// Returns the text of the Error that `action` throws; "" if it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.location().empty() ? error.what() : error.location() + ": " + error.what();
  }
  return {};
}

// Test tensors together with the memory of their bytes.
struct TestTensors {
  std::vector<TensorSource> sources;
  std::vector<std::vector<std::byte>> storage;

  void add(std::string name, DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed) {
    TensorSource source{
        .name = std::move(name), .dtype = dtype, .shape = std::move(shape), .data = nullptr, .fill = {}};
    TestRandom random(seed);
    std::vector<std::byte> bytes(source.bytes());
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t eight = random.next();
      std::memcpy(&bytes[at], &eight, std::min(sizeof(eight), bytes.size() - at));
    }
    storage.push_back(std::move(bytes));
    source.data = storage.back().data();
    sources.push_back(std::move(source));
  }
};

// Fills in everything that a save of these tensors needs, except its files.
inline void fill_snapshot(Snapshot& snapshot, std::int64_t iteration, const TestTensors& model,
                          const TestTensors& optimizer) {
  snapshot.iteration = iteration;
  snapshot.trainer_state = "{\"iteration\":" + std::to_string(iteration) + "}";
  snapshot.model = model.sources;
  snapshot.optimizer = optimizer.sources;
}

// A small checkpoint. Every byte depends on `iteration`. With `large`, it also has a tensor of `large`
// elements.
struct TestSnapshot {
  explicit TestSnapshot(std::int64_t iteration, std::int64_t large = 0) {
    const auto seed = static_cast<std::uint64_t>(iteration) * 1000;
    model.add("embed.weight", DType::kBF16, {10, 6}, seed + 1);
    model.add("norm.weight", DType::kF32, {6}, seed + 2);
    for (const char* state : {"fp32_param", "exp_avg", "exp_avg_sq"}) {
      optimizer.add(optimizer_tensor_name(state, "embed.weight"), DType::kF32, {10, 6},
                    seed + 3 + optimizer.sources.size());
    }
    if (large > 0) optimizer.add(optimizer_tensor_name("exp_avg", "large"), DType::kF32, {large}, seed + 9);
    snapshot.files = {{"config.json", R"({"model_type":"llama"})"}, {"tokenizer.json", "{}"}};
    fill_snapshot(snapshot, iteration, model, optimizer);
  }

  // Throws or fails the test unless the checkpoint has exactly these contents.
  void expect_equal(const CheckpointReader& reader) const {
    EXPECT_EQ(reader.iteration(), snapshot.iteration);
    EXPECT_EQ(reader.trainer_state(), snapshot.trainer_state);
    for (const auto& file : snapshot.files) EXPECT_EQ(reader.file(file.name), file.content);
    for (const auto part : {TensorPart::kModel, TensorPart::kOptimizer}) {
      for (const auto& source : part == TensorPart::kModel ? snapshot.model : snapshot.optimizer) {
        std::vector<std::byte> bytes(source.bytes());
        reader.read(part, source.name, source.dtype, source.shape, bytes);
        EXPECT_EQ(std::memcmp(bytes.data(), source.data, bytes.size()), 0) << source.name;
      }
    }
  }

  TestTensors model, optimizer;
  Snapshot snapshot;
};

}  // namespace primus
