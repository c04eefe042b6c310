#include "lm/train/step/step_inputs.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace primus {

using engine::Value;

namespace {

bool draws_random_numbers(const ModelConfig& model, const StepSettings& settings) {
  return model.moe.experts > 0 || model.lora.training.dropout > 0 || settings.precision.at_random;
}

}  // namespace

StepInputs::StepInputs(engine::Rank& rank, const LanguageModel& model, const StepSettings& settings)
    : rank_(rank),
      model_(model),
      settings_(settings),
      draws_random_(draws_random_numbers(model.config(), settings)) {
  if (rank.mesh().tensor()) tensor_.emplace(rank, settings.tensor_overlap);
  if (comm::Communicator* const experts = rank.mesh().experts())
    experts_.emplace(rank, *experts, settings.expert_overlap, rank.mesh().expert_hosts());
  if (rank.mesh().context()) context_.emplace(rank, settings.context_exchange);
  for (int r = 0; context_ && r < context_->ranks(); ++r) {
    std::vector<std::int32_t>& tokens = held_.emplace_back();
    for (std::int64_t s = 0; s < settings.micro_batch; ++s) {
      for (const std::int64_t position : engine::context_positions(settings.sequence, context_->ranks(), r))
        tokens.push_back(static_cast<std::int32_t>(s * settings.sequence + position));
    }
  }
  if (rank.measuring()) return;
  positions_.resize(settings.micro_batch * settings.sequence);
  for (std::size_t t = 0; t < positions_.size(); ++t) {
    positions_[t] = static_cast<std::int32_t>(static_cast<std::int64_t>(t) % settings.sequence);
  }
}

std::int64_t StepInputs::held_tokens() const {
  return settings_.micro_batch * settings_.sequence / rank_.mesh().shape().context;
}

template <class T>
const void* StepInputs::held_of(Staging& host, const std::vector<T>& values) const {
  if (!context_) return values.data();
  const std::vector<std::int32_t>& tokens = held_[static_cast<std::size_t>(context_->rank())];
  std::vector<std::byte>& held = host.held.emplace_back(tokens.size() * sizeof(T));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    std::memcpy(held.data() + i * sizeof(T), &values[static_cast<std::size_t>(tokens[i])], sizeof(T));
  return held.data();
}

