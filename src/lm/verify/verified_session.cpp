#include "lm/verify/verified_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/error.h"
#include "lm/model/published_layout.h"
#include "lm/model/weights.h"
#include "tensor/bfloat16.h"

namespace primus {

data::Batch reference_batch(const TensorView& ids, std::int64_t vocab, const std::string& where) {
  if (ids.dtype != DType::kI64 || ids.shape.size() != 2 || ids.shape[0] < 1 || ids.shape[1] < 2) {
    throw invalid("input_ids must be int64 [batch >= 1, sequence >= 2]").at(where);
  }
  const std::int64_t sequences = ids.shape[0], sequence = ids.shape[1];
  data::Batch batch;
  std::vector<std::int32_t>& tokens = batch.tokens;
  tokens.resize(static_cast<std::size_t>(sequences * sequence));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::int64_t id;
    std::memcpy(&id, ids.data.data() + 8 * i, 8);
    if (id < 0 || id >= vocab)
      throw invalid(fmt::format("input id {} is outside the vocabulary of {}", id, vocab)).at(where);
    tokens[i] = static_cast<std::int32_t>(id);
    batch.positions.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(i) % sequence));
  }
  batch.labels.assign(tokens.begin() + 1, tokens.end());
  batch.labels.push_back(0);
  batch.loss_mask.assign(tokens.size(), 1.0F);
  for (std::int64_t row = 1; row <= sequences; ++row) batch.loss_mask[row * sequence - 1] = 0;
  return batch;
}

std::vector<float> download(engine::Rank& rank, const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  rank.compute().copy_to_host(bytes.data(), tensor.data, tensor.bytes());
  rank.compute().synchronize();
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  if (tensor.dtype == DType::kF32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) {
      BFloat16 element;
      std::memcpy(&element, bytes.data() + 2 * i, 2);
      values[i] = static_cast<float>(element);
    }
  }
  return values;
}

VerifiedSession::VerifiedSession(std::unique_ptr<Device> device, const SessionSettings& settings,
                                 const FamilyRegistry& families, const SafetensorsFolder& weights,
                                 data::Batch batch)
    : batches_({std::move(batch)}), settings_(settings), rank_(std::move(device)) {
  const StepMeasurement measured = measure_session(rank_, settings, families);
  engine::MemoryPlan plan = measured.memory;
  settings_.sample_pass_tokens = measured.sample_pass_tokens;
  {
    const std::int64_t before = rank_.persistent().high_water();
    trace_ = make_trace();
    plan.persistent += rank_.persistent().high_water() - before;
    TrainingSession measuring(rank_, settings_, families);
    if (!settings_.model.scores) logits_of(measuring);
    const engine::MemoryPlan with_logits = rank_.high_water();
    plan.stash = std::max(plan.stash, with_logits.stash);
    plan.scratch = std::max(plan.scratch, with_logits.scratch);
  }
  rank_.reserve(plan);
  trace_ = make_trace();
  session_ = std::make_unique<TrainingSession>(rank_, settings_, families);
  load_weights(weights, session_->store(), rank_);
  if (session_->rule()) session_->rule()->load_weights(*session_);
  if (!trace_.experts.absent()) session_->step().set_routing_trace(&trace_);
}

RoutingTrace VerifiedSession::make_trace() {
  const MoeConfig& moe = settings_.model.moe;
  if (moe.experts == 0) return {};
  const auto table = [&](std::int64_t for_token) {
    return rank_.persistent(DType::kI32,
                            {settings_.model.layers + settings_.model.mtp.modules(),
                             static_cast<std::int64_t>(batches_.front().tokens.size()) * for_token});
  };
  return {.experts = table(moe.router.top_k),
          .selected = settings_.model.any_keeps(Keeps::kPooled)
                          ? table(settings_.model.attention.pooled.index_top_k)
                          : Tensor()};
}

std::vector<float> VerifiedSession::logits_of(TrainingSession& session) {
  engine::Tape tape(rank_.context(), rank_.stash());
  tape.begin({.train = false});
  const Shape shape{static_cast<std::int64_t>(batches_.front().tokens.size())};
  const ModelInputs in{.tokens = tape.input(DType::kI32, shape, false),
                       .blocks = {.batch = settings_.step.micro_batch,
                                  .sequence = settings_.step.sequence,
                                  .positions = tape.input(DType::kI32, shape, false),
                                  .trace = trace_.experts.absent() ? nullptr : &trace_}};
  const engine::Value logits = [&] {
    if (!rank_.measuring()) {
      rank_.compute().copy_to_device(in.tokens.tensor().data, batches_.front().tokens.data(), 4 * shape[0]);
      rank_.compute().copy_to_device(in.blocks.positions.tensor().data, batches_.front().positions.data(),
                                     4 * shape[0]);
    }
    return session.model().logits(session.model().forward(in));
  }();
  return rank_.measuring() ? std::vector<float>{} : download(rank_, logits.tensor());
}

std::vector<float> VerifiedSession::logits() { return logits_of(*session_); }

StepResult VerifiedSession::forward_backward() {
  TrainingStep& step = session_->step();
  session_->before_step(1, batches_);
  step.begin();
  step.microbatch(0, batches_.front());
  step.finish_gradients();
  return step.result();
}

void VerifiedSession::update(std::int64_t step, double learning_rate, double weight_decay) {
  session_->step().update(step, learning_rate, weight_decay);
}

void VerifiedSession::for_each_gradient(
    engine::ParameterStore& store,
    const std::function<void(const std::string& name, const std::vector<float>& values)>& use) {
  for (const engine::Parameter& p : store.parameters()) {
    if (!p.trainable) continue;
    for (const engine::CheckpointPart& part : p.parts) {
      std::vector<float> values = download(rank_, part_of(p.gradient, p, part));
      if (!part.layout.dims.empty()) {
        std::vector<float> reordered(values.size());
        to_file_order(axis_order(part), sizeof(float), std::as_bytes(std::span(values)),
                      std::as_writable_bytes(std::span(reordered)));
        values.swap(reordered);
      }
      use(part.name, values);
    }
  }
}

void VerifiedSession::prescribe(const Choices& choices) {
  trace_.use = choices.empty() ? RoutingTrace::Use::kRecord : RoutingTrace::Use::kReplay;
  if (choices.empty()) return;
  rank_.compute().copy_to_device(trace_.experts.data, choices.experts.data(), trace_.experts.bytes());
  if (!trace_.selected.absent())
    rank_.compute().copy_to_device(trace_.selected.data, choices.selected.data(), trace_.selected.bytes());
  rank_.compute().synchronize();
}

VerifiedSession::Choices VerifiedSession::choices() {
  Choices choices;
  const auto read = [&](const Tensor& from, std::vector<std::int32_t>& to) {
    if (from.absent()) return;
    to.resize(static_cast<std::size_t>(from.elements()));
    rank_.compute().copy_to_host(to.data(), from.data, from.bytes());
  };
  read(trace_.experts, choices.experts);
  read(trace_.selected, choices.selected);
  rank_.compute().synchronize();
  return choices;
}

}  // namespace primus
