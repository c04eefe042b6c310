// Times each kernel of the delta rule (turbo/delta_rule/gpu.cu) in bf16, and compares results of two versions
// of the kernels. The sizes are those of a layer of Qwen3.5-35B-A3B (one gate per head, 16 key heads) and of
// Kimi Linear 48B-A3B (one gate per key channel, 32 key heads): 8192 tokens, 32 value heads of 128.
//
//   nvcc -std=c++20 -O3 -Isrc -Ibuild/src/turbo/generated -Ibuild/src/turbo/devices/generated --fmad=false
//     --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a benchmarks/operators/delta_kernels.cu
//     src/turbo/delta_rule/gpu_cached.cu src/turbo/delta_rule/gpu_step.cu build/src/turbo/libprimus_turbo.a
//     build/src/device/libprimus_device.a build/src/tensor/libprimus_tensor.a build/src/base/libprimus_base.a
//     -o delta_kernels
//   ./delta_kernels RESULTS [EARLIER_RESULTS]
//
// Writes the results of both passes to the file RESULTS (about 800 MB), and compares them with the file
// EARLIER_RESULTS of another version. For another version of the kernels, pass its folder before -Isrc.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <typeinfo>
#include <vector>

#include "device/gpu/launch.h"

namespace primus::gpu::cuda {

struct Timed {
  std::string name;
  EventHandle begin, end;
};
inline std::vector<Timed> timed;  // the launches since the last call of clear()

// Replaces launch() in the kernels' sources.
template <class Kernel>
void timed_launch(Context& context, std::int64_t blocks, const Kernel& kernel, std::size_t shared_bytes = 0) {
  Timed one{typeid(Kernel).name(), nullptr, nullptr};
  check(cudaEventCreate(&one.begin), "create an event");
  check(cudaEventCreate(&one.end), "create an event");
  check(cudaEventRecord(one.begin, context.stream()), "record an event");
  launch(context, blocks, kernel, shared_bytes);
  check(cudaEventRecord(one.end, context.stream()), "record an event");
  timed.push_back(one);
}

}  // namespace primus::gpu::cuda

#define launch timed_launch
#include "turbo/delta_rule/gpu.cu"
#undef launch

namespace primus::turbo::cuda {
namespace {

constexpr std::int64_t kTokens = 8192;
constexpr int kRepeats = 20;

// Fills x with values that are uniform in [mean - range, mean + range].
template <class T>
__global__ void fill(T* x, std::int64_t n, std::uint32_t seed, float mean, float range) {
  for (std::int64_t i = blockIdx.x * std::int64_t{256} + threadIdx.x; i < n;
       i += gridDim.x * std::int64_t{256}) {
    auto bits = static_cast<std::uint32_t>(i) * 2654435761U + seed;
    bits = (bits ^ (bits >> 16)) * 0x7FEB352DU;
    bits = (bits ^ (bits >> 15)) * 0x846CA68BU;
    bits ^= bits >> 16;
    x[i] = from_float<T>(mean + range * (static_cast<float>(bits) / 2147483648.0F - 1.0F));
  }
}

Tensor make(DType dtype, const Shape& shape, std::uint32_t seed, float mean, float range) {
  Tensor tensor{nullptr, dtype, shape};
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<std::size_t>(tensor.bytes())), "get memory");
  tensor.data = static_cast<std::byte*>(memory);
  const std::int64_t n = tensor.bytes() / static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::kF32) {
    fill<<<1024, 256>>>(static_cast<float*>(memory), n, seed, mean, range);
  } else {
    fill<<<1024, 256>>>(static_cast<BFloat16*>(memory), n, seed, mean, range);
  }
  return tensor;
}

// Returns the part of a type's name that names the kernel.
std::string short_name(const std::string& name) {
  const std::size_t at = name.find("Delta");
  return at == std::string::npos ? name : name.substr(at, name.find_first_of("IE", at) - at);
}

// Runs the operator, and prints the median time of each of its kernels.
template <class Run>
void time(const char* pass, Run run) {
  std::map<std::string, std::vector<float>> times;
  std::vector<std::string> order;
  for (int repeat = 0; repeat < kRepeats + 3; ++repeat) {
    run();
    check(cudaDeviceSynchronize(), "wait for the kernels");
    float all = 0;
    for (const auto& one : gpu::cuda::timed) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, one.begin, one.end), "read an event");
      all += milliseconds;
      const std::string name = short_name(one.name);
      if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
      if (repeat >= 3) times[name].push_back(milliseconds);
      (void)cudaEventDestroy(one.begin);
      (void)cudaEventDestroy(one.end);
    }
    if (repeat >= 3) times["sum"].push_back(all);
    gpu::cuda::timed.clear();
  }
  order.emplace_back("sum");
  for (const std::string& name : order) {
    std::vector<float>& of_kernel = times[name];
    std::sort(of_kernel.begin(), of_kernel.end());
    std::printf("  %-8s  %-20s  %.3f ms\n", pass, name.c_str(), of_kernel[of_kernel.size() / 2]);
  }
}