void StepInputs::stage(Staging& host, const data::BatchView& batch, std::int64_t number, double weight,
                       bool with_mtp) const {
  if (rank_.measuring()) return;
  host.held.clear();
  host.batch.assign(batch);
  double mask_sum = 0;
  for (const float m : batch.loss_mask) mask_sum += static_cast<double>(m);
  const double scale = weight / (batch.loss_divisor > 0 ? batch.loss_divisor : std::max(mask_sum, 1.0));
  host.loss_weights.resize(batch.loss_mask.size());
  std::ranges::transform(batch.loss_mask, host.loss_weights.begin(),
                         [scale](float m) { return static_cast<float>(static_cast<double>(m) * scale); });
  if (settings_.packed_documents) host.first_key = first_key(batch.document_starts);
  if (draws_random_) {
    const auto first =
        static_cast<std::int32_t>((number * rank_.mesh().data_ranks() + rank_.mesh().data_rank()) *
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
    host.mtp.push_back(shifted(batch, depth, weight));
}

template <class Visit>
void StepInputs::for_each(ModelInputs& inputs, int chunk, bool training, bool with_mtp, Staging& host,
                          Visit&& visit) const {
  const bool last = model_.last(chunk), measuring = rank_.measuring();
  const Shape own{held_tokens()}, all{settings_.micro_batch * settings_.sequence};
  const auto held = [&](Value& value, DType dtype, const auto& values) {
    visit(value, dtype, own, measuring ? nullptr : held_of(host, values));
  };
  BlockInputs& blocks = inputs.blocks;
  if (model_.needs_tokens(chunk)) held(inputs.tokens, DType::kI32, host.batch.tokens);
  held(blocks.positions, DType::kI32, host.batch.positions.empty() ? positions_ : host.batch.positions);
  if (last) {
    held(inputs.labels, DType::kI32, host.batch.labels);
    held(inputs.loss_weights, DType::kF32, host.loss_weights);
  }
  if (settings_.packed_documents) held(blocks.first_key, DType::kI32, host.first_key);
  // The numbers are for the tokens of all context ranks, because random numbers belong to positions in the
  // complete sequence.
  if (training && draws_random_) visit(blocks.token_numbers, DType::kI32, all, host.token_numbers.data());
  if (!with_mtp || !last) return;
  inputs.mtp.resize(static_cast<std::size_t>(model_.config().mtp.modules()));
  if (measuring) host.mtp.resize(inputs.mtp.size());
  for (std::size_t depth = 0; depth < inputs.mtp.size(); ++depth) {
    held(inputs.mtp[depth].tokens, DType::kI32, host.mtp[depth].tokens);
    held(inputs.mtp[depth].labels, DType::kI32, host.mtp[depth].labels);
    held(inputs.mtp[depth].loss_weights, DType::kF32, host.mtp[depth].loss_weights);
  }
}

ModelInputs StepInputs::place(engine::Tape& tape, int chunk, bool with_mtp, Staging& host,
                              std::vector<Tensor>* places) {
  ModelInputs in;
  in.blocks.batch = settings_.micro_batch;
  in.blocks.sequence = settings_.sequence / rank_.mesh().shape().context;
  if (context_) in.blocks.context = &*context_;
  if (tensor_) in.blocks.tensor = &*tensor_;
  if (experts_) in.blocks.experts = &*experts_;
  // Allocates all inputs first, so that the copies can follow one another.
  std::vector<std::pair<Tensor, const void*>> copies;
  for_each(in, chunk, tape.training(), with_mtp, host,
           [&](Value& value, DType dtype, const Shape& shape, const void* from) {
             value = tape.input(dtype, shape, false);
             copies.emplace_back(value.tensor(), from);
           });
  if (rank_.measuring()) return in;
  for (const auto& [to, from] : copies) {
    if (places) {
      places->push_back(to);
    } else {
      rank_.compute().copy_to_device(to.data, from, to.bytes());
    }
  }
  return in;
}

void StepInputs::copy(const std::vector<Tensor>& places, int chunk, bool training, bool with_mtp,
                      Staging& host) {
  ModelInputs names;
  auto to = places.begin();
  for_each(names, chunk, training, with_mtp, host, [&](Value&, DType, const Shape& shape, const void* from) {
    PRIMUS_CHECK("StepInputs::copy", to != places.end() && to->elements() == shape.elements());
    rank_.compute().copy_to_device(to->data, from, to->bytes());
    ++to;
  });
  PRIMUS_CHECK("StepInputs::copy", to == places.end());
}

// Shifts tokens, labels and mask by `depth` positions within their document (or sequence). Positions whose
// label would lie beyond the end get token 0 and no loss. As in Megatron-LM, the loss is the mean over the
// remaining tokens.
StepInputs::Staging::Shifted StepInputs::shifted(const data::BatchView& batch, std::int64_t depth,
                                                 double weight) const {
  const auto count = static_cast<std::int64_t>(batch.tokens.size());
  Staging::Shifted out{std::vector<std::int32_t>(batch.tokens.size()),
                       std::vector<std::int32_t>(batch.tokens.size()),
                       std::vector<float>(batch.tokens.size())};
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

// Returns, for each token, the first position of its sequence to which the token attends: the position of the
// first token of its document.
std::vector<std::int32_t> StepInputs::first_key(std::span<const std::int32_t> document_starts) const {
  std::vector<std::int32_t> keys(positions_.size());
  for (std::size_t d = 0; d + 1 < document_starts.size(); ++d) {
    const auto begin = keys.begin() + document_starts[d], end = keys.begin() + document_starts[d + 1];
    std::fill(begin, end, document_starts[d] % static_cast<std::int32_t>(settings_.sequence));
  }
  return keys;
}

}  // namespace primus
