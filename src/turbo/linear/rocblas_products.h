// Products by rocBLAS, which chooses its kernels itself. Knows no device.
#pragma once

#include <memory>
#include <set>

#include "turbo/linear/library_product.h"
#include "turbo/linear/rocblas.h"

namespace primus::turbo::rocblas {

// Of one stream. Not thread-safe. Equal calls have equal bits: sums by atomic additions, whose order changes,
// are switched off.
class Products {
 public:
  // The current GPU's. Throws Error where the library does not start.
  Products(std::shared_ptr<const Library> library, Stream stream);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Enqueues the product, or says false: the library has no kernel for it, or takes no matrices of its size.
  bool multiply(const LibraryProduct& product);

 private:
  const std::shared_ptr<const Library> library_;
  Handle handle_ = nullptr;
  Tensor workspace_;
  std::set<ProductKey> refused_;
};

}  // namespace primus::turbo::rocblas
