// Hugging Face tokenizer.json: added tokens, normalizer, pre-tokenizer, BPE model, post-processor, decoder.
//
// Format: https://huggingface.co/docs/tokenizers. Produces the same ids as the `tokenizers` library; tests
// contain its output for three tokenizers. Unsupported features (WordPiece, a Unigram model, dropout, some
// stages) are errors that name the feature.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lm/tokenizer/huggingface/side_files.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

// The contents of a tokenizer's files in a model folder; empty for a missing file.
struct HuggingFaceFiles : SideFiles {
  std::string tokenizer_json;
  std::string path = "tokenizer.json";  // path of tokenizer.json, for messages
};

// Adds the files next to a tokenizer.json that was read from `path`.
HuggingFaceFiles read_huggingface_files(const std::filesystem::path& path, std::string tokenizer_json);

// `type` is the result of name().
std::unique_ptr<Tokenizer> make_huggingface_tokenizer(HuggingFaceFiles files, std::string type);

}  // namespace primus
