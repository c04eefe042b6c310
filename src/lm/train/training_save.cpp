#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "lm/data/chat_template.h"
#include "lm/generate/generation_config.h"
#include "lm/train/fp8_state.h"
#include "lm/train/training_run.h"

namespace primus {
namespace {}  // namespace

std::optional<std::string> Trainer::Run::newest_checkpoint() const {
  const CheckpointRoot checkpoints(checkpoint_root_of(e));
  const auto saved = checkpoints.latest();
  return saved ? std::optional(checkpoints.folder(*saved).string()) : std::nullopt;
}

void Trainer::Run::record_end(const TrainingSummary& summary) const {
  using State = RunEnding::State;
  const std::string reason = summary.interrupted      ? summary.stopped_by
                             : summary.reached_target ? "target_eval_loss"
                                                      : "";
  monitor->end({.state = summary.interrupted ? State::kStopped : State::kFinished,
                .reason = reason,
                .text = "",
                .iteration = iteration});
}

void Trainer::Run::record_failure(const std::exception& error) const {
  monitor->end(ending_of(error, iteration));
}

std::vector<Snapshot::Blob> Trainer::Run::make_model_files() const {
  std::vector<Snapshot::Blob> files{{"config.json", write_model_config(model, settings.compute, families)}};
  // How the model that was loaded wants to be sampled is still true of it.
  constexpr const char* kGeneration = "generation_config.json";
  const Path loaded = c.load ? loaded_folder(*c.load) : Path();
  if (c.load && Env::posix().status(loaded / kGeneration)) {
    constexpr std::uint64_t kLimit = 1 << 20;
    files.push_back({kGeneration, read_file(loaded / kGeneration, kLimit)});
  }
  // The tokenizer belongs to the model folder; kinds without a Hugging Face form (null, byte) are left out.
  const Path scratch = folder.root() / ".tokenizer";
  remove_tree(scratch);
  try {
    make_folders(scratch);
    tokenizer->save(scratch);
    for (const std::string& name : Env::posix().list(scratch))
      files.push_back({name, read_file(scratch / name)});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
  }
  remove_tree(scratch);
  objective->finish_model_files(data_request(), model, files);
  return files;
}

std::string Trainer::Run::trainer_state() const {
  const bool is_cyclic = objective->depends_on_ranks(c);
  return write_trainer_state({.iteration = iteration,
                              .consumed_samples = iteration * c.global_batch_size,
                              .global_batch_size = c.global_batch_size,
                              .seed = c.seed,
                              .nan_iterations = nan_iterations,
                              .lm_loss = result.loss,
                              .train_iters = total_steps(),
                              .clock = clock ? std::optional(clock->state()) : std::nullopt,
                              .learning_rate = last_rate,
                              .cyclic_ranks = is_cyclic ? cyclic_order.dp_size : 0,
                              .cyclic_micro_batch_size = is_cyclic ? cyclic_order.micro_batch_size : 0,
                              .experiment = experiment_text(e),
                              .optimizer = names_of(session->optimizer().rules()),
                              .base = base,
                              .tokenizer = tokenizer_identity(),
                              .data = data_identity()});
}

void Trainer::Run::save() {
  if (last_saved == iteration) return;
  finish_step();
  if (clock) {
    const double now = monotonic_seconds();
    clock->set_seconds(1e-6 * static_cast<double>(ranks.from_first(std::llround(1e6 * clock->seconds(now)))),
                       now);
  }
  const comm::Activity busy = ranks.busy("saving a checkpoint");
  const RunTrace::HostWork saved(trace.get(), "begin a checkpoint");
  const double began = monotonic_seconds();
  rank->synchronize();
  monitor->sync();
  Snapshot snapshot;
  snapshot.iteration = iteration;
  snapshot.files = model_files;
  snapshot.trainer_state = trainer_state();
  snapshot.model = model_sources(session->store(), *reader);
  if (!c.no_save_optim) {
    snapshot.optimizer = optimizer_sources(session->store(), *reader);
    if (const engine::DelayedScales* const scales = session->scales()) {
      for (TensorSource& source : scale_sources(*scales, *rank, *reader))
        snapshot.optimizer.push_back(std::move(source));
    }
  }
  using Sources = AsyncWriter::Sources;
  const Sources changing = device_properties.host_memory ? Sources::kLive : Sources::kOnDevice;
  // Waiting for the files makes a copy needless: nothing changes meanwhile.
  writer->save(std::move(snapshot), c.async_save ? changing : Sources::kStable);
  last_saved = iteration;
  log_written();  // the one before, which became durable while the writer was waited for
  monitor->checkpoint(iteration, CheckpointFacts::State::kSaving);
  if (!c.async_save) writer->wait();
  log.info("saving iteration {}: training paused {:.1f} ms", iteration, 1e3 * (monotonic_seconds() - began));
}

void Trainer::Run::log_written() {
  const std::optional<std::int64_t> saved = writer->last_saved();
  if (!saved || std::exchange(last_logged_save, *saved) == *saved) return;
  monitor->checkpoint(*saved, CheckpointFacts::State::kDurable);
  const WrittenBytes written = writer->last_written();
  log.debug("iteration {} is saved: {} of this rank's {} of tensors went past the page cache", *saved,
            human_bytes(static_cast<double>(written.direct)), human_bytes(static_cast<double>(written.all)));
}

}  // namespace primus
