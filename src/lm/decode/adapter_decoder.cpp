#include "lm/decode/adapter_decoder.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "lm/decode/pass_tokens.h"

namespace primus {

AdapterDecoder::AdapterDecoder(std::unique_ptr<Device> device, std::span<const ModelConfig> models,
                               const FamilyRegistry& families, std::vector<ReaderSettings> settings)
    : rank_(std::move(device)), settings_(std::move(settings)) {
  PRIMUS_CHECK("AdapterDecoder", !models.empty() && models.size() == settings_.size());
  // Each model has tables of its own length, so that it computes the same bits as without the other models.
  std::vector<std::int64_t> positions;
  for (ReaderSettings& own : settings_) {
    own.replay = true;  // allowed, because the rank has no other user
    limit_passes(own, rank_.device().properties(), own.pass_tokens);
    positions.push_back(own.capacity);
  }
  const std::int64_t available = memory_for_reading(rank_.device());
  models_ = planned_models(rank_, models, families, settings_.front().compute, positions,
                           [&](const InferenceModels& measured) {
                             std::vector<PlannedReader> readers;
                             for (std::size_t i = 0; i < measured.size(); ++i)
                               readers.push_back({&measured[i]->model, &settings_[i]});
                             return measure_readers(rank_, readers, available);
                           });
}

DecodeScheduler& AdapterDecoder::use(std::size_t model) {
  if (!decoder_ || used_ != model) {
    decoder_.reset();  // releases its cache before the next one is allocated
    decoder_.emplace(rank_, models_[model]->model, settings_[model]);
    used_ = model;
  }
  return *decoder_;
}

}  // namespace primus
