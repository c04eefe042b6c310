// Which tokenizer made the ids of a data set: a note beside its .bin and .idx, <prefix>.tokenizer.json, so
// that ids are not trained on with another tokenizer of the same size. Megatron-LM neither writes nor reads
// it. A note says which data it is of, so one that was left behind by other data counts for nothing.
#pragma once

#include <string>

#include "base/files/file.h"
#include "lm/data/indexed_dataset.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// Attaches the note to a data set after its complete(). Errors: FileError.
void attach_made_by(IndexedDatasetWriter& writer, const Tokenizer& tokenizer);

// Throws Error(kInvalid) where the note of `source`, at `prefix`, names another tokenizer than `tokenizer`.
// NullTokenizer stands for any: its ids are made elsewhere.
void check_made_by(const Path& prefix, const TokenSource& source, const Tokenizer& tokenizer);

// Whose ids several data sets hold that are to become one.
class MadeBy {
 public:
  // Throws Error(kInvalid) where this data set was made by another tokenizer than an earlier one.
  void add(const Path& prefix, const TokenSource& source, Env& env = Env::posix());
  // Attaches the note to a data set of documents of these, after its complete(). Attaches none if one of them
  // has none: then the tokenizer is not known.
  void attach(IndexedDatasetWriter& writer) const;

 private:
  std::string name_, fingerprint_;
  Path first_;
  bool known_ = true;
};

}  // namespace primus::data
