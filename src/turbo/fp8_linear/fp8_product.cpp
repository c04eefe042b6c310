#include "turbo/fp8_linear/fp8_product.h"

#include <optional>

#include "tensor/scratch_tensor.h"

namespace primus::turbo {
namespace {

// An operand of a product: its scales, and codes whose rows are contiguous along the summed dimension.
class Quantized {
 public:
  Quantized(Context& context, const Tensor& x, DType type, const Fp8Scaling& scaling, bool transposed)
      : codes_(context.scratch, type, transposed ? Shape{x.cols(), x.rows()} : Shape{x.rows(), x.cols()}) {
    const bool known = !scaling.scales.absent();
    if (!known) own_scales_.emplace(context.scratch, DType::kF32, Shape{2});
    scales_ = known ? scaling.scales : own_scales_->get();
    launch(context, QuantizeFp8{.x = x,
                                .codes = transposed ? Tensor() : codes_.get(),
                                .transposed = transposed ? codes_.get() : Tensor(),
                                .scales = scales_,
                                .known = known,
                                .largest = scaling.largest});
  }
  const Tensor& codes() const { return codes_.get(); }
  const Tensor& scales() const { return scales_; }

 private:
  ScratchTensor codes_;
  std::optional<ScratchTensor> own_scales_;
  Tensor scales_;
};

}  // namespace

double Fp8Linear::flops() const {
  return 2 * static_cast<double>(a.elements()) *
         static_cast<double>(role == GemmRole::kForward ? b.rows() : b.cols());
}

void launch(Context& context, const Fp8Linear& call) {
  // The role determines whether the product sums over the columns or over the rows of an operand.
  const Quantized a(context, call.a, call.a_type, call.a_scaling, call.role == GemmRole::kWeightGradient);
  const Quantized b(context, call.b, call.b_type, call.b_scaling, call.role != GemmRole::kForward);
  launch(context, Fp8Gemm{.a = a.codes(),
                          .b = b.codes(),
                          .a_scales = a.scales(),
                          .b_scales = b.scales(),
                          .c = call.c,
                          .accumulate = call.accumulate,
                          .fast = call.role == GemmRole::kForward,
                          .spared = call.spared,
                          .workspace = {}});
}

}  // namespace primus::turbo
