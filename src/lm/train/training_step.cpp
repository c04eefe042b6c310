#include "lm/train/training_step.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "turbo/elementwise/elementwise.h"

namespace primus {

using engine::Tape;
using engine::Value;

TrainingStep::TrainingStep(engine::Rank& rank, engine::DataParallel& parallel, const LanguageModel& model,
                           Optimizer& optimizer, const StepSettings& settings)
    : rank_(rank),
      parallel_(parallel),
      model_(model),
      optimizer_(optimizer),
      settings_(settings),
      queue_(settings.weight_gradients),
      tape_(rank.context(), rank.stash()) {
  auto scalar = [&](DType dtype) {
    return Tensor(rank.persistent().allocate(size_of(dtype)).address, dtype, {1});
  };
  loss_ = scalar(DType::kF32);
  stop_votes_ = scalar(DType::kF32);
  scalars_ = Tensor(rank.persistent().allocate(turbo::kStepScalars * size_of(DType::kF64)).address,
                    DType::kF64, {turbo::kStepScalars});
  non_finite_ = scalar(DType::kI32);
  if (model.config().mtp.modules() > 0) mtp_loss_ = scalar(DType::kF32);
  if (model.config().moe.experts > 0) routing_ = model.make_routing_step(rank);
  routing_.random.seed = settings.seed;
  routing_.random.scalars = scalars_;
  routing_.loss_weight = loss_weight();
  if (rank.measuring()) return;
  host_scalars_ = PinnedBuffer(rank.device(), 2 * scalars_.bytes());
  staging_.resize(settings.microbatches);
  positions_.resize(settings.micro_batch * settings.sequence);
  for (std::size_t t = 0; t < positions_.size(); ++t) {
    positions_[t] = static_cast<std::int32_t>(static_cast<std::int64_t>(t) % settings.sequence);
  }
}

double TrainingStep::loss_weight() const {
  return 1.0 / static_cast<double>(settings_.microbatches * parallel_.ranks());
}

// `weight` is what the microbatch's loss weighs in the sum: the mask is divided by its own sum and multiplied
// by it.
ModelInputs TrainingStep::upload(Tape& tape, const HostBatch& batch, std::int64_t slot, double weight,
                                 bool further) {
  // Only routers draw random numbers, and only in training.
  const bool numbered = !routing_.load.absent() && tape.training();
  const Shape shape{settings_.micro_batch * settings_.sequence};
  ModelInputs in{.batch = settings_.micro_batch,
                 .sequence = settings_.sequence,
                 .tokens = tape.input(DType::kI32, shape, false),
                 .positions = tape.input(DType::kI32, shape, false),
                 .labels = tape.input(DType::kI32, shape, false),
                 .weights = tape.input(DType::kF32, shape, false)};
  if (settings_.packed_documents) in.first_key = tape.input(DType::kI32, shape, false);
  if (numbered) in.token_numbers = tape.input(DType::kI32, shape, false);
  const std::int64_t depths = further ? model_.config().mtp.modules() : 0;
  for (std::int64_t depth = 0; depth < depths; ++depth) {
    in.further.push_back({.tokens = tape.input(DType::kI32, shape, false),
                          .labels = tape.input(DType::kI32, shape, false),
                          .weights = tape.input(DType::kF32, shape, false)});
  }
  if (rank_.measuring()) return in;

  Staging& host = staging_[slot];
  host.tokens.assign(batch.tokens.begin(), batch.tokens.end());
  host.labels.assign(batch.labels.begin(), batch.labels.end());
  double mask_sum = 0;
  for (float m : batch.loss_mask) mask_sum += static_cast<double>(m);
  const double scale = weight / std::max(mask_sum, 1.0);
  host.weights.resize(batch.loss_mask.size());
  std::transform(batch.loss_mask.begin(), batch.loss_mask.end(), host.weights.begin(),
                 [scale](float m) { return static_cast<float>(static_cast<double>(m) * scale); });
  auto copy = [&](const Value& to, const void* from) {
    const Tensor tensor = to.tensor();
    rank_.compute().copy_to_device(tensor.data, from, tensor.bytes());
  };
  copy(in.tokens, host.tokens.data());
  host.positions.assign(batch.positions.begin(), batch.positions.end());
  copy(in.positions, host.positions.empty() ? positions_.data() : host.positions.data());
  if (settings_.packed_documents) {
    host.document_starts.assign(batch.document_starts.begin(), batch.document_starts.end());
    host.first_keys = first_keys(host.document_starts);
    copy(in.first_key, host.first_keys.data());
  }
  if (numbered) {
    host.token_numbers.resize(positions_.size());
    std::iota(host.token_numbers.begin(), host.token_numbers.end(),
              static_cast<std::int32_t>((slot * parallel_.ranks() + rank_.mesh().rank()) * shape.elements()));
    copy(in.token_numbers, host.token_numbers.data());
  }
  copy(in.labels, host.labels.data());
  copy(in.weights, host.weights.data());
  host.further.resize(static_cast<std::size_t>(depths));
  for (std::int64_t depth = 1; depth <= depths; ++depth) {
    const FurtherTokens& to = in.further[static_cast<std::size_t>(depth - 1)];
    FurtherStaging& from = host.further[static_cast<std::size_t>(depth - 1)];
    from = further_tokens(batch, depth, weight);
    copy(to.tokens, from.tokens.data());
    copy(to.labels, from.labels.data());
    copy(to.weights, from.weights.data());
  }
  return in;
}

// Tokens, labels and mask move `depth` positions ahead within their document (or sequence); what would come
// from behind its end is token 0 and has no loss. As Megatron-LM does, the mean is over the tokens that are
// left.
TrainingStep::FurtherStaging TrainingStep::further_tokens(const HostBatch& batch, std::int64_t depth,
                                                          double weight) const {
  const auto count = static_cast<std::int64_t>(batch.tokens.size());
  FurtherStaging out{std::vector<std::int32_t>(batch.tokens.size()),
                     std::vector<std::int32_t>(batch.tokens.size()), std::vector<float>(batch.tokens.size())};
  double mask_sum = 0;
  const auto shift = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t + depth < end; ++t) {
      const auto to = static_cast<std::size_t>(t), from = static_cast<std::size_t>(t + depth);
      out.tokens[to] = batch.tokens[from];
      out.labels[to] = batch.labels[from];
      out.weights[to] = batch.loss_mask[from];
      mask_sum += static_cast<double>(batch.loss_mask[from]);
    }
  };
  if (settings_.packed_documents) {
    for (std::size_t d = 0; d + 1 < batch.document_starts.size(); ++d)
      shift(batch.document_starts[d], batch.document_starts[d + 1]);
  } else {
    for (std::int64_t begin = 0; begin < count; begin += settings_.sequence)
      shift(begin, begin + settings_.sequence);
  }
  const MtpConfig& mtp = model_.config().mtp;
  const double scale =
      weight * mtp.training.loss_scale / (static_cast<double>(mtp.layers) * std::max(mask_sum, 1.0));
  for (float& w : out.weights) w = static_cast<float>(static_cast<double>(w) * scale);
  return out;
}

