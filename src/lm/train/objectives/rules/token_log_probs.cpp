#include "lm/train/objectives/rules/token_log_probs.h"

#include "lm/train/step/session.h"

namespace primus {

TokenCollector::TokenCollector(engine::Rank& rank, const LanguageModel& model, const StepSettings& step)
    : rank_(rank),
      model_(model),
      tokens_(step.micro_batch * step.sequence),
      held_(rank.mesh().shape(), rank.mesh().place(), step.sequence) {
  const engine::MeshShape& shape = rank.mesh().shape();
  if (shape.context > 1 || shape.pipeline > 1) all_ = rank.persistent(DType::kF32, {tokens_});
}

TokenCollector::TokenCollector(TrainingSession& session)
    : TokenCollector(session.rank(), session.model(), session.settings().step) {}

std::vector<float> TokenCollector::collect(const Tensor& held) {
  Stream& stream = rank_.compute();
  std::vector<float> all;
  if (!rank_.measuring()) {
    // Ranks without the last part of the model have no values, and add zeros.
    std::vector<float> own(static_cast<std::size_t>(held.elements()));
    if (model_.last(model_.chunks() - 1)) stream.copy_to_host(own.data(), held.data, held.bytes());
    stream.synchronize();
    all.resize(static_cast<std::size_t>(tokens_));
    held_.scatter(own, all);
    if (!all_.absent()) stream.copy_to_device(all_.data, all.data(), all_.bytes());
  }
  if (all_.absent()) return all;
  for (comm::Communicator* const group : {rank_.mesh().context(), rank_.mesh().pipeline()})
    if (group) group->all_reduce(stream, all_, all_, comm::Reduction::kSum);
  if (!rank_.measuring()) {
    stream.copy_to_host(all.data(), all_.data, all_.bytes());
    stream.synchronize();
  }
  return all;
}

TokenLogProbs::TokenLogProbs(TrainingSession& session, const ScoredModel& model)
    : scorer_(session.rank(), model.model, scorer_settings(session), model.options),
      losses_(session.rank().persistent(DType::kF32, {scorer_.tokens()})),
      collector_(session) {}

std::vector<float> TokenLogProbs::compute(const data::BatchView& batch) {
  scorer_.score(batch, losses_);
  std::vector<float> all = collector_.collect(losses_);
  for (std::size_t t = 0; t < all.size(); ++t) all[t] = batch.loss_mask[t] != 0 ? -all[t] : 0.0F;
  return all;
}

}  // namespace primus
