// Products that are added to a result of 16 bits, for libraries. On an H100 every algorithm that cuBLASLt has
// for them rounds twice: the product to 16 bits, and then the sum. So the library multiplies into fp32, some
// rows of the result at a time, and a kernel of ours adds those rows and rounds once. Knows no device.
#pragma once

#include "turbo/linear/linear.h"

namespace primus::turbo {

// Whether a product is one of these: its operands are of one type, and it is no weight gradient, which may be
// rounded twice (linear.h).
bool is_added_apart(const Gemm& call);

// At most this much fp32 at a time, which stays in the cache of a Hopper GPU until it is added, and at least
// the rows that fill a library's tile.
inline constexpr std::int64_t kAddedBytes = std::int64_t{32} << 20;
inline constexpr std::int64_t kAddedRows = 256;

// Rows of the result that are multiplied at a time: all, or a multiple of kAddedRows.
std::int64_t rows_added_at_once(const Gemm& call, std::int64_t most_bytes = kAddedBytes);

// Bytes at the beginning of the workspace that hold `rows` of them in fp32, in whole lines of 256 bytes.
std::int64_t added_bytes(const Gemm& call, std::int64_t rows);

// The product for rows [begin, end) of the result, which assigns fp32 to the first added_bytes() of
// call.workspace; the library's own workspace is what follows. `reserved`: added_bytes() of the most rows.
Gemm product_of_rows(const Gemm& call, std::int64_t begin, std::int64_t end, std::int64_t reserved);

// Those rows of the result.
Tensor rows_of_result(const Gemm& call, std::int64_t begin, std::int64_t end);

}  // namespace primus::turbo
