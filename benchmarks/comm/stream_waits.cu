// Can a stream wait for a flag that later work of the same GPU sets? A host thread enqueues such a wait and
// then makes one call of CUDA. Another thread launches a kernel on a second stream 60 ms later and sets the
// flag behind this kernel. "blocked" means that the flag was not set within a second. comm/nccl/row_counter.h
// says what follows from the results.
//
//   nvcc -O2 -std=c++20 -arch=sm_90 benchmarks/comm/stream_waits.cu -o stream_waits && ./stream_waits
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

void check(int status, int line) {
  if (status == 0) return;
  std::fprintf(stderr, "line %d: CUDA error %d\n", line, status);
  std::exit(1);
}
#define CHECK(call) check(static_cast<int>(call), __LINE__)

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

__global__ void known(int* p) { atomicAdd(p, 1); }

// A kernel that is not launched before its test.
template <int kNumber>
__global__ void fresh(int* p) {
  __shared__ int values[1024];
  int v = kNumber;
  for (int i = 0; i < 200; ++i) {
    v = v * 1664525 + kNumber * i;
    values[(threadIdx.x * 7 + v) & 1023] = v;
    __syncthreads();
    v += values[(v * 13 + i) & 1023];
  }
  if (v == kNumber) atomicAdd(p, v);
}

__global__ void much_local_memory(int* p) {
  int a[4000];
  for (int i = 0; i < 4000; ++i) a[i] = p[i & 7] + i;
  int v = 0;
  for (int i = 0; i < 4000; ++i) v += a[(i * p[1] + 3) % 4000];
  if (v == 77) *p = v;
}

}  // namespace

int main() {
  CHECK(cudaSetDevice(0));
  CHECK(cudaFree(nullptr));
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CHECK(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, &result));
  const auto wait = reinterpret_cast<decltype(&cuStreamWaitValue32)>(found);
  CHECK(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &found, 12000, cudaEnableDefault, &result));
  const auto write = reinterpret_cast<decltype(&cuStreamWriteValue32)>(found);

  std::atomic<unsigned>* flag = nullptr;
  void* on_device = nullptr;
  int* data = nullptr;
  void *to_free = nullptr, *pinned = nullptr;
  cudaStream_t waits = nullptr, sets = nullptr, other = nullptr;
  CHECK(cudaHostAlloc(reinterpret_cast<void**>(&flag), 4096, cudaHostAllocMapped));
  CHECK(cudaHostGetDevicePointer(&on_device, flag, 0));
  CHECK(cudaMalloc(&data, 1 << 20));
  CHECK(cudaMemset(data, 0, 1 << 20));
  CHECK(cudaMalloc(&to_free, 1 << 28));
  CHECK(cudaHostAlloc(&pinned, 1 << 24, 0));
  CHECK(cudaStreamCreateWithFlags(&waits, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&sets, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  known<<<1, 1, 0, waits>>>(data);
  known<<<1, 1, 0, sets>>>(data);
  CHECK(cudaDeviceSynchronize());
  const auto address = reinterpret_cast<CUdeviceptr>(on_device);

  const auto test = [&](const char* name, const std::function<void()>& work) {
    *flag = 0;
    CHECK(wait(waits, address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    known<<<1, 1, 0, waits>>>(data);
    const auto begin = Clock::now();
    std::atomic<bool> done{false};
    std::thread first([&] {
      CHECK(cudaSetDevice(0));
      work();
      done = true;
    });
    std::thread second([&] {
      CHECK(cudaSetDevice(0));
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      known<<<1, 1, 0, sets>>>(data);
      CHECK(write(sets, address, 1, 0));
    });
    while (seconds_since(begin) < 1 && !(done && *flag))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const bool blocked = *flag == 0;
    *flag = 1;
    first.join();
    second.join();
    CHECK(cudaDeviceSynchronize());
    std::printf("%-46s %s\n", name, blocked ? "blocked" : "ok");
  };

  test("no call", [] {});
  test("first launch of a kernel on the waiting stream", [&] { fresh<1><<<1, 32, 0, waits>>>(data); });
  test("first launch of a kernel on another stream", [&] { fresh<2><<<1, 32, 0, other>>>(data); });
  test("a kernel that needs more local memory", [&] { much_local_memory<<<1, 32, 0, waits>>>(data); });
  void* allocated = nullptr;
  test("cudaMalloc", [&] { CHECK(cudaMalloc(&allocated, 1 << 30)); });
  test("cudaFree", [&] { CHECK(cudaFree(to_free)); });
  test("cudaHostAlloc", [&] { CHECK(cudaHostAlloc(&allocated, 1 << 24, 0)); });
  test("cudaFreeHost", [&] { CHECK(cudaFreeHost(pinned)); });
  test("cudaDeviceSynchronize", [&] { CHECK(cudaDeviceSynchronize()); });
  test("first launch of a recorded graph", [&] {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CHECK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
    fresh<3><<<1, 32, 0, other>>>(data);
    CHECK(cudaStreamEndCapture(other, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, waits));
  });
  test("2000 launches", [&] {
    for (int i = 0; i < 2000; ++i) known<<<1, 1, 0, waits>>>(data);
  });
}
