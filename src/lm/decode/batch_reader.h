// A language model that reads many sequences at a time and returns the logits of the next token of each
// sequence. The keys and values of the tokens read stay on the device, in pages that sequences share
// (page_table.h). A sequence allocates pages as it grows, shares those of a common prefix with other
// sequences, and frees them when it is released. Another object owns the weights. The reader's memory is a
// phase of the rank (engine/phase.h) that lasts as long as the reader.
//
// A pass has one of a few sizes; rows that belong to no sequence pad it to that size. One measurement per
// size therefore gives the memory that reading needs. Launch arguments contain no lengths: these are in
// tables on the device, so a recorded pass (Device::capture) can be replayed for every further token.
//
// Layers that keep a state per sequence instead (short convolutions, delta rules) have no pages. A new
// sequence copies the states that another sequence holds at the end of a common prefix. Without such states,
// these layers read all tokens.
//
// If ranks share the model (tensor, expert or pipeline parallelism), all ranks of the mesh read the same
// tokens at the same time, and each gets the logits. Data and context ranks also read the same tokens: a
// sequence is not distributed over them.
//
// Not thread-safe. Uses the rank's compute stream, stash and scratch; all arguments must outlive it.
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

  DType compute = DType::kF32;  // compute type: fp32 or bf16
  // Max tokens of a sequence; at most the model's max_positions and the length of its tables.
  std::int64_t capacity = 0;
  // Max tokens of a pass; every pass has room for at least one token per sequence.
  std::int64_t pass_tokens = 128;
  std::int64_t sequences = 1;  // max number of sequences read together
  // Number of pages for all sequences, each of kPageTokens tokens; 0: enough for all at full capacity.
  std::int64_t pages = 0;
  // Allows passes that generate a token to be recorded and replayed. Requires that the rank's stash and
  // scratch have no other user.
  bool replay = false;
  // Gathers the weights if data ranks shard them. Null: all values are on this rank.
  engine::DataParallel* parallel = nullptr;
  engine::PipelineShape pipeline = {};  // the pipeline parts of the model

  std::int64_t pages_for(std::int64_t tokens) const { return (tokens + kPageTokens - 1) / kPageTokens; }
  std::int64_t all_pages() const { return pages > 0 ? pages : sequences * pages_for(capacity); }
};

// The results of a pass that the caller needs.
struct WantedLogits {
  std::int64_t top_k = 0;  // number of top-k logits that suffice; 0: all logits are needed
  std::int64_t vocab = 0;  // only logits of ids below this number; 0: of all ids
  bool log_probs = false;  // whether log_probs() will be called
};

