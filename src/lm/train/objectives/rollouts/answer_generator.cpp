#include "lm/train/objectives/rollouts/answer_generator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random/random.h"

namespace primus {

AnswerGenerator::AnswerGenerator(TrainingSession& session) : session_(session), vote_(session) {
  PRIMUS_CHECK("AnswerGenerator", session.decoding().has_value());
  chosen_ = session.rank().persistent(DType::kI32, {session.decoding()->sequences + 1});
}

bool AnswerGenerator::together() const {
  return session_.decoding()->parallel != nullptr || session_.rank().mesh().experts() != nullptr;
}

double AnswerGenerator::generate(const GenerateSettings& settings, std::span<const Job> jobs) {
  const auto decoder = make_decoder();
  for (const Job& job : jobs) {
    GenerateSettings own = settings;
    own.sampling.seed = job.seed;
    decoder->submit({.prompt = job.rollout->prompt,
                     .settings = std::move(own),
                     .on_token = [&rollout = *job.rollout](const DecodedToken& token) {
                       rollout.answer.push_back(token.id);
                       rollout.log_probs.push_back(*token.log_prob);
                       rollout.finished = token.end == StopReason::kStopToken;
                       return true;
                     }});
  }
  while (decoder->step() && !stopping()) continue;
  double tokens = 0;
  for (const Job& job : jobs) tokens += static_cast<double>(job.rollout->answer.size());
  return tokens;
}

std::unique_ptr<DecodeScheduler> AnswerGenerator::make_decoder() {
  if (!session_.decoding()->parallel) session_.parallel().wait_for_all_values();
  leader_stops_ = false;
  return session_.make_decoder(agree());
}

bool AnswerGenerator::stopping() const {
  return groups().empty() ? session_.stop_requested() : leader_stops_;
}

bool AnswerGenerator::leads() const {
  const engine::Mesh& mesh = session_.rank().mesh();
  if (together()) return mesh.rank() == 0;
  const engine::MeshPlace& place = mesh.place();
  return place.tensor == 0 && place.context == 0 && place.stage == 0;
}

std::vector<comm::Communicator*> AnswerGenerator::groups() const {
  engine::Mesh& mesh = session_.rank().mesh();
  std::vector<comm::Communicator*> groups;
  if (together()) {
    groups = {mesh.world()};
  } else {
    // The tokens are first broadcast within each stage, then from the first stage to the other stages.
    groups = {mesh.sequence(), mesh.pipeline()};
  }
  std::erase(groups, nullptr);
  return groups;
}

// Returns the function that makes ranks that generate together use the same tokens and stop together.
DecodeScheduler::Agree AnswerGenerator::agree() {
  engine::Rank& rank = session_.rank();
  const std::vector<comm::Communicator*> groups = this->groups();
  if (groups.empty()) return {};
  return [this, &rank, groups](std::span<std::int32_t> chosen) {
    std::vector<std::int32_t> words(chosen.begin(), chosen.end());
    words.push_back(session_.stop_requested() ? 1 : 0);
    const Tensor tokens = chosen_.slice(0, std::ssize(words));
    rank.compute().copy_to_device(tokens.data, words.data(), tokens.bytes());
    for (comm::Communicator* group : groups) group->broadcast(rank.compute(), tokens, 0);
    rank.compute().copy_to_host(words.data(), tokens.data, tokens.bytes());
    rank.compute().synchronize();
    leader_stops_ = words.back() != 0;
    std::copy_n(words.begin(), chosen.size(), chosen.begin());
  };
}

void reserve_decoder(SessionSettings& settings, std::int64_t prompt_and_answer, int data_ranks,
                     bool together) {
  // More answers at a time make each pass more efficient. The pages of the cache do not grow with this number
  // (TrainingSession): if there are no more pages, the youngest answers wait. States grow with this number.
  constexpr std::int64_t kMaxWithStates = 64, kMaxWithPages = 256;
  const ModelConfig& model = settings.model;
  const bool states =
      model.any_keeps(Keeps::kInputs) || model.any_keeps(Keeps::kState) || model.any_keeps(Keeps::kPooled);
  const std::int64_t maximum = states ? kMaxWithStates : kMaxWithPages;
  const std::int64_t own = settings.step.micro_batch * settings.step.microbatches;
  settings.sample_capacity = std::max(settings.sample_capacity, prompt_and_answer);
  settings.sample_sequences = std::min(maximum, together ? own * data_ranks : own);
  settings.sample_pass_tokens = settings.sample_capacity * settings.sample_sequences;
}

bool generates_together(const SessionSettings& settings, const engine::MeshShape& shape, int world) {
  return world > 1 &&
         (settings.sharding == engine::Sharding::kParameters || shape.expert * shape.expert_tensor > 1);
}

std::uint64_t seed_of_answer(std::uint64_t seed, std::int64_t step, std::int64_t answer) {
  // Draws from layer 1 of the stream, because sample_token() draws from layer 0.
  const RandomStream stream(seed, RandomPurpose::kSampling, static_cast<std::uint32_t>(step),
                            static_cast<std::uint32_t>(answer), 1);
  const Philox::Counter bits = stream.quad(0);
  return std::uint64_t{bits[0]} << 32 | bits[1];
}

}  // namespace primus
