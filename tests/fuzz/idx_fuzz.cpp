// Fuzzes the index of a data set: any bytes give an Error, or a data set whose tokens and samples can all be
// read.
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "lm/data/gpt_dataset.h"
#include "quick.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace primus::data;
  // Uses the input's bytes as tokens, too.
  const std::vector<uint8_t> copy(data, data + size);
  const primus::MappedFile file(nullptr, std::as_bytes(std::span(copy)));
  try {
    const auto dataset = IndexedDataset::open("fuzz", file, file);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < dataset->sequences(); ++i) {
      tokens.resize(static_cast<size_t>(dataset->length(i)));
      dataset->read(i, 0, tokens);
    }
    // Sequences do not overlap, and a token has at least one byte, so there are at most `size` tokens.
    if (static_cast<size_t>(dataset->tokens()) > size) __builtin_trap();
    const GptDataset samples(dataset, {0, dataset->sequences(), 3, 20, 1234}, {}, "train");
    std::vector<int32_t> sample(4);
    std::vector<float> mask(3);
    for (int64_t i = 0; i < samples.size(); ++i) samples.sample(i, sample, mask);
  } catch (const primus::Error&) {
  }
  return 0;
}
