// Tokenizers without a file: bytes as tokens, and numbers as text.
#pragma once

#include <memory>
#include <string_view>

#include "lm/tokenizer/tokenizer.h"

namespace primus {

// Ids 0..255 are the bytes of the text. Id 256, <|endoftext|>, ends a document. Any bytes can be encoded.
std::unique_ptr<const Tokenizer> make_byte_tokenizer();

// Megatron's NullTokenizer: "17 4 99" is [17, 4, 99]. Each id is in [0, vocab_size). The last id ends a
// document, as in Megatron since 2026.
// Before 2026, Megatron used an additional id, vocab_size, for this purpose.
std::unique_ptr<const Tokenizer> make_null_tokenizer(std::int32_t vocab_size);

}  // namespace primus
