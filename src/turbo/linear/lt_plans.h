// Matrix products by a library. Each product has a plan, which contains descriptors and an algorithm.
// lt_products.h chooses the algorithm.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "device/lost_device.h"
#include "turbo/linear/library_product.h"

namespace primus::turbo {

template <class Api>
class LtProducts {
 public:
  using Algorithm = typename Api::Algorithm;

  // The descriptors and the algorithm of one product.
  struct Plan {
    typename Api::Desc product = nullptr;
    typename Api::Layout left = nullptr, right = nullptr, result = nullptr;
    Algorithm algorithm{};
    bool found = false, tuned = false;
  };

  // Takes ownership of `handle`, which `api` has created. `tuning` must outlive this object.
  LtProducts(const Api& api, typename Api::Handle handle, ProductTuning& tuning, int multiprocessors)
      : f_(api), handle_(handle), tuning_(tuning), multiprocessors_(multiprocessors) {}
  LtProducts(const LtProducts&) = delete;
  LtProducts& operator=(const LtProducts&) = delete;
  ~LtProducts() {
    for (auto& [key, plan] : plans_) {
      f_.desc_destroy(plan.product);
      f_.layout_destroy(plan.left);
      f_.layout_destroy(plan.right);
      f_.layout_destroy(plan.result);
    }
    f_.destroy(handle_);
  }

  // Returns null if the library does not accept the product. The plan is valid as long as this object.
  const Plan* find(const LibraryProduct& product);
  // Enqueues the product, with the current addresses of `product`.
  void run(const Plan& plan, const LibraryProduct& product, typename Api::Stream stream) const;
  // Chooses the algorithm of an upcoming product by timing several algorithms, unless the choice is known.
  void tune(const LibraryProduct& product, TrialDevice& device);

  // Throws if `status` is an error; `what` completes the message "cannot ...".
  static void check(decltype(Api::kSuccess) status, const char* what) {
    if (status == Api::kSuccess) return;
    throw Error(
        ErrorKind::kIo,
        std::string(Api::kName) + " cannot " + what + ": status " + std::to_string(static_cast<int>(status)),
        kLostDeviceHint);
  }

 private:
  // The library's preferred algorithms, best first. The library returns at most eight per query, so there are
  // two queries.
  static constexpr int kCandidates = 16;
  struct Candidates {
    std::array<typename Api::Result, kCandidates> all{};
    int count = 0;
  };

  static constexpr bool kHints = requires(const Api& api, typename Api::Desc desc, LibraryProduct product) {
    api.hint(desc, product, 0);
  };
  static_assert(std::is_trivially_copyable_v<Algorithm> && sizeof(Algorithm) <= sizeof(AlgorithmWords));
  static AlgorithmWords words_of(const Algorithm& algorithm) {
    AlgorithmWords words{};
    std::memcpy(words.data(), &algorithm, sizeof(algorithm));
    return words;
  }
  static Algorithm algorithm_of(const AlgorithmWords& words) {
    Algorithm algorithm{};
    std::memcpy(&algorithm, words.data(), sizeof(algorithm));
    return algorithm;
  }
  static ProductKey library_key(const LibraryProduct& product) {
    ProductKey key = key_of(product);
    if constexpr (!kHints) key.spared = 0;  // `spared` does not affect the product
    return key;
  }

  Plan make_plan(const LibraryProduct& product, const ProductKey& key) const;
  // `key` must be a result of tuned_key().
  void use_tuned(const ProductKey& key, Plan& plan) const {
    if (const auto tuned = tuning_.known(key)) {
      plan.algorithm = algorithm_of(*tuned);
      plan.tuned = true;
    }
  }
  Candidates candidates(const Plan& plan, const ProductKey& key, std::int64_t workspace, int maximum) const;
  Candidates candidates_to_time(const Plan& plan, const ProductKey& key) const;
  bool is_usable(const Plan& plan, const ProductKey& key, const AlgorithmWords& words) const;
  std::optional<AlgorithmChoice> measure(TrialDevice& device, const Gemm& call, const Plan& plan,
                                         const ProductKey& key, AlgorithmTrials& trials) const;

