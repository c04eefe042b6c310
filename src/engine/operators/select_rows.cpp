#include "engine/operators/select_rows.h"

#include "base/check.h"
#include "turbo/embedding/embedding.h"

namespace primus::engine {
namespace {

struct SelectRows {
  enum In : InputName { kRows, kX };
  enum Out : OutputName { kY };
};

// Uses the kernel of the embedding lookup, which also selects rows.
void forward(OperatorCall& op) {
  turbo::launch(op.context(), turbo::EmbeddingForward{.tokens = op.in(SelectRows::kRows),
                                                      .table = op.in(SelectRows::kX),
                                                      .out = op.out(SelectRows::kY)});
}

constexpr Operator kSelectRows{
    .name = "select_rows", .operator_class = OperatorClass::kEmbedding, .forward = forward};

}  // namespace

Value select_rows(const Value& x, const Value& rows) {
  PRIMUS_CHECK("select_rows", !x.tape().training());
  return x.tape().record(
      kSelectRows, {{SelectRows::kRows, rows}, {SelectRows::kX, x}}, nullptr,
      {{SelectRows::kY, x.dtype(), Shape{rows.shape()[0], x.shape()[1]}, false}})[SelectRows::kY];
}

}  // namespace primus::engine
