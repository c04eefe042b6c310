#include "lm/train/model_report.h"

#include "config/trainer_config.h"
#include "lm/train/step/session.h"
#include "turbo/devices/devices.h"

namespace primus {

ModelReport report_model(const ModelConfig& config, const FamilyRegistry& families, std::int64_t micro_batch,
                         std::int64_t sequence, const OptimizerSettings& optimizer) {
  ModelReport report{.flops_per_token = training_flops(config, 1, sequence) / static_cast<double>(sequence),
                     .training = {}};
  for (const DType compute : {DType::kBF16, DType::kF32}) {
    for (const bool recompute : {false, true}) {
      SessionSettings settings;
      settings.model = config;
      settings.compute = compute;
      settings.optimizer = optimizer;
      settings.step = {.micro_batch = micro_batch, .sequence = sequence};
      if (recompute) settings.step.recompute.full_layers = config.layers + config.mtp.modules();
      engine::Rank rank(turbo::measuring_device({.kind = "cpu", .threads = 1}));
      report.training.push_back({compute, recompute, measure_session(rank, settings, families).memory});
    }
  }
  return report;
}

}  // namespace primus
