// Records which tokenizer made the ids of a data set: the note <prefix>.tokenizer.json next to the data set's
// .bin and .idx. The note prevents training on ids of another tokenizer with the same vocabulary size.
// Megatron-LM does not use the note. The note also identifies its data, so that a note left over from other
// data is ignored.
#pragma once

#include <string>

#include "base/files/file.h"
#include "lm/data/indexed_dataset.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// Attaches the note to a data set after its complete(). Errors: FileError.
void attach_made_by(IndexedDatasetWriter& writer, const Tokenizer& tokenizer);

// Throws Error(kInvalid) if the note of `source`, at `prefix`, names a tokenizer other than `tokenizer`.
// NullTokenizer matches any note, because its ids come from elsewhere.
void check_made_by(const Path& prefix, const TokenSource& source, const Tokenizer& tokenizer);

// The common tokenizer of several data sets that are merged into one.
class MadeBy {
 public:
  // Throws Error(kInvalid) if the tokenizers of this data set and of an earlier one differ.
  void add(const Path& prefix, const TokenSource& source, Env& env = Env::posix());
  // Attaches the note to the merged data set, after its complete(). Attaches no note if an input has no note,
  // because the tokenizer is then unknown.
  void attach(IndexedDatasetWriter& writer) const;

 private:
  std::string name_, fingerprint_;
  Path first_;
  bool known_ = true;
};

}  // namespace primus::data
