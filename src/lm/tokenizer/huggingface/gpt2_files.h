// Byte-level BPE in the two GPT-2 files of OpenAI: vocab.json (token to id) and merges.txt (two tokens per
// line, sorted by rank). Both files are converted to the tokenizer.json that Hugging Face's converters write.
//
// The two files contain neither the splitting rule nor the special tokens. If the files are given without a
// model folder, the rule and the special tokens of GPT-2 are used, as in Megatron's GPT2BPETokenizer. In a
// model folder, the rule and the special tokens are those of the class that tokenizer_config.json names:
// GPT2Tokenizer or Qwen2Tokenizer. Any other class is an error that names the class.
#pragma once

#include "base/files/file.h"
#include "lm/tokenizer/huggingface/huggingface.h"

namespace primus {

// Reads the two files. Throws Error(kInvalid), which names file and line, for a broken file, and FileError if
// a file cannot be read.
HuggingFaceFiles read_gpt2_files(const Path& vocab_file, const Path& merge_file);

// has_gpt2_files() returns whether the folder has the two files. The overload of read_gpt2_files() reads all
// tokenizer files of the folder.
bool has_gpt2_files(const Path& folder);
HuggingFaceFiles read_gpt2_folder(const Path& folder);

}  // namespace primus
