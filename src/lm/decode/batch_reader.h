// A language model that reads many sequences at a time and says what may come next in each. Keys and values
// of everything read so far stay on the device, in pages that the sequences share (page_table.h): a sequence
// takes pages as it needs them, has those of its beginning together with others that begin alike, and gives
// them back when it is released. Works on weights that lie somewhere else, and takes its memory as a phase of
// the rank (engine/phase.h), for as long as it exists.
//
// A pass has one of few sizes, and is filled up with rows that belong to no sequence, so that measuring those
// sizes once tells how much memory reading needs. No launch holds a length: they are in tables on the device,
// so that a pass that was recorded once (Device::capture) can be replayed for every further token.
//
// Layers that keep a state of each sequence instead (short convolutions, delta rules) have no pages. Their
// states are copied where a sequence begins like another one that holds a state there, and otherwise they
// read all tokens.
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
#include "engine/phase.h"
#include "engine/pipeline_schedule.h"
#include "engine/rank.h"
#include "engine/stage_pass.h"
#include "lm/decode/page_table.h"
#include "lm/decode/sampler.h"
#include "lm/model/language_model.h"

namespace primus {

struct ReaderSettings {
  static constexpr std::int64_t kPageTokens = 64;

  DType compute = DType::kF32;  // fp32 or bf16
  // Tokens that fit a sequence; at most the model's max_positions, and what its tables reach.
  std::int64_t capacity = 0;
  std::int64_t pass_tokens = 128;  // tokens of a pass; at least one of each sequence fits all the same
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
  bool log_probs = false;      // log_probs() will be asked for
};

class BatchReader {
 public:
  // Takes pages and tables. Throws Error(kInvalid) for a capacity that the model does not have, or for fewer
  // pages than one sequence of that capacity needs.
  BatchReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings);

  // On a measuring rank: runs a pass of every size there is, so that the arenas know what reading needs.
  void measure();

  // Takes an idle sequence for a text that begins with `tokens` (at least one); nothing: all are taken. Its
  // length() is how many of them need not be read, because others begin alike: at most all but the last.
  std::optional<std::int64_t> begin(std::span<const std::int32_t> tokens);
  // The length() that the sequence would have after begin(tokens).
  std::int64_t shared(std::span<const std::int32_t> tokens) const { return find(tokens).length; }
  // Whether another text that goes on differently can begin with the first `length` tokens of one, once that
  // one's first `read` tokens have been read.
  bool can_share(std::int64_t length, std::int64_t read) const {
    return !keeps_states() || read - length <= kSpareTokens;
  }
  // Takes the pages for `sequence` to hold `length` tokens. False, and nothing has changed, when too few are
  // free.
  bool reserve(std::int64_t sequence, std::int64_t length);
  // Forgets the sequence and gives its pages back.
  void release(std::int64_t sequence);

  struct Input {
    std::int64_t sequence;  // below settings.sequences
    std::span<const std::int32_t> tokens;
    bool tells = false;  // what may follow; one token then
  };
  // Throws what reading these would, and reads nothing.
  void check(std::span<const Input> inputs) const;
  // One pass: reads each input's tokens behind those that its sequence holds. Inputs are in ascending order
  // of sequences, and their tokens fit a pass. Afterwards next() has what follows the inputs that tell. Where
  // a few of the likeliest tokens are wanted, the device finds them and the other logits stay there; a row
  // without an order (NaN, infinity) is told as a whole all the same. Throws Error(kInvalid) when tokens do
  // not fit the reserved pages, or for an id outside the vocabulary; nothing has been read then.
  void read(std::span<const Input> inputs, const WantedLogits& wanted = {});
  // The logits behind the input with this index among those that tell, until the next call of read().
  NextLogits next(std::size_t telling) const;
  // The logarithms of the probabilities that the model gives to `chosen`, a token for each of the inputs that
  // told, of all its vocabulary and at temperature 1. By the operator that computes the loss of training, in
  // fp32. After a read() with WantedLogits::log_probs.
  std::vector<float> log_probs(std::span<const std::int32_t> chosen);

  // Whether all ranks have to read the same tokens at the same time.
  static bool reads_together(engine::Rank& rank, const ReaderSettings& settings);

  const ModelConfig& config() const { return model_.config(); }
  const ReaderSettings& settings() const { return settings_; }
  std::int64_t length(std::int64_t sequence) const { return slot(sequence).length; }
  std::int64_t free_pages() const { return pages_.free(); }  // those that keep an earlier text's tokens, too

