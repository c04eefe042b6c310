#include "lm/train/step/training_step.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "config/trainer_config.h"
#include "engine/parallel/parallel_operators.h"
#include "turbo/elementwise/elementwise.h"

namespace primus {

using engine::Tape;
using engine::Value;

namespace {

// Number of fp32 values per rank in Sums::ranks: data, passes, update, symptoms.
constexpr std::int64_t kWorkValues = 4;

// While this object exists, kernels on the compute stream end early once `stop` is set. An update of the
// model must not be cut short, so no such object exists during an update.
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
      evaluation_{.tape = {rank.context(), rank.stash()}},
      results_(rank) {
  auto scalar = [&](DType dtype) { return rank.persistent(dtype, {1}); };
  sums_.loss = scalar(DType::kF32);
  const std::int64_t ranks = rank.mesh().size();
  sums_.ranks = rank.persistent(DType::kF32, {ranks == 1 ? 1 : 1 + kWorkValues * ranks});
  scalars_ = rank.persistent(DType::kF64, {turbo::kStepScalars});
  evaluation_.non_finite = scalar(DType::kI32);
  if (model.config().mtp.modules() > 0) sums_.mtp_loss = scalar(DType::kF32);
  if (model.config().moe.experts > 0) for_blocks_.routing = model.make_routing_step(rank);
  for_blocks_.routing.random.seed = settings.seed;
  for_blocks_.routing.random.scalars = scalars_;
  for_blocks_.routing.loss_weight = loss_weight();
  for_blocks_.routing.parallel = &parallel;
  for_blocks_.routing.data_ranks = rank.mesh().data_ranks();
  for_blocks_.dropout = {.seed = settings.seed, .scalars = scalars_};
  if (rule_ && !rule_->metrics().empty())
    sums_.metrics = rank.persistent(DType::kF32, {static_cast<std::int64_t>(rule_->metrics().size())});
  for (HostSide& host : host_) host.staging.resize(static_cast<std::size_t>(settings.microbatches));
  if (rank.measuring()) return;
  list_results();
  results_.reserve();
  for (HostSide& host : host_) {
    host.scalars = PinnedBuffer(rank.device(), 2 * scalars_.bytes());
    if (ranks > 1) host.ranks = PinnedBuffer(rank.device(), sums_.ranks.bytes());
  }
}

void TrainingStep::join(TrainingStep& other) {
  joint_.second = &other;
  other.joint_.is_second = true;
  optimizer_.join(other.optimizer_);
}

engine::ScheduleRunner::Settings TrainingStep::runner_settings() {
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
      .weight_gradients = settings_.weight_gradients,
      .strands = inputs_.strands()};
  for (int chunk = 0; chunk < model_.chunks(); ++chunk) {
    settings.recompute.push_back(settings_.recompute);
    settings.recompute.back().first_layer = model_.first_block(chunk);
  }
  settings.precision.scales = scales_;
  return settings;
}

std::string TrainingStep::why_not_recorded() const {
  if (rank_.mesh().size() > 1) return "the run has several ranks, and collectives are not recorded";
  if (rule_) return "the objective weights its losses with values computed before each step";
  if (!runner_->in_turn()) return "the schedule starts a microbatch before the previous one has ended";
  const MoeConfig& moe = model_.config().moe;
  if (moe.experts > 0 && moe.training.balance_step && settings_.microbatches > 1)
    return "the balance loss of a microbatch depends on how many came before it in the step "
           "(global_aux_loss)";
  const DeviceProperties device = rank_.device().properties();
  for (const auto& rule : optimizer_.rules()) {
    if (rule->varies()) return "weights are watched for oscillation in some steps (weight_deosc)";
  }
  if (!device.graphs) return device.kind + " does not support recorded graphs";
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
  std::byte* const host = host_[results_.turn()].scalars.data() + static_cast<int>(of) * scalars_.bytes();
  std::array<double, turbo::kStepScalars> values{};
  optimizer_.set_scalars(step, learning_rate, weight_decay, values);
  std::memcpy(host, values.data(), sizeof(values));
  rank_.compute().copy_to_device(scalars_.data, host, scalars_.bytes());
}

bool TrainingStep::may_skip() const {
  return runner_->in_turn() && !scales_ && for_blocks_.routing.load.absent() &&
         (!joint_.second || joint_.second->may_skip());
}

void TrainingStep::begin(std::int64_t step, std::int64_t microbatches) {
  if (microbatches < 0) microbatches = settings_.microbatches;
  PRIMUS_CHECK("TrainingStep::begin", microbatches == settings_.microbatches || may_skip());
  if (joint_.second) joint_.second->begin(step, microbatches);
  results_.begin_clock();
  graphs_.begin_step(for_blocks_.trace != nullptr);
  if (!graphs_.replaying()) {
    runner_->begin(microbatches);
    parallel_.begin_step(microbatches);
  }
  if (scales_) scales_->begin_step();
  begin_losses();
  if (!sums_.metrics.absent() && !rank_.measuring())
    rank_.compute().fill_zero(sums_.metrics.data, sums_.metrics.bytes());
  results_.take_turn();
  host_[results_.turn()].used = 0;
  host_[results_.turn()].step = step;
  upload_scalars(ScalarsOf::kBegin, step, 0, 0);
  if (for_blocks_.routing.load.absent() || rank_.measuring()) return;
  for (const Tensor& counters : {for_blocks_.routing.load, for_blocks_.routing.losses,
                                 for_blocks_.routing.running, for_blocks_.routing.margins}) {
    if (!counters.absent()) rank_.compute().fill_zero(counters.data, counters.bytes());
  }
}

void TrainingStep::microbatch(std::int64_t index, const data::BatchView& batch) {
  StepInputs::Staging& host = host_[results_.turn()].staging[static_cast<std::size_t>(index)];
  host_[results_.turn()].used = static_cast<std::size_t>(index) + 1;
  inputs_.stage(host, batch, index, loss_weight(), true);
  // Pipeline stages exchange tensors in a fixed order. With pipelines, the second model therefore begins its
  // schedule when the schedule of the first model has ended.
  if (joint_.is_second && !runner_->in_turn() && index + 1 < settings_.microbatches) return;
  const std::size_t kind = index == 0 ? 0 : 1;
  constexpr StepGraphs::Part kParts[] = {StepGraphs::Part::kFirstMicrobatch,
                                         StepGraphs::Part::kFurtherMicrobatch};
  try {
    if (stop_ && stop_->load(std::memory_order_relaxed)) throw StopRequest();
    const StopsWithin stops(rank_, stop_);
    graphs_.run(
        kParts[kind], [&] { runner_->run(index + 1); },
        [&] { inputs_.copy(recorded_inputs_[kind], 0, true, true, host); });
    if (joint_.second) joint_.second->microbatch(index, batch);
  } catch (const StopRequest&) {
    rank_.compute().synchronize();  // waits, because pending copies read the batch in host memory
    runner_->abandon();
    if (joint_.second) joint_.second->runner_->abandon();
    throw;
  } catch (...) {
    inputs_.abandon();
    throw;
  }
}

engine::ChunkedModel::Outputs TrainingStep::forward(Tape& tape, int chunk, std::int64_t microbatch, Value x) {
  const bool with_mtp = tape.training() || evaluation_.with_mtp;
  std::vector<Tensor>* const recorded =
      graphs_.recording() ? &recorded_inputs_[microbatch == 0 ? 0 : 1] : nullptr;
  if (recorded) recorded->clear();
  HostSide& host = host_[evaluation_.repeated.value_or(results_.turn())];
  ModelInputs in =
      inputs_.place(tape, chunk, with_mtp, host.staging[static_cast<std::size_t>(microbatch)], recorded);
  if (tape.training()) {
    if (!for_blocks_.routing.load.absent()) in.blocks.routing = &for_blocks_.routing;
    if (drops_out()) in.blocks.dropout = &for_blocks_.dropout;
    in.blocks.trace = for_blocks_.trace;
  }
  Value hidden = model_.forward(chunk, in, std::move(x));
  if (!model_.last(chunk)) return {.next = std::move(hidden), .losses = {}};
  Outputs outputs;
  const engine::Teacher* const teacher = rule_ && tape.training() ? rule_->teacher(microbatch) : nullptr;
  if (teacher) {
    outputs.losses.push_back(model_.distilled_loss(hidden, in, *teacher));
  } else if (rule_ && tape.training()) {
    outputs.losses.push_back(model_.weighed_loss(hidden, in, rule_->needs(), [&](const TokenValues& tokens) {
      rule_->weigh({.rank = rank_,
                    .microbatch = microbatch,
                    .losses = tokens.losses,
                    .weights = in.loss_weights.tensor(),
                    .entropies = tokens.entropies,
                    .collisions = tokens.collisions,
                    .entropy_weights = tokens.entropy_weights,
                    .metrics = sums_.metrics});
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
                                              .out = i == 0 ? sums_.loss : sums_.mtp_loss,
                                              .accumulate = sums_.begun || i > 1});
  }
  sums_.begun = true;
}

Tensor TrainingStep::own_losses(const Value& losses) const {
  return engine::own_tokens(losses.tensor(), rank_.mesh().tensor());
}

void TrainingStep::finish_gradients() {
  PRIMUS_CHECK("TrainingStep::finish_gradients", runner_->finished());
  if (joint_.second) joint_.second->finish_gradients();
  upload_for_ranks();
  // Tensor-parallel ranks have the same tokens and metrics, so only the first rank contributes metrics.
  const comm::Communicator* const tensor = rank_.mesh().tensor();
  if (!sums_.metrics.absent() && tensor && tensor->rank() > 0 && !rank_.measuring())
    rank_.compute().fill_zero(sums_.metrics.data, sums_.metrics.bytes());
  graphs_.run(StepGraphs::Part::kGradients, [&] {
    parallel_.finish_gradients();
    for (const Tensor& total :
         {sums_.loss, sums_.ranks, sums_.mtp_loss, sums_.metrics, for_blocks_.routing.load,
          for_blocks_.routing.losses, for_blocks_.routing.margins}) {
      if (!total.absent()) parallel_.sum(total);
    }
    if (scales_) scales_->reduce(parallel_);
    if (!joint_.is_second) optimizer_.measure_gradients();
  });
  if (rank_.measuring()) return;
  results_.enqueue();
}

void TrainingStep::upload_for_ranks() {
  if (rank_.measuring() || rank_.mesh().size() == 1) return;
  const PinnedBuffer& buffer = host_[results_.turn()].ranks;
  std::memset(buffer.data(), 0, static_cast<std::size_t>(sums_.ranks.bytes()));
  auto* const values = reinterpret_cast<float*>(buffer.data());
  values[0] = for_ranks_.votes_to_stop ? 1 : 0;
  float* const own = values + 1 + kWorkValues * rank_.mesh().rank();
  own[0] = static_cast<float>(for_ranks_.work.data);
  own[1] = static_cast<float>(for_ranks_.work.passes);
  own[2] = static_cast<float>(for_ranks_.work.update);
  own[3] = static_cast<float>(for_ranks_.work.symptoms);
  rank_.compute().copy_to_device(sums_.ranks.data, buffer.data(), sums_.ranks.bytes());
}

namespace {

// Reads the work of all ranks. `at`: the values of Sums::ranks.
std::vector<RankWork> read_work(const std::byte* at, const engine::Mesh& mesh) {
  std::vector<RankWork> ranks(static_cast<std::size_t>(mesh.size()));
  at += sizeof(float);
  for (int rank = 0; rank < mesh.size(); ++rank, at += kWorkValues * sizeof(float)) {
    std::array<float, kWorkValues> values{};
    std::memcpy(values.data(), at, sizeof(values));
    ranks[static_cast<std::size_t>(rank)] = {.stage = engine::place_of(mesh.shape(), mesh.size(), rank).stage,
                                             .data = static_cast<double>(values[0]),
                                             .passes = static_cast<double>(values[1]),
                                             .update = static_cast<double>(values[2]),
                                             .symptoms = static_cast<std::uint32_t>(values[3])};
  }
  return ranks;
}

}  // namespace

void TrainingStep::list_results() {
  const auto number = [](const std::byte* at) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  };
  results_.add(sums_.loss, [=](const std::byte* at, StepResult& result) { result.loss = number(at); });
  results_.add(optimizer_.gradient_norm(),
               [=](const std::byte* at, StepResult& result) { result.gradient_norm = number(at); });
  results_.add(sums_.ranks, [=, this](const std::byte* at, StepResult& result) {
    if (rank_.mesh().size() == 1) return;
    result.stop_votes = static_cast<int>(number(at));
    if (rank_.mesh().rank() == 0) result.ranks = read_work(at, rank_.mesh());
  });
  results_.add(sums_.mtp_loss, [=, this](const std::byte* at, StepResult& result) {
    const double scale = model_.config().mtp.training.loss_scale;
    if (scale > 0) result.mtp_loss = number(at) / scale;  // undoes the loss scale
  });
  results_.add(for_blocks_.routing.load,
               [this](const std::byte* at, StepResult& result) { result.routing = routing_of(at); });
  results_.add(for_blocks_.routing.losses,
               [this](const std::byte* at, StepResult& result) { add_router_losses(at, result.routing); });
  results_.add(sums_.metrics, [=, this](const std::byte* at, StepResult& result) {
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
  StepResult result = results_.result();
  if (joint_.second) {
    StepResult second = joint_.second->result();
    result.loss += second.loss;
    for (auto& metric : second.metrics) result.metrics.push_back(std::move(metric));
  }
  if (!rule_) return result;
  for (auto& metric : rule_->host_metrics()) result.metrics.push_back(std::move(metric));
  if (const std::string_view name = rule_->name_of_loss(); !name.empty())
    result.metrics.emplace_back(name, result.loss);
  return result;
}

std::vector<LayerRouting> TrainingStep::routing_of(const std::byte* load_bytes) const {
  std::vector<LayerRouting> layers;
  const MoeConfig& moe = model_.config().moe;
  std::vector<std::int32_t> load(static_cast<std::size_t>(for_blocks_.routing.load.elements()));
  std::memcpy(load.data(), load_bytes, load.size() * sizeof(std::int32_t));
  for (std::int64_t i = 0; i < for_blocks_.routing.load.rows(); ++i) {
    if (!model_.config().routed(i)) continue;
    const auto first = load.begin() + i * for_blocks_.routing.load.cols();
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
  std::vector<float> losses(static_cast<std::size_t>(for_blocks_.routing.losses.elements()));
  std::memcpy(losses.data(), bytes, losses.size() * sizeof(float));
  for (LayerRouting& layer : layers) {
    const auto at = static_cast<std::size_t>(2 * layer.layer);
    layer.balance_loss = static_cast<double>(losses[at]) * for_blocks_.routing.loss_weight;
    layer.z_loss = static_cast<double>(losses[at + 1]) * for_blocks_.routing.loss_weight;
  }
}

void TrainingStep::update(std::int64_t step, double learning_rate, double weight_decay) {
  // Waiting for the last step's accumulation ensures that the update before last has read its scalars, which
  // are overwritten here.
  results_.wait_for_last();
  upload_scalars(ScalarsOf::kUpdate, step, learning_rate, weight_decay);
  graphs_.run(StepGraphs::Part::kUpdate, [&] {
    optimizer_.update(scalars_, step);
    if (!for_blocks_.routing.load.absent()) model_.end_step(rank_.context(), for_blocks_.routing);
    if (scales_) scales_->update(rank_.context(), optimizer_.gradient_norm());
  });
  if (joint_.second) joint_.second->update(step, learning_rate, weight_decay);
}

void TrainingStep::begin_evaluation() {
  evaluation_.batches = 0;
  begin_losses();
}

void TrainingStep::begin_losses() {
  sums_.begun = false;
  if (rank_.measuring() || model_.last(model_.chunks() - 1)) return;
  // Another stage computes the losses; this stage contributes 0 to the sums of losses.
  for (const Tensor& sum : {sums_.loss, sums_.mtp_loss}) {
    if (!sum.absent()) rank_.compute().fill_zero(sum.data, sum.bytes());
  }
}

void TrainingStep::evaluate(const data::BatchView& batch) { evaluate(batch, false); }

void TrainingStep::evaluate(const data::BatchView& batch, bool with_mtp) {
  evaluation_.with_mtp = with_mtp;
  try {
    // There is one staging slot, so the copies of the previous batch must be complete.
    if (!rank_.measuring()) rank_.compute().synchronize();
    inputs_.stage(host_[results_.turn()].staging.front(), batch, 0, 1.0, with_mtp);
    const StopsWithin stops(rank_, stop_);
    runner_->evaluate(evaluation_.tape, 0);
    ++evaluation_.batches;
  } catch (const StopRequest&) {
    rank_.compute().synchronize();  // waits, because pending copies read the batch in host memory
    evaluation_.tape.abandon();
    throw;
  } catch (...) {
    inputs_.abandon();
    throw;
  }
}

double TrainingStep::evaluation_loss() {
  parallel_.sum(sums_.loss);
  return read_scalar(sums_.loss) /
         static_cast<double>(std::max<std::int64_t>(evaluation_.batches, 1) * rank_.mesh().data_ranks());
}

std::string TrainingStep::find_non_finite() {
  std::string first;
  const std::atomic<bool>* const stop = stop_;
  set_stop(nullptr);  // ignores stop requests, because the run ends with an error anyway
  evaluation_.tape.set_observer([&](engine::OperatorCall& op) {
    if (!first.empty()) return;
    bool counted = false;
    for (int i = 0; i < op.output_count(); ++i) {
      if (op.out(engine::OutputPlace(i)).dtype == DType::kI32)
        continue;  // skipped because router choices and plans are integers
      turbo::launch(rank_.context(), turbo::CountNonFinite{.x = op.out(engine::OutputPlace(i)),
                                                           .out = evaluation_.non_finite,
                                                           .accumulate = std::exchange(counted, true)});
    }
    if (!counted || !has_non_finite()) return;
    first = (op.layer() >= 0 ? "layers." + std::to_string(op.layer()) + "." : "") + std::string(op.name());
  });
  begin_evaluation();
  // Ranks that share the work must make the same passes, even if one rank has already found the operator with
  // a NaN.
  const bool single = rank_.mesh().size() == 1;
  const std::size_t slots = host_[results_.last_read()].used;
  for (std::size_t slot = 0; slot < slots && (first.empty() || !single); ++slot) {
    // Uses a copy, because evaluating overwrites a staging slot. All tokens count, even masked tokens.
    data::Batch copy = host_[results_.last_read()].staging[slot].batch;
    std::ranges::fill(copy.loss_mask, 1.0F);
    evaluate(copy, true);
  }
  evaluation_.tape.set_observer({});
  if (joint_.second) {
    const std::string of_second = joint_.second->find_non_finite();
    if (first.empty() && !of_second.empty()) first = "second model: " + of_second;
  }
  set_stop(stop);
  return first;
}

std::string TrainingStep::find_non_finite_gradient() {
  HostSide& host = host_[results_.last_read()];
  std::string first;
  rank_.compute().synchronize();
  if (!runner_->finished()) runner_->abandon();
  runner_->set_stop(nullptr);
  runner_->set_gradient_observer(
      [&](engine::OperatorCall& op, const engine::Parameter* of, const Tensor& gradient) {
        if (!first.empty() || !is_non_finite(gradient)) return;
        first = (op.layer() >= 0 ? "layers." + std::to_string(op.layer()) + "." : "") +
                std::string(op.name()) + (of ? " (gradient of " + of->name + ")" : " (backward pass)");
      });
  evaluation_.repeated = results_.last_read();
  const auto microbatches = static_cast<std::int64_t>(host.used);
  runner_->begin(may_skip() ? microbatches : -1);
  parallel_.begin_step(microbatches);
  if (scales_) scales_->begin_step();
  begin_losses();
  // The step's random numbers depend on its number. The buffer of the next step's scalars is free now.
  upload_scalars(ScalarsOf::kBegin, host.step, 0, 0);
  runner_->run(microbatches);
  parallel_.finish_gradients();
  rank_.synchronize();
  evaluation_.repeated.reset();
  runner_->set_gradient_observer({});
  if (!joint_.second) return first;
  const std::string of_second = joint_.second->find_non_finite_gradient();
  return first.empty() && !of_second.empty() ? "second model: " + of_second : first;
}

bool TrainingStep::observe_weight_gradients(const GradientObserver& observer) {
  if (settings_.record_after > 0 && why_not_recorded().empty()) return false;
  if (observer) {
    runner_->set_gradient_observer(
        [observer](engine::OperatorCall&, const engine::Parameter* of, const Tensor& gradient) {
          if (of) observer(gradient);
        });
  } else {
    runner_->set_gradient_observer({});
  }
  return !joint_.second || joint_.second->observe_weight_gradients(observer);
}

std::string TrainingStep::find_damaged_weight(engine::ParameterStore& store) {
  for (const engine::ParameterUnit& unit : store.units()) {
    if (unit.stored.values.absent()) continue;
    for (const engine::Parameter* parameter : unit.parameters) {
      std::vector<Tensor> parts;
      if (!parameter->four_bit) {
        parts = {engine::stored_part(unit.stored.values, *parameter)};
      } else if (!parameter->four_bit.values.absent()) {
        parts = engine::factors_of(*parameter);  // codes of weights are always finite
      }
      for (const Tensor& part : parts) {
        if (part.absent()) continue;
        if (is_non_finite(part)) return parameter->name;
      }
    }
  }
  return "";
}

bool TrainingStep::is_non_finite(const Tensor& tensor) {
  turbo::launch(rank_.context(),
                turbo::CountNonFinite{.x = tensor, .out = evaluation_.non_finite, .accumulate = false});
  return has_non_finite();
}

bool TrainingStep::has_non_finite() {
  std::int32_t count = 0;
  rank_.compute().copy_to_host(&count, evaluation_.non_finite.data, sizeof(count));
  rank_.compute().synchronize();
  return count > 0;
}

}  // namespace primus
