// Products by the libraries of AMD GPUs: hipBLASLt if it is installed and has an algorithm, else rocBLAS. Our
// own kernels compute products that neither library accepts. Reports the choice for every product, and the
// reason for the choice. Device-independent, so tests run without a GPU, with libraries that compute on the
// host.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "turbo/linear/hipblaslt_api.h"
#include "turbo/linear/lt_products.h"
#include "turbo/linear/rocblas_products.h"

namespace primus::turbo {

// Computes the products of one stream. Not thread-safe. The stream's GPU must be the current GPU in every
// call.
class AmdProducts {
 public:
  struct Options {
    bool hipblaslt = true, rocblas = true;
    bool fnuz = false;  // the GPU has the fp8 formats of gfx942 (turbo/fp8_linear/fp8_fnuz.h)
    std::span<const char*const> hipblaslt_files = hipblaslt::kFiles, rocblas_files = rocblas::kFiles;
  };
  // Reads PRIMUS_MATMUL_LIBRARY: "hipblaslt" (the default) uses hipBLASLt, or else rocBLAS; "rocblas" uses
  // only rocBLAS; "own" uses neither library. Throws for any other value.
  static Options options_of_environment();

  // Calls `count` with the choice for each product, such as "products: hipBLASLt". `tuning` must outlive this
  // object.
  AmdProducts(const Options& options, ProductTuning& tuning, std::function<void(const std::string&)> count,
              void* stream);

  // Enqueues the product. Returns false if our own kernel must compute it. Opens libraries at the first
  // product that needs them. Only hipBLASLt computes products in fp8.
  bool multiply(const LibraryProduct& product);
  // Returns why hipBLASLt does not compute a product that multiply() has refused.
  std::string why_no_lt() const { return lt_ ? "hipBLASLt has no algorithm" : why_no_lt_; }
  // If the algorithm of hipBLASLt for an upcoming product is not known, chooses the algorithm by timing
  // several algorithms. rocBLAS does not offer a choice of algorithms.
  void tune(const LibraryProduct& product, TrialDevice& device);

 private:
  // These functions return null if there is no usable library. Then why_no_lt_ or why_no_rocblas_ has the
  // reason.
  LtProducts<hipblaslt::Api>* lt_products();
  rocblas::Products* rocblas_products();

  const Options options_;
  ProductTuning& tuning_;
  const std::function<void(const std::string&)> count_;
  void* const stream_;
  bool asked_lt_ = false, asked_rocblas_ = false;
  std::string why_no_lt_, why_no_rocblas_;
  std::optional<LtProducts<hipblaslt::Api>> lt_;
  std::optional<rocblas::Products> rocblas_;
};

}  // namespace primus::turbo
