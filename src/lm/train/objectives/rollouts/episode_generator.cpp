#include "lm/train/objectives/rollouts/episode_generator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/terminal/terminal.h"

namespace primus {
namespace {

constexpr std::int64_t kWords = 1024;

// An episode, as all ranks that generate it see it.
struct Running {
  DecodeScheduler::Id id = 0;
  std::size_t turn = 0;              // index in Rollout::answer at which the current turn begins
  std::optional<bool> cut_off = {};  // set when a turn has ended: whether it was cut off
};

}  // namespace

EpisodeGenerator::EpisodeGenerator(TrainingSession& session, AnswerGenerator& generator)
    : session_(session), generator_(generator) {
  if (!generator.groups().empty()) words_ = session.rank().persistent(DType::kI32, {kWords});
}

EpisodeGenerator::Work EpisodeGenerator::generate(const GenerateSettings& settings,
                                                  std::span<const AnswerGenerator::Job> jobs,
                                                  const EpisodeSource& source, std::int64_t turns) {
  constexpr std::chrono::milliseconds kWait(100);  // so that a request to stop the run is noticed
  const auto decoder = generator_.make_decoder();
  std::optional<Episodes> led;
  if (generator_.leads()) led.emplace(source, EpisodeLimits{.turns = turns, .tokens = settings.max_tokens});
  std::vector<Running> running(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    Rollout& rollout = *jobs[i].rollout;
    if (led) led->add(rollout, jobs[i].seed);
    GenerateSettings own = settings;
    own.sampling.seed = jobs[i].seed;
    running[i].id = decoder->submit({.prompt = rollout.prompt,
                                     .settings = std::move(own),
                                     .on_token =
                                         [&rollout, &one = running[i]](const DecodedToken& token) {
                                           rollout.answer.push_back(token.id);
                                           rollout.generated.push_back(1);
                                           rollout.log_probs.push_back(*token.log_prob);
                                           if (token.end) one.cut_off = token.end != StopReason::kStopToken;
                                           return true;
                                         },
                                     .holds = true});
  }
  Work work;
  std::size_t waiting = 0;  // number of episodes that wait for the environment
  while (true) {
    const bool decodes = decoder->step();
    if (generator_.stopping()) return work;
    for (std::size_t i = 0; i < running.size(); ++i) {
      const std::optional<bool> cut = std::exchange(running[i].cut_off, std::nullopt);
      if (!cut) continue;
      if (led) led->end_turn(i, running[i].turn, *cut);
      ++waiting;
    }
    if (waiting == 0) {
      if (!decodes) break;
      continue;
    }
    const double began = steady_seconds();
    std::vector<EpisodeEvent> events;
    if (led) events = led->receive(decodes ? std::chrono::milliseconds(0) : kWait);
    if (!words_.absent()) {
      std::string text = led && !events.empty() ? text_of(events) : std::string();
      share(text);
      if (generator_.stopping()) return work;
      if (!led && !text.empty()) events = events_of(text);
    }
    if (!decodes) work.waiting += steady_seconds() - began;
    for (EpisodeEvent& event : events) {
      Rollout& rollout = *jobs[event.episode].rollout;
      Running& one = running[event.episode];
      --waiting;
      if (event.tokens.empty()) {
        decoder->cancel(one.id);
        rollout.finished = event.finished;
        rollout.episode = std::move(event.outcome);
        continue;
      }
      decoder->extend(one.id, event.tokens);
      rollout.answer.insert(rollout.answer.end(), event.tokens.begin(), event.tokens.end());
      rollout.generated.resize(rollout.answer.size(), 0);
      rollout.log_probs.resize(rollout.answer.size(), 0);
      one.turn = rollout.answer.size();
    }
  }
  for (const AnswerGenerator::Job& job : jobs)
    work.tokens += static_cast<double>(job.rollout->generated_tokens());
  return work;
}

void EpisodeGenerator::share(std::string& text) {
  engine::Rank& rank = session_.rank();
  const auto broadcast = [&](std::span<std::int32_t> words) {
    const Tensor part = words_.slice(0, std::ssize(words));
    rank.compute().copy_to_device(part.data, words.data(), part.bytes());
    for (comm::Communicator* const group : generator_.groups()) group->broadcast(rank.compute(), part, 0);
    rank.compute().copy_to_host(words.data(), part.data, part.bytes());
    rank.compute().synchronize();
  };
  std::array<std::int32_t, 2> head = {static_cast<std::int32_t>(text.size()),
                                      session_.stop_requested() ? 1 : 0};
  broadcast(head);
  text.resize(static_cast<std::size_t>(head[0]));
  generator_.hear_stop(head[1] != 0);
  constexpr std::size_t kPart = kWords * sizeof(std::int32_t);
  for (std::size_t begin = 0; begin < text.size(); begin += kPart) {
    const std::size_t size = std::min(kPart, text.size() - begin);
    std::vector<std::int32_t> words((size + sizeof(std::int32_t) - 1) / sizeof(std::int32_t));
    std::memcpy(words.data(), text.data() + begin, size);
    broadcast(words);
    std::memcpy(text.data() + begin, words.data(), size);
  }
}

}  // namespace primus
