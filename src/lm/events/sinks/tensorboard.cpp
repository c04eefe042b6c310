// Writes scalars for TensorBoard under Megatron's tags, so that runs of Megatron and of Primus share charts.
// Except for TFLOP/s, the tags "throughput/..." exist only in Primus.
#include <cmath>
#include <vector>

#include "lm/events/event_file.h"
#include "lm/events/run_listener.h"

namespace primus {
namespace {

std::vector<Scalar> scalars_of(const IterationRecord& record) {
  const Speed& now = record.throughput.now;
  std::vector<Scalar> scalars = {{"lm loss", record.lm_loss},
                                 {"learning-rate", record.learning_rate},
                                 {"batch-size", static_cast<double>(record.global_batch_size)},
                                 {"loss-scale", record.loss_scale},
                                 {"iteration-time", now.seconds_per_iteration},
                                 {"throughput", now.flops_per_second / 1e12},
                                 {"throughput/tokens-per-second", now.tokens_per_second},
                                 {"throughput/data-wait-share", now.data_wait_share}};
  if (now.mfu) scalars.push_back({"throughput/mfu", *now.mfu});
  if (record.grad_norm) scalars.push_back({"grad-norm", *record.grad_norm});
  if (record.num_zeros) scalars.push_back({"num-zeros", static_cast<double>(*record.num_zeros)});
  for (const auto& [name, value] : record.other_losses) scalars.push_back({name, value});
  if (!record.routing.empty()) {
    const RoutingSummary routing = summarise(record.routing);
    scalars.push_back({"moe/imbalance", routing.imbalance});
    scalars.push_back({"moe/imbalance-worst-layer", routing.worst.imbalance});
    scalars.push_back({"moe/dropped", routing.dropped});
  }
  if (record.memory) scalars.push_back({"mem-allocated-bytes", record.memory->used});
  return scalars;
}

class TensorBoard final : public RunListener {
 public:
  explicit TensorBoard(const ListenerContext& c)
      : file_(c.run.tensorboard(), c.options.resume_iteration + 1, unix_seconds(), c.env),
        interval_(c.options.tensorboard_log_interval) {}

  bool wants(EventKind kind) const override {
    return kind == EventKind::kStep || kind == EventKind::kEvaluation;
  }
  void on(const RunEvent& event) override {
    if (const auto* step = event.as<IterationRecord>()) {
      if (interval_ > 0 && event.step % interval_ == 0) write(event, scalars_of(*step));
    } else if (const auto* evaluation = event.as<EvaluationRecord>()) {
      const std::string loss = "lm loss " + evaluation->data_set, perplexity = loss + " ppl";
      write(event, {{loss, evaluation->lm_loss}, {perplexity, std::exp(evaluation->lm_loss)}});
    }
  }
  std::uint64_t dropped() const override { return file_.dropped(); }

 private:
  void write(const RunEvent& event, const std::vector<Scalar>& scalars) {
    if (!file_.write(event.step, scalars, event.time)) throw Error(ErrorKind::kIo, file_.last_error());
  }

  EventFile file_;
  int interval_;
};

}  // namespace

extern const ListenerEntry kTensorBoard{
    "the TensorBoard file", false, [](const ListenerContext& c) -> std::unique_ptr<RunListener> {
      return c.options.tensorboard ? std::make_unique<TensorBoard>(c) : nullptr;
    }};

}  // namespace primus