// The first position of its own sequence that each token may see: that of its document's first token.
std::vector<std::int32_t> TrainingStep::first_keys(std::span<const std::int32_t> document_starts) const {
  std::vector<std::int32_t> keys(positions_.size());
  for (std::size_t d = 0; d + 1 < document_starts.size(); ++d) {
    const auto begin = keys.begin() + document_starts[d], end = keys.begin() + document_starts[d + 1];
    std::fill(begin, end, document_starts[d] % static_cast<std::int32_t>(settings_.sequence));
  }
  return keys;
}

double TrainingStep::read_scalar(const Tensor& scalar) {
  if (rank_.measuring()) return 0;
  float value = 0;
  rank_.compute().copy_to_host(&value, scalar.data, scalar.bytes());
  rank_.compute().synchronize();
  return static_cast<double>(value);
}

void TrainingStep::upload_scalars(int slot, std::int64_t step, double learning_rate, double weight_decay) {
  if (rank_.measuring()) return;
  std::byte* const host = host_scalars_.data() + slot * scalars_.bytes();
  std::array<double, turbo::kStepScalars> values{};
  optimizer_.set_scalars(step, learning_rate, weight_decay, values);
  std::memcpy(host, values.data(), sizeof(values));
  rank_.compute().copy_to_device(scalars_.data, host, scalars_.bytes());
}

