// Settings of a reader (batch_reader.h), and the results that its caller needs from a pass.
#pragma once

#include <cstdint>

#include "engine/parallel/data_parallel.h"
#include "engine/parallel/pipeline_schedule.h"
#include "tensor/dtype.h"

namespace primus {

struct ReaderSettings {
  static constexpr std::int64_t kPageTokens = 64;

  DType compute = DType::kF32;  // compute type: fp32 or bf16
  // Max tokens of a sequence; at most the model's max_positions and the length of its tables.
  std::int64_t capacity = 0;
  // Max tokens of a pass. A pass always has room for at least one token per sequence. pass_tokens.h has the
  // rule by which programs choose this number.
  std::int64_t pass_tokens = 128;
  // Max tokens of a pass that also generates tokens, so that texts do not wait long for their next token
  // while a long prompt is read. 0: pass_tokens.
  std::int64_t generating_pass_tokens = 0;
  std::int64_t sequences = 1;  // max number of sequences that are read concurrently
  // Number of pages for all sequences together; a page holds kPageTokens tokens. 0: enough pages for all
  // sequences at full capacity.
  std::int64_t pages = 0;
  // Allows recording and replaying passes that generate a token. Nothing else may use the rank's stash and
  // scratch.
  bool replay = false;
  // Keeps the logits of a pass in fp32, so that log_probs() need not multiply by the head again. Without
  // effect if ranks share the model, or if the model has no such logits (LanguageModel::has_loss_logits).
  bool keep_logits = false;
  // Gathers the weights if they are sharded over data ranks. Null: this rank has all weights.
  engine::DataParallel* parallel = nullptr;
  engine::PipelineShape pipeline = {};  // division of the model into pipeline stages

  std::int64_t pages_for(std::int64_t tokens) const { return (tokens + kPageTokens - 1) / kPageTokens; }
  std::int64_t all_pages() const { return pages > 0 ? pages : sequences * pages_for(capacity); }
};

// The results that the caller needs from a pass.
struct WantedLogits {
  std::int64_t top_k = 0;  // the top_k largest logits suffice; 0: all logits are needed
  std::int64_t vocab = 0;  // only logits of ids below `vocab` are needed; 0: logits of all ids
  bool log_probs = false;  // whether log_probs() will be called
  // With top_k 0: the device draws the token of each text (BatchReader::Input::draw), so that no logits are
  // copied to the host.
  bool draws = false;
};

}  // namespace primus
