#include "lm/train/objectives/rollouts/reward_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rules/token_log_probs.h"
#include "lm/train/settings/base_weights.h"
#include "lm/train/step/session.h"
#include "lm/train/step/token_scorer.h"

namespace primus {
namespace {

constexpr const char* kFingerprints = "rollouts.reward_models";  // name of the tensor in a checkpoint

StepSettings step_of(const TrainingSession& session, const RewardModel& model) {
  StepSettings step = scorer_settings(session);
  step.micro_batch = model.rows;
  step.sequence = model.sequence;
  step.packed_documents = true;
  step.precision = {};  // the compute type
  return step;
}

// The place of a text in the rows.
struct PlacedText {
  std::size_t index = 0;   // position in the list of texts
  std::int64_t begin = 0;  // position of its first token, counted over all rows
};

// Returns the places of the texts that have tokens and fit into a row.
std::vector<PlacedText> placed(std::span<const RewardTokens> texts, std::int64_t sequence) {
  std::vector<PlacedText> places;
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].ids.empty() || std::ssize(texts[i].ids) > sequence) continue;
    places.push_back({.index = i});
    lengths.push_back(std::ssize(texts[i].ids));
  }
  const std::vector<std::int64_t> begins = first_fit(lengths, sequence);
  for (std::size_t i = 0; i < places.size(); ++i) places[i].begin = begins[i];
  return places;
}

// Returns the batch of pass `pass`: its texts as documents, and padding.
data::Batch batch_of(const RewardModel& model, std::int64_t pass, std::span<const RewardTokens> texts,
                     std::span<const PlacedText> places) {
  data::Batch batch;
  const std::int64_t tokens = model.rows * model.sequence, first = pass * tokens;
  batch.tokens.resize(static_cast<std::size_t>(tokens));
  batch.labels.resize(batch.tokens.size());
  batch.loss_mask.resize(batch.tokens.size());
  batch.positions.resize(batch.tokens.size());
  std::vector<std::int64_t> ends(static_cast<std::size_t>(model.rows));  // of the texts of each row
  for (std::int64_t r = 0; r < model.rows; ++r) ends[static_cast<std::size_t>(r)] = r * model.sequence;
  const auto add = [&batch](std::int64_t begin, std::int64_t end) {
    batch.document_starts.push_back(static_cast<std::int32_t>(begin));
    std::iota(batch.positions.begin() + begin, batch.positions.begin() + end, 0);
  };
  for (const PlacedText& place : places) {
    const std::int64_t begin = place.begin - first;
    if (begin < 0 || begin >= tokens) continue;
    const std::vector<std::int32_t>& ids = texts[place.index].ids;
    std::ranges::copy(ids, batch.tokens.begin() + begin);
    add(begin, begin + std::ssize(ids));
    ends[static_cast<std::size_t>(begin / model.sequence)] = begin + std::ssize(ids);
  }
  for (std::int64_t r = 0; r < model.rows; ++r) {
    const std::int64_t end = ends[static_cast<std::size_t>(r)];
    if (end < (r + 1) * model.sequence) add(end, (r + 1) * model.sequence);
  }
  batch.document_starts.push_back(static_cast<std::int32_t>(tokens));
  std::ranges::sort(batch.document_starts);
  return batch;
}

}  // namespace

struct RewardModels::Running {
  Running(TrainingSession& session, const RewardModel& model)
      : instance(session.frozen(model.name)),
        step(step_of(session, model)),
        scorer(session.rank(), instance, step, TokenScorer::Options{}),
        scores(session.rank().persistent(DType::kF32, {scorer.tokens()})),
        collector(session.rank(), instance.model(), step) {}

  ModelInstance& instance;
  const StepSettings step;
  TokenScorer scorer;
  Tensor scores;
  TokenCollector collector;
};

RewardModels::RewardModels(std::vector<RewardModel> models) : models_(std::move(models)) {}
RewardModels::~RewardModels() = default;

std::int64_t RewardModels::model_of(std::int64_t function) const {
  const auto found = std::ranges::find(models_, function, &RewardModel::function);
  return found == models_.end() ? -1 : found - models_.begin();
}

std::vector<FrozenModel> RewardModels::frozen_models() const {
  std::vector<FrozenModel> all;
  for (const RewardModel& model : models_) {
    all.push_back(
        {.name = model.name, .model = model.model, .folder = model.folder, .positions = model.sequence});
  }
  return all;
}

void RewardModels::prepare(TrainingSession& session) {
  for (const RewardModel& model : models_) running_.push_back(std::make_unique<Running>(session, model));
  if (!models_.empty() && session.rank().mesh().data_ranks() > 1)
    passes_ = session.rank().persistent(DType::kF32, {1});
}

void RewardModels::load_weights(TrainingSession& session) const {
  for (const RewardModel& model : models_) {
    ModelInstance& instance = session.frozen(model.name);
    model.load(session, instance);
    instance.parallel().distribute_values();
  }
}

