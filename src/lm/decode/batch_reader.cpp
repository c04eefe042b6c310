#include "lm/decode/batch_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "lm/decode/adapter_runs.h"
#include "tensor/bfloat16.h"
#include "turbo/top_logits/top_logits.h"

namespace primus {
namespace {

using engine::Value;
using turbo::TopLogits;

std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

BatchReader::BatchReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings,
                         const engine::RowAdapters* adapters)
    : rank_(rank),
      model_(model),
      settings_(settings),
      adapters_(adapters),
      stages_(rank, rank.mesh().pipeline(), settings.pipeline),
      phase_(rank),
      pages_(settings.all_pages(), ReaderSettings::kPageTokens),
      replay_(settings.replay) {
  if (config().scores) {
    throw unsupported(
        "a reward model computes a score and no text",
        "give the folder of a language model; transformers' ...ForSequenceClassification computes the score "
        "(docs/posttrain.md, Reward models)");
  }
  if (settings.capacity < 1 || settings.capacity > config().max_positions) {
    throw invalid(fmt::format("a context of {} tokens is not from 1 to the model's {}", settings.capacity,
                              config().max_positions));
  }
  if (settings.sequences < 1)
    throw invalid(fmt::format("a batch of {} sequences is not supported", settings.sequences));
  if (settings.all_pages() < settings.pages_for(settings.capacity)) {
    throw invalid(fmt::format("a cache of {} pages of {} tokens is too small for one sequence of {}",
                              settings.all_pages(), ReaderSettings::kPageTokens, settings.capacity),
                  "use more cache pages, or a shorter context");
  }
  PRIMUS_CHECK("BatchReader", settings.pass_tokens > 0 &&
                                  !((settings.replay || adapters) && reads_together(rank, settings)));
  settings_.pass_tokens =
      std::clamp(settings.pass_tokens, settings.sequences, settings.capacity * settings.sequences);
  // Exchange and computation do not overlap, because passes exchange only a few tokens.
  if (comm::Communicator* const group = rank.mesh().experts())
    experts_.emplace(rank, *group, engine::ExpertParallel::Options{.shared_experts = false},
                     rank.mesh().expert_hosts());
  cache_ = model.make_kv_cache(phase_, settings.compute, settings.sequences, settings.capacity,
                               settings.all_pages(), ReaderSettings::kPageTokens);
  const std::int64_t reported = pass_sizes(settings.sequences).back();
  if (adapters) tables_.emplace(rank, phase_, *adapters);
  rows_.values = phase_.tensor(DType::kF32, {reported, TopLogits::kMax});
  rows_.ids = phase_.tensor(DType::kI32, {reported, TopLogits::kMax});
  rows_.draws = phase_.tensor(DType::kF64, {reported, 2});
  if (settings.keep_logits && !reads_together(rank, settings) && model.has_loss_logits())
    rows_.kept = phase_.tensor(DType::kF32, {reported, config().vocab});
  rows_.hidden = phase_.tensor(settings.compute, {part_of(reported), config().hidden});
  rows_.losses = phase_.tensor(DType::kF32, {reported});
  if (!rank.measuring()) {
    const std::int64_t rows = std::max(pass_sizes(settings_.pass_tokens).back(), reported);
    host_.emplace(rank.device(), rows, reported, cache_.sequences);
  }
  slots_.resize(static_cast<std::size_t>(settings.sequences));
}

BatchReader::HostTables::HostTables(Device& device, std::int64_t rows, std::int64_t max_reported,
                                    const turbo::PagedSequences& sequences) {
  // The device reads a draw as two numbers in fp64.
  static_assert(sizeof(TokenDraw) == 2 * sizeof(double));
  constexpr std::int64_t kWordsOfDraw = sizeof(TokenDraw) / 4;
  const std::int64_t top_k = max_reported * TopLogits::kMax;
  const std::int64_t sizes[] = {rows,
                                rows,
                                rows,
                                sequences.query_starts.elements(),
                                sequences.key_lengths.elements(),
                                sequences.block_table.elements(),
                                max_reported,
                                top_k,
                                max_reported,
                                top_k,
                                max_reported,
                                max_reported,
                                max_reported * kWordsOfDraw};
  std::int64_t bytes = 0;
  for (const std::int64_t size : sizes) bytes += whole_lines(4 * size);
  memory = PinnedBuffer(device, bytes);
  std::byte* at = memory.data();
  const std::int64_t* size = sizes;
  const auto take = [&]<class T>(std::span<T>& span) {
    span = {reinterpret_cast<T*>(at), static_cast<std::size_t>(*size)};
    at += whole_lines(4 * *size++);
  };
  for (std::span<std::int32_t>* span :
       {&tokens, &positions, &models, &starts, &lengths, &table, &reported, &ids, &chosen})
    take(*span);
  for (std::span<float>* span : {&values, &losses, &ones}) take(*span);
  draws = {reinterpret_cast<TokenDraw*>(at), static_cast<std::size_t>(max_reported)};
  std::fill(ones.begin(), ones.end(), 1.0F);
}

bool BatchReader::reads_together(engine::Rank& rank, const ReaderSettings& settings) {
  engine::Mesh& mesh = rank.mesh();
  return settings.parallel || mesh.tensor() || mesh.context() || mesh.pipeline() || mesh.experts();
}

// Returns powers of two up to 16, and then up to 16 sizes for each further power of two, at least 16 rows
// apart. Larger passes have few padding rows, and there are few sizes to measure. Each size is a multiple of
// the number of tensor ranks, because all tensor ranks must have the same number of rows.
std::vector<std::int64_t> BatchReader::pass_sizes(std::int64_t maximum) const {
  const std::int64_t ranks = rank_.mesh().shape().tensor;
  std::vector<std::int64_t> sizes;
  const auto add = [&](std::int64_t size) {
    size = (size + ranks - 1) / ranks * ranks;
    if (sizes.empty() || size > sizes.back()) sizes.push_back(size);
  };
  const auto step = [](std::int64_t size) {
    const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(size)));
    return size < 16 ? size : std::max<std::int64_t>(16, power / 16);
  };
  for (std::int64_t size = 1; size < maximum; size += step(size)) add(size);
  add(maximum);
  return sizes;
}

