// Hyper-connections (turbo/hyper_connection) as operators of the tape: what a layer reads of several residual
// streams, and how it writes back.
//
//   auto [y, mixing] = hyper_read(x, parameters, shape);
//   x = hyper_write(x, layer(y), mixing, shape);
#pragma once

#include "engine/operators.h"
#include "turbo/hyper_connection/hyper_connection.h"

namespace primus::engine {

struct HyperParameters {
  Parameter* fn = nullptr;     // [products(), streams*hidden], read in fp32
  Parameter* base = nullptr;   // [products()], in fp32
  Parameter* scale = nullptr;  // [scales()], in fp32
};

// What a layer reads, [T, hidden], and what the streams are mixed by, [T, mixing()] fp32.
struct HyperReading {
  Value y, mixing;  // mixing is empty where the shape has no iterations
};

// x: [T, streams*hidden].
HyperReading hyper_read(const Value& x, const HyperParameters& parameters, const turbo::HyperShape& shape);
// The streams behind a layer that gave `out`, [T, hidden].
Value hyper_write(const Value& x, const Value& out, const Value& mixing, const turbo::HyperShape& shape);

}  // namespace primus::engine
