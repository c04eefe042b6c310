// The lightning indexer of DeepSeek-V3.2 (arXiv:2512.02556), which selects the tokens that each token attends
// to. Its parameters are self_attn.indexer.{wq_b,wk,k_norm,weights_proj}.
//
// Selection has no gradient, so the language model loss does not train the indexer: its parameters keep their
// loaded or initial values. Every tensor rank has the complete indexer, and all ranks select the same tokens.
#pragma once

#include "engine/operators/operators.h"
#include "engine/operators/selected_attention.h"
#include "lm/model/blocks/block_parameters.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

class Indexer {
 public:
  Indexer(const ModelConfig& config, const BlockParameters& parameters);

  // Returns the tokens that the indexer selects for each token of the microbatch
  // (engine/operators/selected_attention.h). `h`: the normed stream, only this rank's tokens; `latents`: the
  // normed query latents of all tokens.
  engine::Value select(const engine::Value& h, const engine::Value& latents, const BlockInputs& in) const;

 private:
  engine::Value rotated(engine::Value x, std::int64_t heads, const BlockInputs& in) const;

  comm::Communicator* group_;  // the ranks over which the tokens are divided
  IndexerConfig config_;
  std::int64_t rope_dim_, layer_;
  engine::Parameter *queries_, *keys_, *norm_, *norm_bias_, *weights_;
};

}  // namespace primus
