// Generates answers with the current weights of a training session.
//
// Ranks with the same sequences (tensor, context and pipeline ranks) generate together. With expert
// parallelism or sharded parameters, every rank needs all others in each pass, so all ranks generate the same
// answers. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lm/decode/scheduler.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/stop_vote.h"
#include "lm/train/step/session.h"

namespace primus {

class AnswerGenerator {
 public:
  struct Job {
    Rollout* rollout = nullptr;  // has its prompt; receives the answer
    std::uint64_t seed = 0;
  };

  // Allocates persistent memory, so construct it in LossRule::prepare(). The session has a decoder.
  explicit AnswerGenerator(TrainingSession& session);

  // Returns whether all ranks of the mesh must generate the same answers.
  bool together() const;
  // Generates the answers. `settings` apply to all answers, apart from the seed. Ranks that generate
  // together have the same jobs. Returns the number of generated tokens. If the run is asked to stop,
  // returns before the answers are complete; the caller then calls leave_if_asked().
  double generate(const GenerateSettings& settings, std::span<const Job> jobs);

  // Returns a scheduler that generates with the current weights. No step may run while it exists.
  std::unique_ptr<DecodeScheduler> make_decoder();
  // Returns the groups of ranks that generate the same answers. A broadcast from rank 0 of each group, in
  // this order, reaches all these ranks from the rank that leads them.
  std::vector<comm::Communicator*> groups() const;
  // Throws StopRequest on all ranks if any rank is asked to stop. All ranks of the mesh call it together.
  void leave_if_asked() { vote_.take(); }
  // Returns whether generation ends because the run is asked to stop. Ranks that generate the same answers
  // get the same result after each step of the decoder and after hear_stop().
  bool stopping() const;
  // Sets what the leading rank said about a stop.
  void hear_stop(bool stopping) { leader_stops_ = stopping; }
  // Returns whether this rank leads the ranks that generate the same answers.
  bool leads() const;

 private:
  DecodeScheduler::Agree agree();

  TrainingSession& session_;
  Tensor chosen_;  // what ranks exchange while they generate: tokens, and whether the leading rank stops
  bool leader_stops_ = false;
  StopVote vote_;
};

// Sets the memory of the decoder that the rule needs. `prompt_and_answer`: max number of tokens of a prompt
// with its answer. `data_ranks`: number of data ranks. `together`: whether all ranks generate all answers.
void reserve_decoder(SessionSettings& settings, std::int64_t prompt_and_answer, int data_ranks,
                     bool together);

// Returns whether all ranks of the mesh generate all answers, in a run on `world` ranks.
bool generates_together(const SessionSettings& settings, const engine::MeshShape& shape, int world);

// Returns the seed of an answer of a step.
std::uint64_t seed_of_answer(std::uint64_t seed, std::int64_t step, std::int64_t answer);

}  // namespace primus
