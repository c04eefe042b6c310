// The functions of hipBLASLt for LtProducts (linear/lt_products.h).
#pragma once

#include <string>

#include "tensor/dtype.h"
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

  static DataType type_of(DType dtype) { return library_type<DataType>(dtype); }
  static Status state_of(const Result& result) { return result.state; }
  std::string tuning_name(Handle handle) const {
    return "hipblaslt-" + std::to_string(version_of(*this, handle));
  }
};

}  // namespace primus::turbo::hipblaslt
