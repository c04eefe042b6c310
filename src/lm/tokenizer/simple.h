// Tokenizers that need no file: one whose tokens are bytes, and one whose tokens are numbers in decimal.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "lm/tokenizer/tokenizer.h"

namespace primus {

// Ids 0..255 are the bytes of the text. Id 256, <|endoftext|>, ends a document. Any bytes can be encoded.
std::unique_ptr<const Tokenizer> make_byte_tokenizer();

// Returns whether two fingerprints belong to tokenizers that make the same ids. This is the case for equal
// fingerprints, and for the byte tokenizer and the tokenizer.json that it saves. Thread-safe.
bool make_same_ids(std::uint64_t fingerprint, std::uint64_t other);

// Returns Megatron's NullTokenizer, which encodes the text "17 4 99" as [17, 4, 99]. Each id is in
// [0, vocab_size). The last of these ids ends a document, as in Megatron since 2026. In earlier versions of
// Megatron, the additional id vocab_size ended a document.
std::unique_ptr<const Tokenizer> make_null_tokenizer(std::int32_t vocab_size);

}  // namespace primus
