#include "turbo/linear/cpu_split.h"

#include <utility>

#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

constexpr std::int64_t kParts = 3;

// Truncates x to its leading 8 binary digits, which a bf16 can hold. x - leading(x) is exact.
PRIMUS_INLINE float leading(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffff0000U);
}
PRIMUS_INLINE BFloat16 leading_part(float x) {
  BFloat16 part;
  part.bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  return part;
}

struct Parts {
  BFloat16 part[kParts];
};

// Splits x exactly into three parts of 8 binary digits.
PRIMUS_INLINE Parts exact_parts(float x) {
  const float middle = x - leading(x);
  return {{leading_part(x), leading_part(middle), leading_part(middle - leading(middle))}};
}

// These functions split a factor into two rounded parts h and l. The parts are (h, h, l) for a left factor
// and (h, l, h) for a right factor. The sum of the three products is then h h + h l + l h.
PRIMUS_INLINE Parts left_parts(float x) {
  const BFloat16 high = from_float<BFloat16>(x);
  return {{high, high, from_float<BFloat16>(x - to_float(high))}};
}
PRIMUS_INLINE Parts right_parts(float x) {
  const auto [high, again, low] = left_parts(x).part;
  return {{high, low, again}};
}

// Part p of element (row, col) of a [rows, cols] matrix is at index row · row_stride + p · part_stride + col.
struct PartsLayout {
  std::int64_t row_stride, part_stride;
  // The layout [rows, 3 · cols], with the parts next to each other.
  static PartsLayout side_by_side(std::int64_t cols) { return {kParts * cols, cols}; }
  // The layout [3 · rows, cols], with the parts below each other.
  static PartsLayout below(std::int64_t rows, std::int64_t cols) { return {cols, rows * cols}; }
};

template <Parts (*parts_of)(float)>
void split(const CpuContext& context, const Tensor& x, PartsLayout to, BFloat16* out) {
  const float* in = context.data<float>(x);
  const std::int64_t cols = x.cols();
  parallel_ranges(context, x.rows(), cols * 10, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* from = in + row * cols;
      BFloat16* first = out + row * to.row_stride;
      BFloat16* second = first + to.part_stride;
      BFloat16* third = second + to.part_stride;
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < cols; ++i) {
        const Parts parts = parts_of(from[i]);
        first[i] = parts.part[0];
        second[i] = parts.part[1];
        third[i] = parts.part[2];
      }
    }
  });
}

// out (+)= the sum of the parts, which are added from the smallest to the largest.
void sum_parts(const CpuContext& context, const float* parts, PartsLayout from, const Tensor& out,
               bool accumulate) {
  float* to = context.data<float>(out);
  const std::int64_t cols = out.cols();
  parallel_ranges(context, out.rows(), cols * 20, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* first = parts + row * from.row_stride;
      const float* second = first + from.part_stride;
      const float* third = second + from.part_stride;
      float* sum = to + row * cols;
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < cols; ++i) {
        const float total = first[i] + (second[i] + third[i]);
        sum[i] = accumulate ? sum[i] + total : total;
      }
    }
  });
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
std::int64_t bf16_bytes(std::int64_t elements) { return aligned(elements * size_of(DType::kBF16)); }
std::int64_t fp32_bytes(std::int64_t elements) { return aligned(elements * size_of(DType::kF32)); }

}  // namespace

bool SplitGemm::suits(const Gemm& call) {
#ifdef __AVX512F__
  // With at most this number of tokens, most of the time is spent reading the weight.
  constexpr std::int64_t kFewTokens = 8;
  const bool a_fp32 = call.a.dtype == DType::kF32, b_fp32 = call.b.dtype == DType::kF32;
  const bool c_fp32 = call.c.dtype == DType::kF32;
  if (call.a.dtype == DType::kF16) return false;
  if (call.a.rows() <= kFewTokens || default_gemm_provider(DType::kBF16) != GemmProvider::kAmx) return false;
  switch (call.role) {
    case GemmRole::kForward:
      return !a_fp32 && b_fp32 && c_fp32;
    case GemmRole::kInputGradient:
      return a_fp32 && b_fp32 && !c_fp32;
    case GemmRole::kWeightGradient:
      return a_fp32 && !b_fp32 && c_fp32;
  }
#else
  (void)call;  // CPUs with other instruction sets have no matrix units
#endif
  return false;
}