class BatchReader {
 public:
  // Allocates pages and tables. Throws Error(kInvalid) for a capacity that the model does not have, or if one
  // sequence of that capacity needs more pages than exist.
  BatchReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings);

  // On a measuring rank: runs a pass of every size, so that the arenas record the memory that reading needs.
  void measure();

  // Assigns an idle sequence to a text that begins with `tokens` (at least one). Returns nullopt if none is
  // idle. The sequence's length() is then the number of tokens in a shared prefix, which need not be read.
  // The last token must always be read.
  std::optional<std::int64_t> begin(std::span<const std::int32_t> tokens);
  // Returns the length() that the sequence would have after begin(tokens).
  std::int64_t shared(std::span<const std::int32_t> tokens) const { return find(tokens).length; }
  // Whether a new text can reuse the first `length` tokens of a text of which `read` tokens have been read.
  // For layers with states, only few tokens may lie between `length` and `read`.
  bool can_share(std::int64_t length, std::int64_t read) const {
    return !keeps_states() || read - length <= kSpareTokens;
  }
  // Allocates pages for `sequence` to hold `length` tokens. Returns false, without a change, if too few are
  // free.
  bool reserve(std::int64_t sequence, std::int64_t length);
  // Releases the sequence and frees its pages.
  void release(std::int64_t sequence);

  struct Input {
    std::int64_t sequence;  // index of the sequence, below settings.sequences
    std::span<const std::int32_t> tokens;
    bool tells = false;  // whether the pass returns the next token's logits; `tokens` is then one token
  };
  // Throws the errors that read() would throw for these inputs, and reads nothing.
  void check(std::span<const Input> inputs) const;
  // Runs one pass: appends each input's tokens to its sequence. Inputs must be in ascending order of
  // sequences, and their tokens must fit a pass. Afterwards next() has the logits of the inputs with `tells`.
  // If top-k logits suffice, the device selects them, and only these are copied to the host. A row that
  // cannot be sorted (NaN, infinity) is copied completely. Throws Error(kInvalid), before reading anything,
  // if tokens do not fit the reserved pages or an id is outside the vocabulary.
  void read(std::span<const Input> inputs, const WantedLogits& wanted = {});
  // Returns the logits after an input, by its index among those with `tells`; valid until the next read().
  NextLogits next(std::size_t telling) const;
  // Returns the log probabilities of `chosen`, one for each input with `tells`, over the model's entire
  // vocabulary at temperature 1, in fp32. Uses the operator of the training loss. Requires a read() with
  // WantedLogits::log_probs.
  std::vector<float> log_probs(std::span<const std::int32_t> chosen);

  // Whether all ranks must read the same tokens at the same time.
  static bool reads_together(engine::Rank& rank, const ReaderSettings& settings);

  const ModelConfig& config() const { return model_.config(); }
  const ReaderSettings& settings() const { return settings_; }
  std::int64_t length(std::int64_t sequence) const { return slot(sequence).length; }
  // Number of free pages, including pages that cache an earlier text.
  std::int64_t free_pages() const { return pages_.free(); }

 private:
  struct Slot {
    bool taken = false;
    std::int64_t length = 0;
    PageTable::Pages pages;
    std::uint64_t released = 0;  // number that orders releases
    // Used if layers have states: the tokens that the states cover (also after a release), and the largest
    // number of tokens that they have covered since the last reset.
    std::vector<std::int32_t> state;
    std::int64_t reached = 0;
  };
  const Slot& slot(std::int64_t sequence) const { return slots_[static_cast<std::size_t>(sequence)]; }
  struct Shared {
    std::int64_t length = 0;
    std::optional<std::size_t> from = {};  // the sequence whose states hold these tokens
  };
  Shared find(std::span<const std::int32_t> tokens) const;
  std::size_t idle_slot(const Shared& shared) const;
  // Whether layers keep anything other than pages of keys.
  bool keeps_states() const {
    return config().any_keeps(Keeps::kInputs) || config().any_keeps(Keeps::kState);
  }
  void copy_page(const PageTable::Copy& copy);
  void copy_states(std::size_t from, std::size_t to);
  void measure_passes();
  void advance(const Input& input);  // records that the input's tokens have been read
  // Returns the numbers of rows, ascending, to which passes of up to `maximum` rows are padded.
  std::vector<std::int64_t> pass_sizes(std::int64_t maximum) const;
  std::int64_t pass_size(std::int64_t rows, std::int64_t maximum) const;
  void fill(std::span<const Input> inputs, std::int64_t rows);
  // A pass of `rows` rows that returns the logits of `reported` rows: of no row, of all rows, or of rows
  // listed in the tables.
  struct Pass {
    std::int64_t rows = 0, reported = 0;
    bool selects = false;
    std::int64_t top_k = 0, vocab = 0;  // logits to return; 0: all
    bool log_probs = false;
    auto operator<=>(const Pass&) const = default;
  };
  struct Recorded {
    // Whether the pass already ran, so that libraries have chosen kernels and allocated memory.
    bool ran = false;
    std::unique_ptr<Graph> graph;
    Tensor logits;
  };
  // A pass that returns logits for every row (writing), or for some rows (mixed).
  Pass writing_pass(std::int64_t rows, const WantedLogits& wanted) const;
  Pass mixed_pass(std::int64_t rows, const WantedLogits& wanted) const;
  void forward(const Pass& pass);
  void read_again_without_order(std::span<const Input> telling, const WantedLogits& wanted);
  // Enqueues a pass. Calls `done` with the logits, if there are any, while they are valid.
  template <class Done>
  void enqueue(const Pass& pass, Done done);
  // Puts the inputs of a pass on the tape and uploads them.
  ModelInputs inputs(engine::Tape& tape, const Pass& pass);
  // Returns this rank's part of the hidden states of the rows whose logits are returned.
  engine::Value reported_rows(const Pass& pass, const engine::Value& hidden);
  // Finds the top-k logits and downloads them to the host. `logits`: on the last stage.
  void choose(const Pass& pass, const engine::Value& logits);
  void download(const Tensor& logits);
  void enqueue_losses(std::int64_t reported);
  std::int64_t part_of(std::int64_t rows) const { return rows / rank_.mesh().shape().tensor; }
  template <class T>
  void upload(const Tensor& to, std::span<T> from) {
    rank_.compute().copy_to_device(to.data, from.data(), to.bytes());
  }

  engine::Rank& rank_;
  const LanguageModel& model_;
  ReaderSettings settings_;
  engine::StagePass stages_;
  std::optional<engine::ExpertParallel> experts_;  // set if ranks share experts
  engine::Phase phase_;
  KvCache cache_;
  PageTable pages_;
  std::vector<Slot> slots_;
  std::uint64_t releases_ = 0;
  // A pass's host data: tokens and positions of the rows, and the tables. Pinned, so that a recorded pass
  // finds the next pass's data at the same addresses. Absent while measuring.
  struct HostTables {
    HostTables(Device& device, std::int64_t rows, std::int64_t max_reported,
               const turbo::PagedSequences& sequences);
    PinnedBuffer memory;
    std::span<std::int32_t> tokens, positions, starts, lengths, table;
    std::span<std::int32_t> reported, ids, chosen;  // indices of the rows with logits, and ids of these rows
    std::span<float> values, losses, ones;          // values of these rows
  };
  Tensor top_values_, top_ids_;  // top-k logits and their ids, [max rows with logits, kMax]
  Tensor hidden_, losses_;       // for the rows with logits: this rank's hidden states, and [rows] fp32
                                 // losses
  std::optional<HostTables> host_;
  std::map<Pass, Recorded> recorded_;
  bool replay_;
  Pass last_{};  // the last pass that returned logits
  std::vector<std::byte> downloaded_;
  std::vector<float> logits_;
};

}  // namespace primus
