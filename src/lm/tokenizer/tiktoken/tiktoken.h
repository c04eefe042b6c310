// tiktoken vocabularies: byte strings with ranks. Two neighbouring strings merge if their concatenation has a
// rank.
//
// Reads two kinds of files. In rank files, published for cl100k, o200k, r50k and Llama 3, each line consists
// of the bytes in base64, a blank, and the rank. Megatron's files are a JSON list of {"rank", "token_bytes",
// "token_str"}; the ids follow 1000 special tokens. A rank file contains neither its splitting expression nor
// its special tokens. Both depend on the number of ranks. If that number is unknown, Llama 3's expression and
// <|endoftext|> are used, and notes() reports this.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lm/tokenizer/tokenizer.h"

namespace primus {

bool looks_like_tiktoken(std::string_view bytes);

// Makes the tokenizer. Throws Error(kInvalid) at "path:line" for a broken file.
std::unique_ptr<Tokenizer> make_tiktoken_tokenizer(std::string bytes, const std::string& path,
                                                   std::string type);

}  // namespace primus
