// Hyper-connections (turbo/hyper_connection) as operators of the tape: how a layer reads several residual
// streams and writes back to them.
//
//   auto [y, mixing] = hyper_read(x, parameters, shape);
//   x = hyper_write(x, layer(y), mixing, shape);
#pragma once

#include "engine/operators/operators.h"
#include "turbo/hyper_connection/hyper_connection.h"

namespace primus::engine {

struct HyperParameters {
  Parameter* fn = nullptr;     // [products(), streams*hidden], read in fp32
  Parameter* base = nullptr;   // [products()], in fp32
  Parameter* scale = nullptr;  // [scales()], in fp32
};

// A layer's input, [T, hidden], and the mixing weights of the streams, [T, mixing()] fp32.
struct HyperReading {
  Value y, mixing;  // `mixing` is empty if the shape has no iterations
};

// Computes a layer's input from the residual streams x, [T, streams*hidden].
HyperReading hyper_read(const Value& x, const HyperParameters& parameters, const turbo::HyperShape& shape);
// Returns the streams after a layer with output `out`, [T, hidden].
Value hyper_write(const Value& x, const Value& out, const Value& mixing, const turbo::HyperShape& shape);

}  // namespace primus::engine
