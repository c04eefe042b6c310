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
                           Optimizer& optimizer, engine::DelayedScales* scales, const StepSettings& settings,
                           LossRule* rule)
    : rank_(rank),
      parallel_(parallel),
      model_(model),
      optimizer_(optimizer),
      scales_(scales),
      settings_(settings),
      rule_(rule),
      inputs_(rank, model, settings),
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
  if (rule_ && !rule_->metrics().empty())
    metrics_ = rank.persistent(DType::kF32, {static_cast<std::int64_t>(rule_->metrics().size())});
  for (HostSide& host : host_) host.staging.resize(static_cast<std::size_t>(settings.microbatches));
  if (rank.measuring()) return;
  list_results();
  std::int64_t results = 0;
  for (const Result& result : results_) results += result.from.bytes();
  for (HostSide& host : host_) {
    host.scalars = PinnedBuffer(rank.device(), 2 * scalars_.bytes());
    host.results = PinnedBuffer(rank.device(), results);
    host.finished = rank.device().create_event();
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
      .shape = {inputs_.held_tokens() / mesh.shape().tensor,
                model_.config().streams() * model_.config().hidden},
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
  if (rule_) return "its losses are weighed by what the objective computes before each step";
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
  if (!metrics_.absent() && !rank_.measuring()) rank_.compute().fill_zero(metrics_.data, metrics_.bytes());
  turn_ = 1 - turn_;
  if (std::exchange(host_[turn_].unread, false)) host_[turn_].finished->synchronize();
  upload_scalars(ScalarsOf::kBegin, step, 0, 0);
  if (routing_.load.absent() || rank_.measuring()) return;
  for (const Tensor& counters : {routing_.load, routing_.losses, routing_.running, routing_.margins}) {
    if (!counters.absent()) rank_.compute().fill_zero(counters.data, counters.bytes());
  }
}

void TrainingStep::microbatch(std::int64_t index, const data::BatchView& batch) {
  StepInputs::Staging& host = host_[turn_].staging[static_cast<std::size_t>(index)];
  inputs_.stage(host, batch, index, loss_weight(), true);
  const std::size_t kind = index == 0 ? 0 : 1;
  constexpr StepGraphs::Part kParts[] = {StepGraphs::Part::kFirstMicrobatch,
                                         StepGraphs::Part::kFurtherMicrobatch};
  try {
    if (stop_ && stop_->load(std::memory_order_relaxed)) throw StopRequest();
    const StopsWithin stops(rank_, stop_);
    graphs_.run(
        kParts[kind], [&] { runner_->run(index + 1); },
        [&] { inputs_.copy(recorded_inputs_[kind], 0, true, true, host); });
  } catch (const StopRequest&) {
    rank_.compute().synchronize();  // copies still read the host's side of the batch
    runner_->abandon();
    throw;
  } catch (...) {
    inputs_.abandon();
    throw;
  }
}

engine::ChunkedModel::Outputs TrainingStep::forward(Tape& tape, int chunk, std::int64_t microbatch, Value x) {
  const bool with_mtp = tape.training() || evaluates_mtp_;
  std::vector<Tensor>* const recorded =
      graphs_.recording() ? &recorded_inputs_[microbatch == 0 ? 0 : 1] : nullptr;
  if (recorded) recorded->clear();
  ModelInputs in = inputs_.place(tape, chunk, with_mtp,
                                 host_[turn_].staging[static_cast<std::size_t>(microbatch)], recorded);
  if (tape.training()) {
    if (!routing_.load.absent()) in.blocks.routing = &routing_;
    if (drops_out()) in.blocks.dropout = &dropout_;
    in.blocks.trace = trace_;
  }
  Value hidden = model_.forward(chunk, in, std::move(x));
  if (!model_.last(chunk)) return {.next = std::move(hidden), .losses = {}};
  Outputs outputs;
  if (rule_ && tape.training()) {
    outputs.losses.push_back(model_.weighed_loss(hidden, in, [&](const Tensor& losses) {
      rule_->weigh({.rank = rank_,
                    .microbatch = microbatch,
                    .losses = losses,
                    .weights = in.loss_weights.tensor(),
                    .metrics = metrics_});
    }));
  } else {
    outputs.losses.push_back(model_.loss(hidden, in));
  }
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
  // Tensor ranks have the same tokens, and so the same metrics.
  const comm::Communicator* const tensor = rank_.mesh().tensor();
  if (!metrics_.absent() && tensor && tensor->rank() > 0 && !rank_.measuring())
    rank_.compute().fill_zero(metrics_.data, metrics_.bytes());
  graphs_.run(StepGraphs::Part::kGradients, [&] {
    parallel_.finish_gradients();
    for (const Tensor& total :
         {loss_, stop_votes_, mtp_loss_, metrics_, routing_.load, routing_.losses, routing_.margins}) {
      if (!total.absent()) parallel_.sum(total);
    }
    if (scales_) scales_->reduce(parallel_);
    optimizer_.measure_gradients();
  });
  if (rank_.measuring()) return;
  HostSide& host = host_[turn_];
  std::byte* to = host.results.data();
  for (const Result& result : results_) {
    rank_.compute().copy_to_host(to, result.from.data, result.from.bytes());
    to += result.from.bytes();
  }
  if (timing_) {
    host.end = last_end_ = (last_end_ + 1) % ends_.size();
    rank_.compute().record(*ends_[host.end]);
  }
  rank_.compute().record(*host.finished);
  host.unread = true;
}

