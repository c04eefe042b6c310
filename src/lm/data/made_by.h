// Records which tokenizer made the ids of a data set: the note <prefix>.tokenizer.json next to the data set's
// .bin and .idx. With the note, Primus refuses to train on ids of another tokenizer, even if both
// vocabularies have the same size. Megatron-LM does not use the note. The note also identifies its data, so
// that a note left over from other data is ignored.
#pragma once

#include <string>

#include "base/files/file.h"
#include "lm/data/indexed_dataset.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// Attaches the note to a data set after its complete(). Errors: FileError.
void attach_made_by(IndexedDatasetWriter& writer, const Tokenizer& tokenizer);

// Throws Error(kInvalid) if the note at `prefix` belongs to the data of `source` and names another tokenizer
// than `tokenizer`. NullTokenizer matches any note, because it does not make ids itself.
void check_made_by(const Path& prefix, const TokenSource& source, const Tokenizer& tokenizer);

// The tokenizer that encoded all data sets of a merge.
class MadeBy {
 public:
  // Reads the note of one data set. Throws Error(kInvalid) if this note and the note of an earlier data set
  // name different tokenizers.
  void add(const Path& prefix, const TokenSource& source, Env& env = Env::posix());
  // Attaches the note to the merged data set; its complete() must have been called. Attaches nothing if any
  // input has no note, because the tokenizer of the merged data is then unknown.
  void attach(IndexedDatasetWriter& writer) const;

 private:
  std::string name_, fingerprint_;
  Path first_;
  bool known_ = true;
};

}  // namespace primus::data
