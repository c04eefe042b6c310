// Library products that accumulate into a 16-bit result. On an H100, every cuBLASLt algorithm for such
// products rounds twice: first the product to 16 bits, then the sum. The library therefore multiplies into
// fp32 memory, some rows of the result at a time. Our own kernel then adds these rows to the result with one
// rounding. Device-independent.
#pragma once

#include "turbo/linear/linear.h"

namespace primus::turbo {

// Returns whether a product is computed in this way: it accumulates into 16 bits, and its operands have one
// type. Weight gradients are not computed in this way, because linear.h allows rounding weight gradients
// twice.
bool is_added_apart(const Gemm& call);

// Maximum number of bytes of fp32 rows at a time. These rows stay in the L2 cache of a Hopper GPU until the
// addition.
inline constexpr std::int64_t kAddedBytes = std::int64_t{32} << 20;
// Minimum number of rows at a time. This number of rows fills a tile of the library.
inline constexpr std::int64_t kAddedRows = 256;

// Returns the number of rows of the result to multiply at a time: all rows, or a multiple of kAddedRows.
std::int64_t rows_added_at_once(const Gemm& call, std::int64_t max_bytes = kAddedBytes);

// Returns the bytes at the beginning of the workspace that hold `rows` rows in fp32, rounded up to 256.
std::int64_t added_bytes(const Gemm& call, std::int64_t rows);

// Returns the product for rows [begin, end) of the result. The product assigns fp32 to the beginning of
// call.workspace. The library's own workspace begins `reserved` bytes later; `reserved` is added_bytes() of
// the largest number of rows.
Gemm product_of_rows(const Gemm& call, std::int64_t begin, std::int64_t end, std::int64_t reserved);

// Returns rows [begin, end) of the result.
Tensor rows_of_result(const Gemm& call, std::int64_t begin, std::int64_t end);

}  // namespace primus::turbo
