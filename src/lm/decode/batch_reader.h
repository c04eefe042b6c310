// A language model that reads many sequences at a time and returns the logits of the next token of each
// sequence. The keys and values of the tokens read stay on the device, in pages that sequences share
// (page_table.h). A sequence allocates pages as it grows, and frees its pages when it is released. Sequences
// with a common prefix share the pages of the prefix. Another object owns the weights. The reader's memory is
// a phase of the rank (engine/runtime/phase.h) that lasts as long as the reader.
//
// A pass has one of a few fixed numbers of rows, and is padded with rows that belong to no sequence. So one
// measurement per number of rows gives the memory of every pass. A pass that reads the last token of a prompt
// also returns the logits of this token, so a prompt needs no further pass. Lengths are in tables on the
// device, not in launch arguments of kernels. So a recorded pass (Device::capture) can be replayed for every
// further token.
//
// Some layers keep a state per sequence instead of pages (short convolutions, delta rules). A new sequence
// with the same prefix as an earlier sequence copies the states of the earlier sequence at the end of that
// prefix. If there are no such states, these layers read all tokens of the new sequence.
//
// Texts of several models may be in one pass: the model, and models with adapters next to its weights
// (RowAdapters). The rows of a pass are sorted by model, so that each model's adapters are applied to
// consecutive rows. If layers keep states, the rows keep the order of the sequences.
//
// If ranks share the model (tensor, expert or pipeline parallelism), all ranks of the mesh read the same
// tokens at the same time, and each rank gets the logits. Data and context ranks also read the same tokens: a
// sequence is not distributed over these ranks.
//
// Not thread-safe. Uses the rank's compute stream, stash and scratch; all arguments must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/operators/row_adapter_tables.h"
#include "engine/parallel/data_parallel.h"
#include "engine/parallel/expert_parallel.h"
#include "engine/parallel/pipeline_schedule.h"
#include "engine/parallel/stage_pass.h"
#include "engine/runtime/phase.h"
#include "engine/runtime/rank.h"
#include "lm/decode/page_table.h"
#include "lm/decode/reader_settings.h"
#include "lm/decode/sampler.h"
#include "lm/model/language_model.h"

namespace primus {

class BatchReader {
 public:
  // Allocates pages and tables. Throws Error(kInvalid) if the model does not support the capacity, or if one
  // sequence of that capacity needs more pages than settings.pages. `adapters`: the models whose texts are
  // read; number 0 is `model`, which has no adapters. Null: only `model`. Adapters exclude ranks that share
  // the model.
  BatchReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings,
              const engine::RowAdapters* adapters = nullptr);

  // On a measuring rank: runs a pass of every size, so that the arenas record the memory that reading needs.
  // `measured`: settings.pass_tokens of a reader that was already measured and has otherwise the same
  // settings (0: none). Passes that this reader measured are not measured again.
  void measure(std::int64_t measured = 0);

  // Assigns an idle sequence to a text of a model that begins with `tokens` (at least one). Returns nullopt
  // if all sequences are in use. Afterwards, length() is the number of leading tokens that need not be read,
  // because another sequence shares their pages. The last of `tokens` must always be read.
  std::optional<std::int64_t> begin(std::span<const std::int32_t> tokens, std::size_t model = 0);
  // Returns the value that length() would have after begin(tokens, model).
  std::int64_t shared(std::span<const std::int32_t> tokens, std::size_t model = 0) const {
    return find(tokens, model).length;
  }
  // Returns whether a new text can reuse the first `length` tokens of a text, if `read` tokens of that text
  // have been read. With layers that keep states, read - length must be small.
  bool can_share(std::int64_t length, std::int64_t read) const {
    return !keeps_states() || read - length <= kSpareTokens;
  }
  // Allocates the pages that `sequence` needs to hold `length` tokens. If too few pages are free, changes
  // nothing and returns false.
  bool reserve(std::int64_t sequence, std::int64_t length);
  // Releases the sequence and frees its pages.
  void release(std::int64_t sequence);

