// A fake librocblas that computes on the host (fake_amd.h). It follows AMD's documentation and the constants
// of AMD's header, independently of our declarations.
#include <cstddef>
#include <string>

#include "turbo/linear/fake_amd.h"

using primus::turbo::test::fake_multiply;
using primus::turbo::test::FakeAmd;
using primus::turbo::test::FakeHandle;
using primus::turbo::test::FakeMatrix;

extern "C" FakeAmd fake_amd_state;
FakeAmd fake_amd_state;

namespace {

FakeAmd& state = fake_amd_state;

enum { kSuccess = 0, kInvalidPointer = 3 };
enum { kNone = 111, kTranspose = 112, kF16 = 150, kF32 = 151, kBF16 = 168 };

FakeHandle own{state, kInvalidPointer};

int fail(const std::string& why) { return own.fail(why); }

primus::DType type_of(int type) {
  return type == kF32 ? primus::DType::kF32 : type == kF16 ? primus::DType::kF16 : primus::DType::kBF16;
}

}  // namespace

extern "C" {

int rocblas_create_handle(void** handle) { return own.create(handle); }
int rocblas_destroy_handle(void* handle) { return own.destroy(handle); }
int rocblas_set_stream(void*, void* stream) {
  state.stream = stream;
  return kSuccess;
}
int rocblas_set_workspace(void*, void* memory, std::size_t) {
  state.workspace_memory = memory;
  return kSuccess;
}
int rocblas_set_atomics_mode(void*, int mode) {
  state.atomics = mode != 0;
  return kSuccess;
}

int rocblas_gemm_ex(void* handle, int trans_a, int trans_b, std::int32_t m, std::int32_t n, std::int32_t k,
                    const void* alpha, const void* a, int a_type, std::int32_t lda, const void* b, int b_type,
                    std::int32_t ldb, const void* beta, const void* c, int c_type, std::int32_t ldc, void* d,
                    int d_type, std::int32_t ldd, int compute_type, int algorithm, std::int32_t solution,
                    std::uint32_t flags) {
  if (!own.is(handle)) return fail("no handle");
  for (const int operation : {trans_a, trans_b}) {
    if (operation != kNone && operation != kTranspose) return fail("operation " + std::to_string(operation));
  }
  for (const int type : {a_type, b_type, c_type, d_type}) {
    if (type != kF32 && type != kF16 && type != kBF16) return fail("type " + std::to_string(type));
  }
  if (a_type != b_type || c_type != d_type || compute_type != kF32)
    return fail("types that do not go together");
  if (algorithm != 0 || solution != 0 || flags != 0) return fail("a solution that was not asked for");
  ++state.products;
  if (state.status != kSuccess) return state.status;
  const bool a_turned = trans_a == kTranspose, b_turned = trans_b == kTranspose;
  const FakeMatrix left{type_of(a_type), a_turned ? k : m, a_turned ? m : k, lda, const_cast<void*>(a)};
  const FakeMatrix right{type_of(b_type), b_turned ? n : k, b_turned ? k : n, ldb, const_cast<void*>(b)};
  const FakeMatrix added{type_of(c_type), m, n, ldc, const_cast<void*>(c)},
      result{type_of(d_type), m, n, ldd, d};
  return fake_multiply(left, a_turned, right, b_turned, added, result, *static_cast<const float*>(alpha),
                       *static_cast<const float*>(beta))
             ? kSuccess
             : fail("sizes of a product");
}

}  // extern "C"
