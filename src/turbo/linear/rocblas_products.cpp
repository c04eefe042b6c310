#include "turbo/linear/rocblas_products.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "device/lost_device.h"

namespace primus::turbo::rocblas {
namespace {

constexpr auto type_of = library_type<DataType>;

void check(Status status, const char* what) {
  if (status == Status::kSuccess || status == Status::kPerformanceDegraded) return;
  throw Error(ErrorKind::kIo,
              std::string("rocBLAS cannot ") + what + ": status " + std::to_string(static_cast<int>(status)),
              kLostDeviceHint);
}

// Returns whether a status means that the library lacks a kernel, not that the GPU has failed.
bool is_refusal(Status status) {
  switch (status) {
    case Status::kNotImplemented:
    case Status::kInvalidSize:
    case Status::kMemoryError:  // the kernel of rocBLAS needs a larger workspace
    case Status::kInvalidValue:
    case Status::kExcludedFromBuild:
    case Status::kArchMismatch:
      return true;
    default:
      return false;
  }
}

bool fits(const Gemm& call) {
  const auto small = [](const Tensor& t) {
    return std::max(t.rows(), t.cols()) <= std::numeric_limits<std::int32_t>::max();
  };
  return small(call.a) && small(call.b) && small(call.c);
}

}  // namespace

Products::Products(std::shared_ptr<const Library> library, Stream stream) : library_(std::move(library)) {
  check(library_->create_handle(&handle_), "start");
  try {
    check(library_->set_stream(handle_, stream), "work on a stream");
    check(library_->set_atomics_mode(handle_, AtomicsMode::kNotAllowed), "add in a fixed order");
  } catch (...) {
    library_->destroy_handle(handle_);
    throw;
  }
}

Products::~Products() { library_->destroy_handle(handle_); }

// As in LtProducts: our row-major C = op(A) · op(B) is Cᵀ = op(B)ᵀ · op(A)ᵀ in column-major order.
bool Products::multiply(const LibraryProduct& product) {
  const Gemm& call = product.gemm;
  if (!is_for_library(product) || product.is_fp8() || !fits(call)) return false;
  const ProductKey key = key_of(product);
  if (refused_.contains(key)) return false;
  // Gives rocBLAS the workspace of the call, because it would otherwise allocate memory in the middle of a
  // step.
  if (call.workspace.data != workspace_.data || call.workspace.bytes() != workspace_.bytes()) {
    check(library_->set_workspace(handle_, call.workspace.data,
                                  static_cast<std::size_t>(call.workspace.bytes())),
          "take its workspace");
    workspace_ = call.workspace;
  }
  const auto rows = [](const Tensor& t) { return static_cast<std::int32_t>(t.rows()); };
  const auto cols = [](const Tensor& t) { return static_cast<std::int32_t>(t.cols()); };
  const bool gradient = call.role == GemmRole::kWeightGradient;
  const Operation first = call.role == GemmRole::kForward ? Operation::kTransposed : Operation::kPlain;
  const Operation second = gradient ? Operation::kTransposed : Operation::kPlain;
  const float alpha = 1, beta = call.accumulate ? 1.0F : 0.0F;
  const Status status = library_->gemm_ex(
      handle_, first, second, cols(call.c), rows(call.c), gradient ? rows(call.a) : cols(call.a), &alpha,
      call.b.data, type_of(call.b.dtype), cols(call.b), call.a.data, type_of(call.a.dtype), cols(call.a),
      &beta, call.c.data, type_of(call.c.dtype), cols(call.c), call.c.data, type_of(call.c.dtype),
      cols(call.c), DataType::kF32, GemmAlgorithm::kStandard, 0, 0);
  if (is_refusal(status)) {
    refused_.insert(key);
    return false;
  }
  check(status, "multiply");
  return true;
}

}  // namespace primus::turbo::rocblas
