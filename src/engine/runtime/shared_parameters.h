// Several stores that share parameters in memory: a base model, and models that add their own parameters to
// it (adapters). Not thread-safe.
#pragma once

#include <cstdint>

#include "engine/runtime/parameters.h"
#include "tensor/arena.h"

namespace primus::engine {

// Selects the parameters of a base model that other models use.
enum class Shared : std::uint8_t {
  kAll,     // the base model is only read
  kFrozen,  // the base model is trained, so only its frozen parameters
};

// Allocates `store` as ParameterStore::allocate() does. Frozen parameters (Parameter::trainable is false)
// that `which` includes get no memory: they use the memory of the parameters of `base` with the same names.
// These parameters no longer belong to a group of `store`: loading and initializing `store` leaves them
// unchanged. `base` must have the same layout, with complete parameters in memory, must be allocated before,
// and must outlive `store`. Call once, after the last add(). Throws Error(kInvalid) if `base` has no such
// parameter, or one of another shape or type.
void allocate_beside(ParameterStore& store, const ParameterStore& base, const ParameterStore::Layout& layout,
                     Arena& arena, Shared which = Shared::kAll);

// Returns whether the parameter of `store` uses the memory of another store.
bool is_shared(const ParameterStore& store, const Parameter& parameter);

}  // namespace primus::engine
