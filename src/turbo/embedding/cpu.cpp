#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/embedding/embedding.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Checks a token id. Ids come from files: an id outside the vocabulary must not become an address.
void check_token(std::int32_t token, std::int64_t vocab) {
  if (token >= 0 && token < vocab) [[likely]]
    return;
  throw invalid(
      "token id " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(vocab),
      "the data was made with a tokenizer that differs from this model's");
}

// Returns the table row of a token, or -1 if another shard of the vocabulary has it.
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

std::int64_t backward_weight_workspace(CpuContext&, const EmbeddingBackwardWeight& a) {
  return a.tokens.bytes();
}

// Each thread processes some columns for all tokens, so that one thread computes an element of the table. The
// thread processes the table row by row, and adds the gradients of a row in token order.
void backward_weight(CpuContext& context, const EmbeddingBackwardWeight& a) {
  constexpr std::int64_t kColumns = 64;
  const std::int64_t count = a.tokens.elements(), hidden = a.d_table.cols();
  const std::int32_t* tokens = context.data<std::int32_t>(a.tokens);
  // Lists the tokens that have rows in this shard, sorted by row. Throws for an invalid token now, before the
  // table is changed.
  auto* const order = context.data<std::int32_t>(a.workspace);
  std::int32_t* last = order;
  for (std::int64_t t = 0; t < count; ++t) {
    if (row_of(a, a.d_table, tokens[t]) >= 0) *last++ = static_cast<std::int32_t>(t);
  }
  std::sort(order, last, [&](std::int32_t x, std::int32_t y) {
    return tokens[x] != tokens[y] ? tokens[x] < tokens[y] : x < y;
  });
  if (!a.accumulate) {
    char* const table = context.data<char>(a.d_table);
    const std::int64_t row_bytes = hidden * size_of(a.d_table.dtype);
    parallel_ranges(context, a.d_table.rows(), row_bytes, [&](std::int64_t begin, std::int64_t end) {
      std::memset(table + begin * row_bytes, 0, static_cast<std::size_t>((end - begin) * row_bytes));
    });
  }
  with_float_type(a.d_out.dtype, [&](auto from_type) {
    with_float_type(a.d_table.dtype, [&](auto to_type) {
      using T = decltype(from_type);
      using Table = decltype(to_type);
      const T* d_out = context.data<T>(a.d_out);
      Table* d_table = context.data<Table>(a.d_table);
      context.pool().parallel_for(hidden, kColumns, [&](std::int64_t begin, std::int64_t end, int) {
        const std::int64_t width = end - begin;
        for (const std::int32_t* at = order; at < last;) {
          const std::int32_t token = tokens[*at];
          Table* to = d_table + (token - a.first) * hidden + begin;
          float sum[kColumns];
          for (std::int64_t i = 0; i < width; ++i) sum[i] = to_float(to[i]);
          for (; at < last && tokens[*at] == token; ++at) {
            const T* from = d_out + *at * hidden + begin;
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < width; ++i) sum[i] += to_float(from[i]);
          }
          for (std::int64_t i = 0; i < width; ++i) to[i] = from_float<Table>(sum[i]);
        }
      });
    });
  });
}

}  // namespace

void register_embedding(KernelTable& table) {
  table.add<EmbeddingForward, CpuContext, &forward>();
  table.add<EmbeddingBackwardWeight, CpuContext, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