void TrainingStep::begin(std::int64_t step) {
  parallel_.begin_step(settings_.microbatches);
  first_microbatch_ = true;
  upload_scalars(0, step, 0, 0);
  if (routing_.load.absent() || rank_.measuring()) return;
  for (const Tensor& counters : {routing_.load, routing_.losses})
    rank_.compute().fill_zero(counters.data, counters.bytes());
}

void TrainingStep::microbatch(std::int64_t index, const HostBatch& batch) {
  tape_.begin({.train = true,
               .chunk = 0,
               .microbatch = index,
               .recompute = settings_.recompute,
               .weight_gradients = &queue_,
               .parallel = &parallel_,
               .stop = stop_});
  try {
    ModelInputs in = upload(tape_, batch, index, loss_weight(), true);
    if (!routing_.load.absent()) in.routing = &routing_;
    in.trace = trace_;
    Value hidden = model_.forward(in);
    const Value loss = model_.loss(hidden, in);
    const std::vector<Value> further = model_.further_losses(hidden, in);
    hidden = {};
    tape_.backward();
    queue_.run(tape_);
    const auto add = [&](const Value& x, const Tensor& to, bool first) {
      turbo::launch(rank_.context(), turbo::Sum{.x = x.tensor(), .out = to, .accumulate = !first});
    };
    add(loss, loss_, first_microbatch_);
    for (std::size_t i = 0; i < further.size(); ++i) add(further[i], mtp_loss_, first_microbatch_ && i == 0);
    first_microbatch_ = false;
  } catch (const engine::StopRequest&) {
    rank_.compute().synchronize();  // copies still read the host's side of the batch
    tape_.abandon();
    throw;
  }
  tape_.clear();
  parallel_.end_microbatch();
}

void TrainingStep::finish_gradients() {
  parallel_.finish_gradients();
  turbo::launch(rank_.context(), turbo::Fill{.out = stop_votes_, .value = votes_to_stop_ ? 1.0F : 0.0F});
  for (const Tensor& total : {loss_, stop_votes_, mtp_loss_, routing_.load, routing_.losses}) {
    if (!total.absent()) parallel_.sum(total);
  }
  optimizer_.measure_gradients();
}

StepResult TrainingStep::result() {
  StepResult result{.loss = read_scalar(loss_),
                    .gradient_norm = read_scalar(optimizer_.gradient_norm()),
                    .stop_votes = parallel_.ranks() == 1 ? 0 : static_cast<int>(read_scalar(stop_votes_)),
                    .mtp_loss = {},
                    .routing = read_routing()};
  // Remove the loss scale.
  if (const double scale = model_.config().mtp.training.loss_scale; !mtp_loss_.absent() && scale > 0)
    result.mtp_loss = read_scalar(mtp_loss_) / scale;
  return result;
}

