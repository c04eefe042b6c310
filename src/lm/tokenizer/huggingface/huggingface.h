// Hugging Face tokenizer.json: added tokens, normalizer, pre-tokenizer, BPE model, post-processor, decoder.
//
// Format: https://huggingface.co/docs/tokenizers. Produces the same ids as the `tokenizers` library; the
// tests compare with its output for three tokenizers. Unsupported features (WordPiece, a Unigram model,
// dropout, some stages) are errors that name the feature.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lm/tokenizer/huggingface/side_files.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

// The contents of the tokenizer files in a model folder; the content of a missing file is empty.
struct HuggingFaceFiles : SideFiles {
  std::string tokenizer_json;
  std::string path = "tokenizer.json";  // path of tokenizer.json, for messages
};

// Returns `tokenizer`, the content of the tokenizer.json at `path`, together with the contents of the files
// in the same folder.
HuggingFaceFiles read_huggingface_files(const std::filesystem::path& path, std::string tokenizer_json);

// Makes the tokenizer. `type` is the text that its name() returns.
std::unique_ptr<Tokenizer> make_huggingface_tokenizer(HuggingFaceFiles files, std::string type);

}  // namespace primus
