#include "lm/train/corruption/golden_products.h"

#include <algorithm>

#include "turbo/elementwise/elementwise.h"
#include "turbo/linear/linear.h"

namespace primus {
namespace {

// Device memory for tensors that exist as long as this object.
class OwnMemory {
 public:
  OwnMemory(Device& device, std::int64_t bytes)
      : device_(device), memory_(device.allocate(bytes)), arena_("golden products", memory_, bytes) {}
  ~OwnMemory() { device_.release(memory_); }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  Arena& arena() { return arena_; }

 private:
  Device& device_;
  void* memory_;
  Arena arena_;
};

}  // namespace

struct GoldenProducts::Product {
  Product(Device& device, DType compute)
      : side(device.properties().host_memory ? 512 : 4096),
        depth(device.properties().host_memory ? 512 : 1024),
        stream(device.create_stream(StreamKind::kCompute)) {
    gemm.a = Tensor(nullptr, compute, {side, depth});
    gemm.b = Tensor(nullptr, compute, {side, depth});
    gemm.c = Tensor(nullptr, DType::kF32, {side, side});
    Arena measuring("scratch");
    turbo::Context plan{device, *stream, measuring, meter};
    turbo::launch(plan, gemm);
    scratch = std::make_unique<OwnMemory>(device, std::max(measuring.high_water(), Arena::kAlignment));
    operands = std::make_unique<OwnMemory>(
        device, gemm.a.bytes() + gemm.b.bytes() + gemm.c.bytes() + 3 * Arena::kAlignment);
    context = std::make_unique<turbo::Context>(turbo::Context{device, *stream, scratch->arena(), meter});
    for (Tensor* const tensor : {&gemm.a, &gemm.b, &gemm.c})
      tensor->data = operands->arena().allocate(tensor->bytes()).address;
    // The result has room for the numbers from which an operand is rounded.
    for (const Tensor& operand : {gemm.a, gemm.b}) {
      const Tensor wide = compute == DType::kF32 ? operand : Tensor(gemm.c.data, DType::kF32, operand.shape);
      turbo::launch(*context, turbo::RandomNormal{.out = wide,
                                                  .seed = 1,
                                                  .stream = operand.data == gemm.a.data ? 1U : 2U,
                                                  .offset = 0,
                                                  .mean = 0,
                                                  .std = 1});
      if (compute != DType::kF32) turbo::launch(*context, turbo::Cast{.x = wide, .out = operand});
    }
    stream->synchronize();
  }

  std::int64_t side, depth;
  std::unique_ptr<Stream> stream;
  turbo::Meter meter;
  turbo::Gemm gemm{
      .role = turbo::GemmRole::kForward, .a = {}, .b = {}, .c = {}, .accumulate = false, .workspace = {}};
  std::unique_ptr<OwnMemory> scratch, operands;
  std::unique_ptr<turbo::Context> context;
};

GoldenProducts::GoldenProducts(engine::Rank& rank, DType compute, DeviceHash& hash)
    : rank_(rank), hash_(hash), product_(std::make_unique<Product>(rank.device(), compute)) {
  run();  // the first product may choose its kernel
  golden_ = run();
  repeatable_ = run() == golden_;
}

GoldenProducts::~GoldenProducts() = default;

std::uint64_t GoldenProducts::run() {
  turbo::launch(*product_->context, product_->gemm);
  product_->stream->synchronize();
  return hash_.of({&product_->gemm.c, 1});
}

bool GoldenProducts::repeat() { return run() == golden_; }

void GoldenProducts::damage() { flip_bit(rank_, product_->gemm.a); }

}  // namespace primus
