// Hugging Face tokenizer.json: added tokens, normalizer, pre-tokenizer, BPE model, post-processor, decoder.
//
// Format: https://huggingface.co/docs/tokenizers. Equal to the `tokenizers` library id by id; tests hold its
// own output for three tokenizers. What is not supported (WordPiece, a Unigram model, dropout, some stages)
// is refused by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lm/tokenizer/huggingface/side_files.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

// The text files of a tokenizer as they lie in a model folder; empty where there is none.
struct HuggingFaceFiles : SideFiles {
  std::string tokenizer_json;
  std::string path = "tokenizer.json";  // of tokenizer_json, for messages
};

// Adds to a tokenizer.json, already read from `path`, the files that lie beside it.
HuggingFaceFiles read_huggingface_files(const std::filesystem::path& path, std::string tokenizer_json);

// `type` is what name() then returns.
std::unique_ptr<Tokenizer> make_huggingface_tokenizer(HuggingFaceFiles files, std::string type);

}  // namespace primus