SplitGemm::SplitGemm(const CpuContext& context, const Gemm& call, const GemmArgs& direct)
    : context_(context), call_(call), product_(direct), a_parts_(0), b_parts_(0), c_parts_(0) {
  product_.ab_dtype = DType::kBF16;
  product_.c_past_caches = false;
  switch (call.role) {
    case GemmRole::kForward:  // c [T, 3 · O], with the parts of W below each other
      b_parts_ = kParts * call.b.elements(), c_parts_ = kParts * call.c.elements();
      product_.n *= kParts, product_.ldc *= kParts, product_.accumulate = false;
      break;
    case GemmRole::kInputGradient:  // sums over 3 · O terms
      a_parts_ = kParts * call.a.elements(), b_parts_ = kParts * call.b.elements();
      product_.k *= kParts, product_.lda *= kParts;
      break;
    case GemmRole::kWeightGradient:  // c [3 · O, I]
      a_parts_ = kParts * call.a.elements(), c_parts_ = kParts * call.c.elements();
      product_.m *= kParts, product_.lda *= kParts, product_.accumulate = false;
      break;
  }
}

std::int64_t SplitGemm::workspace_bytes() const {
  return bf16_bytes(a_parts_) + bf16_bytes(b_parts_) + fp32_bytes(c_parts_) +
         static_cast<std::int64_t>(cpu_gemm_workspace_bytes(product_, context_.threads()));
}

void SplitGemm::run() const {
  auto* free = context_.data<std::byte>(call_.workspace);
  const auto take = [&](std::int64_t bytes) { return std::exchange(free, free + bytes); };
  auto* a_parts = reinterpret_cast<BFloat16*>(take(bf16_bytes(a_parts_)));
  auto* b_parts = reinterpret_cast<BFloat16*>(take(bf16_bytes(b_parts_)));
  auto* c_parts = reinterpret_cast<float*>(take(fp32_bytes(c_parts_)));
  const Tensor &a = call_.a, &b = call_.b, &c = call_.c;

  GemmArgs product = product_;
  product.a = a_parts_ > 0 ? a_parts : context_.data<BFloat16>(a);
  product.b = b_parts_ > 0 ? b_parts : context_.data<BFloat16>(b);
  product.c = c_parts_ > 0 ? c_parts : context_.data<void>(c);
  product.workspace = free;
  product.workspace_bytes = cpu_gemm_workspace_bytes(product_, context_.threads());
  switch (call_.role) {
    case GemmRole::kForward:
      split<exact_parts>(context_, b, PartsLayout::below(b.rows(), b.cols()), b_parts);
      cpu_gemm(context_.pool(), product);
      sum_parts(context_, c_parts, PartsLayout::side_by_side(c.cols()), c, call_.accumulate);
      break;
    case GemmRole::kInputGradient:
      split<left_parts>(context_, a, PartsLayout::side_by_side(a.cols()), a_parts);
      split<right_parts>(context_, b, PartsLayout::below(b.rows(), b.cols()), b_parts);
      cpu_gemm(context_.pool(), product);
      break;
    case GemmRole::kWeightGradient:
      split<exact_parts>(context_, a, PartsLayout::side_by_side(a.cols()), a_parts);
      cpu_gemm(context_.pool(), product);
      sum_parts(context_, c_parts, PartsLayout::below(c.rows(), c.cols()), c, call_.accumulate);
      break;
  }
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