std::int64_t BatchReader::pass_size(std::int64_t rows, std::int64_t maximum) const {
  const std::vector<std::int64_t> sizes = pass_sizes(maximum);
  return *std::lower_bound(sizes.begin(), sizes.end(), rows);
}

void BatchReader::measure(std::int64_t measured) {
  measure_passes(measured);
  // The first run of the passes records which parameters to prefetch. The second run prefetches these
  // parameters, which needs more memory.
  if (settings_.parallel) measure_passes(measured);
}

void BatchReader::measure_passes(std::int64_t measured) {
  const std::int64_t top_k = TopLogits::kMax;
  for (const std::int64_t rows : pass_sizes(settings_.pass_tokens)) {
    if (rows <= measured) continue;
    forward({.rows = rows});
    forward(mixed_pass(rows, {.log_probs = true}));
    forward(mixed_pass(rows, {.top_k = top_k, .log_probs = true}));
    forward(mixed_pass(rows, {.log_probs = true, .draws = true}));
  }
  measure_adapters(settings_.pass_tokens, measured);
  if (measured > 0) return;
  measure_adapters(settings_.sequences, 0);
  for (const std::int64_t rows : pass_sizes(settings_.sequences)) {
    forward(writing_pass(rows, {.log_probs = true}));
    forward(writing_pass(rows, {.top_k = top_k, .log_probs = true}));
    forward(writing_pass(rows, {.log_probs = true, .draws = true}));
    enqueue_losses(rows);
  }
}

// The memory of a run grows with its rows, so passes with one run of all rows need the most.
void BatchReader::measure_adapters(std::int64_t maximum, std::int64_t measured) {
  for (const std::int64_t rows : pass_sizes(maximum)) {
    if (rows <= measured) continue;
    for (std::size_t model = 1; model < models(); ++model)
      forward({.rows = rows, .runs = {{model, 0, rows, 0, rows}}});
    if (tables_ && tables_->support(rows)) forward({.rows = rows, .tables = true});
  }
}

// If layers keep states, returns the sequence whose states cover the longest prefix of these tokens. Tokens
// that are not in a page are ignored.
BatchReader::Shared BatchReader::find(std::span<const std::int32_t> tokens, std::size_t model) const {
  const auto maximum = tokens.first(tokens.size() - 1);
  const std::int64_t in_pages = pages_.match(maximum, model);
  if (!keeps_states()) return {in_pages};
  Shared best;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& s = slots_[i];
    if (s.model != model) continue;
    const std::int64_t common =
        std::min<std::int64_t>(in_pages, std::ranges::mismatch(s.state, maximum).in1 - s.state.begin());
    if (common > best.length && s.reached - common <= kSpareTokens) best = {common, i};
  }
  return best;
}

