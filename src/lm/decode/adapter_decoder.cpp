#include "lm/decode/adapter_decoder.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "lm/decode/pass_tokens.h"

namespace primus {

namespace {

// Returns the adapters of the models of a batch. Other models have none here.
engine::RowAdapters adapters_of(const InferenceModels& models, const std::optional<AdapterBatch>& batch) {
  engine::RowAdapters adapters;
  for (std::size_t i = 0; i < models.size() && batch; ++i) {
    const bool in_batch = std::ranges::find(batch->models, i) != batch->models.end();
    adapters.add(models.front()->store, models[in_batch ? i : 0]->store);
  }
  return adapters;
}

}  // namespace

AdapterDecoder::AdapterDecoder(std::unique_ptr<Device> device, std::span<const ModelConfig> models,
                               const FamilyRegistry& families, std::vector<ReaderSettings> settings,
                               std::optional<AdapterBatch> batch)
    : rank_(std::move(device)), settings_(std::move(settings)), batch_(std::move(batch)) {
  PRIMUS_CHECK("AdapterDecoder", !models.empty() && models.size() == settings_.size());
  // Each model has tables of its own length, so that it computes the same bits as without the other models.
  std::vector<std::int64_t> positions;
  const auto prepare = [&](ReaderSettings& own) {
    own.replay = true;  // allowed, because the rank has no other user
    limit_passes(own, rank_.device().properties(), own.pass_tokens);
  };
  for (ReaderSettings& own : settings_) {
    prepare(own);
    positions.push_back(own.capacity);
  }
  if (batch_) {
    prepare(batch_->settings);
    positions.front() = std::max(positions.front(), batch_->settings.capacity);
  }
  const std::int64_t available = memory_for_reading(rank_.device());
  const auto plan = [&](const InferenceModels& measured) {
    std::vector<PlannedReader> readers;
    for (std::size_t i = 0; i < measured.size(); ++i) readers.push_back({&measured[i]->model, &settings_[i]});
    const engine::RowAdapters adapters = adapters_of(measured, batch_);
    if (batch_) readers.push_back({&measured.front()->model, &batch_->settings, &adapters});
    return measure_readers(rank_, readers, available);
  };
  const DType compute = settings_.front().compute;
  if (batch_ && available > 0) {
    const std::vector<ReaderSettings> settings_before = settings_;
    const ReaderSettings batch_before = batch_->settings;
    if (plan(make_models(rank_, models, families, compute, positions)).total() > available) {
      batch_.reset();
    } else {
      batch_->settings = batch_before;
    }
    settings_ = settings_before;
    rank_.forget_measurement();
  }
  models_ = planned_models(rank_, models, families, compute, positions, plan);
  adapters_ = adapters_of(models_, batch_);
}

DecodeScheduler& AdapterDecoder::use(std::size_t model) {
  if (!decoder_ || used_ != model) {
    decoder_.reset();  // releases its cache before the next one is allocated
    decoder_.emplace(rank_, models_[model]->model, settings_[model]);
    used_ = model;
  }
  return *decoder_;
}

DecodeScheduler& AdapterDecoder::use_batch() {
  PRIMUS_CHECK("AdapterDecoder::use_batch", batch_);
  if (!decoder_ || used_) {
    decoder_.reset();
    decoder_.emplace(rank_, models_.front()->model, batch_->settings, DecodeScheduler::Agree(), &adapters_);
    used_.reset();
  }
  return *decoder_;
}

}  // namespace primus
