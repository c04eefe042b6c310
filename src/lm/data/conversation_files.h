// Finds the conversation files of a split, and reads them into tokens.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/system/thread_pool.h"
#include "lm/data/conversation_format.h"
#include "lm/data/corpus.h"
#include "lm/data/dataset.h"

namespace primus::data {

// The files that sft_dataset_name names, one list per split. The list of a split without files is empty.
struct ConversationFiles {
  std::vector<InputFile> train, valid, test;
  // JSON files of a folder that belong to no split, and are not read.
  std::vector<std::string> other;
  bool divided = false;  // true: a folder with separate files for each split; false: all files are in `train`

  // Returns whether files for validation or test exist. If no such files exist, a part of `train` may be used
  // for validation.
  bool has_evaluated() const { return !valid.empty() || !test.empty(); }
};

// Finds the files. `name`: a file or glob of JSON lines or JSON lists (.jsonl, .ndjson, .json, also .gz and
// .zst), or a folder with files whose names begin with train, validation (valid, val, dev) and test. `split`:
// the prefix of training files if it is not "train". Throws Error(kInvalid) if nothing is found, with a hint
// if the name looks like a data set of the Hugging Face hub; kUnsupported for MLPerf's packed arrays, which
// are pickled Python objects.
ConversationFiles find_conversations(const std::string& name, const std::string& split = "train");

// Returns a note on the files of a folder that are not read, and on numbered files that are missing
// (train-00001-of-00003.jsonl); empty if there are none. `name`: the folder.
std::string note_on_other_files(const ConversationFiles& files, std::string_view name);

// Tokens of conversations, concatenated.
struct TokenizedConversations {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learned;
  // The index in `ids` after each conversation. A record of token ids may hold several conversations.
  std::vector<std::int64_t> ends;
  std::int64_t read = 0;      // number of objects in the files
  std::int64_t skipped = 0;   // number of records that were skipped as broken (skip_bad)
  std::string first_skipped;  // why the first skipped record is broken
  // For each ignored key (Conversation::unused), the number of records that have it.
  std::map<std::string, std::int64_t> unused;
  // For each key in Conversation::replaced, the number of records in which the key was ignored.
  std::map<std::string, std::int64_t> replaced;
  std::string first_replaced;   // location of the first record in which any of these keys was ignored
  std::int64_t unanswered = 0;  // number of conversations whose last turn has no answer
  std::string first_unanswered;
  std::int64_t empty_questions = 0;  // number of conversations with a question without text
  std::string first_empty_question;

  std::size_t size() const { return ends.size(); }
  std::int64_t begin(std::size_t i) const { return i == 0 ? 0 : ends[i - 1]; }
  std::int64_t tokens(std::size_t i) const { return ends[i] - begin(i); }
};

// Returns sentences for the log: how many records of `file` were skipped as broken, and which keys were
// ignored. Empty if nothing was skipped or ignored.
std::string note_on_skipped(const TokenizedConversations& read, std::string_view file);
std::string note_on_unused(const TokenizedConversations& read, std::string_view file);
// Returns warnings about records that have both `input_ids` and texts, about conversations that end with a
// question, and about empty questions.
std::vector<std::string> notes_on_content(const TokenizedConversations& read, std::string_view file);

struct ReadOptions {
  std::int64_t vocab_size = 0;  // ids must be smaller than vocab_size
  int workers = 0;              // number of threads; 0: one per core
  bool skip_bad = false;        // true: invalid records are skipped and counted; false: the first invalid
                                // record is an error
  TokenizeProgressFn progress = {};
};
// Reads the files in order and tokenizes each record with `writer`. The result does not depend on the number
// of workers. Throws Error(kInvalid) at "file:line" for the first record that is not a conversation or has an
// id of at least vocab_size; with skip_bad, throws only if all records are invalid.
TokenizedConversations read_conversations(const std::vector<InputFile>& files,
                                          const ConversationWriter& writer, const ReadOptions& options);

// One record after reading and tokenizing.
struct TokenizedRecord {
  LearnedTokens tokens;                       // the texts of the record, concatenated (LearnedTokens::starts)
  std::vector<std::string> unused, replaced;  // as in Conversation
  bool unanswered = false;                    // whether a conversation ends without an answer
  bool empty_question = false;                // whether a question has no text
};
// How read_records() reads one kind of record. read() may be called from several threads at once, and
// added() is called from one thread, in the order of the files.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // Reads one object into `out`, whose old content is replaced. `slot`: number of the object among the
  // objects that are read together; `thread`: number of the calling thread. Throws Error(kInvalid).
  virtual void read(JsonReader& json, std::size_t slot, int thread, TokenizedRecord& out) = 0;
  // Called with the number of objects that will be read together, and with the number of threads.
  virtual void prepare(std::size_t slots, int threads) = 0;
  // Called after the record of this slot was added to the result.
  virtual void added(std::size_t /*slot*/) {}
  // Returns the name of a valid record, for messages: "a conversation".
  virtual std::string_view name() const = 0;
};
// Reads the files like read_conversations(), with another reader.
TokenizedConversations read_records(const std::vector<InputFile>& files, RecordReader& reader,
                                    const ReadOptions& options);

}  // namespace primus::data