// Returns the idle sequence whose states are needed. If there is none, returns the idle sequence that was
// released first: states of recently released sequences are more likely to be reused.
std::size_t BatchReader::idle_slot(const Shared& shared) const {
  if (shared.from && !slots_[*shared.from].taken) return *shared.from;
  std::size_t idle = slots_.size();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].taken && (idle == slots_.size() || slots_[i].released < slots_[idle].released)) idle = i;
  }
  return idle;
}

std::optional<std::int64_t> BatchReader::begin(std::span<const std::int32_t> tokens, std::size_t model) {
  const Shared shared = find(tokens, model);
  const std::size_t to = idle_slot(shared);
  if (to == slots_.size()) return {};
  Slot& s = slots_[to];
  const auto known = tokens.first(static_cast<std::size_t>(shared.length));
  s.model = model;
  s.length = pages_.share(known, s.pages, model);
  PRIMUS_CHECK("BatchReader::begin", s.length == shared.length);
  if (keeps_states()) {
    s.reached = shared.from ? slots_[*shared.from].reached : 0;
    s.state.assign(known.begin(), known.end());
    if (shared.from && *shared.from != to) copy_states(*shared.from, to);
  }
  s.taken = true;
  return static_cast<std::int64_t>(to);
}

void BatchReader::copy_states(std::size_t from, std::size_t to) {
  const auto source = static_cast<std::int64_t>(from), target = static_cast<std::int64_t>(to);
  for (const engine::KvCacheLayer& layer : cache_.layers) {
    for (const Tensor& all : {layer.ring, layer.state, layer.recent, layer.committed}) {
      if (all.absent()) continue;
      const Tensor own = all.slice(target, target + 1);
      rank_.compute().copy_on_device(own.data, all.slice(source, source + 1).data, own.bytes());
    }
  }
}

void BatchReader::copy_page(const PageTable::Copy& copy) {
  for (const engine::KvCacheLayer& layer : cache_.layers) {
    for (const Tensor& all : {layer.k, layer.v, layer.index}) {
      if (all.absent()) continue;
      const Tensor to = all.slice(copy.to, copy.to + 1);
      rank_.compute().copy_on_device(to.data, all.slice(copy.from, copy.from + 1).data, to.bytes());
    }
  }
}

bool BatchReader::reserve(std::int64_t sequence, std::int64_t length) {
  PRIMUS_CHECK("BatchReader::reserve", length <= settings_.capacity);
  Slot& s = slots_[static_cast<std::size_t>(sequence)];
  std::vector<PageTable::Copy> copies;
  if (!pages_.grow(s.pages, s.length, length, copies)) return false;
  for (const PageTable::Copy& copy : copies) copy_page(copy);
  s.taken = true;
  return true;
}

void BatchReader::release(std::int64_t sequence) {
  Slot& s = slots_[static_cast<std::size_t>(sequence)];
  s.taken = false;
  s.length = 0;
  s.released = ++releases_;
  pages_.release(s.pages);
}

void BatchReader::check(std::span<const Input> inputs) const {
  std::pair<std::size_t, std::int64_t> previous{0, -1};
  for (const Input& input : inputs) {
    PRIMUS_CHECK("BatchReader", input.sequence < settings_.sequences && place(input.sequence) > previous);
    previous = place(input.sequence);
    if (input.tokens.empty()) throw invalid("no token to read is given");
    const Slot& s = slot(input.sequence);
    const std::int64_t room = std::min(settings_.capacity, static_cast<std::int64_t>(s.pages.size()) *
                                                               ReaderSettings::kPageTokens) -
                              s.length;
    if (static_cast<std::int64_t>(input.tokens.size()) > room) {
      throw invalid(fmt::format("{} more tokens do not fit a context of {} that holds {}",
                                input.tokens.size(), s.length + room, s.length));
    }
    for (const std::int32_t id : input.tokens) {
      if (id < 0 || id >= config().vocab) {
        throw invalid(fmt::format("token {} is outside the vocabulary of {}", id, config().vocab));
      }
    }
  }
}

