#include "lm/train/step/session.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "lm/decode/pass_tokens.h"

namespace primus {
namespace {

// Returns the parts of the model that this rank has. The given numbers of blocks are those of the trained
// model. The blocks of a model of another depth are divided evenly.
ModelParts parts_of(const engine::Mesh& mesh, const PipelineSettings& pipeline, const ModelConfig& model) {
  const engine::PipelineShape shape = pipeline.shape(mesh);
  ModelParts parts{.blocks = pipeline.blocks, .own = {}};
  if (std::reduce(parts.blocks.begin(), parts.blocks.end()) != model.layers)
    parts.blocks = split_blocks(model.layers, shape);
  for (int chunk = 0; chunk < shape.chunks; ++chunk)
    parts.own.push_back(shape.part(mesh.place().stage, chunk));
  return parts;
}

}  // namespace

ModelInstance::Settings TrainingSession::instance_settings(const ModelConfig& model, ModelInstance::Role role,
                                                           std::int64_t positions) const {
  const UpdateRules& rules = settings_.optimizer.rules;
  return {
      .model = model,
      .role = role,
      .parts = parts_of(rank_.mesh(), settings_.step.pipeline, model),
      .layout = {.compute = settings_.compute,
                 .gradients = settings_.gradients,
                 .states = states_of(rules),
                 .rule_of = [&rules](const engine::Parameter& p) { return rule_of(rules, p); },
                 .sharding = settings_.sharding,
                 .groups = engine::group_places(rank_.mesh()),
                 .split_masters = settings_.optimizer.split_masters,
                 .reduce_each_microbatch = settings_.reduce_each_microbatch,
                 .decay_head_norms = settings_.decay_head_norms},
      .parallel = settings_.parallel,
      .positions = positions > 0 ? positions : std::max(settings_.step.sequence, settings_.sample_capacity)};
}

TrainingSession::Second::Second(engine::Rank& rank, ModelInstance::Settings model,
                                const FamilyRegistry& families, const OptimizerSettings& settings,
                                const StepSettings& step_settings, LossRule* rule)
    : instance(rank, std::move(model), families),
      optimizer(settings, instance.store(), instance.parallel(), rank),
      step(rank, instance.parallel(), instance.model(), optimizer, nullptr, step_settings, rule) {}

TrainingSession::TrainingSession(engine::Rank& rank, const SessionSettings& settings,
                                 const FamilyRegistry& families)
    : rank_(rank),
      settings_(settings),
      rule_(settings.loss_rule ? settings.loss_rule() : nullptr),
      trained_(rank, instance_settings(settings.model, ModelInstance::Role::kTrained), families) {
  optimizer_ = std::make_unique<Optimizer>(settings_.optimizer, store(), parallel(), rank);
  StepSettings step = settings.step;
  step.compute = settings.compute;
  if (step.precision.fp8 && step.precision.delayed.steps > 0) scales_.emplace(rank, store(), step.precision);
  if (rule_) {
    for (const FrozenModel& frozen : rule_->frozen_models(settings.model)) {
      ModelInstance::Settings instance =
          instance_settings(frozen.model, ModelInstance::Role::kFrozen, frozen.positions);
      // The trained model determines when shards are gathered, so only complete values are shared.
      const bool complete = std::ranges::all_of(store().units(), [](const engine::ParameterUnit& unit) {
        return unit.sharding == engine::Sharding::kNone;
      });
      if (frozen.shares_base && complete) instance.base = &store();
      frozen_.emplace_back(frozen.name, std::make_unique<ModelInstance>(rank, std::move(instance), families));
    }
  }
  step_ = std::make_unique<TrainingStep>(rank, parallel(), model(), *optimizer_, scales(), step, rule_.get());
  if (const std::optional<SecondModel> second = rule_ ? rule_->second_model(settings.model) : std::nullopt) {
    second_ = std::make_unique<Second>(rank, instance_settings(second->model, ModelInstance::Role::kTrained),
                                       families, settings_.optimizer, step, second->rule);
    step_->join(second_->step);
  }
  if (settings.sample_capacity > 0) {
    const bool gathers = rank.mesh().size() > 1 && settings.sharding == engine::Sharding::kParameters;
    // The cache has room for this number of texts of full length. Most texts are shorter and share their
    // prompts, so more texts fit.
    constexpr std::int64_t kFullTexts = 64;
    decoding_ = {.compute = settings.compute,
                 .capacity = settings.sample_capacity,
                 .sequences = settings.sample_sequences,
                 .pages = std::min(settings.sample_sequences, kFullTexts) *
                          ReaderSettings().pages_for(settings.sample_capacity),
                 .replay = rule_ && rank.mesh().size() == 1,
                 .keep_logits = rule_ != nullptr,
                 .parallel = gathers ? &parallel() : nullptr,
                 .pipeline = settings.step.pipeline.shape(rank.mesh())};
    limit_passes(*decoding_, rank.device().properties(), settings.sample_pass_tokens);
    // No user waits for a single token of these texts, so the largest passes are best.
    decoding_->generating_pass_tokens = 0;
  }
  if (rule_) rule_->prepare(*this);
}

ModelInstance& TrainingSession::frozen(std::string_view name) {
  const auto found =
      std::ranges::find(frozen_, name, [](const auto& model) -> std::string_view { return model.first; });
  PRIMUS_CHECK("TrainingSession::frozen", found != frozen_.end());
  return *found->second;
}

bool TrainingSession::has_frozen(std::string_view name) const {
  return std::ranges::any_of(frozen_, [&](const auto& model) { return model.first == name; });
}

ModelInstance& TrainingSession::second() {
  PRIMUS_CHECK("TrainingSession::second", second_ != nullptr);
  return second_->instance;
}

void TrainingSession::set_stop(const std::atomic<bool>* stop) {
  stop_ = stop;
  // With several ranks, a single rank must not leave a pass.
  if (rank_.mesh().size() == 1) step_->set_stop(stop);
}

std::int64_t TrainingSession::before_step(std::int64_t step, std::span<data::Batch> batches) {
  const std::int64_t all = settings_.step.microbatches;
  if (!rule_) return all;
  rule_->before_step({.session = *this, .step = step, .batches = batches});
  return step_->may_skip() ? rule_->filled_microbatches().value_or(all) : all;
}

std::unique_ptr<DecodeScheduler> TrainingSession::make_decoder(DecodeScheduler::Agree agree) {
  return std::make_unique<DecodeScheduler>(rank_, model(), *decoding_, std::move(agree));
}

namespace {

// Returns the bytes of the second model in a checkpoint, with its optimizer states and master weights.
std::int64_t second_bytes(TrainingSession& session) {
  if (!session.has_second()) return 0;
  const engine::ParameterStore& store = session.second().store();
  const DType compute = session.settings().compute;
  const std::int64_t masters = compute == DType::kF32 ? 0 : store.trained_elements() * size_of(DType::kF32);
  return store.elements() * size_of(compute) + store.state_bytes() + masters;
}

// Returns the traffic sent so far by each of the rank's communicators.
std::vector<comm::Traffic> traffic_of(engine::Rank& rank) {
  std::vector<comm::Traffic> all;
  for (const comm::Communicator* group : rank.mesh().groups()) all.push_back(group->traffic());
  return all;
}

// Returns the traffic from `begin` to `end`, plus `more` times the traffic from `first` to `second`.
comm::Traffic::Line line_of(const comm::Traffic::Line& begin, const comm::Traffic::Line& end,
                            const comm::Traffic::Line& first, const comm::Traffic::Line& second,
                            std::int64_t more) {
  return {.calls = end.calls - begin.calls + more * (second.calls - first.calls),
          .bytes = end.bytes - begin.bytes + static_cast<double>(more) * (second.bytes - first.bytes)};
}

// Returns the number of microbatches that represent a whole step. On one stage, all microbatches between the
// first and the last do the same work, so three are enough. If microbatches alternate, the memory of each
// depends on the memory that the previous one has left.
std::int64_t measured_microbatches(const SessionSettings& settings, int stages) {
  const std::int64_t all = settings.step.microbatches;
  const bool equal = stages * settings.step.pipeline.chunks == 1 && !settings.loss_rule &&
                     !settings.step.expert_overlap.microbatches;
  return equal ? std::min<std::int64_t>(all, 3) : all;
}

// Returns the number of microbatches that a step is expected to compute.
std::int64_t expected_microbatches(TrainingSession& session) {
  const SessionSettings& settings = session.settings();
  const std::int64_t all = settings.step.microbatches;
  return session.step().may_skip() ? std::min(settings.filled_microbatches.value_or(all), all) : all;
}

// Measures the decoder, after all else of the session. Returns the memory of the session and the max number
// of tokens of a pass, which increases only while the decoder needs no more memory than the rest of the
// session.
std::pair<engine::MemoryPlan, std::int64_t> memory_with_decoder(engine::Rank& rank,
                                                                const TrainingSession& session) {
  const engine::MemoryPlan before = rank.high_water();
  if (!session.decoding()) return {before, 0};
  ReaderSettings reader = *session.decoding();
  const PlannedReader planned{&session.model(), &reader};
  const engine::MemoryPlan memory =
      measure_readers(rank, {&planned, 1}, before.total(), SessionSettings::kSmallestSamplePass);
  return {memory, reader.pass_tokens};
}

}  // namespace

StepMeasurement measure_session(engine::Rank& rank, const SessionSettings& settings,
                                const FamilyRegistry& families) {
  SessionSettings measured = settings;
  measured.step.microbatches = measured_microbatches(settings, rank.mesh().shape().pipeline);
  TrainingSession session(rank, measured, families);
  session.store().initialize(rank.context(), 0);
  TrainingStep& step = session.step();
  turbo::Meter& meter = rank.meter();
  turbo::Meter first, second;  // work after the first and after the second microbatch
  // Traffic before the step, after the first and second microbatch, and after the step.
  std::vector<comm::Traffic> sent[4];
  const auto whole_step = [&](std::int64_t microbatches) {
    meter.reset();
    sent[0] = traffic_of(rank);
    std::vector<data::Batch> batches(static_cast<std::size_t>(measured.step.microbatches));
    session.before_step(1, batches);
    step.begin(1, microbatches);
    for (std::int64_t i = 0; i < microbatches; ++i) {
      step.microbatch(i, {});
      if (i == 0) first = meter;
      if (i <= 1) second = meter;
      if (i == 0) sent[1] = traffic_of(rank);
      if (i <= 1) sent[2] = traffic_of(rank);
    }
    step.finish_gradients();
    step.update(1, 0, 0);
    sent[3] = traffic_of(rank);
  };
  const auto evaluate = [&] {
    if (!settings.evaluation) return;
    step.begin_evaluation();
    step.evaluate({});
    step.evaluation_loss();
  };
  whole_step(measured.step.microbatches);
  const std::int64_t expected = expected_microbatches(session);
  if (expected < measured.step.microbatches) whole_step(expected);
  const std::int64_t more = settings.step.microbatches - measured.step.microbatches;
  turbo::Meter kernels = meter;
  for (std::size_t i = 0; i < kernels.lines.size(); ++i) {
    kernels.lines[i].calls += more * (second.lines[i].calls - first.lines[i].calls);
    kernels.lines[i].flops += static_cast<double>(more) * (second.lines[i].flops - first.lines[i].flops);
  }
  evaluate();
  if (settings.sharding == engine::Sharding::kParameters) {
    // The previous passes recorded the order in which parameters are gathered. Prefetching in this order
    // needs memory, so the step is measured again.
    whole_step(expected);
    evaluate();
  }
  const auto [memory, pass_tokens] = memory_with_decoder(rank, session);
  std::vector<GroupTraffic> communication;
  const std::vector<comm::Communicator*> groups = rank.mesh().groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::string& name = groups[g]->name();
    GroupTraffic group{.group = name.substr(0, name.find_last_of('.')), .ranks = groups[g]->size()};
    for (std::size_t kind = 0; kind < group.traffic.lines.size(); ++kind) {
      group.traffic.lines[kind] = line_of(sent[0][g].lines[kind], sent[3][g].lines[kind],
                                          sent[1][g].lines[kind], sent[2][g].lines[kind], more);
    }
    if (group.traffic.total_bytes() > 0) communication.push_back(std::move(group));
  }
  const std::int64_t parameters = session.store().elements();
  return {.memory = memory,
          .kernels = kernels,
          .parameters = parameters,
          .trained_parameters = session.store().trained_elements(),
          .second_parameters = session.has_second() ? session.second().store().elements() : 0,
          .four_bit = engine::four_bit_totals(session.store().parameters()),
          .saved_share =
              static_cast<double>(session.store().counted_elements()) / static_cast<double>(parameters),
          .communication = std::move(communication),
          .state_bytes = session.store().state_bytes() +
                         (session.scales() ? session.scales()->state_bytes() : 0) + second_bytes(session),
          .why_not_recorded = settings.step.record_after > 0 ? step.why_not_recorded() : "",
          .microbatches = expected + more,
          .sample_pass_tokens = pass_tokens};
}

std::unique_ptr<TrainingSession> open_session(engine::Rank& rank, const SessionSettings& settings,
                                              const FamilyRegistry& families) {
  const StepMeasurement measured = measure_session(rank, settings, families);
  rank.reserve(measured.memory);
  SessionSettings own = settings;
  own.sample_pass_tokens = measured.sample_pass_tokens;
  return std::make_unique<TrainingSession>(rank, own, families);
}

}  // namespace primus
