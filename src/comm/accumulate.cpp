#include "comm/accumulate.h"

#include <stdexcept>
#include <type_traits>

#include "tensor/bfloat16.h"
#include "tensor/float16.h"

namespace primus::comm {
namespace {

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

template <class T>
void assign(void* accumulator, const void* in, std::int64_t count) {
  auto* to = static_cast<Accumulator<T>*>(accumulator);
  const auto* from = static_cast<const T*>(in);
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Accumulator<T>>(from[i]);
}

template <class T, Reduction kReduction>
Accumulator<T> combine(Accumulator<T> sum, Accumulator<T> x) {
  if constexpr (kReduction == Reduction::kMax) {
    // The maximum of a NaN and any number is NaN. `x != x` tests for NaN.
    const bool takes = x > sum || x != x;
    return takes ? x : sum;
  } else if constexpr (std::is_integral_v<T>) {  // unsigned addition, for which overflow is defined
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(sum) + static_cast<U>(x)));
  } else {
    return sum + x;
  }
}

template <class T, Reduction kReduction>
T finished(Accumulator<T> sum, [[maybe_unused]] Accumulator<T> size) {
  if constexpr (kReduction == Reduction::kMean) {
    return static_cast<T>(sum / size);
  } else {
    return static_cast<T>(sum);
  }
}

template <class T, Reduction kReduction>
void add(void* accumulator, const void* in, std::int64_t count) {
  auto* to = static_cast<Accumulator<T>*>(accumulator);
  const auto* from = static_cast<const T*>(in);
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = combine<T, kReduction>(to[i], static_cast<Accumulator<T>>(from[i]));
  }
}

template <class T, Reduction kReduction>
void merge(void* accumulator, const void* other, std::int64_t count) {
  auto* to = static_cast<Accumulator<T>*>(accumulator);
  const auto* from = static_cast<const Accumulator<T>*>(other);
  for (std::int64_t i = 0; i < count; ++i) to[i] = combine<T, kReduction>(to[i], from[i]);
}

template <class T, Reduction kReduction>
void store(void* out, const void* accumulator, std::int64_t count, int size) {
  auto* to = static_cast<T*>(out);
  const auto* sums = static_cast<const Accumulator<T>*>(accumulator);
  const auto divisor = static_cast<Accumulator<T>>(size);
  for (std::int64_t i = 0; i < count; ++i) to[i] = finished<T, kReduction>(sums[i], divisor);
}

template <class T, Reduction kReduction>
void add_store(void* out, const void* accumulator, const void* in, std::int64_t count, int size) {
  auto* to = static_cast<T*>(out);
  const auto* sums = static_cast<const Accumulator<T>*>(accumulator);
  const auto* from = static_cast<const T*>(in);
  const auto divisor = static_cast<Accumulator<T>>(size);
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = finished<T, kReduction>(combine<T, kReduction>(sums[i], static_cast<Accumulator<T>>(from[i])),
                                    divisor);
  }
}

template <class T, Reduction kReduction>
Accumulate make() {
  return {&assign<T>,
          &add<T, kReduction>,
          &store<T, kReduction>,
          &merge<T, kReduction>,
          &add_store<T, kReduction>,
          sizeof(Accumulator<T>)};
}

template <class T>
Accumulate make(Reduction reduction) {
  if (reduction == Reduction::kMax) return make<T, Reduction::kMax>();
  if constexpr (!std::is_integral_v<T>) {
    if (reduction == Reduction::kMean) return make<T, Reduction::kMean>();
  }
  return make<T, Reduction::kSum>();
}

}  // namespace

Accumulate accumulate_for(DType dtype, Reduction reduction) {
  switch (dtype) {
    case DType::kF32:
      return make<float>(reduction);
    case DType::kF64:
      return make<double>(reduction);
    case DType::kBF16:
      return make<BFloat16>(reduction);
    case DType::kF16:
      return make<Float16>(reduction);
    case DType::kI32:
      return make<std::int32_t>(reduction);
    case DType::kI64:
      return make<std::int64_t>(reduction);
    case DType::kU8:
      return make<std::uint8_t>(reduction);
    default:
      throw std::logic_error("communicator: this type cannot be reduced");
  }
}

}  // namespace primus::comm