void BatchReader::fill(std::span<const Input> inputs, std::int64_t rows) {
  HostTables& host = *host_;
  const auto blocks = static_cast<std::size_t>(cache_.sequences.blocks());
  std::size_t row = 0, reported = 0, entry = 0;
  host.starts[0] = 0;
  // The entries of the tables have the order of the rows.
  std::vector<std::int64_t> order(slots_.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::ranges::sort(order, {}, [&](std::int64_t sequence) { return place(sequence); });
  for (const std::int64_t sequence : order) {
    const Slot& s = slot(sequence);
    const auto pages = host.table.subspan(entry * blocks, blocks);
    std::fill(std::copy(s.pages.begin(), s.pages.end(), pages.begin()), pages.end(), 0);
    std::int64_t length = s.length;
    if (!inputs.empty() && inputs.front().sequence == sequence) {
      for (const std::int32_t token : inputs.front().tokens) {
        host.tokens[row] = token;
        host.models[row] = static_cast<std::int32_t>(s.model);
        host.positions[row++] = static_cast<std::int32_t>(length++);
      }
      if (inputs.front().tells) {
        host.draws[reported] = inputs.front().draw;
        host.reported[reported++] = static_cast<std::int32_t>(row - 1);
      }
      inputs = inputs.subspan(1);
    }
    host.lengths[entry] = static_cast<std::int32_t>(length);
    host.starts[++entry] = static_cast<std::int32_t>(row);
  }
  for (; row < static_cast<std::size_t>(rows); ++row)
    host.tokens[row] = host.positions[row] = host.models[row] = 0;
  std::fill(host.reported.begin() + static_cast<std::ptrdiff_t>(reported), host.reported.end(), 0);
  std::fill(host.draws.begin() + static_cast<std::ptrdiff_t>(reported), host.draws.end(), TokenDraw{});
}

void BatchReader::read(std::span<const Input> inputs, const WantedLogits& wanted) {
  std::int64_t rows = 0;
  std::vector<Input> telling;
  for (const Input& input : inputs) {
    rows += static_cast<std::int64_t>(input.tokens.size());
    if (input.tells) telling.push_back(input);
  }
  if (rows > settings_.pass_tokens) {
    throw invalid(fmt::format("{} tokens do not fit a pass of {}", rows, settings_.pass_tokens));
  }
  check(inputs);
  if (rows == 0) return;
  // Whether the pass only generates: it has the last token of each text.
  const bool writes = std::ssize(telling) == rows;
  const std::int64_t maximum = writes ? settings_.sequences : settings_.pass_tokens;
  rows = pass_size(rows, maximum);
  Pass pass = telling.empty() ? Pass{.rows = rows}
              : writes        ? writing_pass(rows, wanted)
                              : mixed_pass(rows, wanted);
  set_adapters(pass, inputs, maximum);
  fill(inputs, rows);
  forward(pass);
  for (const Input& input : inputs) advance(input, input.tokens.size() - (input.tells ? 1 : 0));
  if (telling.empty()) return;
  for (Input& input : telling) input.tokens = input.tokens.last(1);
  last_ = pass;
  read_again_without_order(telling, wanted);
  for (const Input& input : telling) advance(input, 1);
}

// Reads the last tokens of the texts again, which writes the same values into the cache, and downloads all
// logits.
void BatchReader::read_again_without_order(std::span<const Input> telling, const WantedLogits& wanted) {
  if (last_.top_k == 0) return;
  bool ordered = true;
  for (std::size_t i = 0; i < telling.size(); ++i)
    ordered = ordered && host_->ids[i * static_cast<std::size_t>(last_.top_k)] >= 0;
  if (ordered) return;
  const std::int64_t rows = pass_size(std::ssize(telling), settings_.sequences);
  fill(telling, rows);
  last_ = writing_pass(rows, {.vocab = wanted.vocab, .log_probs = wanted.log_probs});
  set_adapters(last_, telling, settings_.sequences);
  forward(last_);
}

NextLogits BatchReader::next(std::size_t telling) const {
  if (last_.top_k > 0) {
    const auto k = static_cast<std::size_t>(last_.top_k);
    return {host_->values.subspan(telling * k, k), host_->ids.subspan(telling * k, k), last_.draws};
  }
  const auto vocab = static_cast<std::size_t>(config().vocab);
  return {std::span<const float>(logits_).subspan(telling * vocab, vocab)};
}

void BatchReader::advance(const Input& input, std::size_t count) {
  if (count == 0) return;
  Slot& s = slots_[static_cast<std::size_t>(input.sequence)];
  const auto tokens = input.tokens.first(count);
  pages_.write(s.pages, s.length, tokens, s.model);
  if (keeps_states()) {
    if (s.length == 0) s.state.clear(), s.reached = 0;
    s.state.insert(s.state.end(), tokens.begin(), tokens.end());
  }
  s.length += static_cast<std::int64_t>(count);
  s.reached = std::max(s.reached, s.length);
}

// A pass is recorded for each k of top-k logits, so only two values of k are used: 1 and the maximum.
BatchReader::Pass BatchReader::writing_pass(std::int64_t rows, const WantedLogits& wanted) const {
  Pass pass{.rows = rows, .reported = rows, .log_probs = wanted.log_probs};
  const std::int64_t vocab = wanted.vocab > 0 ? std::min(wanted.vocab, config().vocab) : config().vocab;
  if (wanted.top_k == 0 && wanted.draws) {
    pass.top_k = 1;
    pass.vocab = vocab;
    pass.draws = true;
    return pass;
  }
  const std::int64_t top_k = wanted.top_k == 1 ? 1 : TopLogits::kMax;
  if (wanted.top_k < 1 || wanted.top_k > top_k || top_k > vocab) return pass;
  pass.top_k = top_k;
  pass.vocab = vocab;
  return pass;
}

BatchReader::Pass BatchReader::mixed_pass(std::int64_t rows, const WantedLogits& wanted) const {
  Pass pass = writing_pass(rows, wanted);
  // `reported` depends only on `rows`, so only a few kinds of passes are recorded.
  pass.reported = pass_size(std::min(rows, settings_.sequences), settings_.sequences);
  pass.selects = true;
  return pass;
}

void BatchReader::set_adapters(Pass& pass, std::span<const Input> inputs, std::int64_t maximum) const {
  if (models() == 1) return;
  std::vector<RowsOfModel> parts;
  for (const Input& input : inputs) parts.push_back({slot(input.sequence).model, std::ssize(input.tokens)});
  std::vector<engine::AdapterRun> runs = adapter_runs(parts, pass_sizes(maximum), pass.rows);
  pass.tables = !runs.empty() && tables_->support(pass.rows);
  if (!pass.tables || !tables_->complete()) pass.runs = std::move(runs);
}

std::optional<engine::RowAdapterPass> BatchReader::row_adapters(const Pass& pass) const {
  if (!adapters_) return {};
  engine::RowAdapterPass adapters{.adapters = *adapters_, .runs = pass.runs};
  if (pass.tables) {
    adapters.tables = &*tables_;
    adapters.models = tables_->models(pass.rows);
  }
  return adapters;
}

// Each combination of runs needs its own recording. If there are too many recordings, discards all of them.
BatchReader::Recorded* BatchReader::record_of(const Pass& pass) {
  if (!replay_ || pass.reported == 0 || pass.selects) return nullptr;
  constexpr std::ptrdiff_t kMaxRuns = 64;
  const auto has_runs = [](const auto& recorded) { return !recorded.first.runs.empty(); };
  if (!pass.runs.empty() && !recorded_.contains(pass) &&
      std::ranges::count_if(recorded_, has_runs) >= kMaxRuns)
    std::erase_if(recorded_, has_runs);
  return &recorded_[pass];
}

void BatchReader::forward(const Pass& pass) {
  if (rank_.measuring()) return enqueue(pass, [](const Tensor&) {});
  Stream& stream = rank_.compute();
  Recorded* const recorded = record_of(pass);
  if (recorded && recorded->ran && !recorded->graph) {
    recorded->graph = rank_.device().capture(
        stream, [&] { enqueue(pass, [&](const Tensor& logits) { recorded->logits = logits; }); });
    replay_ = recorded->graph != nullptr;
  }
  if (recorded && recorded->graph) {
    recorded->graph->launch(stream);
    // Nothing has used the stash since the pass, so the pass's logits are still valid.
    if (pass.top_k == 0) download(recorded->logits);
  } else {
    if (recorded) recorded->ran = true;
    enqueue(pass, [&](const Tensor& logits) {
      if (pass.top_k == 0) download(logits);
    });
  }
  stream.synchronize();  // waits for the copies, because the next pass overwrites the host tables
  if (pass.reported == 0 || pass.top_k > 0) return;
  const bool wide = downloaded_.size() == 4 * logits_.size();
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    if (wide) {
      std::memcpy(&logits_[i], downloaded_.data() + 4 * i, 4);
    } else {
      BFloat16 element;
      std::memcpy(&element, downloaded_.data() + 2 * i, 2);
      logits_[i] = static_cast<float>(element);
    }
  }
}

