// A fake libhipblaslt that computes on the host (fake_amd.h). It follows AMD's documentation and the
// constants of AMD's header, independently of our declarations.
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "turbo/linear/fake_amd.h"

using primus::turbo::test::fake_multiply;
using primus::turbo::test::FakeAmd;
using primus::turbo::test::FakeHandle;
using primus::turbo::test::FakeMatrix;

extern "C" FakeAmd fake_amd_state;
FakeAmd fake_amd_state;

namespace {

FakeAmd& state = fake_amd_state;

enum { kSuccess = 0, kInvalidValue = 3, kNotSupported = 7 };
enum { kR32F = 0, kR16F = 2, kR16BF = 14, kCompute32F = 2, kOpN = 111, kOpT = 112 };
enum { kR8FE4M3 = 28, kR8FE5M2 = 29, kR8FE4M3Fnuz = 1000, kR8FE5M2Fnuz = 1001 };

// 0: not fp8, 1: OCP's formats, 2: those of gfx942
int kind_of_fp8(int type) {
  return type == kR8FE4M3 || type == kR8FE5M2 ? 1 : type == kR8FE4M3Fnuz || type == kR8FE5M2Fnuz ? 2 : 0;
}

FakeHandle own{state, kInvalidValue};

int fail(const std::string& why) { return own.fail(why); }

struct Desc {
  std::int32_t a = kOpN, b = kOpN;
  const float *a_scale = nullptr, *b_scale = nullptr;
};
struct Layout {
  int type;
  std::uint64_t rows, cols;
  std::int64_t leading;
};
struct Preference {
  std::uint64_t workspace = 0;
};
struct Algorithm {
  unsigned char data[16];
  std::size_t max_workspace_bytes;
};
struct Result {
  Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Algorithm) == 24 && sizeof(Result) == 56);

std::size_t workspace_of(int algorithm) {
  return algorithm % 2 == 0 ? static_cast<std::size_t>(state.workspace) : 0;
}

FakeMatrix matrix(const Layout& layout, const void* data) {
  const bool e4m3 = layout.type == kR8FE4M3 || layout.type == kR8FE4M3Fnuz;
  const primus::DType type = layout.type == kR32F            ? primus::DType::kF32
                             : layout.type == kR16F          ? primus::DType::kF16
                             : e4m3                          ? primus::DType::kF8E4M3
                             : kind_of_fp8(layout.type) != 0 ? primus::DType::kF8E5M2
                                                             : primus::DType::kBF16;
  return {type,
          static_cast<std::int64_t>(layout.rows),
          static_cast<std::int64_t>(layout.cols),
          layout.leading,
          const_cast<void*>(data),
          kind_of_fp8(layout.type) == 2};
}

}  // namespace

