// Products by rocBLAS, which chooses its kernels itself. Device-independent.
#pragma once

#include <memory>
#include <set>

#include "turbo/linear/library_product.h"
#include "turbo/linear/rocblas.h"

namespace primus::turbo::rocblas {

// Computes the products of one stream. Not thread-safe. Equal calls have bit-identical results, because
// atomic additions are switched off (their order varies).
class Products {
 public:
  // Uses the current GPU. Throws Error if the library does not start.
  Products(std::shared_ptr<const Library> library, Stream stream);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Enqueues the product. Returns false if the library has no kernel for it or does not support its size.
  bool multiply(const LibraryProduct& product);

 private:
  const std::shared_ptr<const Library> library_;
  Handle handle_ = nullptr;
  Tensor workspace_;
  std::set<ProductKey> refused_;
};

}  // namespace primus::turbo::rocblas
