// Errors that kernels detect in their input. On a GPU the first fault of a stream is stored in memory that
// the host reads when it synchronises; the emulator throws it at once.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "device/gpu/target.h"

namespace primus::gpu {

struct Fault {
  enum class Kind : std::int32_t { kNone, kTokenOutsideVocabulary, kLabelOutsideVocabulary };
  Kind kind = Kind::kNone;
  std::int64_t value = 0, limit = 0;
};

inline Error to_error(const Fault& fault) {
  const char* what = fault.kind == Fault::Kind::kLabelOutsideVocabulary ? "label " : "token id ";
  return invalid(
      what + std::to_string(fault.value) + " is outside the vocabulary of " + std::to_string(fault.limit),
      "the data was made with another tokenizer than this model's");
}

namespace PRIMUS_GPU {

PRIMUS_DEVICE void report_fault(Fault* to, Fault::Kind kind, std::int64_t value, std::int64_t limit) {
#ifdef PRIMUS_GPU_VENDOR
  // Keeps the first fault of the stream. If several threads report at the same time, any of their faults may
  // be kept.
  if (to->kind != Fault::Kind::kNone) return;
  to->value = value;
  to->limit = limit;
  __threadfence_system();
  to->kind = kind;
#else
  (void)to;
  Fault fault;
  fault.kind = kind;
  fault.value = value;
  fault.limit = limit;
  throw to_error(fault);
#endif
}

}  // namespace PRIMUS_GPU
}  // namespace primus::gpu
