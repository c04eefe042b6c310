// Generates a text for each of many prompts (lm/decode/scheduler.h), by a base model and its adapters
// (lm/decode/adapter_decoder.h), or by one model. All prompts are known at the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lm/decode/adapter_decoder.h"
#include "lm/generate/generate.h"

namespace primus {

struct BatchPrompt {
  std::vector<std::int32_t> tokens;  // tokens of the prompt, at least one
  GenerateSettings settings;
  std::size_t model = 0;  // number of the model that continues the prompt (DecodeRequest::model)
};

// Returns the number of tokens to reserve for a text: the prompt plus the maximum number of new tokens, but
// at most `capacity`.
std::int64_t room_for(const BatchPrompt& prompt, std::int64_t capacity);

// Returns settings of a reader for these prompts, of which at most `together` are continued at the same time.
// `max_positions`: that of the models. ReaderSettings::pass_tokens is then the largest number of tokens of
// prompts that are read together. Without prompts, returns the settings of the smallest reader.
ReaderSettings reader_for(std::span<const BatchPrompt> prompts, std::int64_t together, DType compute,
                          std::int64_t max_positions);

struct BatchEvents {
  // Called with the text with this index, after it has ended.
  std::function<void(std::size_t index, Generation&& text)> done;
  // Called after every pass with the total number of tokens generated so far, over all texts. May be empty.
  std::function<void(std::int64_t tokens)> progress = {};
};

// Generates texts by the models of `decoder`. prompts[i] belong to model i. Models whose texts may be in
// one batch (AdapterDecoder::batched) generate together, and the others one after another. Calls
// `events.done` in the order of the models and of their prompts, where the index counts all prompts in this
// order. If logits of a model are not finite, all results of the models before it are reported, and then
// Error(kNumerics) is thrown. If a prompt does not fit into a sequence, throws Error(kInvalid) before the
// models of its turn generate anything. The decoder must have no other texts.
void generate_by_models(AdapterDecoder& decoder, std::span<const std::vector<BatchPrompt>> prompts,
                        const BatchEvents& events);

}  // namespace primus