const std::vector<std::int64_t>& RewardModels::fingerprints() {
  for (std::size_t m = fingerprints_.size(); m < models_.size(); ++m)
    fingerprints_.push_back(static_cast<std::int64_t>(identity_of_weights(models_[m].folder).fingerprint));
  return fingerprints_;
}

void RewardModels::add_state(TrainingSession& session, std::vector<TensorSource>& sources) {
  if (models_.empty()) return;
  TensorSource source;
  source.name = kFingerprints;
  source.dtype = DType::kI64;
  source.shape = {size()};
  const bool writes = session.rank().mesh().rank() == 0;
  source.runs = writes ? HeldRuns{{.begin = 0, .length = size()}} : HeldRuns{};
  source.fill = [all = writes ? fingerprints() : std::vector<std::int64_t>()](std::uint64_t offset,
                                                                              std::span<std::byte> out) {
    std::memcpy(out.data(), std::as_bytes(std::span(all)).data() + offset, out.size());
  };
  sources.push_back(std::move(source));
}

std::string RewardModels::restore(const CheckpointReader& checkpoint) {
  const std::optional<TensorView> saved = checkpoint.find(TensorPart::kOptimizer, kFingerprints);
  const std::array<std::int64_t, 1> shape = {size()};
  if (!saved || !std::ranges::equal(saved->shape, shape)) return {};
  std::vector<std::int64_t> then(models_.size());
  checkpoint.read(TensorPart::kOptimizer, kFingerprints, DType::kI64, shape,
                  std::as_writable_bytes(std::span(then)));
  for (std::size_t m = 0; m < models_.size(); ++m) {
    if (then[m] == fingerprints()[m]) continue;
    return fmt::format(
        "the weights of the reward model '{}' are not those with which {} was trained: the run continues "
        "with other scores",
        models_[m].folder.string(), checkpoint.folder().string());
  }
  return {};
}

void RewardModels::measure(TrainingSession& session) {
  const StepSettings& step = session.settings().step;
  for (std::size_t m = 0; m < models_.size(); ++m) {
    most_passes(session, 1);
    const std::int64_t tokens = models_[m].rows * models_[m].sequence,
                       of_step = step.micro_batch * step.sequence * step.microbatches;
    for (std::int64_t pass = 0; pass < (of_step + tokens - 1) / tokens; ++pass) {
      running_[m]->scorer.score({}, running_[m]->scores);
      running_[m]->collector.collect(running_[m]->scores);
    }
  }
}

std::int64_t RewardModels::most_passes(TrainingSession& session, std::int64_t passes) {
  if (passes_.absent()) return passes;
  engine::Rank& rank = session.rank();
  auto most = static_cast<float>(passes);
  if (!rank.measuring()) rank.compute().copy_to_device(passes_.data, &most, passes_.bytes());
  session.parallel().largest(passes_);
  if (rank.measuring()) return passes;
  rank.compute().copy_to_host(&most, passes_.data, passes_.bytes());
  rank.compute().synchronize();
  return static_cast<std::int64_t>(most);
}

std::vector<Reward> RewardModels::score(TrainingSession& session, std::int64_t model,
                                        std::span<const RewardTokens> texts) {
  const RewardModel& own = models_[static_cast<std::size_t>(model)];
  Running& running = *running_[static_cast<std::size_t>(model)];
  std::vector<Reward> rewards(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    PRIMUS_CHECK("RewardModels::score", texts[i].ids.empty() != texts[i].problem.empty());
    rewards[i].problem = texts[i].problem;
    if (std::ssize(texts[i].ids) <= own.sequence) continue;
    rewards[i].problem = fmt::format(
        "prompt and answer have {} tokens for the reward model, which reads up to {}{}", texts[i].ids.size(),
        own.sequence,
        own.sequence < 2 * session.settings().step.sequence ? " (max_position_embeddings of its config.json)"
                                                            : " (twice seq_length)");
  }
  const std::vector<PlacedText> places = placed(texts, own.sequence);
  const std::int64_t tokens = own.rows * own.sequence;
  std::int64_t passes = 0;
  for (const PlacedText& place : places) passes = std::max(passes, place.begin / tokens + 1);
  passes = most_passes(session, passes);
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const data::Batch batch = batch_of(own, pass, texts, places);
    running.scorer.score(batch, running.scores);
    const std::vector<float> scores = running.collector.collect(running.scores);
    for (const PlacedText& place : places) {
      if (place.begin / tokens != pass) continue;
      const std::int64_t last = place.begin % tokens + std::ssize(texts[place.index].ids) - 1;
      const auto score = static_cast<double>(scores[static_cast<std::size_t>(last)]);
      if (std::isfinite(score)) {
        rewards[place.index].value = score;
      } else {
        rewards[place.index].problem = fmt::format("the score of the reward model is {}", score);
      }
    }
  }
  return rewards;
}

}  // namespace primus
