#include "turbo/attention/attention.h"

#include <algorithm>
#include <bit>

#include "turbo/attention/paged_attention.h"
#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool valid(const AttentionShape& s) {
  return s.batch >= 0 && s.seq_q >= 0 && s.seq_k >= 0 && s.capacity_k >= s.seq_k && s.kv_heads > 0 &&
         s.heads > 0 && s.heads % s.kv_heads == 0 && s.head_dim > 0 && s.value_dim > 0 && s.scale > 0 &&
         s.window >= 0 && s.chunk >= 0 && s.q_first >= 0 && s.k_first >= 0 && s.score_cap >= 0;
}

bool valid_strides(const AttentionShape& s, std::int64_t q, std::int64_t k, std::int64_t v) {
  return q >= s.heads * s.head_dim && k >= s.kv_heads * s.head_dim && v >= s.kv_heads * s.value_dim;
}

bool equal_types(DType type, std::initializer_list<DType> others) {
  return std::all_of(others.begin(), others.end(), [type](DType other) { return other == type; });
}

bool float_types(DType type, std::initializer_list<DType> others) {
  return (type == DType::kF32 || type == DType::kBF16) && equal_types(type, others);
}

// Returns whether AttentionForward and AttentionBackward support operands of these types.
bool operand_types(DType type, std::initializer_list<DType> others) {
  return type == DType::kF16 ? equal_types(type, others) : float_types(type, others);
}

bool valid_documents(const AttentionShape& s, const Tensor& first_key) {
  return first_key.absent() ||
         (first_key.dtype == DType::kI32 && s.causal && first_key.elements() == s.batch * s.seq_q);
}

void check_around(const PagedAppend& a) {
  constexpr KernelId kId = PagedAppend::kId;
  const AroundAppend& p = a.around;
  PRIMUS_CHECK(kId,
               p.norm.dtype == a.rows.dtype && p.norm.elements() < a.cols && p.eps > 0 && a.more_cols == 0);
  PRIMUS_CHECK(kId, p.positions.absent() == p.table.absent());
  if (p.table.absent()) return;
  const std::int64_t shared = a.cols - p.norm.elements();
  PRIMUS_CHECK(kId, is_vector(p.positions, DType::kI32, a.tokens));
  PRIMUS_CHECK(kId, shared % 2 == 0 && p.table.dtype == DType::kF32 && p.table.cols() == shared);
}

// Returns the number of (query, key) pairs that are not masked, per head and sequence.
double visible_pairs(const AttentionShape& s) {
  double pairs = 0;
  for (std::int64_t i = 0; i < s.seq_q; ++i) {
    const std::int64_t position = s.q_first + i;
    std::int64_t begin = s.k_first, end = s.k_first + s.seq_k;
    if (s.causal) end = std::min(end, position + 1);
    if (s.chunk > 0) {
      begin = std::max(begin, position / s.chunk * s.chunk);
      end = std::min(end, position / s.chunk * s.chunk + s.chunk);
    }
    if (s.window > 0) begin = std::max(begin, position - s.window + 1);
    pairs += static_cast<double>(std::max<std::int64_t>(end - begin, 0));
  }
  return pairs;
}

double forward_flops(const AttentionShape& s) {
  return 2 * static_cast<double>(s.batch * s.heads * (s.head_dim + s.value_dim)) * visible_pairs(s);
}

}  // namespace

void AttentionForward::check() const {
  PRIMUS_CHECK(kId, valid(shape) && valid_strides(shape, q_stride, k_stride, v_stride));
  PRIMUS_CHECK(kId, valid_documents(shape, first_key));
  PRIMUS_CHECK(kId, sinks.absent() || (sinks.dtype == q.dtype && sinks.elements() == shape.heads));
  PRIMUS_CHECK(kId, operand_types(q.dtype, {k.dtype, v.dtype, out.dtype}));
  PRIMUS_CHECK(kId, out.elements() == shape.batch * shape.seq_q * shape.heads * shape.value_dim);
  PRIMUS_CHECK(kId, lse.absent() || lse.dtype == DType::kF32);
  PRIMUS_CHECK(kId, lse.absent() || lse.elements() == shape.heads * shape.batch * shape.seq_q);
}

double AttentionForward::flops() const { return forward_flops(shape); }