  struct Input {
    std::int64_t sequence;  // index of the sequence; must be below settings.sequences
    std::span<const std::int32_t> tokens;
    bool tells = false;   // whether the pass returns logits for the token after the input
    TokenDraw draw = {};  // how the device draws the token, if WantedLogits::draws is set
  };
  // Throws the errors that read() would throw for these inputs, without reading anything.
  void check(std::span<const Input> inputs) const;
  // Returns the position of a sequence's rows within a pass, relative to other sequences' rows.
  std::pair<std::size_t, std::int64_t> place(std::int64_t sequence) const {
    return {keeps_states() ? 0 : slot(sequence).model, sequence};
  }
  // Runs one pass: appends each input's tokens to its sequence. Inputs must be in ascending order of
  // place(), and their tokens must fit a pass. Afterwards next() has the logits of the inputs with `tells`.
  // If the top-k logits suffice, the device selects the top-k logits, and only these are copied to the host.
  // If the device draws tokens, only the tokens are copied. A row with NaN or infinity has no order, so all
  // logits are copied if there is such a row. Throws
  // Error(kInvalid), before reading anything, if tokens do not fit the reserved pages or an id is outside the
  // vocabulary.
  void read(std::span<const Input> inputs, const WantedLogits& wanted = {});
  // Returns the logits for the token after an input. `telling` is the input's index among the inputs with
  // `tells`. Valid until the next read().
  NextLogits next(std::size_t telling) const;
  // Returns the log probabilities of the tokens `chosen`: one token for each input with Input::tells, which
  // requests logits. The probabilities cover the model's entire vocabulary at temperature 1. They are
  // computed in fp32 with the operator of the training loss. Requires a preceding read() with
  // WantedLogits::log_probs.
  std::vector<float> log_probs(std::span<const std::int32_t> chosen);

  // Returns whether all ranks must read the same tokens at the same time.
  static bool reads_together(engine::Rank& rank, const ReaderSettings& settings);

  const ModelConfig& config() const { return model_.config(); }
  const ReaderSettings& settings() const { return settings_; }
  // Returns the number of models whose texts are read.
  std::size_t models() const { return adapters_ ? adapters_->models() : 1; }
  std::int64_t length(std::int64_t sequence) const { return slot(sequence).length; }
  // Returns the number of free pages. Free pages may still contain tokens of earlier texts.
  std::int64_t free_pages() const { return pages_.free(); }

