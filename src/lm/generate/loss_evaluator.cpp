#include "lm/generate/loss_evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/checked.h"
#include "base/error.h"
#include "engine/runtime/tape.h"
#include "lm/checkpoint/elements.h"

namespace primus {

using engine::Value;

LossEvaluator::LossEvaluator(std::unique_ptr<Device> device, const ModelConfig& config,
                             const FamilyRegistry& families, const EvaluatorSettings& settings)
    : LossEvaluator(std::move(device), std::span(&config, 1), families, settings) {}

LossEvaluator::LossEvaluator(std::unique_ptr<Device> device, std::span<const ModelConfig> models,
                             const FamilyRegistry& families, const EvaluatorSettings& settings)
    : config_(models.front()), settings_(settings), rank_(std::move(device)) {
  const ModelConfig& config = config_;
  if (settings.sequence < 1 || settings.sequence > config.max_positions) {
    throw invalid(fmt::format("windows of {} tokens are not from 1 to the model's {}", settings.sequence,
                              config.max_positions),
                  fmt::format("set the length (--seq-length) to at most {}", config.max_positions));
  }
  if (settings.batch < 1) throw invalid(fmt::format("a batch of {} sequences", settings.batch));
  if (config_.scores) {
    throw unsupported("a reward model computes a score, not probabilities of tokens",
                      "give the folder of a language model");
  }
  const auto size =
      static_cast<std::size_t>(checked_mul(settings.batch, settings.sequence, "tokens of a batch"));
  tokens_.resize(size);
  labels_.resize(size);
  weights_.resize(size);
  losses_.resize(size);
  positions_.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    positions_[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % settings.sequence);
  }
  const std::vector<std::int64_t> positions(models.size(), settings.sequence);
  models_ = measured_models(rank_, models, families, settings.compute, positions,
                            [this](const InferenceModel& measured) {
                              engine::Tape tape(rank_.context(), rank_.stash());
                              losses_of(measured.model, tape);
                            });
}

void LossEvaluator::select(std::size_t model) {
  if (rows_ > 0 || !pending_.empty() || model >= models_.size())
    throw std::logic_error("LossEvaluator::select");
  selected_ = model;
  total_ = 0;
  predicted_ = 0;
}

void LossEvaluator::check(std::int32_t id) const {
  if (id < 0 || id >= config_.vocab)
    throw invalid(fmt::format("token {} is outside the vocabulary of {}", id, config_.vocab));
}

void LossEvaluator::add_alone(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> chosen) {
  if (tokens.size() != chosen.size() || tokens.size() > static_cast<std::size_t>(settings_.sequence) + 1 ||
      !pending_.empty())
    throw std::logic_error("LossEvaluator::add_alone");
  for (const std::int32_t id : tokens) check(id);
  if (tokens.size() > 1) add_row(tokens, [&](std::size_t i) { return chosen[i + 1] != 0; });
}

void LossEvaluator::add(std::span<const std::int32_t> tokens) {
  for (const std::int32_t id : tokens) {
    check(id);
    pending_.push_back(id);
    if (static_cast<std::int64_t>(pending_.size()) == settings_.sequence + 1) add_window();
  }
}

void LossEvaluator::finish() {
  if (pending_.size() > 1) add_window();
  if (rows_ > 0) run_batch();
  pending_.clear();
}

template <class Counts>
void LossEvaluator::add_row(std::span<const std::int32_t> tokens, Counts&& counts) {
  const std::size_t begin = static_cast<std::size_t>(rows_ * settings_.sequence);
  for (std::size_t i = 0; i < static_cast<std::size_t>(settings_.sequence); ++i) {
    const bool used = i + 1 < tokens.size(), counted = used && counts(i);
    tokens_[begin + i] = used ? tokens[i] : 0;
    labels_[begin + i] = used ? tokens[i + 1] : 0;
    weights_[begin + i] = counted ? 1.0F : 0.0F;
    predicted_ += counted ? 1 : 0;
  }
  if (++rows_ == settings_.batch) run_batch();
}

// Makes the pending tokens the next row. Their last token is also the first token of the following row.
void LossEvaluator::add_window() {
  add_row(pending_, [](std::size_t) { return true; });
  pending_.erase(pending_.begin(), pending_.end() - 1);
}

Value LossEvaluator::losses_of(const LanguageModel& model, engine::Tape& tape) {
  tape.begin({.train = false});
  const Shape shape{settings_.batch * settings_.sequence};
  const auto upload = [&](DType dtype, const void* from) {
    Value to = tape.input(dtype, shape, false);
    if (!rank_.measuring()) rank_.compute().copy_to_device(to.tensor().data, from, to.tensor().bytes());
    return to;
  };
  const ModelInputs in{.tokens = upload(DType::kI32, tokens_.data()),
                       .labels = upload(DType::kI32, labels_.data()),
                       .loss_weights = upload(DType::kF32, weights_.data()),
                       .blocks = {.batch = settings_.batch,
                                  .sequence = settings_.sequence,
                                  .positions = upload(DType::kI32, positions_.data())}};
  return model.loss(model.forward(in), in);
}

void LossEvaluator::run_batch() {
  std::fill(weights_.begin() + rows_ * settings_.sequence, weights_.end(), 0.0F);
  {
    engine::Tape tape(rank_.context(), rank_.stash());
    const Value loss = losses_of(models_[selected_]->model, tape);
    rank_.compute().copy_to_host(losses_.data(), loss.tensor().data, loss.tensor().bytes());
    rank_.compute().synchronize();
  }
  for (std::int64_t i = 0; i < rows_ * settings_.sequence; ++i) total_ += static_cast<double>(losses_[i]);
  if (!std::isfinite(total_)) {
    const std::string first = first_non_finite();
    throw Error(
        ErrorKind::kNumerics,
        fmt::format("the loss is {} within the first {} tokens{}", total_, predicted_,
                    first.empty() ? "" : fmt::format(": {} is the first operator with such a result", first)),
        "the weights may be damaged: 'primus model export MODEL NEW' names tensors with nan; with "
        "--dtype bf16, "
        "also try fp32");
  }
  rows_ = 0;
}

std::string LossEvaluator::first_non_finite() {
  std::string first;
  engine::Tape tape(rank_.context(), rank_.stash());
  tape.set_observer([&](engine::OperatorCall& op) {
    for (int i = 0; i < op.output_count() && first.empty(); ++i) {
      const Tensor& out = op.out(engine::OutputPlace(i));
      if (out.dtype != DType::kF32 && out.dtype != DType::kBF16) continue;
      std::vector<std::byte> bytes(static_cast<std::size_t>(out.bytes()));
      rank_.compute().copy_to_host(bytes.data(), out.data, out.bytes());
      rank_.compute().synchronize();
      std::vector<float> values(static_cast<std::size_t>(out.elements()));
      to_float(out.dtype, bytes, values);
      if (std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) continue;
      first =
          (op.layer() >= 0 ? fmt::format("layers.{}.", op.layer()) : std::string()) + std::string(op.name());
    }
  });
  losses_of(models_[selected_]->model, tape);
  return first;
}

}  // namespace primus
