// Which tokenizer made the ids of a data set: a note beside its .bin and .idx, <prefix>.tokenizer.json, so
// that ids are not trained on with another tokenizer of the same size. Megatron-LM neither writes nor reads
// it. A note says which data it is of, so one that was left behind by other data counts for nothing.
#pragma once

#include <string>

#include "base/files/file.h"
#include "lm/data/indexed_dataset.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// Of the complete data set at `prefix`. Errors: FileError.
void write_made_by(const Path& prefix, const Tokenizer& tokenizer, Env& env = Env::posix());

// Throws Error(kInvalid) where the note of `source`, at `prefix`, names another tokenizer than `tokenizer`.
// NullTokenizer stands for any: its ids are made elsewhere.
void check_made_by(const Path& prefix, const TokenSource& source, const Tokenizer& tokenizer);

// Whose ids several data sets hold that are to become one.
class MadeBy {
 public:
  // Throws Error(kInvalid) where this data set was made by another tokenizer than an earlier one.
  void add(const Path& prefix, const TokenSource& source, Env& env = Env::posix());
  // The note of a complete data set of documents of these. None where one of them has none: then it is not
  // known whose ids they are.
  void write(const Path& prefix, Env& env = Env::posix()) const;

 private:
  std::string name_, fingerprint_;
  Path first_;
  bool known_ = true;
};

}  // namespace primus::data
