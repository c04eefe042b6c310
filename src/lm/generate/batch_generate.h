// Writing on from many prompts at once (lm/decode/scheduler.h), which are all there from the beginning.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

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

// Prompts are taken in order. Throws Error(kInvalid) for a prompt that does not fit a sequence, before
// anything is written. The decoder has no other texts.
void generate_batch(DecodeScheduler& decoder, std::span<const BatchPrompt> prompts,
                    const BatchEvents& events);

}  // namespace primus
