// Writes many texts together with one model. Texts may arrive and be cancelled between any two steps; a step
// is one pass of the model over all that run: a token of each text that is being written, and as many tokens
// of unread prompts as the pass has room for.
//
// A text takes pages of the cache as it grows. Texts that begin alike share the pages of their beginning,
// those of a group that is submitted together (the samples of one prompt) as well as those behind one
// system's text: a prompt that another text is about to read is not read twice. Where pages run out, the
// youngest text gives its own back, waits, and is read again later. Every text is the one that its request
// gives alone, up to the rounding of products of few and of many rows: random numbers depend on seed and
// position only.
//
// Where ranks share the model, all of them make the same calls in the same order; DecodeSettings::agree keeps
// their choices alike. Not thread-safe.
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
  std::int64_t read = 0;         // tokens, those that were read again too
  std::int64_t shared = 0;       // tokens of prompts that need not be read
  std::int64_t written = 0;      // tokens
  std::int64_t preemptions = 0;  // texts that gave their pages back before they were over
};

class DecodeScheduler {
 public:
  using Id = std::uint64_t;  // in the order of submission, from 0 on
  // Replaces what this rank has chosen in a step by what all ranks shall go on with. Every rank calls it in
  // each step that chooses tokens, with as many of them. Empty: each rank goes on with its own.
  using Agree = std::function<void(std::span<std::int32_t> chosen)>;

  // All that BatchReader says. The first of `texts` run, settings.sequences at most.
  DecodeScheduler(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings,
                  Agree agree = {});

  // Throws Error(kInvalid) for a prompt that is empty or larger than capacity(), ids outside the vocabulary,
  // and settings out of range. submit() does it, too.
  void check(const DecodeRequest& request) const;
  Id submit(DecodeRequest request);
  // Ends a text, of which nothing is shown any more. False: it is over already.
  bool cancel(Id id);
  // One pass. False: there is no text. Throws Error(kNumerics) where logits are no numbers; the texts that
  // they belong to are over then, and the others can go on.
  bool step();

  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  std::int64_t capacity() const { return reader_.settings().capacity; }  // tokens of a text with its prompt
  const DecodeCounts& counts() const { return counts_; }
  BatchReader& reader() { return reader_; }
  const BatchReader& reader() const { return reader_; }

 private:
  struct Text {
    DecodeRequest request;
    std::vector<std::int32_t> tokens;  // prompt, and what has been written
    std::int64_t written = 0;
    std::int64_t sequence = -1;  // of the reader, while it runs
    double began = 0;
  };
  // A token that was chosen, and whose it is.
  struct Shown {
    std::shared_ptr<Text> text;
    Id id;
    DecodedToken token;
  };
  Text& text(Id id) { return *texts_.at(id); }
  std::int64_t unread(const Text& text) const;
  void admit();
  bool is_read_elsewhere(const Text& text) const;
  void plan();
  bool make_room(Id id, std::int64_t length);
  void stop_running(Id id);  // gives its sequence back
  WantedLogits wanted() const;
  void choose();
  Shown write(Id id, std::int32_t chosen);
  void erase(Id id);

  BatchReader reader_;
  Agree agree_;
  std::map<Id, std::shared_ptr<Text>> texts_;
  std::set<Id> running_, waiting_;
  Id next_ = 0;
  std::vector<BatchReader::Input> inputs_;  // of the step
  std::vector<Id> telling_;                 // whose texts get a token, in the order of the inputs
  DecodeCounts counts_;
};

}  // namespace primus
