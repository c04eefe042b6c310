// The kernel is memory-bound. It reads about half a byte and writes 2 or 4 bytes per element.
#include "turbo/four_bit/formula.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// A thread expands kCount neighbouring elements of a block.
template <class T, int kCount>
struct Expand {
  FourBitFactors factor_of;
  const std::uint8_t* packed;
  T* out;
  std::int64_t elements, bytes, block;

  PRIMUS_DEVICE void operator()(std::int64_t t, std::int64_t first) const {
    const float factor = factor_of(t, first / block);
    const std::uint8_t* const from = packed + t * bytes + first / 2;
    T* const to = out + t * elements + first;
    if constexpr (kCount == 1) {
      const unsigned pair = from[0];
      to[0] = from_float<T>(factor_of.table[first % 2 == 0 ? pair >> 4U : pair & 0xFU] * factor);
    } else {
      float numbers[kCount];
      PRIMUS_UNROLL
      for (int i = 0; i < kCount / 2; ++i) {
        const unsigned pair = from[i];
        numbers[2 * i] = factor_of.table[pair >> 4U] * factor;
        numbers[2 * i + 1] = factor_of.table[pair & 0xFU] * factor;
      }
      store<kCount>(to, numbers);
    }
  }
};

void expand(Context& context, const ExpandFourBit& call) {
  const std::int64_t count = call.out.shape[0], elements = call.out.shape[1];
  const FourBitFactors factor_of = factors_of(context, call);
  const auto* const packed = context.data<const std::uint8_t>(call.packed);
  with_float_type(call.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    T* const out = context.data<T>(call.out);
    const bool possible = rows_of_vectors<T>(elements, out) && call.block % kVector<T> == 0;
    with_vector<T>(possible, [&](auto per_thread) {
      for_each_of_rows<per_thread>(
          context, count, elements,
          Expand<T, per_thread>{factor_of, packed, out, elements, call.packed.shape[1], call.block});
    });
  });
}

}  // namespace

void register_four_bit(KernelTable& table) { table.add<ExpandFourBit, Context, &expand>(); }

}  // namespace primus::turbo::PRIMUS_GPU
