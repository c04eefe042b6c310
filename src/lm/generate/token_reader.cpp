#include "lm/generate/token_reader.h"

#include <algorithm>

namespace primus {
namespace {

ReaderSettings of_one(ReaderSettings settings) {
  settings.sequences = 1;
  settings.pages = 0;
  return settings;
}

}  // namespace

TokenReader::TokenReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings)
    : reader_(rank, model, of_one(settings)) {
  reader_.reserve(0, settings.capacity);
}

NextLogits TokenReader::read(std::span<const std::int32_t> tokens, const WantedLogits& wanted) {
  const BatchReader::Input all{0, tokens};
  reader_.check({&all, 1});
  // Only the last token's logits are of interest, so it goes alone: the head then multiplies one row.
  const auto pass_tokens = static_cast<std::size_t>(reader_.settings().pass_tokens);
  while (tokens.size() > 1) {
    const BatchReader::Input part{0, tokens.first(std::min(tokens.size() - 1, pass_tokens))};
    reader_.read({&part, 1});
    tokens = tokens.subspan(part.tokens.size());
  }
  const BatchReader::Input last{0, tokens};
  reader_.read_next({&last, 1}, wanted);
  return reader_.next(0);
}

}  // namespace primus
