#include "lm/generate/batch_generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace primus {

std::int64_t room_for(const BatchPrompt& prompt, std::int64_t capacity) {
  return std::min(capacity, static_cast<std::int64_t>(prompt.tokens.size()) + prompt.settings.max_tokens);
}

void generate_batch(DecodeScheduler& decoder, std::span<const BatchPrompt> prompts,
                    const BatchEvents& events) {
  const auto request_of = [](const BatchPrompt& prompt) {
    return DecodeRequest{.prompt = prompt.tokens, .settings = prompt.settings};
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    try {
      decoder.check(request_of(prompts[i]));
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("prompt {}: {}", i, error.what()), error.hint());
    }
  }
  std::vector<TextWriter> writers(prompts.size());
  std::vector<DecodeScheduler::Id> ids;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    DecodeRequest request = request_of(prompts[i]);
    request.on_token = [&, i](const DecodedToken& token) {
      writers[i].push(token);
      if (token.end) events.done(i, Generation(writers[i].text()));
      return true;
    };
    ids.push_back(decoder.submit(std::move(request)));
  }
  const std::int64_t before = decoder.counts().written;
  try {
    while (decoder.step()) {
      if (events.progress) events.progress(decoder.counts().written - before);
    }
  } catch (...) {
    for (const DecodeScheduler::Id id : ids) decoder.cancel(id);
    throw;
  }
}

}  // namespace primus
