#include "lm/train/sampler.h"

#include <cstring>
#include <span>
#include <string>

#include "config/trainer_config.h"
#include "lm/events/training_monitor.h"

namespace primus {

Sampler::Sampler(RunPlan& plan, const RunProgress& progress, TrainingSession& session)
    : plan_(plan), progress_(progress), session_(session) {
  // A run without steps has no training data, and writes no samples.
  if (session.decoding() && plan.datasets.train) prompt_ = find_prompt();
}

bool Sampler::is_due() {
  const std::optional<std::int64_t> interval = plan_.c.sample_interval;
  if (!interval || prompt_.empty() ||
      (progress_.iteration % *interval != 0 && progress_.iteration < progress_.last_iteration))
    return false;
  return plan_.ranks.from_first(!plan_.monitor->sampled(progress_.iteration) ? 1 : 0) == 1;
}

bool Sampler::write(const std::atomic<bool>& stop) {
  const ReaderSettings& decoding = *session_.decoding();
  if (!decoding.parallel) session_.parallel().wait_for_all_values();
  const bool together = BatchReader::reads_together(session_.rank(), decoding);
  const bool cut = (plan_.ranks.first() || together) && !write_own(stop, together);
  // any() also makes the other ranks wait for rank 0's text: the next collectives have a short timeout.
  if (!plan_.ranks.any(cut)) return true;
  plan_.log.info("stopped before the sample at iteration {} was generated: the next start generates it",
                 progress_.iteration);
  return false;
}

bool Sampler::write_own(const std::atomic<bool>& stop, bool together) {
  plan_.phase("writing a sample");
  // All ranks write the tokens that rank 0 chooses, even if their own logits were rounded differently. All
  // ranks stop when rank 0 stops.
  bool cut = false;
  const auto tell = [&](std::span<std::int32_t> chosen) {
    std::string bytes(reinterpret_cast<const char*>(chosen.data()), chosen.size_bytes());
    bytes.push_back(stop ? 1 : 0);
    bytes = plan_.ranks.from_first(bytes);
    std::memcpy(chosen.data(), bytes.data(), chosen.size_bytes());
    cut = bytes.back() != 0;
  };
  const auto decoder = together ? session_.make_decoder(tell) : session_.make_decoder();
  const std::span<const std::int32_t> prompt =
      fit_prompt(prompt_, decoder->capacity(), plan_.c.sample_tokens);
  SampleRecord record{
      .iteration = progress_.iteration, .prompt = plan_.tokenizer->decode(prompt), .text = {}};
  StreamDecoder stream(*plan_.tokenizer);
  const double began = monotonic_seconds();
  const Generation generation = generate(*decoder, prompt, settings(), [&](std::int32_t id) {
    record.text += stream.push(id);
    if (!together) cut = stop;
    return !cut;
  });
  plan_.phase("");
  if (cut) return false;  // an incomplete text is not recorded
  if (!plan_.ranks.first()) return true;
  record.text += stream.finish();
  record.tokens = static_cast<std::int64_t>(generation.ids.size());
  record.seconds = monotonic_seconds() - began;
  plan_.monitor->sample(record);
  return true;
}

GenerateSettings Sampler::settings() const {
  const SpecialIds& special = plan_.tokenizer->special_ids();
  GenerateSettings sampled{.sampling = {.temperature = 0.7, .top_k = 40},
                           .max_tokens = plan_.c.sample_tokens,
                           .vocab = plan_.tokenizer->vocab_size()};
  for (const auto& id : {special.eod, special.eos}) {
    if (id) sampled.stop_ids.push_back(*id);
  }
  for (const std::int64_t id : plan_.model.eos_ids) sampled.stop_ids.push_back(static_cast<std::int32_t>(id));
  return sampled;
}

std::vector<std::int32_t> Sampler::find_prompt() const {
  if (plan_.c.sample_prompt) {
    std::vector<std::int32_t> ids = plan_.tokenizer->encode(*plan_.c.sample_prompt);
    if (!ids.empty()) return ids;
  }
  return plan_.objective->sample_prompt(plan_.datasets, plan_.data_request());
}

}  // namespace primus
