// Attention shapes in the format of AMD Primus: its default table, and files. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/operator_benchmark.h"

namespace primus {

// Returns AMD Primus's default shapes: Llama 2 and 3, Mixtral, with batch size 1.
std::vector<AttentionCase> usual_attention_shapes();

struct LeftOutShape {
  std::string model;  // name of the model; may be empty
  std::string why;    // why the shape was skipped, as a sentence for the report
};

// Parses a JSON list of objects with model (optional), seqlen_q, seqlen_kv, num_head_q, num_head_kv,
// head_dim_qk, head_dim_v and causal (default: true). Like AMD Primus, skips shapes whose seqlen_q and
// seqlen_kv differ, and reports them in `left_out`. Throws Error(kInvalid) at "source:line:column" for
// invalid input.
std::vector<AttentionCase> read_attention_shapes(std::string_view json, const std::string& source,
                                                 std::vector<LeftOutShape>& left_out);

}  // namespace primus
