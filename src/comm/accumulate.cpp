#include "comm/accumulate.h"

#include <stdexcept>
#include <type_traits>

#include "tensor/bfloat16.h"

namespace primus::comm {
namespace {

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <class T>
void assign(void* accumulator, const void* in, std::int64_t count) {
  auto* to = static_cast<Accumulator<T>*>(accumulator);
  const auto* from = static_cast<const T*>(in);
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Accumulator<T>>(from[i]);
}

template <class T>
void add(void* accumulator, const void* in, std::int64_t count) {
  auto* to = static_cast<Accumulator<T>*>(accumulator);
  const auto* from = static_cast<const T*>(in);
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {  // unsigned: wrapping is defined
      using U = std::make_unsigned_t<T>;
      to[i] = static_cast<T>(static_cast<U>(static_cast<U>(to[i]) + static_cast<U>(from[i])));
    } else {
      to[i] += static_cast<Accumulator<T>>(from[i]);
    }
  }
}

template <class T>
void maximum(void* accumulator, const void* in, std::int64_t count) {
  auto* to = static_cast<Accumulator<T>*>(accumulator);
  const auto* from = static_cast<const T*>(in);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto x = static_cast<Accumulator<T>>(from[i]);
    // A NaN is not smaller than anything, and nothing is larger than it: it stays.
    const bool takes = x > to[i] || x != x;
    to[i] = takes ? x : to[i];
  }
}

template <class T, bool kMean>
void store(void* out, const void* accumulator, std::int64_t count, int size) {
  auto* to = static_cast<T*>(out);
  const auto* from = static_cast<const Accumulator<T>*>(accumulator);
  if constexpr (kMean) {
    const auto divisor = static_cast<float>(size);
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i] / divisor);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
  }
}

template <class T>
Accumulate make(Reduction reduction) {
  Accumulate result{&assign<T>, reduction == Reduction::kMax ? &maximum<T> : &add<T>, &store<T, false>,
                    sizeof(Accumulator<T>)};
  if constexpr (!std::is_integral_v<T>) {
    if (reduction == Reduction::kMean) result.store = &store<T, true>;
  }
  return result;
}

}  // namespace

Accumulate accumulate_for(DType dtype, Reduction reduction) {
  switch (dtype) {
    case DType::kF32:
      return make<float>(reduction);
    case DType::kBF16:
      return make<BFloat16>(reduction);
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