// Writes a result, and compares it with the earlier file if there is one.
void keep(const char* name, const Tensor& result, std::ofstream& to, std::ifstream& earlier) {
  std::vector<char> bytes(static_cast<std::size_t>(result.bytes())), before(bytes.size());
  check(cudaMemcpy(bytes.data(), result.data, bytes.size(), cudaMemcpyDeviceToHost), "copy a result");
  to.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!earlier.is_open()) return;
  earlier.read(before.data(), static_cast<std::streamsize>(before.size()));
  const auto value = [&](const std::vector<char>& from, std::size_t i) {
    return result.dtype == DType::kF32
               ? reinterpret_cast<const float*>(from.data())[i]
               : static_cast<float>(reinterpret_cast<const BFloat16*>(from.data())[i]);
  };
  float largest = 0, difference = 0;
  for (std::size_t i = 0; i < bytes.size() / size_of(result.dtype); ++i) {
    largest = std::max(largest, std::abs(value(before, i)));
    const float one = std::abs(value(before, i) - value(bytes, i));
    if (!(one <= difference)) difference = one;
  }
  std::printf("  %-8s  largest difference %.2e of the largest value %.2e\n", name, difference / largest,
              largest);
}

void measure(GpuContext& context, bool by_channel, std::ofstream& to, std::ifstream& earlier) {
  std::printf("%s\n", by_channel ? "32/32 heads, a gate per channel" : "16/32 heads, a gate per head");
  const DeltaRuleShape s{.batch = 1,
                         .sequence = kTokens,
                         .key_heads = by_channel ? 32 : 16,
                         .value_heads = 32,
                         .key_dim = 128,
                         .value_dim = 128,
                         .channel_gates = by_channel,
                         .normalise = true,
                         .scale = 0.088F};
  const Tensor qkv = make(DType::kBF16, {s.rows(), s.width()}, 1, 0, 1);
  const Tensor g = make(DType::kF32, {s.rows(), s.gates()}, 2, -0.1F, 0.05F);
  const Tensor beta = make(DType::kF32, {s.rows(), s.value_heads}, 3, 0.5F, 0.4F);
  const Tensor d_out = make(DType::kBF16, {s.rows(), s.out_width()}, 4, 0, 1);
  const Tensor out = make(DType::kBF16, d_out.shape, 5, 0, 0), d_qkv = make(DType::kBF16, qkv.shape, 5, 0, 0);
  const Tensor d_g = make(DType::kF32, g.shape, 5, 0, 0), d_beta = make(DType::kF32, beta.shape, 5, 0, 0);
  DeltaRuleForward first{
      .shape = s, .qkv = qkv, .g = g, .beta = beta, .first_key = {}, .out = out, .workspace = {}};
  DeltaRuleBackward second{.shape = s,
                           .qkv = qkv,
                           .g = g,
                           .beta = beta,
                           .first_key = {},
                           .d_out = d_out,
                           .d_qkv = d_qkv,
                           .d_g = d_g,
                           .d_beta = d_beta,
                           .workspace = {}};
  const std::int64_t bytes = std::max(forward_workspace(context, first), backward_workspace(context, second));
  const Tensor workspace = make(DType::kF32, {bytes / 4}, 5, 0, 0);
  first.workspace = second.workspace = workspace;
  time("forward", [&] { forward(context, first); });
  time("backward", [&] { backward(context, second); });
  keep("out", out, to, earlier);
  keep("d_qkv", d_qkv, to, earlier);
  keep("d_g", d_g, to, earlier);
  keep("d_beta", d_beta, to, earlier);
  for (const Tensor& tensor : {qkv, g, beta, d_out, out, d_qkv, d_g, d_beta, workspace})
    check(cudaFree(tensor.data), "free memory");
}

}  // namespace
}  // namespace primus::turbo::cuda

int main(int count, char** arguments) {
  if (count < 2 || count > 3) {
    std::fprintf(stderr, "usage: delta_kernels RESULTS [EARLIER_RESULTS]\n");
    return 2;
  }
  std::ofstream to(arguments[1], std::ios::binary);
  std::ifstream earlier;
  if (count == 3) earlier.open(arguments[2], std::ios::binary);
  if (!to || (count == 3 && !earlier)) {
    std::fprintf(stderr, "delta_kernels: cannot open %s\n", !to ? arguments[1] : arguments[2]);
    return 2;
  }
  using namespace primus::gpu::cuda;
  cudaDeviceProp gpu{};
  check(cudaGetDeviceProperties(&gpu, 0), "read the GPU's properties");
  std::printf("%s\n", gpu.name);
  GpuContext context(nullptr, nullptr, nullptr, nullptr, gpu.multiProcessorCount, gpu.major * 10 + gpu.minor,
                     static_cast<std::int64_t>(gpu.sharedMemPerBlockOptin));
  for (const bool by_channel : {false, true}) primus::turbo::cuda::measure(context, by_channel, to, earlier);
  return to.good() ? 0 : 1;
}
