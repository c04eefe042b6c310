// Training data as numbered sequences of token ids.
//
// open_datasets() takes what a user has (Megatron .bin/.idx prefixes, JSONL, plain text, or mock data) and
// gives the train, valid and test data sets in Megatron-LM's own sample order (gpt_dataset.h and blend.h have
// the algorithms). A data set is a pure function from sample number to tokens: the only state of training is
// how many samples were consumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// Thread-safety: const methods may be called from any number of threads at once; they take no lock.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of samples that can be asked for: at least the number requested, except for a blend without
  // weights, which repeats nothing.
  virtual std::int64_t size() const = 0;
  virtual std::int64_t seq_length() const = 0;

  // Sample `index` of [0, size): `tokens` is [seq_length + 1], inputs being tokens[0..seq) and labels
  // tokens[1..seq]; `loss_mask` is [seq_length]: 1 where the label counts, 0 where it does not (padding, end
  // of document when masked).
  virtual void sample(std::int64_t index, std::span<std::int32_t> tokens,
                      std::span<float> loss_mask) const = 0;

  // Whether attention is to stay within the documents of document_starts(), and positions to count in each
  // of them. Otherwise every sample is one.
  virtual bool separates_documents() const { return false; }
  // Where the documents of sample `index` begin among its inputs, 0 first. Only of a data set that separates
  // them.
  virtual void document_starts(std::int64_t index, std::vector<std::int32_t>& starts) const;
  // The labels of sample `index` that count: what its loss_mask adds up to. Unless a data set knows, the
  // sample is read.
  virtual double learned_tokens(std::int64_t index) const;

  // Where it comes from, for messages: "corpus/en_text_document (train)".
  virtual std::string description() const = 0;
};

// How far tokenising on the fly has come.
struct TokenizeProgress {
  std::string_view input;        // the file being read
  std::uint64_t bytes_done = 0;  // of all inputs
  std::uint64_t bytes_total = 0;
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  double seconds = 0;
};
using TokenizeProgressFn = std::function<void(const TokenizeProgress&)>;

struct DataOptions {
  // One of data_path, per-split paths, or mock_data. Each path is a Megatron prefix ("dir/name" of
  // dir/name.bin and .idx), a text file (.txt), a JSON-lines file (.jsonl or .json, also .gz and .zst), a
  // folder of such files, or a glob. A list may carry blend weights in Megatron's form: weight path weight
  // path ...
  std::vector<std::string> data_path;
  std::vector<std::string> train_data_path, valid_data_path, test_data_path;
  bool mock_data = false;
  // Of data_path, e.g. "969,30,1", which is also the default. A share of 0 means: there is no such set.
  std::string split;
  // Text in data_path is divided otherwise, .bin/.idx are not: the last hundredth of its sequences is held
  // out for validation, at least as much as fills one sample; there is no test data. Text of one sequence is
  // all trained on.
  bool hold_out_text = false;

  std::int64_t seq_length = 0;
  std::int64_t seed = 1234;
  // Samples that training, all evaluations, and the final test will draw; a split of which none is drawn is
  // not opened.
  std::int64_t train_samples = 0, valid_samples = 0, test_samples = 0;
  std::int64_t vocab_size = 0;         // refuses larger ids when a sample is read; 0: the tokenizer's
  bool allow_other_tokenizer = false;  // ids may have been made by another one (made_by.h)
  bool eod_mask_loss = false;          // loss 0 where the input token is end-of-document

  // data_cache_path: where sample orders are kept (empty: each process builds them in memory), and text that
  // was tokenised on the fly (empty: ".primus-cache" beside the first input). What is there is named by a
  // hash of all it depends on, is built by one process while others wait, and appears complete or not at all.
  std::filesystem::path cache_dir;

  // Tokenising text and JSONL on the fly, to .bin/.idx.
  std::string json_key = "text";
  bool append_eod = true;
  bool skip_bad = false;        // count broken JSON lines instead of stopping at the first
  int workers = 0;              // threads; 0: one per core
  TokenizeProgressFn progress;  // called from one thread at a time, about ten times a second
};

// A split is null where no sample of it was requested. Validation and test data are null, too, where the user
// has none: a share of 0, or no path of their own beside train_data_path.
struct Datasets {
  std::unique_ptr<const Dataset> train, valid, test;
  bool held_out = false;  // a part of data_path is no training data, whether validation draws from it or not
  // Of what training data consists of: the same for the same tokens in the same order, wherever they lie. 0
  // without training data.
  std::uint64_t train_fingerprint = 0;
  std::vector<std::string> notes;  // for the user to see once: lines left out, a blend smaller than requested
  std::vector<std::string> facts;  // what there is, for the log
};

// Errors (Error): kInvalid for missing, truncated or inconsistent files, a split without data, a sequence
// longer than a split's data, ids beyond the vocabulary, broken JSON lines ("file:line"); FileError
// where the system refuses. `tokenizer` must outlive nothing: the data sets do not keep it.
Datasets open_datasets(const DataOptions& options, const Tokenizer& tokenizer);

// Limit for one order of samples.
inline constexpr std::int64_t kMostOrderedSamples = std::int64_t{UINT32_MAX} - 1;

// The paths of a list that may have weights between them. Error(kInvalid) for an uneven list.
std::vector<std::string> paths_of(const std::vector<std::string>& list);

// How many tokens a path of DataOptions holds, as far as that is known without reading its text: INT64_MAX
// where it is not, since the path is not here or its files are packed.
struct TokenBound {
  std::int64_t most = INT64_MAX;
  bool exact = false;  // .bin and .idx
};
TokenBound bound_tokens(const std::string& path);

// Samples in so many passes over the training data; of a blend, over each of its parts, whatever their
// weights. Tokenises text if need be. Errors as open_datasets.
std::int64_t samples_of_epochs(const DataOptions& options, const Tokenizer& tokenizer, double epochs);

}  // namespace primus::data
