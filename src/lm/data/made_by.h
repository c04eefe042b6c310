// Which tokenizer made the ids of a data set: a note beside its .bin and .idx, <prefix>.tokenizer.json, so
// that ids are not trained on with another tokenizer of the same size. Megatron-LM neither writes nor reads
// it. A note says which data it is of, so one that was left behind by other data counts for nothing.
#pragma once

#include "base/files/file.h"
#include "lm/data/indexed_dataset.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// Of the complete data set at `prefix`. Errors: FileError.
void write_made_by(const Path& prefix, const Tokenizer& tokenizer, Env& env = Env::posix());

// Throws Error(kInvalid) where the note of `source`, at `prefix`, names another tokenizer than `tokenizer`.
// NullTokenizer stands for any: its ids are made elsewhere.
void check_made_by(const Path& prefix, const TokenSource& source, const Tokenizer& tokenizer);

}  // namespace primus::data