void BatchReader::download(const Tensor& logits) {
  downloaded_.resize(static_cast<std::size_t>(logits.bytes()));
  logits_.resize(static_cast<std::size_t>(logits.elements()));
  rank_.compute().copy_to_host(downloaded_.data(), logits.data, logits.bytes());
}

ModelInputs BatchReader::inputs(engine::Tape& tape, const Pass& pass) {
  ModelInputs in{.tokens = tape.input(DType::kI32, {pass.rows}, false),
                 .blocks = {.batch = 1,
                            .sequence = pass.rows,
                            .positions = tape.input(DType::kI32, {pass.rows}, false),
                            .cache = &cache_,
                            .experts = experts_ ? &*experts_ : nullptr}};
  if (rank_.measuring()) return in;
  upload(in.tokens.tensor(), host_->tokens);
  upload(in.blocks.positions.tensor(), host_->positions);
  if (pass.tables) upload(tables_->models(pass.rows), host_->models);
  upload(cache_.sequences.query_starts, host_->starts);
  upload(cache_.sequences.key_lengths, host_->lengths);
  upload(cache_.sequences.block_table, host_->table);
  return in;
}

template <class Done>
void BatchReader::enqueue(const Pass& pass, Done done) {
  // A pass that returns logits for every row has one token of each sequence (check()).
  cache_.sequences.single = pass.reported > 0 && !pass.selects;
  engine::Tape tape(rank_.context(), rank_.stash());
  const std::optional<engine::RowAdapterPass> adapters = row_adapters(pass);
  const auto begin = [&](int chunk) {
    tape.begin({.train = false,
                .chunk = chunk,
                .parallel = settings_.parallel,
                .row_adapters = adapters ? &*adapters : nullptr});
    if (settings_.parallel) settings_.parallel->begin_pass(engine::DataParallel::Pass::kReading, chunk);
  };
  Value logits;
  const auto forward = [&](int chunk, Value x) {
    Value hidden = model_.forward(chunk, inputs(tape, pass), std::move(x));
    if (!model_.last(chunk)) return hidden;
    if (pass.reported > 0) logits = logits_of(pass, reported_rows(pass, hidden));
    return Value();
  };
  stages_.run(tape, settings_.compute, {part_of(pass.rows), config().streams() * config().hidden}, begin,
              forward);
  if (pass.reported > 0) {
    if (pass.top_k > 0) {
      choose(pass, logits);
    } else {
      if (!logits) logits = tape.input(settings_.compute, {pass.reported, config().vocab}, false);
      stages_.broadcast_from_last(logits.tensor());
    }
    done(logits ? logits.tensor() : Tensor());
  }
  if (settings_.parallel) settings_.parallel->end_microbatch();
}

