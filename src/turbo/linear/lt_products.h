// Products by a library of cuBLASLt's kind: it gets descriptors of a product, offers algorithms for it, the
// likely fastest first, and runs the one that it is given. cuBLASLt and hipBLASLt differ in little but names,
// so one source serves both. What differs is the `Api`:
//
//   types       Handle, Desc, Layout, Preference, Algorithm, Stream, and Result, what the library offers
//   constants   kName; kCompute, kScale: sums and factors in fp32; kTransA, kTransB, kPlain, kTransposed;
//               kMaxWorkspace; kSuccess
//   pointers    to the library's functions: destroy, matmul, heuristic, desc_create, desc_destroy, desc_set,
//               layout_create, layout_destroy, preference_create, preference_destroy, preference_set
//   functions   type_of(dtype), state_of(result), tuning_name(handle): library and version
//
// and what only some of them know:
//
//   hint(desc, product, multiprocessors)   sums and multiprocessors as the product wishes
//   prefer(preference, key)                which algorithms may come
//   scale(desc, product)                   factors of products in fp8
//   check                                  whether it has this algorithm for a product
//
// Knows no device; not thread-safe.
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

  // One product's descriptors, and the algorithm that computes it.
  struct Plan {
    typename Api::Desc product = nullptr;
    typename Api::Layout left = nullptr, right = nullptr, result = nullptr;
    Algorithm algorithm{};
    bool found = false, tuned = false;
  };

  // Takes the handle, which `api` has created. `tuning` outlives this.
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

  // Null: the library does not take it. Valid as long as this object.
  const Plan* find(const LibraryProduct& product);
  // Enqueues it, with the addresses that `product` has now.
  void run(const Plan& plan, const LibraryProduct& product, typename Api::Stream stream) const;
  // Chooses the algorithm of a product that is about to come by timing several, unless one is known.
  void tune(const LibraryProduct& product, TrialDevice& device);

  // Throws where the library says no; `what` completes "cannot ...".
  static void check(decltype(Api::kSuccess) status, const char* what) {
    if (status == Api::kSuccess) return;
    throw Error(
        ErrorKind::kIo,
        std::string(Api::kName) + " cannot " + what + ": status " + std::to_string(static_cast<int>(status)),
        kLostDeviceHint);
  }

 private:
  // The library's favourites, the best first. It names at most eight for a question, so it is asked twice.
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
    if constexpr (!kHints) key.spared = 0;  // no other product
    return key;
  }

  Plan make_plan(const LibraryProduct& product, const ProductKey& key) const;
  // `key`: a tuned_key().
  void take_tuned(const ProductKey& key, Plan& plan) const {
    if (const auto tuned = tuning_.known(key)) {
      plan.algorithm = algorithm_of(*tuned);
      plan.tuned = true;
    }
  }
  Candidates candidates(const Plan& plan, const ProductKey& key, std::int64_t workspace, int most) const;
  Candidates candidates_to_time(const Plan& plan, const ProductKey& key) const;
  bool is_usable(const Plan& plan, const ProductKey& key, const AlgorithmWords& words) const;
  std::optional<AlgorithmChoice> measure(TrialDevice& device, const Gemm& call, const Plan& plan,
                                         const ProductKey& key, AlgorithmTrials& trials) const;

  const Api f_;
  const typename Api::Handle handle_;
  ProductTuning& tuning_;
  const int multiprocessors_;
  std::map<ProductKey, Plan> plans_;
  std::set<ProductKey> tuned_;  // whatever came of it
};

// Our row-major C = op(A) · op(B) is, read by columns as the library does, Cᵀ = op(B)ᵀ · op(A)ᵀ: the right
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
  f_.layout_create(&plan.left, Api::type_of(call.b.dtype), cols(call.b), rows(call.b), call.b.cols());
  f_.layout_create(&plan.right, Api::type_of(call.a.dtype), cols(call.a), rows(call.a), call.a.cols());
  f_.layout_create(&plan.result, Api::type_of(call.c.dtype), cols(call.c), rows(call.c), call.c.cols());
  const auto found = candidates(plan, key, call.workspace.bytes(), 1);
  plan.found = found.count > 0;
  if (!plan.found) return plan;
  plan.algorithm = found.all[0].algo;
  take_tuned(tuned_key(key), plan);
  return plan;
}

// The library's favourites, the best first.
template <class Api>
typename LtProducts<Api>::Candidates LtProducts<Api>::candidates(const Plan& plan, const ProductKey& key,
                                                                 std::int64_t workspace, int most) const {
  typename Api::Preference preference = nullptr;
  f_.preference_create(&preference);
  const auto bytes = static_cast<std::uint64_t>(workspace);
  f_.preference_set(preference, Api::kMaxWorkspace, &bytes, sizeof(bytes));
  if constexpr (requires { f_.prefer(preference, key); }) f_.prefer(preference, key);
  Candidates results;
  int count = 0;
  const auto status = f_.heuristic(handle_, plan.product, plan.left, plan.right, plan.result, plan.result,
                                   preference, most, results.all.data(), &count);
  f_.preference_destroy(preference);
  if (status != Api::kSuccess) return results;
  const auto end = results.all.begin() + std::clamp(count, 0, most);
  const auto works = [](const auto& result) { return Api::state_of(result) == Api::kSuccess; };
  results.count =
      static_cast<int>(std::stable_partition(results.all.begin(), end, works) - results.all.begin());
  return results;
}

