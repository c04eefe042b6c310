// Writing on from many prompts at once. Up to as many texts as the reader has sequences are written together;
// one that is over makes room for the next prompt (continuous batching). Each text is the one that generate()
// writes from its prompt alone, up to rounding: neither its random numbers nor its attention depend on the
// others.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lm/generate/batch_reader.h"
#include "lm/generate/generate.h"

namespace primus {

struct BatchPrompt {
  std::vector<std::int32_t> tokens;  // at least one
  GenerateSettings settings;
};

// Tokens that a text has room for: prompt and all it may write, or what a sequence holds at most.
std::int64_t room_for(const BatchPrompt& prompt, std::int64_t capacity);

struct BatchEvents {
  // Text `index` is over. In the order they end, not that of the prompts.
  std::function<void(std::size_t index, Generation&& text)> done;
  // After every pass: tokens written so far, of all texts together. May be empty.
  std::function<void(std::int64_t tokens)> progress = {};
};

// Prompts are taken in order. One that finds too few free pages waits until another text has given its own
// back. Throws Error(kInvalid) for a prompt that does not fit a sequence, before anything is written.
void generate_batch(BatchReader& reader, std::span<const BatchPrompt> prompts, const BatchEvents& events);

}  // namespace primus
