#include "turbo/indexer/indexer.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class IndexerChecks final : public OperatorChecks {
  void run() override {
    const Tensor q = bf16({kTokens, 24});
    const Tensor selected = i32({kTokens, 5});
    const Tensor weights = f32({kTokens, 3});
    const Tensor rows = i32({kTokens});
    using Is = IndexerSelect;
    expect_checks<Is>({.shape = {.batch = 2, .seq_q = 3, .seq_k = 5, .heads = 3, .head_dim = 8, .top_k = 5},
                       .q = q,
                       .k = bf16({10, 8}),
                       .w = weights,
                       .first_row = rows,
                       .end_row = rows,
                       .selected = selected},
                      {&Is::q, &Is::k, &Is::w, &Is::first_row, &Is::end_row, &Is::selected}, {},
                      {[](Is& a) { a.shape.batch = 0; }, [](Is& a) { a.shape.stride = 0; },
                       [](Is& a) { a.shape.q_first = -1; }, [](Is& a) { a.shape.top_k = 4; }});
    using Pi = PagedIndexerSelect;
    expect_checks<Pi>({.sequences = {.query_starts = i32({4}),
                                     .key_lengths = i32({3}),
                                     .block_table = i32({3, 5}),
                                     .page_size = 64},
                       .heads = 3,
                       .head_dim = 8,
                       .top_k = 5,
                       .q = q,
                       .pages = bf16({128, 8}),
                       .w = weights,
                       .selected = selected},
                      {&Pi::q, &Pi::pages, &Pi::w, &Pi::selected}, {},
                      {[](Pi& a) { a.top_k = 0; }, [](Pi& a) { a.heads = 0; },
                       [](Pi& a) { a.sequences.key_lengths = i32({2}); }});
  }
};

}  // namespace

extern const OperatorCheck kIndexer{"indexer", make_checks<IndexerChecks>};

}  // namespace primus::turbo::test
