// Byte-level BPE as OpenAI published GPT-2's: vocab.json (token to id) and merges.txt (two tokens a line, by
// rank), made into the tokenizer.json that Hugging Face's converters make of them.
//
// The two files say neither how text is cut nor which tokens are special. By themselves they are GPT-2's, as
// Megatron's GPT2BPETokenizer takes them; in a model folder the class that tokenizer_config.json names
// decides: GPT2Tokenizer or Qwen2Tokenizer. Any other class is refused by name.
#pragma once

#include "base/files/file.h"
#include "lm/tokenizer/huggingface/huggingface.h"

namespace primus {

// Error(kInvalid) at "file:line" for a broken file; FileError.
HuggingFaceFiles read_gpt2_files(const Path& vocab_file, const Path& merge_file);

// Whether the folder holds the two files; and all that lies in it of the tokenizer.
bool has_gpt2_files(const Path& folder);
HuggingFaceFiles read_gpt2_folder(const Path& folder);

}  // namespace primus