extern "C" {

int hipblasLtCreate(void** handle) { return own.create(handle); }
int hipblasLtDestroy(void* handle) { return own.destroy(handle); }
int hipblasLtGetVersion(void* handle, int* version) {
  if (!own.is(handle)) return fail("no handle");
  *version = state.version;
  return kSuccess;
}

int hipblasLtMatmulDescCreate(Desc** desc, int compute, int scale) {
  if (compute != kCompute32F || scale != kR32F) return fail("sums are not in fp32");
  ++state.objects;
  *desc = new Desc;
  return kSuccess;
}
int hipblasLtMatmulDescDestroy(Desc* desc) {
  --state.objects;
  delete desc;
  return kSuccess;
}
int hipblasLtMatmulDescSetAttribute(Desc* desc, int name, const void* value, std::size_t bytes) {
  if (name == 5 || name == 6) {
    if (bytes != sizeof(const float*)) return fail("bytes of a scale");
    std::memcpy(name == 5 ? &desc->a_scale : &desc->b_scale, value, bytes);
    return kSuccess;
  }
  if (name != 0 && name != 1) return fail("attribute " + std::to_string(name));
  if (bytes != sizeof(std::int32_t)) return fail("bytes of an attribute");
  std::int32_t operation = 0;
  std::memcpy(&operation, value, bytes);
  if (operation != kOpN && operation != kOpT) return fail("operation " + std::to_string(operation));
  (name == 0 ? desc->a : desc->b) = operation;
  return kSuccess;
}

int hipblasLtMatrixLayoutCreate(Layout** layout, int type, std::uint64_t rows, std::uint64_t cols,
                                std::int64_t leading) {
  if (type != kR32F && type != kR16F && type != kR16BF && kind_of_fp8(type) == 0)
    return fail("type " + std::to_string(type));
  ++state.objects;
  *layout = new Layout{type, rows, cols, leading};
  return kSuccess;
}
int hipblasLtMatrixLayoutDestroy(Layout* layout) {
  --state.objects;
  delete layout;
  return kSuccess;
}

int hipblasLtMatmulPreferenceCreate(Preference** preference) {
  ++state.objects;
  *preference = new Preference;
  return kSuccess;
}
int hipblasLtMatmulPreferenceDestroy(Preference* preference) {
  --state.objects;
  delete preference;
  return kSuccess;
}
int hipblasLtMatmulPreferenceSetAttribute(Preference* preference, int name, const void* value,
                                          std::size_t bytes) {
  if (name != 1 || bytes != sizeof(std::uint64_t)) return fail("preference " + std::to_string(name));
  std::memcpy(&preference->workspace, value, bytes);
  return kSuccess;
}

int hipblasLtMatmulAlgoGetHeuristic(void* handle, Desc*, Layout* a, Layout* b, Layout* c, Layout* d,
                                    Preference* preference, int room, Result* results, int* count) {
  if (!own.is(handle) || room < 1) return fail("what a question is about");
  const int fp8 = kind_of_fp8(a->type);
  if ((fp8 == 0 ? a->type != b->type : fp8 != kind_of_fp8(b->type)) || c->type != d->type)
    return fail("types that do not go together");
  ++state.questions;
  *count = 0;
  if (state.algorithms == 0) return kNotSupported;
  for (int i = 0; i < state.algorithms && *count < room; ++i) {
    if (workspace_of(i) > preference->workspace) continue;
    Result& result = results[(*count)++];
    std::memcpy(result.algorithm.data, &i, sizeof(i));
    result.algorithm.max_workspace_bytes = preference->workspace;
    result.workspace = workspace_of(i);
    result.state = kSuccess;
    result.waves = 1;
  }
  return kSuccess;
}

int hipblasLtMatmul(void* handle, Desc* desc, const void* alpha, const void* a, Layout* a_layout,
                    const void* b, Layout* b_layout, const void* beta, const void* c, Layout* c_layout,
                    void* d, Layout* d_layout, const Algorithm* algorithm, void* workspace, std::size_t bytes,
                    void* stream) {
  if (!own.is(handle) || !algorithm) return fail("what a product is made by");
  int number = -1;
  std::memcpy(&number, algorithm->data, sizeof(number));
  if (number < 0 || number >= state.algorithms) return fail("algorithm " + std::to_string(number));
  const std::size_t needed = workspace_of(number);
  if (needed > bytes || (needed > 0 && !workspace)) return fail("workspace of a product");
  if (needed > 0) std::memset(workspace, 0x5A, needed);  // overwrites the workspace, as a kernel may
  ++state.products;
  state.last_algorithm = number;
  state.stream = stream;
  state.workspace_memory = workspace;
  if (state.status != kSuccess) return state.status;
  if (state.trials) {
    if (number < state.slow) std::this_thread::sleep_for(std::chrono::microseconds(300));
    return kSuccess;
  }
  double factor = *static_cast<const float*>(alpha);
  for (const float* scale : {desc->a_scale, desc->b_scale}) factor *= scale ? *scale : 1;
  const bool multiplied =
      fake_multiply(matrix(*a_layout, a), desc->a == kOpT, matrix(*b_layout, b), desc->b == kOpT,
                    matrix(*c_layout, c), matrix(*d_layout, d), factor, *static_cast<const float*>(beta));
  return multiplied ? kSuccess : fail("sizes of a product");
}

}  // extern "C"
