// A product in the terms of a vendor's library, the key of everything that its algorithm may depend on, and
// the choice of algorithms by timing. Independent of devices and libraries.
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

// fp8 products are forward products of codes, which have scales.
struct LibraryProduct {
  Gemm gemm;
  const void *a_scale = nullptr, *b_scale = nullptr;  // fp8 only: one float each, on the device
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

// Returns whether a library's result is as exact as required (linear.h), and the product is not empty. Always
// true in fp8, which only libraries compute.
bool is_for_library(const LibraryProduct& product);

// A product's shape: everything that an algorithm may depend on.
struct ProductKey {
  GemmRole role;
  DType a, b, c;
  bool accumulate, fast;
  std::int64_t rows, cols, left;  // result's extents; elements of the left operand
  unsigned a_alignment, b_alignment, c_alignment;
  int spared;

  auto operator<=>(const ProductKey&) const = default;
};
ProductKey key_of(const LibraryProduct& product);

// Returns the key for choosing an algorithm. For weight gradients (in fp8: products with an fp32 result) it
// has `accumulate` set: a step's first microbatch assigns and later ones add, and both use one algorithm.
ProductKey tuned_key(ProductKey key);

// Returns the product's name in the file of choices.
std::string name_of(const ProductKey& key);

// The algorithms chosen by timing on one device. Thread-safe; one thread at a time measures.
class ProductTuning {
 public:
  // `folder` and the device's name determine the file of choices (algorithm_cache.h). `device_name` is called
  // at the first choice.
  ProductTuning(std::string folder, std::function<std::string()> device_name);

  std::optional<AlgorithmWords> known(const ProductKey& key);
  // `library`: its name and version, such as "cublaslt-130100".
  void choose(const ProductKey& key, const std::string& library,
              const std::function<bool(const AlgorithmChoice&)>& usable,
              const std::function<std::optional<AlgorithmChoice>(AlgorithmTrials&)>& measure);

 private:
  const std::string folder_;
  const std::function<std::string()> device_name_;
  // By default trials are short bursts, which chose better algorithms on an H200 (docs/performance.md).
  // PRIMUS_MATMUL_TRIALS=sustained selects the other method, for comparison.
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
  // A trial calls this function first.
  virtual void begin() = 0;
  virtual std::shared_ptr<void> memory(std::int64_t bytes) = 0;
  // Returns memory for a tensor with the type and shape of `like`. The memory is filled with random numbers,
  // because products of zeros are faster.
  virtual std::shared_ptr<void> operand(const Tensor& like) = 0;
  // Returns the seconds that the device needs for the work that `enqueue` puts on its default stream; 0 if
  // that returns false.
  virtual double seconds(const std::function<bool()>& enqueue) = 0;
};

}  // namespace primus::turbo
