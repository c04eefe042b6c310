// What a vendor's library multiplies: a product in its own terms, what an algorithm for it may depend on, and
// the choice of algorithms by timing. Knows no device and no library.
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

// Bytes of workspace that a library may use.
inline constexpr std::int64_t kLibraryWorkspaceBytes = std::int64_t{32} << 20;

// Products in fp8 are a forward product of codes, which have scales.
struct LibraryProduct {
  Gemm gemm;
  const void *a_scale = nullptr, *b_scale = nullptr;  // of fp8: one float each, on the device
  bool fast = false;                                  // of fp8: with less exact sums

  bool is_fp8() const { return primus::turbo::is_fp8(gemm.a.dtype); }
};

// Whether a library's products are as exact as ours have to be (linear.h), and there is anything to multiply.
// In fp8 nobody else multiplies.
bool is_for_library(const LibraryProduct& product);

// One product's shape: everything that an algorithm may depend on.
struct ProductKey {
  GemmRole role;
  DType a, b, c;
  bool accumulate, fast;
  std::int64_t rows, cols, left;  // of the result; elements of its left operand
  unsigned a_alignment, b_alignment, c_alignment;
  int spared;

  auto operator<=>(const ProductKey&) const = default;
};
ProductKey key_of(const LibraryProduct& product);

// What a weight gradient's algorithm is chosen as: the first microbatch of a step assigns and later ones add,
// by one algorithm for both. In fp8 it is what has an fp32 result.
ProductKey tuned_key(ProductKey key);

// What a product is called in the file of choices.
std::string name_of(const ProductKey& key);

// The algorithms that were chosen by timing, of one device. Thread-safe; one thread at a time measures.
class ProductTuning {
 public:
  // `folder` and the device's name say which file keeps the choices (algorithm_cache.h); the name is asked
  // for when the first choice is made.
  ProductTuning(std::string folder, std::function<std::string()> device_name);

  std::optional<AlgorithmWords> known(const ProductKey& key);
  // `library`: its name and version, "cublaslt-130100".
  void choose(const ProductKey& key, const std::string& library,
              const std::function<bool(const AlgorithmChoice&)>& usable,
              const std::function<std::optional<AlgorithmChoice>(AlgorithmTrials&)>& measure);

 private:
  const std::string folder_;
  const std::function<std::string()> device_name_;
  // By short bursts, which chose better algorithms on an H200 (docs/performance.md). The other way, to
  // compare both on one machine: PRIMUS_MATMUL_TRIALS=sustained.
  const bool sustained_;
  std::mutex mutex_;
  std::map<ProductKey, AlgorithmWords> chosen_;
  std::unique_ptr<AlgorithmCache> cache_;
  AlgorithmTrials trials_;
};

// Where algorithms are timed.
class TrialDevice {
 public:
  virtual ~TrialDevice() = default;
  // Before anything else of a trial.
  virtual void begin() = 0;
  virtual std::shared_ptr<void> memory(std::int64_t bytes) = 0;
  // Memory for a tensor like this one, with random numbers in it: products of zeros are faster.
  virtual std::shared_ptr<void> operand(const Tensor& like) = 0;
  // How long the device works on what `enqueue` puts on its default stream; 0 where that says false.
  virtual double seconds(const std::function<bool()>& enqueue) = 0;
};

}  // namespace primus::turbo
