// Byte-level BPE in OpenAI's GPT-2 files: vocab.json (token to id) and merges.txt (two tokens per line, by
// rank), converted to the tokenizer.json that Hugging Face's converters write.
//
// The splitting rule and the special tokens are missing in these two files. Without a model folder, GPT-2's
// rule and special tokens are used, as in Megatron's GPT2BPETokenizer. In a model folder the class in
// tokenizer_config.json decides: GPT2Tokenizer or Qwen2Tokenizer. Any other class is an error that names the
// class.
#pragma once

#include "base/files/file.h"
#include "lm/tokenizer/huggingface/huggingface.h"

namespace primus {

// Error(kInvalid) at "file:line" for a broken file; FileError.
HuggingFaceFiles read_gpt2_files(const Path& vocab_file, const Path& merge_file);

// has_gpt2_files: whether the folder has the two files. The overload reads all tokenizer files of the folder.
bool has_gpt2_files(const Path& folder);
HuggingFaceFiles read_gpt2_folder(const Path& folder);

}  // namespace primus
