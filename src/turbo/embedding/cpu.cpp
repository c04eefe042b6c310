#include <cstring>
#include <string>

#include "base/error.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/embedding/embedding.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Token ids come from files: an id beyond the table must not become an address.
void check_token(std::int32_t token, std::int64_t vocab) {
  if (token >= 0 && token < vocab) [[likely]]
    return;
  throw invalid(
      "token id " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(vocab),
      "the data was made with another tokenizer than this model's");
}

// Of a call: which row of the table a token is, or -1 where another part of the vocabulary has it.
template <class Call>
std::int64_t row_of(const Call& a, const Tensor& table, std::int32_t token) {
  check_token(token, a.vocabulary > 0 ? a.vocabulary : table.rows());
  const std::int64_t row = token - a.first;
  return row >= 0 && row < table.rows() ? row : -1;
}

void forward(CpuContext& context, const EmbeddingForward& a) {
  const std::int64_t row_bytes = a.table.cols() * size_of(a.table.dtype);
  const std::int32_t* tokens = context.data<std::int32_t>(a.tokens);
  const char* table = context.data<char>(a.table);
  char* out = context.data<char>(a.out);
  parallel_ranges(context, a.tokens.elements(), 2 * row_bytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t row = row_of(a, a.table, tokens[t]);
      if (row >= 0) {
        std::memcpy(out + t * row_bytes, table + row * row_bytes, static_cast<std::size_t>(row_bytes));
      } else {
        std::memset(out + t * row_bytes, 0, static_cast<std::size_t>(row_bytes));
      }
    }
  });
}

// Threads share the columns, not the tokens: every element of the table is summed by one thread, in token
// order.
void backward_weight(CpuContext& context, const EmbeddingBackwardWeight& a) {
  constexpr std::int64_t kColumns = 64;
  const std::int64_t count = a.tokens.elements(), hidden = a.d_table.cols();
  const std::int32_t* tokens = context.data<std::int32_t>(a.tokens);
  float* d_table = context.data<float>(a.d_table);
  // Before anything is written.
  for (std::int64_t t = 0; t < count; ++t) row_of(a, a.d_table, tokens[t]);
  if (!a.accumulate) {
    const std::int64_t row_bytes = hidden * static_cast<std::int64_t>(sizeof(float));
    parallel_ranges(context, a.d_table.rows(), row_bytes, [&](std::int64_t begin, std::int64_t end) {
      std::memset(d_table + begin * hidden, 0, static_cast<std::size_t>((end - begin) * row_bytes));
    });
  }
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* d_out = context.data<T>(a.d_out);
    context.pool().parallel_for(hidden, kColumns, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t row = row_of(a, a.d_table, tokens[t]);
        if (row < 0) continue;
        const T* from = d_out + t * hidden;
        float* to = d_table + row * hidden;
        PRIMUS_SIMD()
        for (std::int64_t i = begin; i < end; ++i) to[i] += to_float(from[i]);
      }
    });
  });
}

}  // namespace

void register_embedding(KernelTable& table) {
  table.add<EmbeddingForward, CpuContext, &forward>();
  table.add<EmbeddingBackwardWeight, CpuContext, &backward_weight>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
