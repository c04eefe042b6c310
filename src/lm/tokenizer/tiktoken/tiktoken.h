// tiktoken vocabularies: byte strings with ranks. Two neighbours merge if their concatenation has a rank.
//
// Reads two kinds of files: rank files (each line is base64 of the bytes, a blank, the rank), as published
// for cl100k, o200k, r50k and Llama 3; and Megatron's JSON list of {"rank", "token_bytes", "token_str"},
// whose ids are shifted by 1000 special tokens. A rank file does not contain its splitting expression and its
// special tokens, so both are chosen by the number of ranks. If that number is unknown, Llama 3's expression
// and <|endoftext|> are used, and notes() reports this.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lm/tokenizer/tokenizer.h"

namespace primus {

bool looks_like_tiktoken(std::string_view bytes);

// Error(kInvalid) at "path:line" for a broken file.
std::unique_ptr<Tokenizer> make_tiktoken_tokenizer(std::string bytes, const std::string& path,
                                                   std::string type);

}  // namespace primus
