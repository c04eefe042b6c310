// Products by a library with the interface of cuBLASLt. Such a library receives descriptors of a product,
// offers algorithms for it in the order of expected speed, and runs the algorithm that the caller passes.
// cuBLASLt and hipBLASLt differ mainly in names, so they have one source. The `Api` provides the differences:
//
//   types       Handle, Desc, Layout, Preference, Algorithm, Stream, and Result, an offered algorithm
//   constants   kName; kCompute, kScale: fp32 sums and factors; kTransA, kTransB, kPlain, kTransposed;
//               kMaxWorkspace; kSuccess
//   pointers    to the library's functions: destroy, matmul, heuristic, desc_create, desc_destroy, desc_set,
//               layout_create, layout_destroy, preference_create, preference_destroy, preference_set
//   functions   type_of(dtype), state_of(result), tuning_name(handle): library and version
//
// and optionally:
//
//   hint(desc, product, multiprocessors)   sets accumulation and multiprocessors as the product requests
//   prefer(preference, key)                restricts the algorithms offered
//   scale(desc, product)                   sets the factors of fp8 products
//   factor(product)                        returns a further factor of the product
//   check                                  whether the library has this algorithm for a product
//
// The code is device-independent and not thread-safe.
#pragma once

#include "turbo/linear/lt_plans.h"

namespace primus::turbo {

template <class Api>
void LtProducts<Api>::run(const Plan& plan, const LibraryProduct& product,
                          typename Api::Stream stream) const {
  const Gemm& call = product.gemm;
  if constexpr (requires { f_.scale(plan.product, product); }) {
    if (product.is_fp8()) f_.scale(plan.product, product);
  }
  float alpha = 1;
  if constexpr (requires { f_.factor(product); }) alpha = f_.factor(product);
  const float beta = call.accumulate ? 1.0F : 0.0F;
  check(f_.matmul(handle_, plan.product, &alpha, call.b.data, plan.left, call.a.data, plan.right, &beta,
                  call.c.data, plan.result, call.c.data, plan.result, &plan.algorithm, call.workspace.data,
                  static_cast<std::size_t>(call.workspace.bytes()), stream),
        "multiply");
}

// Uses an algorithm from the file only if the library confirms that it still has this algorithm.
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
  // Products with fewer FLOPs are not tuned. Their launches take longer than their computation, and a run may
  // have many such products.
  constexpr double kMinWork = 1e9;
  if (product.gemm.flops() < kMinWork) return;
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
  use_tuned(key, plans_.at(library_key(sized)));
}

// Times the library's preferred algorithms in separate memory and returns the fastest (algorithm_trial.h).
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
