// Training data as numbered sequences of token ids.
//
// open_datasets() opens the user's data (Megatron .bin/.idx prefixes, JSONL, plain text, or mock data) and
// returns the train, valid and test data sets in Megatron-LM's own sample order (see sample_order.h and
// gpt_dataset.h). A data set is a pure function from sample number to tokens: the number of consumed samples
// is the only state that training keeps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lm/data/batch.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// Thread-safety: const methods may be called from any number of threads at once; they take no lock.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Returns the number of samples: at least the requested number. Exception: a blend without weights may have
  // fewer samples, because it repeats nothing.
  virtual std::int64_t size() const = 0;
  virtual std::int64_t seq_length() const = 0;

  // Reads sample `index` of [0, size). `tokens` is [seq_length + 1]: inputs are tokens[0..seq) and labels
  // tokens[1..seq]. `loss_mask` is [seq_length]: 1 where the label counts in the loss, 0 elsewhere (padding,
  // end of document when masked).
  virtual void sample(std::int64_t index, std::span<std::int32_t> tokens,
                      std::span<float> loss_mask) const = 0;

  // Returns whether attention stays within the documents of document_starts(), with positions that count from
  // 0 in each document. If false, each sample is one document.
  virtual bool separates_documents() const { return false; }
  // Sets `starts` to the index of each document's first token among the inputs of sample `index`; the first
  // entry is 0. Call it only if separates_documents().
  virtual void document_starts(std::int64_t index, std::vector<std::int32_t>& starts) const;
  // Sets the role and the value of each document of sample `index` (Batch::document_roles and
  // document_values), in the order of document_starts(). The default leaves both empty, for objectives that
  // compare no texts. Call it only if separates_documents().
  virtual void document_marks(std::int64_t index, std::vector<DocumentRole>& roles,
                              std::vector<float>& values) const;
  // Sets the index of the record of each document of sample `index` (Batch::document_records), in the order
  // of document_starts(). The default leaves `records` empty, for objectives that need no records.
  virtual void document_records(std::int64_t index, std::vector<std::int64_t>& records) const;
  // Returns what sample `index` adds to the divisor of the loss: the number of labels that count, which is
  // the sum of its loss_mask. Data sets of preferences return the number of their pairs or examples instead.
  // The default implementation reads the sample.
  virtual double learned_tokens(std::int64_t index) const;

  // Returns the source of the data set, for messages: "corpus/en_text_document (train)".
  virtual std::string description() const = 0;
};

// Progress of tokenizing text files.
struct TokenizeProgress {
  std::string_view input;        // the file that is being read
  std::uint64_t bytes_done = 0;  // number of bytes read, over all inputs
  std::uint64_t bytes_total = 0;
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  double seconds = 0;
};
using TokenizeProgressFn = std::function<void(const TokenizeProgress&)>;

// The shares of training, validation and test data if the user sets none.
inline constexpr const char* kUsualShares = "99,1,0";

// How text and JSONL are tokenized on the fly to .bin/.idx.
struct TextOptions {
  std::string json_key = "text";
  bool append_eod = true;
  bool skip_bad = false;        // true: broken JSON lines are skipped and counted; false: they are errors
  int workers = 0;              // threads; 0: one per core
  TokenizeProgressFn progress;  // called from one thread at a time, about ten times a second
};

struct DataOptions {
  // Exactly one of data_path, per-split paths, and mock_data is set. Each path is a Megatron prefix
  // ("dir/name" of dir/name.bin and .idx), a text file (.txt), a JSON-lines file (.jsonl or .json, also .gz
  // and .zst), a folder of such files, or a glob. A list may contain blend weights in Megatron's form: weight
  // path weight path ...
  std::vector<std::string> data_path;
  std::vector<std::string> train_data_path, valid_data_path, test_data_path;
  bool mock_data = false;
  // Shares of train, valid and test in data_path: "969,30,1". A split with share 0 has no data set. If the
  // source is text and the share of validation or test data rounds to zero sequences, this split gets enough
  // sequences for one sample. nullopt: kUsualShares (99,1,0), and .bin/.idx data is first divided as with an
  // explicit split. If the source is text, or the validation part of .bin/.idx data is too short for one
  // sample, validation gets the last sequences: at least a hundredth of all, rounded up, and enough for one
  // sample. Data that is too short to be divided, such as one sequence, is used for training only.
  std::optional<std::string> split;

  std::int64_t seq_length = 0;
  std::int64_t seed = 1234;
  // Number of samples that training, all evaluations together, and the final test will draw. A split with 0
  // is not opened.
  std::int64_t train_samples = 0, valid_samples = 0, test_samples = 0;
  std::int64_t vocab_size = 0;  // reading a sample that contains an id >= vocab_size is an error; 0: the
                                // tokenizer's vocabulary size
  bool allow_other_tokenizer = false;  // whether data that another tokenizer encoded is accepted (made_by.h)
  bool eod_mask_loss = false;          // whether labels after the end-of-document token have no loss

  // data_cache_path: the folder of sample orders (empty: each process builds them in memory) and of text
  // tokenized on the fly (empty: ".primus-cache" next to the first input). Entries are named by a hash of
  // everything they depend on. One process builds an entry while others wait; the entry appears atomically.
  std::filesystem::path cache_dir;

  TextOptions text;
};

// A split is null if no sample of the split was requested. Validation and test data are also null if the user
// has none: a share of 0, or per-split paths without a path for that split.
struct Datasets {
  std::unique_ptr<const Dataset> train, valid, test;
  // Whether a part of the training data is excluded from training. Also true if validation does not use this
  // part.
  bool held_out = false;
  // Hash of the training data. The hash depends on the tokens and their order, not on paths. 0 if there is no
  // training data.
  std::uint64_t train_fingerprint = 0;
  // Texts to show to the user once, for example about skipped lines or a blend that is smaller than
  // requested.
  std::vector<std::string> notes;
  std::vector<std::string> facts;  // descriptions of the data, for the log
};

// Errors (Error): kInvalid for missing, truncated or inconsistent files, a split without data, a sequence
// longer than a split's data, ids beyond the vocabulary, broken JSON lines ("file:line"); FileError if the
// system refuses access. The data sets do not refer to `tokenizer` after the call.
Datasets open_datasets(const DataOptions& options, const Tokenizer& tokenizer);

// Maximum number of samples in one order.
inline constexpr std::int64_t kMaxOrderedSamples = std::int64_t{UINT32_MAX} - 1;

// Returns the paths of a list of paths, with or without weights. Throws Error(kInvalid) for a weight without
// a path.
std::vector<std::string> paths_of(const std::vector<std::string>& list);

// Upper bound of the number of tokens at a path of DataOptions, computed without reading the text. INT64_MAX
// if the path does not exist on this machine, or if the files are compressed.
struct TokenBound {
  std::int64_t maximum = INT64_MAX;
  bool exact = false;  // whether the bound is the exact number, as for .bin and .idx files
};
TokenBound bound_tokens(const std::string& path);

// Returns the number of samples in `epochs` passes over the training data. In a blend, every data set is read
// `epochs` times, whatever its weight. Tokenizes text if needed. Errors: as open_datasets.
std::int64_t samples_of_epochs(const DataOptions& options, const Tokenizer& tokenizer, double epochs);

}  // namespace primus::data
