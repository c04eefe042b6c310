// Tokenizers from SentencePiece .model files: BPE and unigram, with byte fallback, user-defined pieces and
// normalization rules.
//
// Produces the same pieces as the sentencepiece library; tests compare with its output. Formats and rules:
// https://github.com/google/sentencepiece; unigram model: Kudo 2018. Word and character models, unused pieces
// in a BPE model, and denormalisation rules are not supported; the error names the feature.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lm/tokenizer/huggingface/side_files.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

// `bytes`: content of the .model file; `path` is its name in messages; `type` is the result of name().
// `side`: the files next to the model. If one of their tokens is not in the model, all of their tokens are
// matched in the text first, and the model encodes the rest. This is as in transformers' LlamaTokenizer. The
// token roles and the chat template in these files are always used.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string bytes, const std::string& path,
                                                        std::string type, SideFiles side = {});

}  // namespace primus