  const Api f_;
  const typename Api::Handle handle_;
  ProductTuning& tuning_;
  const int multiprocessors_;
  std::map<ProductKey, Plan> plans_;
  std::set<ProductKey> tuned_;  // keys for which tuning was tried, even without success
};

// Our row-major C = op(A) · op(B) is Cᵀ = op(B)ᵀ · op(A)ᵀ in the library's column-major order, so the right
// operand comes first.
template <class Api>
typename LtProducts<Api>::Plan LtProducts<Api>::make_plan(const LibraryProduct& product,
                                                          const ProductKey& key) const {
  const Gemm& call = product.gemm;
  Plan plan;
  const auto rows = [](const Tensor& t) { return static_cast<std::uint64_t>(t.rows()); };
  const auto cols = [](const Tensor& t) { return static_cast<std::uint64_t>(t.cols()); };
  const auto first = call.role == GemmRole::kForward ? Api::kTransposed : Api::kPlain;
  const auto second = call.role == GemmRole::kWeightGradient ? Api::kTransposed : Api::kPlain;
  f_.desc_create(&plan.product, Api::kCompute, Api::kScale);
  f_.desc_set(plan.product, Api::kTransA, &first, sizeof(first));
  f_.desc_set(plan.product, Api::kTransB, &second, sizeof(second));
  if constexpr (kHints) f_.hint(plan.product, product, multiprocessors_);
  f_.layout_create(&plan.left, f_.type_of(call.b.dtype), cols(call.b), rows(call.b), call.b.cols());
  f_.layout_create(&plan.right, f_.type_of(call.a.dtype), cols(call.a), rows(call.a), call.a.cols());
  f_.layout_create(&plan.result, f_.type_of(call.c.dtype), cols(call.c), rows(call.c), call.c.cols());
  const auto found = candidates(plan, key, call.workspace.bytes(), 1);
  plan.found = found.count > 0;
  if (!plan.found) return plan;
  plan.algorithm = found.all[0].algo;
  use_tuned(tuned_key(key), plan);
  return plan;
}

// Returns the library's preferred algorithms, best first.
template <class Api>
typename LtProducts<Api>::Candidates LtProducts<Api>::candidates(const Plan& plan, const ProductKey& key,
                                                                 std::int64_t workspace, int maximum) const {
  typename Api::Preference preference = nullptr;
  f_.preference_create(&preference);
  const auto bytes = static_cast<std::uint64_t>(workspace);
  f_.preference_set(preference, Api::kMaxWorkspace, &bytes, sizeof(bytes));
  if constexpr (requires { f_.prefer(preference, key); }) f_.prefer(preference, key);
  Candidates results;
  int count = 0;
  const auto status = f_.heuristic(handle_, plan.product, plan.left, plan.right, plan.result, plan.result,
                                   preference, maximum, results.all.data(), &count);
  f_.preference_destroy(preference);
  if (status != Api::kSuccess) return results;
  const auto end = results.all.begin() + std::clamp(count, 0, maximum);
  const auto works = [](const auto& result) { return Api::state_of(result) == Api::kSuccess; };
  results.count =
      static_cast<int>(std::stable_partition(results.all.begin(), end, works) - results.all.begin());
  return results;
}

// Returns candidates that may use the workspace, followed by candidates without a workspace. Candidates
// without a workspace do not split sums.
template <class Api>
typename LtProducts<Api>::Candidates LtProducts<Api>::candidates_to_time(const Plan& plan,
                                                                         const ProductKey& key) const {
  Candidates found = candidates(plan, key, kLibraryWorkspaceBytes, kCandidates);
  if (found.count == 0) return found;
  const Candidates without = candidates(plan, key, 0, kCandidates);
  for (int i = 0; i < without.count && found.count < kCandidates; ++i) {
    const auto& one = without.all[static_cast<std::size_t>(i)];
    const auto same = [&](const auto& other) { return words_of(other.algo) == words_of(one.algo); };
    if (std::none_of(found.all.begin(), found.all.begin() + found.count, same)) {
      found.all[static_cast<std::size_t>(found.count++)] = one;
    }
  }
  return found;
}

template <class Api>
const typename LtProducts<Api>::Plan* LtProducts<Api>::find(const LibraryProduct& product) {
  if (!is_for_library(product)) return nullptr;
  const ProductKey key = library_key(product);
  auto at = plans_.find(key);
  if (at == plans_.end()) at = plans_.emplace(key, make_plan(product, key)).first;
  return at->second.found ? &at->second : nullptr;
}

}  // namespace primus::turbo
