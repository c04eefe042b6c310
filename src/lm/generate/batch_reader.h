// A language model that reads many sequences at a time and says what may come next in each. Keys and values
// of everything read so far stay on the device, in pages that the sequences share: a sequence takes pages as
// it needs them and gives them back when it is released. Works on weights that lie somewhere else.
//
// A pass has one of few sizes, and is filled up with rows that belong to no sequence, so that measuring those
// sizes once tells how much memory reading needs. No launch holds a length: they are in tables on the device,
// so that a pass that was recorded once (Device::capture) can be replayed for every further token.
//
// Where ranks share the model, each with a part of the weights, the experts or the layers, all ranks of the
// mesh read the same tokens at the same time, and each has the logits afterwards. Data and context ranks read
// the same, too: what each of them would read alone is one sequence.
//
// Not thread-safe. Uses the rank's compute stream, stash and scratch; everything given must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/data_parallel.h"
#include "engine/expert_parallel.h"
#include "engine/pipeline_schedule.h"
#include "engine/rank.h"
#include "engine/stage_pass.h"
#include "lm/generate/sampler.h"
#include "lm/model/language_model.h"

namespace primus {

struct ReaderSettings {
  static constexpr std::int64_t kPageTokens = 64;

  DType compute = DType::kF32;  // fp32 or bf16
  // Tokens that fit a sequence; at most the model's max_positions, and what its tables reach.
  std::int64_t capacity = 0;
  std::int64_t pass_tokens = 128;  // tokens of a pass over prompts
  std::int64_t sequences = 1;      // that are read together
  std::int64_t pages = 0;          // of kPageTokens, for all sequences; 0: each may fill its capacity
  // Passes that write a token may be recorded and replayed: nobody else uses the rank's stash and scratch.
  bool replay = false;
  // Where data ranks have a shard of each weight: gathers them. Null: values are all here.
  engine::DataParallel* parallel = nullptr;
  engine::PipelineShape pipeline = {};  // of the parts that the model is cut into

  std::int64_t pages_for(std::int64_t tokens) const { return (tokens + kPageTokens - 1) / kPageTokens; }
  std::int64_t all_pages() const { return pages > 0 ? pages : sequences * pages_for(capacity); }
};

// What a pass has to tell of the tokens that may follow.
struct WantedLogits {
  std::int64_t likeliest = 0;  // so many of the likeliest tokens will do; 0: the logits of all
  std::int64_t vocab = 0;      // among ids below this one; 0: all
};

class BatchReader {
 public:
  // Takes pages and tables from the rank's persistent arena. Throws Error(kInvalid) for a capacity that the
  // model does not have, or for fewer pages than one sequence of that capacity needs.
  BatchReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings);

  // On a measuring rank: runs a pass of every size there is, so that the arenas know what reading needs.
  void measure();

  struct Input {
    std::int64_t sequence;  // below settings.sequences
    std::span<const std::int32_t> tokens;
  };
  // Takes the pages for `sequence` to hold `length` tokens. False, and nothing has changed, when too few are
  // free.
  bool reserve(std::int64_t sequence, std::int64_t length);
  // Throws what reading these would, and reads nothing.
  void check(std::span<const Input> inputs) const;
  // Reads each input's tokens behind those its sequence holds. Inputs are in ascending order of sequences, at
  // most settings.pass_tokens tokens in all. Throws Error(kInvalid) when they do not fit the reserved pages,
  // or for an id outside the vocabulary; nothing has been read then.
  void read(std::span<const Input> inputs);
  // The same for one token each, after which next() has what follows. Where a few of the likeliest tokens are
  // wanted, the device finds them and the other logits stay there; a row without an order (NaN, infinity) is
  // told as a whole all the same.
  void read_next(std::span<const Input> inputs, const WantedLogits& wanted = {});
  // Of the input with this index, until the next call of read_next().
  NextLogits next(std::size_t input) const;
  // Forgets a sequence's tokens from position `length` on. Its pages stay its own. Where the model has short
  // convolutions, which keep the last few inputs alone, a cut that goes further back forgets all tokens:
  // length() says what is left.
  void truncate(std::int64_t sequence, std::int64_t length);
  // Forgets the sequence and gives its pages back.
  void release(std::int64_t sequence);

  // Whether all ranks have to read the same tokens at the same time.
  bool reads_together() const;
  bool gathers_weights() const { return settings_.parallel != nullptr; }

  const ModelConfig& config() const { return model_.config(); }
  const ReaderSettings& settings() const { return settings_; }
  std::int64_t length(std::int64_t sequence) const { return slot(sequence).length; }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  struct Slot {
    std::int64_t length = 0;
    std::int64_t reached = 0;  // the most tokens it has held since it was empty
    std::vector<std::int32_t> pages;
  };
  const Slot& slot(std::int64_t sequence) const { return slots_[static_cast<std::size_t>(sequence)]; }
  void measure_passes();
  void advance(const Input& input);  // what it holds has been read
  // The sizes that a pass of up to `most` rows may have.
  std::vector<std::int64_t> pass_sizes(std::int64_t most) const;
  std::int64_t pass_size(std::int64_t rows, std::int64_t most) const;
  void fill(std::span<const Input> inputs, std::int64_t rows);
  // What a pass ends with: hidden states, all logits, or the likeliest tokens.
  struct Pass {
    std::int64_t rows = 0;
    bool logits = false;
    std::int64_t likeliest = 0, vocab = 0;  // 0: none
    auto operator<=>(const Pass&) const = default;
  };
  struct Recorded {
    bool ran = false;  // before: libraries have chosen what they need memory for
    std::unique_ptr<Graph> graph;
    Tensor logits;
  };
  Pass pass_of(std::int64_t rows, const WantedLogits& wanted) const;
  void forward(const Pass& pass);
  // Enqueues a pass; `done` is given the logits, where there are any, as long as they are there.
  template <class Done>
  void enqueue(const Pass& pass, Done done);
  // The inputs of a pass on the tape, uploaded.
  ModelInputs inputs(engine::Tape& tape, const Pass& pass);
  // Finds the likeliest tokens and downloads them. `logits`: on the last stage.
  void choose(const Pass& pass, const engine::Value& logits);
  void download(const Tensor& logits);

  engine::Rank& rank_;
  const LanguageModel& model_;
  ReaderSettings settings_;
  engine::StagePass stages_;
  std::optional<engine::ExpertParallel> experts_;  // where ranks share experts
  KvCache cache_;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> free_;
  // Of the pass, on the host: rows' tokens and positions, and the tables. Pinned, so that a recorded pass
  // finds the next one's in the same place. Nothing while measuring.
  struct HostTables {
    HostTables(Device& device, std::int64_t rows, const turbo::PagedSequences& sequences,
               std::int64_t likeliest);
    PinnedBuffer memory;
    std::span<std::int32_t> tokens, positions, starts, lengths, table, ids;
    std::span<float> values;
  };
  Tensor top_values_, top_ids_;  // [rows of the largest pass that writes tokens, kMost]
  std::optional<HostTables> host_;
  std::map<Pass, Recorded> recorded_;
  bool replay_;
  Pass last_{};  // of read_next()
  std::vector<std::byte> downloaded_;
  std::vector<float> logits_;
};

}  // namespace primus