 private:
  struct Slot {
    bool taken = false;
    std::int64_t length = 0;
    PageTable::Pages pages;
    std::uint64_t released = 0;  // in the order of releases
    // Where layers have states: the tokens that this sequence's have read, also after its release, and the
    // most there were since they began anew.
    std::vector<std::int32_t> state;
    std::int64_t reached = 0;
  };
  const Slot& slot(std::int64_t sequence) const { return slots_[static_cast<std::size_t>(sequence)]; }
  struct Shared {
    std::int64_t length = 0;
    std::optional<std::size_t> from = {};  // the sequence whose states hold them
  };
  Shared find(std::span<const std::int32_t> tokens) const;
  std::size_t idle_slot(const Shared& shared) const;
  // Layers keep what is no page of keys.
  bool keeps_states() const {
    return config().any_keeps(Keeps::kInputs) || config().any_keeps(Keeps::kState);
  }
  void copy_page(const PageTable::Copy& copy);
  void copy_states(std::size_t from, std::size_t to);
  void measure_passes();
  void advance(const Input& input);  // what it holds has been read
  // The sizes that a pass of up to `most` rows may have.
  std::vector<std::int64_t> pass_sizes(std::int64_t most) const;
  std::int64_t pass_size(std::int64_t rows, std::int64_t most) const;
  void fill(std::span<const Input> inputs, std::int64_t rows);
  // A pass of `rows`, of which the logits of `told` are wanted: of none, of all, or of some that the tables
  // list.
  struct Pass {
    std::int64_t rows = 0, told = 0;
    bool selects = false;
    std::int64_t likeliest = 0, vocab = 0;  // 0: all logits
    bool log_probs = false;
    auto operator<=>(const Pass&) const = default;
  };
  struct Recorded {
    bool ran = false;  // before: libraries have chosen what they need memory for
    std::unique_ptr<Graph> graph;
    Tensor logits;
  };
  // A pass in which every row is told, and one of which some are.
  Pass writing_pass(std::int64_t rows, const WantedLogits& wanted) const;
  Pass mixed_pass(std::int64_t rows, const WantedLogits& wanted) const;
  void forward(const Pass& pass);
  void read_again_without_order(std::span<const Input> telling, const WantedLogits& wanted);
  // Enqueues a pass; `done` is given the logits, where there are any, as long as they are there.
  template <class Done>
  void enqueue(const Pass& pass, Done done);
  // The inputs of a pass on the tape, uploaded.
  ModelInputs inputs(engine::Tape& tape, const Pass& pass);
  // The hidden states of the rows that are told, of which this rank has a part.
  engine::Value told_rows(const Pass& pass, const engine::Value& hidden);
  // Finds the likeliest tokens and downloads them. `logits`: on the last stage.
  void choose(const Pass& pass, const engine::Value& logits);
  void download(const Tensor& logits);
  void enqueue_losses(std::int64_t told);
  std::int64_t part_of(std::int64_t rows) const { return rows / rank_.mesh().shape().tensor; }
  template <class T>
  void upload(const Tensor& to, std::span<T> from) {
    rank_.compute().copy_to_device(to.data, from.data(), to.bytes());
  }

  engine::Rank& rank_;
  const LanguageModel& model_;
  ReaderSettings settings_;
  engine::StagePass stages_;
  std::optional<engine::ExpertParallel> experts_;  // where ranks share experts
  engine::Phase phase_;
  KvCache cache_;
  PageTable pages_;
  std::vector<Slot> slots_;
  std::uint64_t releases_ = 0;
  // Of the pass, on the host: rows' tokens and positions, and the tables. Pinned, so that a recorded pass
  // finds the next one's in the same place. Nothing while measuring.
  struct HostTables {
    HostTables(Device& device, std::int64_t rows, std::int64_t most_told,
               const turbo::PagedSequences& sequences);
    PinnedBuffer memory;
    std::span<std::int32_t> tokens, positions, starts, lengths, table;
    std::span<std::int32_t> told, ids, chosen;  // rows that are told; of these rows
    std::span<float> values, losses, ones;      // likewise
  };
  Tensor top_values_, top_ids_;  // [rows that are told at most, kMost]
  Tensor hidden_, losses_;       // of these rows: this rank's hidden states, and [rows] fp32
  std::optional<HostTables> host_;
  std::map<Pass, Recorded> recorded_;
  bool replay_;
  Pass last_{};  // that told something
  std::vector<std::byte> downloaded_;
  std::vector<float> logits_;
};

}  // namespace primus