void AttentionBackward::check() const {
  PRIMUS_CHECK(kId, valid(shape) && valid_strides(shape, q_stride, k_stride, v_stride));
  PRIMUS_CHECK(kId, valid_documents(shape, first_key));
  PRIMUS_CHECK(kId, valid_strides(shape, d_q_stride, d_k_stride, d_v_stride));
  PRIMUS_CHECK(kId, operand_types(q.dtype, {k.dtype, v.dtype, out.dtype, d_out.dtype}));
  PRIMUS_CHECK(kId, operand_types(d_q.dtype, {d_k.dtype, d_v.dtype}));
  const bool fp16 = q.dtype == DType::kF16;
  PRIMUS_CHECK(kId, d_q.dtype == q.dtype || (d_q.dtype == DType::kF32 && !fp16));
  PRIMUS_CHECK(kId, !fp16 || (!accumulate_d_q && !accumulate_d_kv));
  PRIMUS_CHECK(kId, out.elements() == shape.batch * shape.seq_q * shape.heads * shape.value_dim);
  PRIMUS_CHECK(kId, d_out.elements() == out.elements());
  PRIMUS_CHECK(kId, lse.dtype == DType::kF32 && lse.elements() == shape.heads * shape.batch * shape.seq_q);
}

double AttentionBackward::flops() const { return 2.5 * forward_flops(shape); }

void AttentionBackwardSinks::check() const {
  PRIMUS_CHECK(kId, float_types(out.dtype, {d_out.dtype, sinks.dtype}));
  PRIMUS_CHECK(kId, out.cols() == heads * value_dim && d_out.elements() == out.elements());
  PRIMUS_CHECK(kId, lse.dtype == DType::kF32 && lse.elements() == heads * out.rows());
  PRIMUS_CHECK(kId, sinks.elements() == heads && d_sinks.dtype == DType::kF32 && d_sinks.elements() == heads);
}

void AttentionMerge::check() const {
  PRIMUS_CHECK(kId, is_float(out) && is_float(part));
  PRIMUS_CHECK(kId, out.cols() == heads * value_dim && part.elements() == out.elements());
  PRIMUS_CHECK(kId, lse.dtype == DType::kF32 && lse.elements() == heads * out.rows());
  PRIMUS_CHECK(kId, part_lse.dtype == DType::kF32 && part_lse.elements() == lse.elements());
}

void PagedSequences::check(KernelId kernel) const {
  PRIMUS_CHECK(kernel, query_starts.dtype == DType::kI32 && query_starts.elements() == batch() + 1);
  PRIMUS_CHECK(kernel, key_lengths.dtype == DType::kI32 && block_table.dtype == DType::kI32);
  PRIMUS_CHECK(kernel, block_table.rows() == batch() && blocks() > 0);
  PRIMUS_CHECK(kernel,
               page_size >= kPageMultiple && std::has_single_bit(static_cast<std::uint64_t>(page_size)));
}

bool is_taken(Device& device, const PagedAppend& call) {
  const KernelTable::Entry& entry = device.kernels()[PagedAppend::kId];
  return entry.workspace_bytes &&
         entry.workspace_bytes(device.kernel_context(), &call) != PagedAppend::kNotTaken;
}

void PagedAppend::check() const {
  sequences.check(kId);
  PRIMUS_CHECK(kId, rows.dtype == pages.dtype && is_float(rows));
  PRIMUS_CHECK(kId, tokens >= 0 && cols > 0 && stride >= cols && to_stride >= cols);
  PRIMUS_CHECK(kId, more_rows.absent() == (more_cols == 0) && more_pages.absent() == (more_cols == 0));
  if (!around.absent()) check_around(*this);
  if (more_cols == 0) return;
  PRIMUS_CHECK(kId, more_rows.dtype == rows.dtype && more_pages.dtype == rows.dtype);
  PRIMUS_CHECK(kId, more_cols > 0 && stride >= more_cols && more_to_stride >= more_cols);
}

void PagedAttention::check() const {
  sequences.check(kId);
  PRIMUS_CHECK(kId, tokens >= 0 && kv_heads > 0 && heads > 0 && heads % kv_heads == 0 && head_dim > 0 &&
                        value_dim > 0);
  PRIMUS_CHECK(kId, scale > 0 && window >= 0 && chunk >= 0 && score_cap >= 0);
  PRIMUS_CHECK(kId, q_stride >= heads * head_dim && k_stride >= kv_heads * head_dim &&
                        v_stride >= kv_heads * value_dim);
  PRIMUS_CHECK(kId, float_types(q.dtype, {k.dtype, v.dtype, out.dtype}));
  PRIMUS_CHECK(kId, out.elements() == tokens * heads * value_dim);
  PRIMUS_CHECK(kId, sinks.absent() || (sinks.dtype == q.dtype && sinks.elements() == heads));
}

}  // namespace primus::turbo
