// Generates a text for each of many prompts (lm/decode/scheduler.h). All prompts are known at the start.
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

// Returns the number of tokens to reserve for a text: the prompt plus the maximum number of new tokens, but
// at most `capacity`.
std::int64_t room_for(const BatchPrompt& prompt, std::int64_t capacity);

struct BatchEvents {
  // Called when the text with this index has ended. Texts may end in any order.
  std::function<void(std::size_t index, Generation&& text)> done;
  // Called after every pass with the total number of tokens generated so far, over all texts. May be empty.
  std::function<void(std::int64_t tokens)> progress = {};
};

// Prompts start in order. If a prompt does not fit into a sequence, throws Error(kInvalid) before generating
// anything. The decoder must have no other texts.
void generate_batch(DecodeScheduler& decoder, std::span<const BatchPrompt> prompts,
                    const BatchEvents& events);

}  // namespace primus
