// Generates conversations of several turns (episodes.h) with the current weights of a training session.
//
// The cache of an episode stays in place while the environment replies, and other episodes are generated
// meanwhile. Therefore, the texts of a pass depend on the speed of the environment, and so does the rounding
// of logits, unless the run is batch-invariant. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lm/train/objectives/rollouts/answer_generator.h"
#include "lm/train/objectives/rollouts/episodes.h"
#include "lm/train/step/session.h"

namespace primus {

class EpisodeGenerator {
 public:
  // Allocates persistent memory, so construct it in LossRule::prepare(). `generator` must outlive this
  // object.
  EpisodeGenerator(TrainingSession& session, AnswerGenerator& generator);

  struct Work {
    double tokens = 0;   // number of generated tokens
    double waiting = 0;  // seconds in which all texts waited for the environment
  };
  // Like AnswerGenerator::generate(). GenerateSettings::max_tokens counts generated and appended tokens, and
  // `turns` is the max number of turns. Also throws the errors of Environment::receive().
  Work generate(const GenerateSettings& settings, std::span<const AnswerGenerator::Job> jobs,
                const EpisodeSource& source, std::int64_t turns);

 private:
  // Replaces `text` by the text of the rank that leads, and hears whether that rank stops.
  void share(std::string& text);

  TrainingSession& session_;
  AnswerGenerator& generator_;
  Tensor words_;  // int32 [kWords]: a part of a text that ranks exchange; absent if no other rank generates
                  // the same answers
};

}  // namespace primus
