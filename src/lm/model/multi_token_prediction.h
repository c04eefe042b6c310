// Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2): modules of depth k = 1, 2, ... follow
// the last block. The module of depth k predicts the token at distance k + 1 from the hidden states of the
// module of depth k - 1.
//
//   h_k[t] = norm_k(block_k(eh_proj_k · [enorm_k(embedding(token[t + k])); hnorm_k(h_(k-1)[t])]))
//   head(h_k[t]) predicts token[t + k + 1]
//
// h_0 is the model's output after its final norm. The modules use the model's embedding and head. block_k is
// built like the last layer, and its tokens keep their positions t. Megatron-LM
// (core/transformer/multi_token_prediction.py) trains modules and vLLM (deepseek_mtp.py) runs published
// weights in the same way. The tensors are
//   model.layers.{layers + k - 1}.{enorm, hnorm, eh_proj, shared_head.norm}.weight, the block's tensors, and
// embed_tokens and shared_head.head, which are copies of the model's embedding and head.
#pragma once

#include <memory>

#include "engine/parallel/parallel_operators.h"
#include "engine/runtime/parameters.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Returns the rows of `table` for the tokens, multiplied by ModelConfig::embedding_factor(): [T] int32 -> [T,
// hidden]. If the vocabulary is divided over ranks, returns only the rows of this rank's tokens.
engine::Value embed(const engine::Value& tokens, engine::Parameter& table,
                    const engine::SharedVocabulary& vocabulary, const EmbeddingScale& scaling);

// Stateless except for its parameters. Not thread-safe.
class MultiTokenPrediction {
 public:
  // Declares the parameters of the module of depth `depth` (1, 2, ...) as a unit of `store`. Records that
  // `chunk` uses `embedding` and `head` one additional time (-1: the module is on another rank).
  MultiTokenPrediction(const ModelConfig& config, const Family& family, engine::ParameterStore& store,
                       engine::Parameter& embedding, engine::Parameter& head, int depth, int chunk);

  // Computes h_k [T, hidden] from h_(k-1) [T, hidden] and the tokens token[t + k] for each t, [T] int32.
  engine::Value forward(const engine::Value& hidden, const engine::Value& tokens,
                        const BlockInputs& inputs) const;
  // As Block::end_step().
  void end_step(turbo::Context& context, const RoutingStep& step) const { block_->end_step(context, step); }

 private:
  std::int64_t layer_;
  double epsilon_;
  EmbeddingScale embedding_scale_;
  engine::SharedVocabulary vocabulary_;
  engine::Parameter& embedding_;
  engine::Parameter *embedding_norm_ = nullptr, *hidden_norm_ = nullptr;
  engine::Parameter* join_ = nullptr;  // weight of eh_proj, [hidden, 2 * hidden]
  std::unique_ptr<Block> block_;
  std::unique_ptr<StreamEnds> ends_;  // null if the residual stream is as wide as the hidden states
  engine::Parameter* final_norm_ = nullptr;
};

}  // namespace primus