 private:
  struct Slot {
    bool taken = false;
    std::size_t model = 0;
    std::int64_t length = 0;
    PageTable::Pages pages;
    std::uint64_t released = 0;  // counter value at the last release, which orders sequences by the time of
                                 // their release
    // Used if layers have states: the tokens that the states have read (kept after a release), and the
    // largest number of these tokens since the last reset.
    std::vector<std::int32_t> state;
    std::int64_t reached = 0;
  };
  const Slot& slot(std::int64_t sequence) const { return slots_[static_cast<std::size_t>(sequence)]; }
  struct Shared {
    std::int64_t length = 0;
    std::optional<std::size_t> from = {};  // sequence from which the states of this prefix can be copied
  };
  Shared find(std::span<const std::int32_t> tokens, std::size_t model) const;
  std::size_t idle_slot(const Shared& shared) const;
  // Returns whether any layer keeps a state instead of pages.
  bool keeps_states() const {
    return config().any_keeps(Keeps::kInputs) || config().any_keeps(Keeps::kState);
  }
  void copy_page(const PageTable::Copy& copy);
  void copy_states(std::size_t from, std::size_t to);
  void measure_passes(std::int64_t measured);
  // Records that the input's first `count` tokens have been read.
  void advance(const Input& input, std::size_t count);
  // Returns the possible numbers of rows of a pass, ascending. A pass with up to `maximum` rows is padded to
  // one of them.
  std::vector<std::int64_t> pass_sizes(std::int64_t maximum) const;
  std::int64_t pass_size(std::int64_t rows, std::int64_t maximum) const;
  void fill(std::span<const Input> inputs, std::int64_t rows);
  // A kind of pass, with `rows` rows. Returns the logits of `reported` rows: no rows, all rows, or the rows
  // that a table lists.
  struct Pass {
    std::int64_t rows = 0, reported = 0;
    bool selects = false;
    // top_k: number of largest logits to return; 0: all. vocab: exclusive limit of their ids; 0: none
    std::int64_t top_k = 0, vocab = 0;
    bool log_probs = false;
    bool draws = false;                         // the device draws one token per row; top_k is 1
    bool tables = false;                        // weights with tables get the adapters of each row's model
    std::vector<engine::AdapterRun> runs = {};  // for weights without tables
    auto operator<=>(const Pass&) const = default;
  };
  struct Recorded {
    // Whether a pass of this kind already ran, so that libraries have chosen kernels and allocated memory.
    bool ran = false;
    std::unique_ptr<Graph> graph;
    Tensor logits;
  };
  // Return a pass that returns logits for every row (writing_pass: one token of each text), or for some of
  // its rows (mixed_pass: also the last rows of prompts).
  Pass writing_pass(std::int64_t rows, const WantedLogits& wanted) const;
  Pass mixed_pass(std::int64_t rows, const WantedLogits& wanted) const;
  // Chooses how adapters are applied. `maximum`: that of pass_size() for this pass.
  void set_adapters(Pass& pass, std::span<const Input> inputs, std::int64_t maximum) const;
  void measure_adapters(std::int64_t maximum, std::int64_t measured);
  std::optional<engine::RowAdapterPass> row_adapters(const Pass& pass) const;
  // Returns the record of a pass that is replayed; null if the pass is not.
  Recorded* record_of(const Pass& pass);
  void forward(const Pass& pass);
  void read_again_without_order(std::span<const Input> telling, const WantedLogits& wanted);
  // Enqueues a pass. If the pass has logits, calls `done` with the logits while the logits are valid.
  template <class Done>
  void enqueue(const Pass& pass, Done done);
  // Declares the inputs of a pass on the tape and uploads them to the device.
  ModelInputs inputs(engine::Tape& tape, const Pass& pass);
  // Returns this rank's hidden states of the rows whose logits are requested.
  engine::Value reported_rows(const Pass& pass, const engine::Value& hidden);
  // Finds the top-k logits and copies them to the host. `logits` is valid only on the last pipeline stage.
  void choose(const Pass& pass, const engine::Value& logits);
  void download(const Tensor& logits);
  // Returns the logits of the requested rows, and keeps them if keep_logits requests it.
  engine::Value logits_of(const Pass& pass, const engine::Value& rows);
  void enqueue_losses(std::int64_t reported);
  void enqueue_losses_of_kept(const Tensor& losses);
  std::int64_t part_of(std::int64_t rows) const { return rows / rank_.mesh().shape().tensor; }
  template <class T>
  void upload(const Tensor& to, std::span<T> from) {
    rank_.compute().copy_to_device(to.data, from.data(), to.bytes());
  }

  engine::Rank& rank_;
  const LanguageModel& model_;
  ReaderSettings settings_;
  const engine::RowAdapters* adapters_;
  engine::StagePass stages_;
  std::optional<engine::ExpertParallel> experts_;  // set if experts are distributed over ranks
  engine::Phase phase_;
  KvCache cache_;
  std::optional<engine::RowAdapterTables> tables_;
  PageTable pages_;
  std::vector<Slot> slots_;
  std::uint64_t releases_ = 0;
  // The host arrays of a pass: tokens, positions and models of the rows, and the tables. The memory is
  // pinned. Every pass uses the same addresses, because recorded passes contain the addresses. Absent while
  // measuring.
  struct HostTables {
    HostTables(Device& device, std::int64_t rows, std::int64_t max_reported,
               const turbo::PagedSequences& sequences);
    PinnedBuffer memory;
    std::span<std::int32_t> tokens, positions, models, starts, lengths, table;
    std::span<std::int32_t> reported, ids, chosen;  // numbers of the rows whose logits are returned, the ids
                                                    // of their logits, and the tokens chosen from them
    std::span<float> values, losses, ones;          // logits, losses and loss weights of these rows
    std::span<TokenDraw> draws;                     // the draws of these rows
  };
  // The device's memory for the rows with logits.
  struct Rows {
    Tensor values, ids;     // top-k logits and their ids, [max rows, kMax]
    Tensor draws;           // [max rows, 2] fp64
    Tensor kept;            // the kept logits, [max rows, vocab] fp32, or absent
    Tensor hidden, losses;  // the hidden states on this rank, and the fp32 losses [rows]
  };
  Rows rows_;
  std::optional<HostTables> host_;
  std::map<Pass, Recorded> recorded_;
  bool replay_;
  Pass last_{};  // the last pass that returned logits
  std::vector<std::byte> downloaded_;
  std::vector<float> logits_;
};

}  // namespace primus
