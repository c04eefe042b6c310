#include "engine/select_rows.h"

#include "base/check.h"
#include "turbo/embedding/embedding.h"

namespace primus::engine {
namespace {

// An embedding lookup does the same.
void forward(OperatorCall& op) {
  turbo::launch(op.context(),
                turbo::EmbeddingForward{.tokens = op.in(0), .table = op.in(1), .out = op.out(0)});
}

constexpr Operator kSelectRows{
    .name = "select_rows", .operator_class = OperatorClass::kEmbedding, .forward = forward};

}  // namespace

Value select_rows(const Value& x, const Value& rows) {
  PRIMUS_CHECK("select_rows", !x.tape().training());
  return x.tape().record(kSelectRows, {&rows, &x}, nullptr,
                         {{x.dtype(), Shape{rows.shape()[0], x.shape()[1]}, false}})[0];
}

}  // namespace primus::engine
