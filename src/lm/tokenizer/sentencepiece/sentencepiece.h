// SentencePiece .model files: BPE and unigram, with byte fallback, user-defined pieces and normalisation
// rules.
//
// Equal to the sentencepiece library piece by piece, which tests hold against its own output. Its formats and
// rules: https://github.com/google/sentencepiece; the unigram model is that of Kudo 2018. Word and character
// models, pieces marked as unused in a BPE model, and denormalisation rules are refused by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lm/tokenizer/huggingface/side_files.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

// `bytes`: the .model file; `path` names it in messages; `type` is what name() returns. Where the files
// beside it (`side`) have tokens that the model lacks, all of their tokens are found in the text before the
// model sees it, as transformers' LlamaTokenizer does; their roles and chat template count in any case.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string bytes, const std::string& path,
                                                        std::string type, SideFiles side = {});

}  // namespace primus
