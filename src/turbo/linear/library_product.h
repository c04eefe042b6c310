// Describes products for a vendor's library, and chooses their algorithms by timing. ProductKey contains all
// properties of a product that a choice depends on. This code does not depend on devices or libraries.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "turbo/fp8_linear/fp8_format.h"
#include "turbo/linear/algorithm_cache.h"
#include "turbo/linear/algorithm_trial.h"
#include "turbo/linear/linear.h"

namespace primus::turbo {

// Max bytes of workspace for a library.
inline constexpr std::int64_t kLibraryWorkspaceBytes = std::int64_t{32} << 20;

// A product for a library. An fp8 product is a forward product of codes, with scales.
struct LibraryProduct {
  Gemm gemm;
  const void *a_scale = nullptr, *b_scale = nullptr;  // fp8 only: pointers to one float each, on the device
  bool fast = false;                                  // fp8 only: less precise accumulation

  bool is_fp8() const { return primus::turbo::is_fp8(gemm.a.dtype); }
};

// Returns the code of fp32, fp16 or bf16 in the enumeration DataType of an AMD library.
template <class DataType>
DataType library_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return DataType::kF32;
    case DType::kF16:
      return DataType::kF16;
    default:
      return DataType::kBF16;
  }
}

// Returns whether a library may compute the product: its result must be as exact as linear.h requires, and
// the product must not be empty. Always true for fp8 products, which only libraries compute.
bool is_for_library(const LibraryProduct& product);

// Types, shape and options of a product: everything on which the choice of its algorithm may depend.
struct ProductKey {
  GemmRole role;
  DType a, b, c;
  bool accumulate, fast;
  std::int64_t rows, cols, left;  // extents of the result; number of elements of the left operand
  unsigned a_alignment, b_alignment, c_alignment;
  int spared;

  auto operator<=>(const ProductKey&) const = default;
};
ProductKey key_of(const LibraryProduct& product);

// Returns the key for choosing an algorithm. This key has `accumulate` set for weight gradients (in fp8: for
// products with an fp32 result). All microbatches of a step then use the same algorithm, although the first
// microbatch assigns and later microbatches add.
ProductKey tuned_key(ProductKey key);

// Returns the name of the product in the file of choices.
std::string name_of(const ProductKey& key);

// Chooses algorithms by timing on one device. Thread-safe; only one thread at a time measures.
class ProductTuning {
 public:
  // `folder` and the device's name determine the file of choices (algorithm_cache.h). `device_name` is called
  // when the first choice is made.
  ProductTuning(std::string folder, std::function<std::string()> device_name);

  std::optional<AlgorithmWords> known(const ProductKey& key);
  // `library` is the name and version of the library, such as "cublaslt-130100".
  void choose(const ProductKey& key, const std::string& library,
              const std::function<bool(const AlgorithmChoice&)>& usable,
              const std::function<std::optional<AlgorithmChoice>(AlgorithmTrials&)>& measure);

 private:
  const std::string folder_;
  const std::function<std::string()> device_name_;
  // By default, trials use the method "bursts" (algorithm_trial.h), which chose better algorithms on an H200
  // (docs/performance.md). PRIMUS_MATMUL_TRIALS=sustained selects the method "sustained", for comparison.
  const bool sustained_;
  std::mutex mutex_;
  std::map<ProductKey, AlgorithmWords> chosen_;
  std::unique_ptr<AlgorithmCache> cache_;
  AlgorithmTrials trials_;
};

// The device that times algorithms.
class TrialDevice {
 public:
  virtual ~TrialDevice() = default;
  // Prepares the device. A trial calls this function first.
  virtual void begin() = 0;
  virtual std::shared_ptr<void> memory(std::int64_t bytes) = 0;
  // Returns memory for a tensor with the type and shape of `like`. The memory is filled with random numbers,
  // because products of zeros are faster.
  virtual std::shared_ptr<void> operand(const Tensor& like) = 0;
  // Returns the seconds that the device needs for the work that `enqueue` puts on its default stream; 0 if
  // `enqueue` returns false.
  virtual double seconds(const std::function<bool()>& enqueue) = 0;
};

}  // namespace primus::turbo
