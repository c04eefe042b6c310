#include "lm/train/training_step.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "device/watched.h"
#include "engine/parallel_operators.h"
#include "turbo/elementwise/elementwise.h"

namespace primus {

using engine::Tape;
using engine::Value;

namespace {

// While it lives, kernels of the compute stream end early once `stop` is set. An update of the model is
// outside: it must be whole.
class StopsWithin {
 public:
  StopsWithin(engine::Rank& rank, const std::atomic<bool>* stop)
      : stream_(stop && !rank.measuring() ? &rank.compute() : nullptr) {
    if (stream_) stream_->stop_on(stop);
  }
  StopsWithin(const StopsWithin&) = delete;
  StopsWithin& operator=(const StopsWithin&) = delete;
  ~StopsWithin() {
    if (stream_) stream_->stop_on(nullptr);
  }

 private:
  Stream* stream_;
};

}  // namespace

TrainingStep::TrainingStep(engine::Rank& rank, engine::DataParallel& parallel, const LanguageModel& model,
                           Optimizer& optimizer, engine::DelayedScales* scales, const StepSettings& settings)
    : rank_(rank),
      parallel_(parallel),
      model_(model),
      optimizer_(optimizer),
      scales_(scales),
      settings_(settings),
      runner_(std::make_unique<engine::ScheduleRunner>(
          rank, parallel, static_cast<engine::ChunkedModel&>(*this), runner_settings())),
      graphs_(rank, why_not_recorded().empty() ? settings.record_after : 0, settings.microbatches > 1),
      tape_(rank.context(), rank.stash()) {
  auto scalar = [&](DType dtype) { return rank.persistent(dtype, {1}); };
  loss_ = scalar(DType::kF32);
  stop_votes_ = scalar(DType::kF32);
  scalars_ = rank.persistent(DType::kF64, {turbo::kStepScalars});
  non_finite_ = scalar(DType::kI32);
  if (model.config().mtp.modules() > 0) mtp_loss_ = scalar(DType::kF32);
  if (model.config().moe.experts > 0) routing_ = model.make_routing_step(rank);
  routing_.random.seed = settings.seed;
  routing_.random.scalars = scalars_;
  routing_.loss_weight = loss_weight();
  routing_.parallel = &parallel;
  routing_.data_ranks = rank.mesh().data_ranks();
  dropout_ = {.seed = settings.seed, .scalars = scalars_};
  if (rank.mesh().tensor()) tensor_.emplace(rank, settings.tensor_overlap);
  if (comm::Communicator* const experts = rank.mesh().experts())
    experts_.emplace(rank, *experts, settings.expert_overlap);
  if (rank.mesh().context()) context_.emplace(rank, settings.context_exchange);
  for (int r = 0; context_ && r < context_->ranks(); ++r) {
    std::vector<std::int32_t>& tokens = held_.emplace_back();
    for (std::int64_t s = 0; s < settings.micro_batch; ++s) {
      for (const std::int64_t position : engine::context_positions(settings.sequence, context_->ranks(), r))
        tokens.push_back(static_cast<std::int32_t>(s * settings.sequence + position));
    }
  }
  if (rank.measuring()) return;
  std::int64_t results = 0;
  for (const Tensor& tensor : published()) results += tensor.absent() ? 0 : tensor.bytes();
  for (HostSide& host : host_) {
    host.staging.resize(static_cast<std::size_t>(settings.microbatches));
    host.scalars = PinnedBuffer(rank.device(), 2 * scalars_.bytes());
    host.results = PinnedBuffer(rank.device(), results);
    host.finished = rank.device().create_event();
  }
  positions_.resize(settings.micro_batch * settings.sequence);
  for (std::size_t t = 0; t < positions_.size(); ++t) {
    positions_[t] = static_cast<std::int32_t>(static_cast<std::int64_t>(t) % settings.sequence);
  }
}

engine::ScheduleRunner::Settings TrainingStep::runner_settings() const {
  engine::Mesh& mesh = rank_.mesh();
  const PipelineSettings& pipeline = settings_.pipeline;
  engine::ScheduleRunner::Settings settings{
      .schedule = engine::make_schedule(pipeline.schedule, mesh.shape().pipeline, pipeline.chunks,
                                        settings_.microbatches),
      .stage = mesh.place().stage,
      .pipeline = mesh.pipeline(),
      .dtype = settings_.compute,
      .shape = {held_tokens() / mesh.shape().tensor, model_.config().streams() * model_.config().hidden},
      .recompute = {},
      .precision = settings_.precision,
      .weight_gradients = settings_.weight_gradients};
  for (int chunk = 0; chunk < model_.chunks(); ++chunk) {
    settings.recompute.push_back(settings_.recompute);
    settings.recompute.back().first_layer = model_.first_block(chunk);
  }
  settings.precision.scales = scales_;
  return settings;
}

std::string TrainingStep::why_not_recorded() const {
  if (rank_.mesh().size() > 1) return "several ranks train together, and their collectives are not recorded";
  if (!runner_->in_turn()) return "the schedule begins a microbatch before the one in front has ended";
  const MoeConfig& moe = model_.config().moe;
  if (moe.experts > 0 && moe.training.balance_step && settings_.microbatches > 1)
    return "the balance loss of a microbatch depends on how many came before it in the step "
           "(global_aux_loss)";
  const DeviceProperties device = rank_.device().properties();
  for (const auto& rule : optimizer_.rules()) {
    if (rule->varies()) return "weights are watched for oscillation in some steps (weight_deosc)";
  }
  if (!device.graphs) return device.kind + " cannot record its work";
  return {};
}

double TrainingStep::loss_weight() const {
  return 1.0 / static_cast<double>(settings_.microbatches * rank_.mesh().data_ranks());
}

std::int64_t TrainingStep::held_tokens() const {
  return settings_.micro_batch * settings_.sequence / rank_.mesh().shape().context;
}

template <class T>
const void* TrainingStep::held_of(Staging& host, const std::vector<T>& values) const {
  if (!context_) return values.data();
  const std::vector<std::int32_t>& tokens = held_[static_cast<std::size_t>(context_->rank())];
  std::vector<std::byte>& held = host.held.emplace_back(tokens.size() * sizeof(T));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    std::memcpy(held.data() + i * sizeof(T), &values[static_cast<std::size_t>(tokens[i])], sizeof(T));
  return held.data();
}

void TrainingStep::stage(const data::BatchView& batch, std::int64_t slot, double weight, bool with_mtp) {
  if (rank_.measuring()) return;
  Staging& host = host_[turn_].staging[static_cast<std::size_t>(slot)];
  host.held.clear();
  host.batch.assign(batch);
  double mask_sum = 0;
  for (float m : batch.loss_mask) mask_sum += static_cast<double>(m);
  const double scale = weight / (batch.loss_divisor > 0 ? batch.loss_divisor : std::max(mask_sum, 1.0));
  host.loss_weights.resize(batch.loss_mask.size());
  std::transform(batch.loss_mask.begin(), batch.loss_mask.end(), host.loss_weights.begin(),
                 [scale](float m) { return static_cast<float>(static_cast<double>(m) * scale); });
  if (settings_.packed_documents) host.first_key = first_key(batch.document_starts);
  if (numbers_tokens(true)) {
    const auto first =
        static_cast<std::int32_t>((slot * rank_.mesh().data_ranks() + rank_.mesh().data_rank()) *
                                  settings_.micro_batch * settings_.sequence);
    host.token_numbers.clear();
    for (const auto& tokens : held_) {
      for (const std::int32_t token : tokens) host.token_numbers.push_back(first + token);
    }
    if (!context_) {
      host.token_numbers.resize(positions_.size());
      std::iota(host.token_numbers.begin(), host.token_numbers.end(), first);
    }
  }
  host.mtp.clear();
  for (std::int64_t depth = 1; with_mtp && depth <= model_.config().mtp.modules(); ++depth)
    host.mtp.push_back(mtp_inputs(batch, depth, weight));
}

ModelInputs TrainingStep::upload(Tape& tape, int chunk, std::int64_t slot, bool with_mtp) {
  const bool last = model_.last(chunk);
  const std::int64_t all = settings_.micro_batch * settings_.sequence;  // of all context ranks
  const Shape shape{held_tokens()};
  std::vector<Tensor> places;
  const auto input = [&](DType dtype, const Shape& of) {
    Value value = tape.input(dtype, of, false);
    places.push_back(value.tensor());
    return value;
  };
  ModelInputs in;
  BlockInputs& blocks = in.blocks;
  blocks.batch = settings_.micro_batch;
  blocks.sequence = settings_.sequence / rank_.mesh().shape().context;
  if (model_.needs_tokens(chunk)) in.tokens = input(DType::kI32, shape);
  blocks.positions = input(DType::kI32, shape);
  if (last) {
    in.labels = input(DType::kI32, shape);
    in.loss_weights = input(DType::kF32, shape);
  }
  if (settings_.packed_documents) blocks.first_key = input(DType::kI32, shape);
  if (numbers_tokens(tape.training())) blocks.token_numbers = input(DType::kI32, {all});
  if (context_) blocks.context = &*context_;
  if (tensor_) blocks.tensor = &*tensor_;
  if (experts_) blocks.experts = &*experts_;
  const std::int64_t depths = with_mtp && last ? model_.config().mtp.modules() : 0;
  for (std::int64_t depth = 0; depth < depths; ++depth) {
    in.mtp.push_back({.tokens = input(DType::kI32, shape),
                      .labels = input(DType::kI32, shape),
                      .loss_weights = input(DType::kF32, shape)});
  }
  if (rank_.measuring()) return in;
  if (graphs_.recording()) {
    recorded_inputs_[slot == 0 ? 0 : 1] = std::move(places);
  } else {
    copy_inputs(places, host_inputs(chunk, slot, tape.training(), with_mtp));
  }
  return in;
}

std::vector<const void*> TrainingStep::host_inputs(int chunk, std::int64_t slot, bool training,
                                                   bool with_mtp) {
  Staging& host = host_[turn_].staging[static_cast<std::size_t>(slot)];
  std::vector<const void*> inputs;
  const auto held = [&](const auto& values) { inputs.push_back(held_of(host, values)); };
  if (model_.needs_tokens(chunk)) held(host.batch.tokens);
  held(host.batch.positions.empty() ? positions_ : host.batch.positions);
  if (model_.last(chunk)) {
    held(host.batch.labels);
    held(host.loss_weights);
  }
  if (settings_.packed_documents) held(host.first_key);
  if (numbers_tokens(training)) inputs.push_back(host.token_numbers.data());
  if (!with_mtp || !model_.last(chunk)) return inputs;
  for (const MtpStaging& depth : host.mtp) {
    held(depth.tokens);
    held(depth.labels);
    held(depth.loss_weights);
  }
  return inputs;
}

void TrainingStep::copy_inputs(const std::vector<Tensor>& to, const std::vector<const void*>& from) {
  PRIMUS_CHECK("TrainingStep", to.size() == from.size());
  for (std::size_t i = 0; i < to.size(); ++i)
    rank_.compute().copy_to_device(to[i].data, from[i], to[i].bytes());
}

// Tokens, labels and mask move `depth` positions ahead within their document (or sequence); what would come
// from behind its end is token 0 and has no loss. As Megatron-LM does, the mean is over the tokens that are
// left.
TrainingStep::MtpStaging TrainingStep::mtp_inputs(const data::BatchView& batch, std::int64_t depth,
                                                  double weight) const {
  const auto count = static_cast<std::int64_t>(batch.tokens.size());
  MtpStaging out{std::vector<std::int32_t>(batch.tokens.size()),
                 std::vector<std::int32_t>(batch.tokens.size()), std::vector<float>(batch.tokens.size())};
  double mask_sum = 0;
  const auto shift = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t + depth < end; ++t) {
      const auto to = static_cast<std::size_t>(t), from = static_cast<std::size_t>(t + depth);
      out.tokens[to] = batch.tokens[from];
      out.labels[to] = batch.labels[from];
      out.loss_weights[to] = batch.loss_mask[from];
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
  const double labels = batch.loss_divisor > 0 ? batch.loss_divisor : std::max(mask_sum, 1.0);
  const double scale = weight * mtp.training.loss_scale / (static_cast<double>(mtp.layers) * labels);
  for (float& w : out.loss_weights) w = static_cast<float>(static_cast<double>(w) * scale);
  return out;
}

// The first position of its own sequence that each token may see: that of its document's first token.
std::vector<std::int32_t> TrainingStep::first_key(std::span<const std::int32_t> document_starts) const {
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

void TrainingStep::upload_scalars(ScalarsOf of, std::int64_t step, double learning_rate,
                                  double weight_decay) {
  if (rank_.measuring()) return;
  std::byte* const host = host_[turn_].scalars.data() + static_cast<int>(of) * scalars_.bytes();
  std::array<double, turbo::kStepScalars> values{};
  optimizer_.set_scalars(step, learning_rate, weight_decay, values);
  std::memcpy(host, values.data(), sizeof(values));
  rank_.compute().copy_to_device(scalars_.data, host, scalars_.bytes());
}

void TrainingStep::set_timing(const DeviceTiming* timing) {
  timing_ = timing;
  if (!timing) return;
  // A device that is watched passes events on to the one that knows them.
  Device& device = innermost(rank_.device());
  for (HostSide& host : host_) host.begun = timing->create(device);
  for (std::unique_ptr<Event>& end : ends_) end = timing->create(device);
}

void TrainingStep::begin(std::int64_t step) {
  if (timing_) {
    HostSide& next = host_[1 - turn_];
    next.follows = host_[turn_].unread;
    // After a pause that is no part of any step: an evaluation, a checkpoint.
    if (!next.follows) rank_.compute().record(*next.begun);
  }
  graphs_.begin_step(trace_ != nullptr);
  if (!graphs_.replaying()) {
    runner_->begin();
    parallel_.begin_step(settings_.microbatches);
  }
  if (scales_) scales_->begin_step();
  begin_losses();
  turn_ = 1 - turn_;
  if (std::exchange(host_[turn_].unread, false)) host_[turn_].finished->synchronize();
  upload_scalars(ScalarsOf::kBegin, step, 0, 0);
  if (routing_.load.absent() || rank_.measuring()) return;
  for (const Tensor& counters : {routing_.load, routing_.losses, routing_.running, routing_.margins}) {
    if (!counters.absent()) rank_.compute().fill_zero(counters.data, counters.bytes());
  }
}

void TrainingStep::microbatch(std::int64_t index, const data::BatchView& batch) {
  stage(batch, index, loss_weight(), true);
  const std::size_t kind = index == 0 ? 0 : 1;
  constexpr StepGraphs::Part kParts[] = {StepGraphs::Part::kFirstMicrobatch,
                                         StepGraphs::Part::kFurtherMicrobatch};
  try {
    if (stop_ && stop_->load(std::memory_order_relaxed)) throw StopRequest();
    const StopsWithin stops(rank_, stop_);
    graphs_.run(
        kParts[kind], [&] { runner_->run(index + 1); },
        [&] { copy_inputs(recorded_inputs_[kind], host_inputs(0, index, true, true)); });
  } catch (const StopRequest&) {
    rank_.compute().synchronize();  // copies still read the host's side of the batch
    runner_->abandon();
    throw;
  } catch (...) {
    if (experts_) experts_->abandon();
    throw;
  }
}

engine::ChunkedModel::Outputs TrainingStep::forward(Tape& tape, int chunk, std::int64_t microbatch, Value x) {
  const bool with_mtp = tape.training() || evaluates_mtp_;
  ModelInputs in = upload(tape, chunk, microbatch, with_mtp);
  if (tape.training()) {
    if (!routing_.load.absent()) in.blocks.routing = &routing_;
    if (drops_out()) in.blocks.dropout = &dropout_;
    in.blocks.trace = trace_;
  }
  Value hidden = model_.forward(chunk, in, std::move(x));
  if (!model_.last(chunk)) return {.next = std::move(hidden), .losses = {}};
  Outputs outputs{.next = {}, .losses = {model_.loss(hidden, in)}};
  if (!with_mtp) return outputs;
  for (Value& loss : model_.mtp_losses(hidden, in)) outputs.losses.push_back(std::move(loss));
  return outputs;
}

void TrainingStep::losses_ready(const std::vector<Value>& losses) {
  for (std::size_t i = 0; i < losses.size(); ++i) {
    turbo::launch(rank_.context(), turbo::Sum{.x = own_losses(losses[i]),
                                              .out = i == 0 ? loss_ : mtp_loss_,
                                              .accumulate = !first_microbatch_ || i > 1});
  }
  first_microbatch_ = false;
}

Tensor TrainingStep::own_losses(const Value& losses) const {
  return engine::own_tokens(losses.tensor(), rank_.mesh().tensor());
}

void TrainingStep::finish_gradients() {
  PRIMUS_CHECK("TrainingStep::finish_gradients", runner_->finished());
  turbo::launch(rank_.context(), turbo::Fill{.out = stop_votes_, .value = votes_to_stop_ ? 1.0F : 0.0F});
  graphs_.run(StepGraphs::Part::kGradients, [&] {
    parallel_.finish_gradients();
    for (const Tensor& total :
         {loss_, stop_votes_, mtp_loss_, routing_.load, routing_.losses, routing_.margins}) {
      if (!total.absent()) parallel_.sum(total);
    }
    if (scales_) scales_->reduce(parallel_);
    optimizer_.measure_gradients();
  });
  if (rank_.measuring()) return;
  HostSide& host = host_[turn_];
  std::byte* to = host.results.data();
  for (const Tensor& tensor : published()) {
    if (tensor.absent()) continue;
    rank_.compute().copy_to_host(to, tensor.data, tensor.bytes());
    to += tensor.bytes();
  }
  if (timing_) {
    host.end = last_end_ = (last_end_ + 1) % ends_.size();
    rank_.compute().record(*ends_[host.end]);
  }
  rank_.compute().record(*host.finished);
  host.unread = true;
}

std::array<Tensor, 6> TrainingStep::published() const {
  return {loss_, optimizer_.gradient_norm(), stop_votes_, mtp_loss_, routing_.load, routing_.losses};
}

StepResult TrainingStep::result() {
  if (rank_.measuring()) return {};
  const std::size_t other = 1 - turn_;
  last_read_ = host_[other].unread ? other : turn_;
  HostSide& host = host_[last_read_];
  // Asked for once more, it has been waited for.
  StepResult result;
  if (std::exchange(host.unread, false)) {
    host.finished->synchronize();
    result.seconds = seconds_of(host);
  }
  const std::byte* at = host.results.data();
  const auto next = [&at](const Tensor& tensor) {
    return std::exchange(at, tensor.absent() ? at : at + tensor.bytes());
  };
  const auto number = [&](const Tensor& tensor) {
    float value = 0;
    std::memcpy(&value, next(tensor), sizeof(value));
    return static_cast<double>(value);
  };
  result.loss = number(loss_);
  result.gradient_norm = number(optimizer_.gradient_norm());
  const double votes = number(stop_votes_);
  if (rank_.mesh().size() > 1) result.stop_votes = static_cast<int>(votes);
  if (!mtp_loss_.absent()) {
    const double loss = number(mtp_loss_), scale = model_.config().mtp.training.loss_scale;
    if (scale > 0) result.mtp_loss = loss / scale;  // remove the loss scale
  }
  if (!routing_.load.absent()) {
    const std::byte* const load = next(routing_.load);
    result.routing = routing_of(load, next(routing_.losses));
  }
  return result;
}

std::optional<double> TrainingStep::seconds_of(const HostSide& host) const {
  if (!timing_) return std::nullopt;
  Event& from = host.follows ? *ends_[(host.end + ends_.size() - 1) % ends_.size()] : *host.begun;
  return timing_->seconds(from, *ends_[host.end]);
}

std::vector<LayerRouting> TrainingStep::routing_of(const std::byte* load_bytes,
                                                   const std::byte* loss_bytes) const {
  std::vector<LayerRouting> layers;
  const MoeConfig& moe = model_.config().moe;
  std::vector<std::int32_t> load(static_cast<std::size_t>(routing_.load.elements()));
  std::vector<float> losses(static_cast<std::size_t>(routing_.losses.elements()));
  std::memcpy(load.data(), load_bytes, load.size() * sizeof(std::int32_t));
  std::memcpy(losses.data(), loss_bytes, losses.size() * sizeof(float));
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
  // The update before last has read its scalars, which lie here, once the last step has ended accumulation.
  if (host_[1 - turn_].unread) host_[1 - turn_].finished->synchronize();
  upload_scalars(ScalarsOf::kUpdate, step, learning_rate, weight_decay);
  graphs_.run(StepGraphs::Part::kUpdate, [&] {
    optimizer_.update(scalars_, step);
    if (!routing_.load.absent()) model_.end_step(rank_.context(), routing_);
    if (scales_) scales_->update(rank_.context(), optimizer_.gradient_norm());
  });
}

void TrainingStep::begin_evaluation() {
  evaluated_ = 0;
  begin_losses();
}

void TrainingStep::begin_losses() {
  first_microbatch_ = true;
  if (rank_.measuring() || model_.last(model_.chunks() - 1)) return;
  // Another stage has the losses, and this one's part in their sums is nothing.
  for (const Tensor& sum : {loss_, mtp_loss_}) {
    if (!sum.absent()) rank_.compute().fill_zero(sum.data, sum.bytes());
  }
}

void TrainingStep::evaluate(const data::BatchView& batch) { evaluate(batch, false); }

void TrainingStep::evaluate(const data::BatchView& batch, bool with_mtp) {
  evaluates_mtp_ = with_mtp;
  try {
    // One staging slot, so the copies of the batch before must be over.
    if (!rank_.measuring()) rank_.compute().synchronize();
    stage(batch, 0, 1.0, with_mtp);
    const StopsWithin stops(rank_, stop_);
    runner_->evaluate(tape_, 0);
    ++evaluated_;
  } catch (const StopRequest&) {
    rank_.compute().synchronize();  // copies still read the host's side of the batch
    tape_.abandon();
    throw;
  } catch (...) {
    if (experts_) experts_->abandon();
    throw;
  }
}

double TrainingStep::evaluation_loss() {
  parallel_.sum(loss_);
  return read_scalar(loss_) /
         static_cast<double>(std::max<std::int64_t>(evaluated_, 1) * rank_.mesh().data_ranks());
}

std::string TrainingStep::find_non_finite() {
  std::string first;
  const std::atomic<bool>* const stop = stop_;
  set_stop(nullptr);  // the run ends anyway, and says why
  tape_.set_observer([&](engine::OperatorCall& op) {
    if (!first.empty()) return;
    bool counted = false;
    for (int i = 0; i < op.output_count(); ++i) {
      if (op.out(i).dtype == DType::kI32) continue;  // choices and plans of routers
      turbo::launch(rank_.context(),
                    turbo::CountNonFinite{
                        .x = op.out(i), .out = non_finite_, .accumulate = std::exchange(counted, true)});
    }
    if (!counted) return;
    std::int32_t count = 0;
    rank_.compute().copy_to_host(&count, non_finite_.data, sizeof(count));
    rank_.compute().synchronize();
    if (count == 0) return;
    first = (op.layer() >= 0 ? "layers." + std::to_string(op.layer()) + "." : "") + std::string(op.name());
  });
  begin_evaluation();
  // Ranks that share the work go on together, although some of them may know already.
  const bool alone = rank_.mesh().size() == 1;
  const std::size_t slots = host_[last_read_].staging.size();
  for (std::size_t slot = 0; slot < slots && (first.empty() || !alone); ++slot) {
    // A copy: evaluating overwrites a staging slot. Every token counts, whatever its mask.
    data::Batch copy = host_[last_read_].staging[slot].batch;
    std::ranges::fill(copy.loss_mask, 1.0F);
    evaluate(copy, true);
  }
  tape_.set_observer({});
  set_stop(stop);
  return first;
}

}  // namespace primus
