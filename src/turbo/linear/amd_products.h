// Products by the libraries of AMD's GPUs: hipBLASLt's where it is there and has an algorithm, and rocBLAS's
// else. What neither takes is left to our own kernels. What was chosen and why is told for every product.
// Knows no device, so its tests run without a GPU, over libraries that compute on the host.
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

// Of one stream. Not thread-safe. The GPU has to be current in every call.
class AmdProducts {
 public:
  struct Options {
    bool hipblaslt = true, rocblas = true;
    std::span<const char*const> hipblaslt_files = hipblaslt::kFiles, rocblas_files = rocblas::kFiles;
  };
  // As PRIMUS_MATMUL_LIBRARY says: hipblaslt (which falls back to rocBLAS) is what it is without it, rocblas
  // leaves hipBLASLt alone, own leaves both. Throws where it says anything else.
  static Options options_of_environment();

  // `count` gets what was chosen, once for each product: "products: hipBLASLt". `tuning` outlives this.
  AmdProducts(const Options& options, ProductTuning& tuning, std::function<void(const std::string&)> count,
              void* stream);

  // Enqueues the product, or says false: our own kernel has to compute it. Libraries are opened when the
  // first product wants them.
  bool multiply(const LibraryProduct& product);
  // Chooses hipBLASLt's algorithm of a product that is about to come by timing several, unless one is known.
  // rocBLAS has none to choose from.
  void tune(const LibraryProduct& product, TrialDevice& device);

 private:
  // Null: there is none that can be used, and why_no_... says why.
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
