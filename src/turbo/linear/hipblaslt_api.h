// The functions of hipBLASLt for LtProducts (linear/lt_products.h).
#pragma once

#include <string>

#include "tensor/dtype.h"
#include "turbo/fp8_linear/fp8_fnuz.h"
#include "turbo/linear/hipblaslt.h"
#include "turbo/linear/library_product.h"

namespace primus::turbo::hipblaslt {

// Has no hint() and prefer(): hipBLASLt cannot set alignments, accumulation or the number of multiprocessors.
struct Api : Library {
  using Handle = hipblaslt::Handle;
  using Desc = MatmulDesc;
  using Layout = MatrixLayout;
  using Preference = hipblaslt::Preference;
  using Algorithm = hipblaslt::Algorithm;
  using Result = HeuristicResult;
  using Stream = hipblaslt::Stream;

  static constexpr const char* kName = "hipBLASLt";
  static constexpr auto kSuccess = Status::kSuccess;
  static constexpr auto kCompute = ComputeType::k32F;
  static constexpr auto kScale = DataType::kF32;
  static constexpr auto kTransA = DescAttribute::kTransA, kTransB = DescAttribute::kTransB;
  static constexpr auto kPlain = Operation::kPlain, kTransposed = Operation::kTransposed;
  static constexpr auto kMaxWorkspace = PreferenceAttribute::kMaxWorkspaceBytes;

  bool fnuz = false;  // the GPU has the fp8 formats of gfx942

  DataType type_of(DType dtype) const {
    if (!is_fp8(dtype)) return library_type<DataType>(dtype);
    if (dtype == DType::kF8E4M3) return fnuz ? DataType::kE4M3Fnuz : DataType::kE4M3;
    return fnuz ? DataType::kE5M2Fnuz : DataType::kE5M2;
  }
  // The first operand of the library is our second operand. desc_set() stores only the pointers to the
  // scales; the library reads the scales when the product runs.
  void scale(Desc desc, const LibraryProduct& product) const {
    desc_set(desc, DescAttribute::kAScale, &product.b_scale, sizeof(const void*));
    desc_set(desc, DescAttribute::kBScale, &product.a_scale, sizeof(const void*));
  }
  // Both operands of an fp8 product on gfx942 are smaller by this factor than their codes in OCP's format.
  float factor(const LibraryProduct& product) const {
    return fnuz && product.is_fp8() ? kFnuzFactor * kFnuzFactor : 1;
  }
  static Status state_of(const Result& result) { return result.state; }
  std::string tuning_name(Handle handle) const {
    return "hipblaslt-" + std::to_string(version_of(*this, handle));
  }
};

}  // namespace primus::turbo::hipblaslt
