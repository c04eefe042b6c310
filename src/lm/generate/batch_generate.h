// Generates from many prompts at once (lm/decode/scheduler.h). All prompts are known at the start.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lm/generate/generate.h"

namespace primus {

struct BatchPrompt {
  std::vector<std::int32_t> tokens;  // tokens of the prompt, at least one
  GenerateSettings settings;
};

// Returns the number of tokens to reserve for a text: its prompt and its maximum of new tokens, but at most
// `capacity`.
std::int64_t room_for(const BatchPrompt& prompt, std::int64_t capacity);

struct BatchEvents {
  // Called when text `index` has ended, in the order in which texts end.
  std::function<void(std::size_t index, Generation&& text)> done;
  // Called after every pass with the running total of generated tokens, over all texts. May be empty.
  std::function<void(std::int64_t tokens)> progress = {};
};

// Prompts run in order. Throws Error(kInvalid), before generating anything, if a prompt does not fit a
// sequence. The decoder must have no other texts.
void generate_batch(DecodeScheduler& decoder, std::span<const BatchPrompt> prompts,
                    const BatchEvents& events);

}  // namespace primus