Value BatchReader::reported_rows(const Pass& pass, const Value& hidden) {
  Value reported = hidden;
  if (pass.selects) {
    const std::int64_t count = part_of(pass.reported);
    const Value rows = hidden.tape().input(DType::kI32, {count}, false);
    const auto first = static_cast<std::size_t>(count * rank_.mesh().place().tensor);
    if (!rank_.measuring()) upload(rows.tensor(), host_->reported.subspan(first));
    reported = model_.select(hidden, rows);
  }
  if (pass.log_probs && !rank_.measuring())
    rank_.compute().copy_on_device(rows_.hidden.data, reported.tensor().data, reported.tensor().bytes());
  return reported;
}

Value BatchReader::logits_of(const Pass& pass, const Value& rows) {
  if (rows_.kept.absent() || !pass.log_probs) return model_.logits(rows);
  Value logits = model_.loss_logits(rows);
  if (!rank_.measuring())
    rank_.compute().copy_on_device(rows_.kept.data, logits.tensor().data, logits.tensor().bytes());
  return logits;
}

void BatchReader::choose(const Pass& pass, const Value& logits) {
  const Shape shape{pass.reported, pass.top_k};
  const Tensor values(rows_.values.data, DType::kF32, shape), ids(rows_.ids.data, DType::kI32, shape);
  if (logits) {
    const Tensor draws = pass.draws ? rows_.draws.slice(0, pass.reported) : Tensor();
    if (pass.draws && !rank_.measuring()) upload(draws, host_->draws);
    turbo::launch(rank_.context(), TopLogits{.logits = logits.tensor(),
                                             .vocab = pass.vocab,
                                             .values = values,
                                             .draws = draws,
                                             .ids = ids,
                                             .workspace = {}});
  }
  stages_.broadcast_from_last(values);
  stages_.broadcast_from_last(ids);
  if (rank_.measuring()) return;
  rank_.compute().copy_to_host(host_->values.data(), values.data, values.bytes());
  rank_.compute().copy_to_host(host_->ids.data(), ids.data, ids.bytes());
}

}  // namespace primus
