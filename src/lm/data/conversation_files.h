// The conversations in files: finds those of a split, and reads them into tokens.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lm/data/conversation_format.h"
#include "lm/data/corpus.h"
#include "lm/data/dataset.h"

namespace primus::data {

// The files that hold one part each of what is named by sft_dataset_name; an empty part is not there.
struct ConversationFiles {
  std::vector<InputFile> train, valid, test;
  bool divided = false;  // a folder with files for each part; else all is in `train`

  // Else a part of `train` may be held out.
  bool has_evaluated() const { return !valid.empty() || !test.empty(); }
};

// `name`: a file or glob of JSON lines or JSON lists (.jsonl, .ndjson, .json, also .gz and .zst), or a folder
// with files whose names begin with train, validation (valid, val, dev) and test. `split`: what training
// files are called instead of train. Error(kInvalid) where nothing is there, with the next step where it
// looks like a data set of the Hugging Face hub; kUnsupported for MLPerf's packed arrays, which are Python
// objects.
ConversationFiles find_conversations(const std::string& name, const std::string& split = "train");

// Conversations one behind the other.
struct TokenizedConversations {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learned;
  std::vector<std::int64_t> ends;  // of each, in `ids`; one that has tokens already may be several
  std::int64_t read = 0;           // objects in the files
  std::int64_t skipped = 0;        // of them, left out as broken (skip_bad)
  std::string first_skipped;       // why, of the first
  // In how many objects a key had a value that nothing uses (Conversation::unused).
  std::map<std::string, std::int64_t> unused;

  std::size_t size() const { return ends.size(); }
  std::int64_t begin(std::size_t i) const { return i == 0 ? 0 : ends[i - 1]; }
  std::int64_t tokens(std::size_t i) const { return ends[i] - begin(i); }
};

// Sentences about the records of `file`: which were left out as broken, and which keys were not used. Empty
// where there are none.
std::string note_on_skipped(const TokenizedConversations& read, std::string_view file);
std::string note_on_unused(const TokenizedConversations& read, std::string_view file);

struct ReadOptions {
  std::int64_t vocab_size = 0;  // ids must be below it
  int workers = 0;              // 0: one per core
  bool skip_bad = false;        // leaves out and counts what is refused, instead of stopping at the first
  TokenizeProgressFn progress = {};
};
// Reads the files in order, each object with `writer`. The same for any number of workers. Error(kInvalid) at
// "file:line" for the first object that is no conversation, or whose tokens are not below the vocabulary's
// size; with skip_bad where no object is left.
TokenizedConversations read_conversations(const std::vector<InputFile>& files,
                                          const ConversationWriter& writer, const ReadOptions& options);

}  // namespace primus::data
