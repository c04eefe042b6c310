#include "lm/train/trainer.h"

#include "lm/train/loaded_tokenizer.h"
#include "lm/train/training_run.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/linear/gemm_rate.h"

namespace primus {

Trainer::Trainer(const config::Experiment& experiment, const FamilyRegistry& families, Logger& log)
    : experiment_(with_loaded_tokenizer(experiment, notes_)), families_(families), log_(log) {}

Trainer::~Trainer() = default;

TrainingForecast Trainer::forecast() {
  const config::TrainerConfig& c = experiment_.trainer;
  std::vector<std::string> notes = notes_;
  // A forecast needs no tokenizer file where the experiment says how many tokens there are.
  const bool there = !c.vocab_size || !missing_tokenizer(c);
  const std::unique_ptr<const Tokenizer> tokenizer = there ? tokenizer_of(experiment_) : nullptr;
  const ModelConfig model = model_of(experiment_, families_, tokenizer.get(), &notes);
  for (const std::string& note : notes) log_.warning("{}", note);
  const SessionSettings settings = session_settings_of(experiment_, model);
  engine::Rank rank(turbo::make_cpu_device(static_cast<int>(c.num_threads)));
  TrainingForecast f{.model = model, .step = measure_session(rank, settings, families_)};
  f.model_flops_per_step = training_flops(model, c.global_batch_size, c.seq_length);
  f.steps = c.train_iters;
  f.tokens_per_step = c.global_batch_size * c.seq_length;
  f.checkpoint_bytes = checkpoint_bytes(f.step.parameters, settings, !c.no_save_optim);
  f.snapshot_bytes = c.async_save ? f.checkpoint_bytes : 0;
  f.matmul_flops_per_second = turbo::measure_gemm_rate(rank.device(), settings.compute, 0.2);
  f.seconds = f.step.kernels.total_flops() / f.matmul_flops_per_second * static_cast<double>(f.steps);
  return f;
}

void Trainer::prepare() {
  run_ = std::make_unique<Run>(experiment_, families_, log_, notes_);
  run_->prepare();
}

TrainingSummary Trainer::run(const std::atomic<bool>& stop) { return run_->execute(stop); }

}  // namespace primus