std::vector<LayerRouting> TrainingStep::read_routing() {
  std::vector<LayerRouting> layers;
  if (routing_.load.absent() || rank_.measuring()) return layers;
  const MoeConfig& moe = model_.config().moe;
  std::vector<std::int32_t> load(static_cast<std::size_t>(routing_.load.elements()));
  std::vector<float> losses(static_cast<std::size_t>(routing_.losses.elements()));
  rank_.compute().copy_to_host(load.data(), routing_.load.data, routing_.load.bytes());
  rank_.compute().copy_to_host(losses.data(), routing_.losses.data, routing_.losses.bytes());
  rank_.compute().synchronize();
  const std::int64_t blocks = model_.config().layers;
  for (std::int64_t i = 0; i < routing_.load.rows(); ++i) {
    if (!moe.routed(std::min(i, blocks - 1))) continue;  // modules of multi-token prediction: as the last
    const auto first = load.begin() + i * routing_.load.cols();
    LayerRouting& layer = layers.emplace_back();
    layer.layer = i;
    layer.load.assign(first, first + moe.experts);
    const double total = std::accumulate(layer.load.begin(), layer.load.end(), 0.0);
    layer.imbalance = *std::max_element(layer.load.begin(), layer.load.end()) *
                      static_cast<double>(moe.experts) / std::max(total, 1.0);
    layer.dropped = first[moe.experts] / std::max(total, 1.0);
    layer.balance_loss = static_cast<double>(losses[static_cast<std::size_t>(2 * i)]) * routing_.loss_weight;
    layer.z_loss = static_cast<double>(losses[static_cast<std::size_t>(2 * i + 1)]) * routing_.loss_weight;
  }
  return layers;
}

void TrainingStep::update(std::int64_t step, double learning_rate, double weight_decay) {
  upload_scalars(1, step, learning_rate, weight_decay);
  optimizer_.update(scalars_);
  if (!routing_.load.absent()) model_.end_step(rank_.context(), routing_);
}

void TrainingStep::begin_evaluation() {
  evaluated_ = 0;
  first_microbatch_ = true;
}

void TrainingStep::evaluate(const HostBatch& batch) { evaluate(batch, false); }

void TrainingStep::evaluate(const HostBatch& batch, bool further) {
  tape_.begin({.train = false, .parallel = &parallel_, .stop = stop_});
  try {
    // One staging slot, so the copies of the batch before must be over.
    if (!rank_.measuring()) rank_.compute().synchronize();
    const ModelInputs in = upload(tape_, batch, 0, 1.0, further);
    const Value hidden = model_.forward(in);
    const Value loss = model_.loss(hidden, in);
    if (further) model_.further_losses(hidden, in);
    turbo::launch(rank_.context(),
                  turbo::Sum{.x = loss.tensor(), .out = loss_, .accumulate = !first_microbatch_});
    first_microbatch_ = false;
    ++evaluated_;
  } catch (const engine::StopRequest&) {
    rank_.compute().synchronize();  // copies still read the host's side of the batch
    tape_.abandon();
    throw;
  }
  tape_.clear();
  parallel_.end_microbatch();
}

double TrainingStep::evaluation_loss() {
  parallel_.sum(loss_);
  return read_scalar(loss_) / static_cast<double>(std::max<std::int64_t>(evaluated_, 1) * parallel_.ranks());
}

std::string TrainingStep::find_non_finite() {
  std::string first;
  const std::atomic<bool>* const stop = std::exchange(stop_, nullptr);  // the run ends anyway, and says why
  tape_.set_observer([&](engine::Step& step) {
    if (!first.empty()) return;
    for (int i = 0; i < step.output_count(); ++i) {
      turbo::launch(rank_.context(),
                    turbo::CountNonFinite{.x = step.out(i), .out = non_finite_, .accumulate = i > 0});
    }
    std::int32_t count = 0;
    rank_.compute().copy_to_host(&count, non_finite_.data, sizeof(count));
    rank_.compute().synchronize();
    if (count == 0) return;
    first =
        (step.layer() >= 0 ? "layers." + std::to_string(step.layer()) + "." : "") + std::string(step.name());
  });
  begin_evaluation();
  for (std::size_t slot = 0; slot < staging_.size() && first.empty(); ++slot) {
    // A copy: evaluating overwrites a staging slot. Every token counts, whatever its mask.
    const Staging copy = staging_[slot];
    const std::vector<float> mask(copy.tokens.size(), 1.0F);
    evaluate(copy.batch(mask), true);
  }
  tape_.set_observer({});
  stop_ = stop;
  return first;
}

}  // namespace primus
