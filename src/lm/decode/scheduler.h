// Generates many texts concurrently with one model (continuous batching). Texts can be submitted and
// cancelled between steps. A step is one pass of the model over all running texts. It reads one token of each
// text that is being generated, and as many tokens of unread prompts as fit. The step that reads the last
// token of a prompt also generates the text's first token.
//
// A text allocates cache pages as it grows. Texts with a common prefix share the pages of that prefix.
// Examples are samples of one prompt that are submitted together, and texts with the same system prompt. If
// two texts have a common unread prefix, one text waits until the other text has read the prefix. If pages
// run out, the youngest text frees its pages, waits, and is read again later. Random numbers depend only on
// seed and position. A text is therefore the same as if it were generated alone, except where logits differ
// by rounding: matrix products of few rows and of many rows round differently. The texts may be those of a
// base model and of its adapters (DecodeRequest::model).
//
// If ranks share the model, all these ranks must make the same calls in the same order.
// DecodeScheduler::Agree makes all ranks use the same chosen tokens. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "lm/decode/batch_reader.h"
#include "lm/decode/request.h"

namespace primus {

struct DecodeCounts {
  std::int64_t steps = 0;
  std::int64_t read = 0;         // number of tokens read; counts a token each time it is read
  std::int64_t shared = 0;       // number of prompt tokens that were not read because they were in shared
                                 // pages
  std::int64_t written = 0;      // number of generated tokens
  std::int64_t preemptions = 0;  // number of times that a text freed its pages before its end
};

class DecodeScheduler {
 public:
  using Id = std::uint64_t;  // number of a text; texts are numbered from 0 in the order of submission
  // Replaces the tokens that this rank chose in a step by tokens that are the same on all ranks. In every
  // step that chooses tokens, all ranks call the function with the same number of tokens. If empty, each rank
  // uses its own choices.
  using Agree = std::function<void(std::span<std::int32_t> chosen)>;

  // The conditions of BatchReader apply. At most settings.sequences texts run concurrently, the earliest
  // submitted first. `adapters`: models whose texts are in one batch (BatchReader); null: only `model`.
  DecodeScheduler(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings,
                  Agree agree = {}, const engine::RowAdapters* adapters = nullptr);

  // Throws Error(kInvalid) for a prompt that is empty or larger than capacity(), ids outside the vocabulary,
  // or settings out of range. submit() makes the same checks.
  void check(const DecodeRequest& request) const;
  Id submit(DecodeRequest request);
  // Ends a text; its callback is not called again. Returns false if the text has already ended.
  bool cancel(Id id);
  // Returns whether the text has not ended.
  bool has(Id id) const { return texts_.contains(id); }
  // Appends tokens to a text that is held after a stop token (DecodeRequest::holds), and continues to
  // generate it. A held text keeps its pages, so only the stop token and the appended tokens are read, unless
  // other texts needed the pages. GenerateSettings::max_tokens counts generated and appended tokens. Throws
  // Error(kInvalid) if there are no tokens, if they leave no room for a generated token, or for ids outside
  // the vocabulary.
  void extend(Id id, std::span<const std::int32_t> tokens);
  // Runs one pass. Returns false if there is no text, or if all texts that could run are held. Throws
  // Error(kNumerics) if logits are not finite; only the texts with such logits end.
  bool step();

  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  std::int64_t held() const { return static_cast<std::int64_t>(held_.size()); }
  // Returns the max number of tokens of a text, including the prompt.
  std::int64_t capacity() const { return reader_.settings().capacity; }
  const DecodeCounts& counts() const { return counts_; }
  BatchReader& reader() { return reader_; }
  const BatchReader& reader() const { return reader_; }

 private:
  struct Text {
    DecodeRequest request;
    std::vector<std::int32_t> tokens;  // tokens of the prompt, followed by the generated tokens
    std::int64_t written = 0;
    std::int64_t sequence = -1;  // the text's sequence in the reader; -1 while the text does not run
    double began = 0;
  };
  // A chosen token, and the text to which it belongs.
  struct Shown {
    std::shared_ptr<Text> text;
    Id id;
    DecodedToken token;
  };
  Text& text(Id id) { return *texts_.at(id); }
  std::int64_t unread(const Text& text) const;
  void admit();
  bool is_read_elsewhere(const Text& text) const;
  std::int64_t room_for_prompts(std::int64_t generating) const;
  void plan();
  bool make_room(Id id, std::int64_t length);
  void stop_running(Id id);  // releases the text's sequence in the reader
  std::int64_t free_sequences() const;
  Id youngest_with_pages() const;
  WantedLogits wanted() const;
  void choose();
  Shown write(Id id, std::int32_t chosen);
  void erase(Id id);

  BatchReader reader_;
  Agree agree_;
  std::map<Id, std::shared_ptr<Text>> texts_;
  std::set<Id> running_, waiting_, held_;
  Id next_ = 0;
  std::vector<BatchReader::Input> inputs_;  // inputs of the current step
  std::vector<Id> telling_;                 // texts for which this step chooses a token, in the order of the
                                            // inputs
  DecodeCounts counts_;
};

}  // namespace primus