void TrainingStep::list_results() {
  const auto add = [this](const Tensor& from, std::function<void(const std::byte*, StepResult&)> read) {
    if (!from.absent()) results_.push_back({from, std::move(read)});
  };
  const auto number = [](const std::byte* at) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  };
  add(loss_, [=](const std::byte* at, StepResult& result) { result.loss = number(at); });
  add(optimizer_.gradient_norm(),
      [=](const std::byte* at, StepResult& result) { result.gradient_norm = number(at); });
  add(stop_votes_, [=, this](const std::byte* at, StepResult& result) {
    if (rank_.mesh().size() > 1) result.stop_votes = static_cast<int>(number(at));
  });
  add(mtp_loss_, [=, this](const std::byte* at, StepResult& result) {
    const double scale = model_.config().mtp.training.loss_scale;
    if (scale > 0) result.mtp_loss = number(at) / scale;  // remove the loss scale
  });
  add(routing_.load, [this](const std::byte* at, StepResult& result) { result.routing = routing_of(at); });
  add(routing_.losses,
      [this](const std::byte* at, StepResult& result) { add_router_losses(at, result.routing); });
  add(metrics_, [=, this](const std::byte* at, StepResult& result) {
    for (const std::string& name : rule_->metrics()) {
      const double value = number(std::exchange(at, at + sizeof(float)));
      if (name == "loss") {
        result.loss = value;
      } else {
        result.metrics.emplace_back(name, value);
      }
    }
  });
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
  for (const Result& read : results_) read.read(std::exchange(at, at + read.from.bytes()), result);
  return result;
}

std::optional<double> TrainingStep::seconds_of(const HostSide& host) const {
  if (!timing_) return std::nullopt;
  Event& from = host.follows ? *ends_[(host.end + ends_.size() - 1) % ends_.size()] : *host.begun;
  return timing_->seconds(from, *ends_[host.end]);
}

std::vector<LayerRouting> TrainingStep::routing_of(const std::byte* load_bytes) const {
  std::vector<LayerRouting> layers;
  const MoeConfig& moe = model_.config().moe;
  std::vector<std::int32_t> load(static_cast<std::size_t>(routing_.load.elements()));
  std::memcpy(load.data(), load_bytes, load.size() * sizeof(std::int32_t));
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
  }
  return layers;
}

void TrainingStep::add_router_losses(const std::byte* bytes, std::vector<LayerRouting>& layers) const {
  std::vector<float> losses(static_cast<std::size_t>(routing_.losses.elements()));
  std::memcpy(losses.data(), bytes, losses.size() * sizeof(float));
  for (LayerRouting& layer : layers) {
    const auto at = static_cast<std::size_t>(2 * layer.layer);
    layer.balance_loss = static_cast<double>(losses[at]) * routing_.loss_weight;
    layer.z_loss = static_cast<double>(losses[at + 1]) * routing_.loss_weight;
  }
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
    inputs_.stage(host_[turn_].staging.front(), batch, 0, 1.0, with_mtp);
    const StopsWithin stops(rank_, stop_);
    runner_->evaluate(tape_, 0);
    ++evaluated_;
  } catch (const StopRequest&) {
    rank_.compute().synchronize();  // copies still read the host's side of the batch
    tape_.abandon();
    throw;
  } catch (...) {
    inputs_.abandon();
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
