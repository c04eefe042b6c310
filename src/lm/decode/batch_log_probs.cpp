// The log probabilities of BatchReader.
#include <algorithm>

#include "base/check.h"
#include "lm/decode/batch_reader.h"
#include "turbo/cross_entropy/cross_entropy.h"

namespace primus {

using engine::Value;

std::vector<float> BatchReader::log_probs(std::span<const std::int32_t> chosen) {
  PRIMUS_CHECK("BatchReader::log_probs",
               last_.log_probs && static_cast<std::int64_t>(chosen.size()) <= last_.reported);
  HostTables& host = *host_;
  std::fill(std::copy(chosen.begin(), chosen.end(), host.chosen.begin()), host.chosen.end(), 0);
  enqueue_losses(last_.reported);
  rank_.compute().synchronize();
  std::vector<float> result;
  for (std::size_t i = 0; i < chosen.size(); ++i) result.push_back(-host.losses[i]);
  return result;
}

void BatchReader::enqueue_losses_of_kept(const Tensor& losses) {
  engine::Tape tape(rank_.context(), rank_.stash());
  tape.begin({.train = false});
  const std::int64_t reported = losses.elements();
  const Value labels = tape.input(DType::kI32, {reported}, false),
              ones = tape.input(DType::kF32, {reported}, false);
  if (!rank_.measuring()) {
    upload(labels.tensor(), host_->chosen);
    upload(ones.tensor(), host_->ones);
  }
  turbo::launch(rank_.context(), turbo::CrossEntropy{.logits = rows_.kept.slice(0, reported),
                                                     .labels = labels.tensor(),
                                                     .weights = ones.tensor(),
                                                     .loss = losses});
  if (!rank_.measuring()) rank_.compute().copy_to_host(host_->losses.data(), losses.data, losses.bytes());
}

void BatchReader::enqueue_losses(std::int64_t reported) {
  const Tensor losses = rows_.losses.slice(0, reported);
  if (!rows_.kept.absent()) return enqueue_losses_of_kept(losses);
  engine::Tape tape(rank_.context(), rank_.stash());
  for (int chunk = 0; chunk < model_.chunks(); ++chunk) {
    if (!model_.last(chunk)) continue;
    // The gathering of weights treats this as an evaluation pass that uses only the head.
    tape.begin({.train = false, .chunk = chunk, .parallel = settings_.parallel});
    const Value hidden = tape.input(settings_.compute, {part_of(reported), config().hidden}, false);
    const ModelInputs in{.labels = tape.input(DType::kI32, {reported}, false),
                         .loss_weights = tape.input(DType::kF32, {reported}, false)};
    if (!rank_.measuring()) {
      rank_.compute().copy_on_device(hidden.tensor().data, rows_.hidden.data, hidden.tensor().bytes());
      upload(in.labels.tensor(), host_->chosen);
      upload(in.loss_weights.tensor(), host_->ones);
    }
    const Value loss = model_.loss(hidden, in);
    if (!rank_.measuring()) rank_.compute().copy_on_device(losses.data, loss.tensor().data, losses.bytes());
  }
  stages_.broadcast_from_last(losses);
  if (settings_.parallel) settings_.parallel->end_microbatch();
  if (!rank_.measuring()) rank_.compute().copy_to_host(host_->losses.data(), losses.data, losses.bytes());
}

}  // namespace primus