// Of a workspace as it will be, and then those without one, which sum in one piece.
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

template <class Api>
void LtProducts<Api>::run(const Plan& plan, const LibraryProduct& product,
                          typename Api::Stream stream) const {
  const Gemm& call = product.gemm;
  if constexpr (requires { f_.scale(plan.product, product); }) {
    if (product.is_fp8()) f_.scale(plan.product, product);
  }
  const float alpha = 1, beta = call.accumulate ? 1.0F : 0.0F;
  check(f_.matmul(handle_, plan.product, &alpha, call.b.data, plan.left, call.a.data, plan.right, &beta,
                  call.c.data, plan.result, call.c.data, plan.result, &plan.algorithm, call.workspace.data,
                  static_cast<std::size_t>(call.workspace.bytes()), stream),
        "multiply");
}

// What a file holds goes to the library only if the library says that it is one of its algorithms.
template <class Api>
bool LtProducts<Api>::is_usable(const Plan& plan, const ProductKey& key, const AlgorithmWords& words) const {
  if constexpr (requires { f_.check; }) {
    const Algorithm algorithm = algorithm_of(words);
    typename Api::Result result{};
    return f_.check(handle_, plan.product, plan.left, plan.right, plan.result, plan.result, &algorithm,
                    &result) == Api::kSuccess &&
           Api::state_of(result) == Api::kSuccess &&
           result.workspaceSize <= static_cast<std::size_t>(kLibraryWorkspaceBytes);
  } else {
    const Candidates found = candidates_to_time(plan, key);
    return std::any_of(found.all.begin(), found.all.begin() + found.count,
                       [&](const auto& one) { return words_of(one.algo) == words; });
  }
}

template <class Api>
void LtProducts<Api>::tune(const LibraryProduct& product, TrialDevice& device) {
  // Smaller ones take longer to start than to run, and there may be many of them.
  constexpr double kLeastWork = 1e9;
  if (product.gemm.flops() < kLeastWork) return;
  const ProductKey key = tuned_key(library_key(product));
  if (!tuned_.insert(key).second) return;
  LibraryProduct sized = product;
  sized.gemm.accumulate = key.accumulate;
  sized.gemm.workspace = Tensor(nullptr, DType::kU8, {kLibraryWorkspaceBytes});
  const Plan* const plan = find(sized);
  if (!plan) return;
  tuning_.choose(
      key, f_.tuning_name(handle_),
      [&](const AlgorithmChoice& choice) { return is_usable(*plan, key, choice.algorithm); },
      [&](AlgorithmTrials& trials) { return measure(device, sized.gemm, *plan, key, trials); });
  take_tuned(key, plans_.at(library_key(sized)));
}

// The fastest of the library's favourites in the state of a training step (algorithm_trial.h), on memory of
// its own.
template <class Api>
std::optional<AlgorithmChoice> LtProducts<Api>::measure(TrialDevice& device, const Gemm& call,
                                                        const Plan& plan, const ProductKey& key,
                                                        AlgorithmTrials& trials) const {
  const Candidates found = candidates_to_time(plan, key);
  if (found.count == 0) return std::nullopt;
  device.begin();
  const auto a = device.operand(call.a), b = device.operand(call.b), c = device.operand(call.c);
  const auto workspace = device.memory(kLibraryWorkspaceBytes);
  const float alpha = 1, beta = call.accumulate ? 1.0F : 0.0F;
  const auto run = [&](int candidate, int products) {
    return device.seconds([&] {
      for (int i = 0; i < products; ++i) {
        if (f_.matmul(handle_, plan.product, &alpha, b.get(), plan.left, a.get(), plan.right, &beta, c.get(),
                      plan.result, c.get(), plan.result, &found.all[static_cast<std::size_t>(candidate)].algo,
                      workspace.get(), static_cast<std::size_t>(kLibraryWorkspaceBytes),
                      nullptr) != Api::kSuccess) {
          return false;
        }
      }
      return true;
    });
  };
  const std::optional<AlgorithmTrial> trial = trials.choose(found.count, run);
  if (!trial) return std::nullopt;
  constexpr double kMicro = 1e6;
  return AlgorithmChoice{.algorithm = words_of(found.all[static_cast<std::size_t>(trial->best)].algo),
                         .microseconds = trial->seconds * kMicro,
                         .next_microseconds = trial->next * kMicro,
                         .of = trial->of};
}

}  // namespace primus::turbo
