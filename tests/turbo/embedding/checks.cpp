#include "turbo/embedding/embedding.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class EmbeddingChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    using Ef = EmbeddingForward;
    expect_checks<Ef>({.tokens = i32({kTokens}), .table = bf16({99, kWidth}), .out = x},
                      {&Ef::tokens, &Ef::table, &Ef::out}, {}, {[](Ef& a) { a.first = 1; }});
    expect_checks<Ef>(
        {.tokens = i32({kTokens}), .table = bf16({99, kWidth}), .out = x, .first = 1, .vocabulary = 100}, {},
        {}, {[](Ef& a) { a.first = 2; }, [](Ef& a) { a.first = -1; }});
    using Eb = EmbeddingBackwardWeight;
    expect_checks<Eb>(
        {.tokens = i32({kTokens}), .d_out = x, .d_table = f32({99, kWidth}), .accumulate = false},
        {&Eb::tokens, &Eb::d_out, &Eb::d_table}, {},
        {[](Eb& a) { a.first = 1; }, [](Eb& a) { a.vocabulary = 98; }});
  }
};

}  // namespace

extern const OperatorCheck kEmbedding{"embedding", make_checks<EmbeddingChecks>};

}  // namespace primus::turbo::test
