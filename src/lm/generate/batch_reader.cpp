#include "lm/generate/batch_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "tensor/bfloat16.h"
#include "turbo/top_logits/top_logits.h"

namespace primus {
namespace {

using engine::Value;
using turbo::TopLogits;

std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

BatchReader::BatchReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings)
    : rank_(rank),
      model_(model),
      settings_(settings),
      stages_(rank, rank.mesh().pipeline(), settings.pipeline),
      replay_(settings.replay) {
  if (settings.capacity < 1 || settings.capacity > config().max_positions) {
    throw invalid(fmt::format("a context of {} tokens is not from 1 to the model's {}", settings.capacity,
                              config().max_positions));
  }
  if (settings.sequences < 1) throw invalid(fmt::format("{} sequences cannot be read", settings.sequences));
  if (settings.all_pages() < settings.pages_for(settings.capacity)) {
    throw invalid(fmt::format("a cache of {} pages of {} tokens does not hold one sequence of {}",
                              settings.all_pages(), ReaderSettings::kPageTokens, settings.capacity),
                  "give the cache more pages, or sequences less room");
  }
  PRIMUS_CHECK("BatchReader", settings.pass_tokens > 0 && !(settings.replay && reads_together()));
  settings_.pass_tokens = std::min(settings.pass_tokens, settings.capacity * settings.sequences);
  // Nothing runs beside the few tokens that travel.
  if (comm::Communicator* const group = rank.mesh().experts()) experts_.emplace(rank, *group, false);
  cache_ = model.make_kv_cache(rank, settings.compute, settings.sequences, settings.capacity,
                               settings.all_pages(), ReaderSettings::kPageTokens);
  const std::int64_t most_chosen = pass_sizes(settings.sequences).back();
  const auto top = [&](DType dtype) { return rank.persistent(dtype, {most_chosen, TopLogits::kMost}); };
  top_values_ = top(DType::kF32), top_ids_ = top(DType::kI32);
  if (!rank.measuring()) {
    host_.emplace(rank.device(), std::max(pass_sizes(settings_.pass_tokens).back(), most_chosen),
                  cache_.sequences, top_ids_.elements());
  }
  slots_.resize(static_cast<std::size_t>(settings.sequences));
  for (std::int64_t page = settings.all_pages(); page > 0; --page)
    free_.push_back(static_cast<std::int32_t>(page - 1));
}

BatchReader::HostTables::HostTables(Device& device, std::int64_t rows, const turbo::PagedSequences& sequences,
                                    std::int64_t likeliest) {
  const std::int64_t sizes[] = {rows,
                                rows,
                                sequences.query_starts.elements(),
                                sequences.key_lengths.elements(),
                                sequences.block_table.elements(),
                                likeliest,
                                likeliest};
  std::int64_t bytes = 0;
  for (const std::int64_t size : sizes) bytes += whole_lines(4 * size);
  memory = PinnedBuffer(device, bytes);
  std::byte* at = memory.data();
  const std::int64_t* size = sizes;
  const auto take = [&]<class T>(std::span<T>& span) {
    span = {reinterpret_cast<T*>(at), static_cast<std::size_t>(*size)};
    at += whole_lines(4 * *size++);
  };
  for (std::span<std::int32_t>* span : {&tokens, &positions, &starts, &lengths, &table, &ids}) take(*span);
  take(values);
}

bool BatchReader::reads_together() const {
  engine::Mesh& mesh = rank_.mesh();
  return settings_.parallel || mesh.tensor() || mesh.context() || mesh.pipeline() || mesh.experts();
}

// Powers of two, then multiples of 16, so that no more than a few rows are computed for nothing; each a
// multiple of the tensor ranks, which hold as many rows each.
std::vector<std::int64_t> BatchReader::pass_sizes(std::int64_t most) const {
  const std::int64_t ranks = rank_.mesh().shape().tensor;
  std::vector<std::int64_t> sizes;
  const auto add = [&](std::int64_t size) {
    size = (size + ranks - 1) / ranks * ranks;
    if (sizes.empty() || size > sizes.back()) sizes.push_back(size);
  };
  for (std::int64_t size = 1; size < most; size += std::min<std::int64_t>(size, 16)) add(size);
  add(most);
  return sizes;
}

std::int64_t BatchReader::pass_size(std::int64_t rows, std::int64_t most) const {
  const std::vector<std::int64_t> sizes = pass_sizes(most);
  return *std::lower_bound(sizes.begin(), sizes.end(), rows);
}

void BatchReader::measure() {
  measure_passes();
  // The first time has taught which parameters are gathered ahead, which takes memory.
  if (settings_.parallel) measure_passes();
}

void BatchReader::measure_passes() {
  for (const std::int64_t rows : pass_sizes(settings_.pass_tokens)) forward({.rows = rows});
  for (const std::int64_t rows : pass_sizes(settings_.sequences)) {
    forward(pass_of(rows, {}));
    forward(pass_of(rows, {.likeliest = TopLogits::kMost}));
  }
}

bool BatchReader::reserve(std::int64_t sequence, std::int64_t length) {
  PRIMUS_CHECK("BatchReader::reserve", length <= settings_.capacity);
  std::vector<std::int32_t>& pages = slots_[static_cast<std::size_t>(sequence)].pages;
  const std::int64_t more = settings_.pages_for(length) - static_cast<std::int64_t>(pages.size());
  if (more > free_pages()) return false;
  for (std::int64_t i = 0; i < more; ++i) {
    pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void BatchReader::check(std::span<const Input> inputs) const {
  std::int64_t previous = -1;
  for (const Input& input : inputs) {
    PRIMUS_CHECK("BatchReader", input.sequence > previous && input.sequence < settings_.sequences);
    previous = input.sequence;
    if (input.tokens.empty()) throw invalid("there is no token to read");
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
  std::size_t row = 0;
  host.starts[0] = 0;
  for (std::size_t sequence = 0; sequence < slots_.size(); ++sequence) {
    const Slot& s = slots_[sequence];
    const auto pages = host.table.subspan(sequence * blocks, blocks);
    std::fill(std::copy(s.pages.begin(), s.pages.end(), pages.begin()), pages.end(), 0);
    std::int64_t length = s.length;
    if (!inputs.empty() && inputs.front().sequence == static_cast<std::int64_t>(sequence)) {
      for (const std::int32_t token : inputs.front().tokens) {
        host.tokens[row] = token;
        host.positions[row++] = static_cast<std::int32_t>(length++);
      }
      inputs = inputs.subspan(1);
    }
    host.starts[sequence + 1] = static_cast<std::int32_t>(row);
    host.lengths[sequence] = static_cast<std::int32_t>(length);
  }
  for (; row < static_cast<std::size_t>(rows); ++row) host.tokens[row] = host.positions[row] = 0;
}

void BatchReader::read(std::span<const Input> inputs) {
  std::int64_t rows = 0;
  for (const Input& input : inputs) rows += static_cast<std::int64_t>(input.tokens.size());
  if (rows > settings_.pass_tokens) {
    throw invalid(fmt::format("{} tokens do not fit a pass of {}", rows, settings_.pass_tokens));
  }
  check(inputs);
  if (rows == 0) return;
  rows = pass_size(rows, settings_.pass_tokens);
  fill(inputs, rows);
  forward({.rows = rows});
  for (const Input& input : inputs) advance(input);
}

void BatchReader::read_next(std::span<const Input> inputs, const WantedLogits& wanted) {
  for (const Input& input : inputs) PRIMUS_CHECK("BatchReader::read_next", input.tokens.size() == 1);
  check(inputs);
  if (inputs.empty()) return;
  const std::int64_t rows = pass_size(static_cast<std::int64_t>(inputs.size()), settings_.sequences);
  fill(inputs, rows);
  last_ = pass_of(rows, wanted);
  forward(last_);
  // A row without an order: reading it again writes the same into the cache, and downloads all logits.
  for (std::size_t i = 0; last_.likeliest > 0 && i < inputs.size(); ++i) {
    if (host_->ids[i * static_cast<std::size_t>(last_.likeliest)] >= 0) continue;
    last_ = pass_of(rows, {.vocab = wanted.vocab});
    forward(last_);
  }
  for (const Input& input : inputs) advance(input);
}

NextLogits BatchReader::next(std::size_t input) const {
  if (last_.likeliest > 0) {
    const auto k = static_cast<std::size_t>(last_.likeliest);
    return {host_->values.subspan(input * k, k), host_->ids.subspan(input * k, k)};
  }
  const auto vocab = static_cast<std::size_t>(config().vocab);
  return {std::span<const float>(logits_).subspan(input * vocab, vocab)};
}

void BatchReader::advance(const Input& input) {
  Slot& s = slots_[static_cast<std::size_t>(input.sequence)];
  s.length += static_cast<std::int64_t>(input.tokens.size());
  s.reached = std::max(s.reached, s.length);
}

void BatchReader::truncate(std::int64_t sequence, std::int64_t length) {
  Slot& s = slots_[static_cast<std::size_t>(sequence)];
  const std::int64_t kept = std::clamp<std::int64_t>(length, 0, s.length);
  const bool all_kept = config().conv_layers.empty() && config().linear.layers.empty();
  s.length = all_kept || s.reached - kept <= kSpareTokens ? kept : 0;
  if (s.length == 0) s.reached = 0;
}

void BatchReader::release(std::int64_t sequence) {
  Slot& s = slots_[static_cast<std::size_t>(sequence)];
  s.length = s.reached = 0;
  free_.insert(free_.end(), s.pages.rbegin(), s.pages.rend());
  s.pages.clear();
}

// Two sizes of selections are enough, and each is recorded.
BatchReader::Pass BatchReader::pass_of(std::int64_t rows, const WantedLogits& wanted) const {
  const std::int64_t vocab = wanted.vocab > 0 ? std::min(wanted.vocab, config().vocab) : config().vocab;
  const std::int64_t likeliest = wanted.likeliest == 1 ? 1 : TopLogits::kMost;
  if (wanted.likeliest < 1 || wanted.likeliest > likeliest || likeliest > vocab) {
    return {.rows = rows, .logits = true};
  }
  return {.rows = rows, .logits = true, .likeliest = likeliest, .vocab = vocab};
}

void BatchReader::forward(const Pass& pass) {
  if (rank_.measuring()) return enqueue(pass, [](const Tensor&) {});
  Stream& stream = rank_.compute();
  Recorded* recorded = replay_ && pass.logits ? &recorded_[pass] : nullptr;
  if (recorded && recorded->ran && !recorded->graph) {
    recorded->graph = rank_.device().capture(
        stream, [&] { enqueue(pass, [&](const Tensor& logits) { recorded->logits = logits; }); });
    replay_ = recorded->graph != nullptr;
  }
  if (recorded && recorded->graph) {
    recorded->graph->launch(stream);
    // Nothing else has used the stash since.
    if (pass.likeliest == 0) download(recorded->logits);
  } else {
    if (recorded) recorded->ran = true;
    enqueue(pass, [&](const Tensor& logits) {
      if (pass.likeliest == 0) download(logits);
    });
  }
  stream.synchronize();  // the host's tables are used again
  if (!pass.logits || pass.likeliest > 0) return;
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
  const auto upload = [&](const Tensor& to, std::span<const std::int32_t> from) {
    rank_.compute().copy_to_device(to.data, from.data(), to.bytes());
  };
  upload(in.tokens.tensor(), host_->tokens);
  upload(in.blocks.positions.tensor(), host_->positions);
  upload(cache_.sequences.query_starts, host_->starts);
  upload(cache_.sequences.key_lengths, host_->lengths);
  upload(cache_.sequences.block_table, host_->table);
  return in;
}

template <class Done>
void BatchReader::enqueue(const Pass& pass, Done done) {
  engine::Tape tape(rank_.context(), rank_.stash());
  const auto begin = [&](int chunk) {
    tape.begin({.train = false, .chunk = chunk, .parallel = settings_.parallel});
    if (settings_.parallel) settings_.parallel->begin_pass(engine::DataParallel::Pass::kReading, chunk);
  };
  Value logits;
  const auto forward = [&](int chunk, Value x) {
    Value hidden = model_.forward(chunk, inputs(tape, pass), std::move(x));
    if (!model_.last(chunk)) return hidden;
    if (pass.logits) logits = model_.logits(hidden);
    return Value();
  };
  const std::int64_t rows = pass.rows / rank_.mesh().shape().tensor;
  stages_.run(tape, settings_.compute, {rows, config().streams() * config().hidden}, begin, forward);
  if (pass.logits) {
    if (pass.likeliest > 0) {
      choose(pass, logits);
    } else {
      if (!logits) logits = tape.input(settings_.compute, {pass.rows, config().vocab}, false);
      stages_.tell_from_last(logits.tensor());
    }
    done(logits ? logits.tensor() : Tensor());
  }
  if (settings_.parallel) settings_.parallel->end_microbatch();
}

void BatchReader::choose(const Pass& pass, const Value& logits) {
  const Shape shape{pass.rows, pass.likeliest};
  const Tensor values(top_values_.data, DType::kF32, shape), ids(top_ids_.data, DType::kI32, shape);
  if (logits) {
    turbo::launch(
        rank_.context(),
        TopLogits{
            .logits = logits.tensor(), .vocab = pass.vocab, .values = values, .ids = ids, .workspace = {}});
  }
  stages_.tell_from_last(values);
  stages_.tell_from_last(ids);
  if (rank_.measuring()) return;
  rank_.compute().copy_to_host(host_->values.data(), values.data, values.bytes());
  rank_.compute().copy_to_host(host_->ids.data(), ids.data, ids.bytes());
}

}  // namespace primus
