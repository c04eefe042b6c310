#include "device/gpu/emulator.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace primus::gpu::emulator {
namespace {

// ---- Fibers -------------------------------------------------------------------------------------

// Saved registers of a suspended fiber. On x86-64, the registers are on the fiber's own stack. A switch with
// ucontext would need a system call, and kernels switch millions of times.
struct Registers {
#if defined(__x86_64__)
  void* stack = nullptr;
#else
  ucontext_t context;
#endif
};

#if defined(__x86_64__)
extern "C" void primus_emulator_switch(void** save, void* to);
asm(R"(
.text
.globl primus_emulator_switch
.hidden primus_emulator_switch
.type primus_emulator_switch, @function
primus_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size primus_emulator_switch, .-primus_emulator_switch
)");
#endif

// A flow of control of an operating-system thread: a fiber, or the code that runs a block.
struct Flow {
  Registers registers;
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;  // of the stack
  std::size_t bytes = 0;
  void* fake_stack = nullptr;
#endif
#if defined(__SANITIZE_THREAD__)
  void* tsan = nullptr;
#endif
};

// Suspends `from` and continues `to`. If `from` has ended, nothing may continue it.
void switch_flow(Flow& from, Flow& to, [[maybe_unused]] bool ended = false) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(ended ? nullptr : &from.fake_stack, to.bottom, to.bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.tsan, 0);
#endif
#if defined(__x86_64__)
  primus_emulator_switch(&from.registers.stack, to.registers.stack);
#else
  swapcontext(&from.registers.context, &to.registers.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// A stack with an inaccessible page below it. So a stack overflow crashes instead of corrupting the adjacent
// stack.
class FiberStack {
 public:
  static constexpr std::size_t kBytes = std::size_t{128} << 10;

  FiberStack() : guard_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    void* memory = mmap(nullptr, kBytes + guard_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw io_error("cannot reserve a stack for an emulated GPU thread", errno);
    base_ = static_cast<char*>(memory);
    mprotect(base_, guard_, PROT_NONE);
  }
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;
  ~FiberStack() { munmap(base_, kBytes + guard_); }

  char* bottom() const { return base_ + guard_; }

 private:
  std::size_t guard_;
  char* base_ = nullptr;
};

struct Warp {
  std::int64_t exchanges = 0;  // number of completed exchanges
  int arrived = 0;
  // Two buffers, because a lane one exchange ahead must not overwrite data that a slow lane still reads.
  alignas(64) std::array<std::array<std::byte, 64 * kExchangeBytes>, 2> slots;
};

struct Fiber {
  FiberStack stack;
  Flow flow;
  Place place{};
  Warp* warp = nullptr;
  std::size_t lane = 0;  // in the warp
  // The fiber waits until this counter has at least the value `awaited`. Null: the fiber can continue.
  const std::int64_t* counter = nullptr;
  std::int64_t awaited = 0;
  std::int64_t barriers = 0;   // number of barriers that the fiber has reached
  std::int64_t exchanges = 0;  // number of exchanges that the fiber has reached
  bool done = false;
  bool waited = false;  // true if the fiber has waited for the previous kernel

  bool ready() const { return !counter || *counter >= awaited; }
};

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
struct SharedMemory {
  std::unique_ptr<void, FreeMemory> memory;
  std::size_t bytes = 0;
  bool touched = false;  // true if the current block has accessed this variable
};

// ---- Running one block --------------------------------------------------------------------------

// The state of one operating-system thread that runs blocks.
class Multiprocessor {
 public:
  void run_block(const Grid& grid, std::int64_t block, void (*body)(const void*), const void* arguments);

  Fiber& fiber() { return *running_; }
  void barrier();
  void barrier(int number, int threads);
  void wait_until(bool (*ready)(const void*), const void* state);
  void made_progress() { ++progress_; }
  void check_waited();
  const std::byte* exchange(const void* data, std::size_t bytes);
  void* shared(const void* name, std::size_t bytes);

 private:
  static void enter();
  void start(std::size_t index);
  void wait_for(const std::int64_t& counter, std::int64_t value);
  void yield();
  Fiber& next();
  [[noreturn]] void finish();
  void fail(const std::string& what);

  Grid grid_{};
  void (*body_)(const void*) = nullptr;
  const void* arguments_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::map<const void*, SharedMemory> shared_;
  Flow runner_;  // run_block()
  Fiber* running_ = nullptr;
  int alive_ = 0, at_barrier_ = 0;
  std::int64_t barriers_ = 0;
  struct Numbered {
    int arrived = 0;
    std::int64_t complete = 0;
  };
  std::array<Numbered, 16> numbered_;
  std::int64_t progress_ = 0;           // incremented by every event that may let a waiting fiber continue
  std::int64_t progress_of_round_ = 0;  // progress_ at the time when the current round over the fibers began
  std::exception_ptr failure_;
};

thread_local Multiprocessor* active = nullptr;

// If a fiber of a block fails, all other fibers of the block throw this and end.
struct Abandoned {};

void Multiprocessor::enter() {
  Multiprocessor& self = *active;
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  // run_block() enters the first fiber, and other fibers enter the following ones.
  if (!self.runner_.bottom) self.runner_.bottom = bottom, self.runner_.bytes = bytes;
#endif
  try {
    self.body_(self.arguments_);
    self.check_waited();
  } catch (const Abandoned&) {
    // Only the first failure of the block is reported.
  } catch (...) {
    if (!self.failure_) self.failure_ = std::current_exception();
  }
  self.finish();
}

void Multiprocessor::start(std::size_t index) {
  Fiber& fiber = *fibers_[index];
  fiber.barriers = fiber.exchanges = 0;
  fiber.counter = nullptr;
  fiber.done = fiber.waited = false;
#if defined(__x86_64__)
  // If the stacks of a block began at equal offsets in their pages, their first bytes would share few cache
  // lines of the CPU, and a kernel would run more slowly.
  const std::size_t offset = index * 320 % 4096;
  // The values that primus_emulator_switch() pops: six registers and the address of enter(). When enter()
  // begins, the stack pointer must be a multiple of 16 plus 8, as after a call.
  auto* top = reinterpret_cast<void**>(fiber.stack.bottom() + FiberStack::kBytes - offset) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&Multiprocessor::enter);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.flow.registers.stack = top;
#else
  ucontext_t& context = fiber.flow.registers.context;
  getcontext(&context);
  context.uc_stack = {fiber.stack.bottom(), 0, FiberStack::kBytes};
  context.uc_link = nullptr;
  makecontext(&context, &Multiprocessor::enter, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
  fiber.flow.bottom = fiber.stack.bottom();
  fiber.flow.bytes = FiberStack::kBytes;
#endif
#if defined(__SANITIZE_THREAD__)
  if (!fiber.flow.tsan) fiber.flow.tsan = __tsan_create_fiber(0);
#endif
}

// Returns the next fiber that can continue. If there is none, the block fails. Then every fiber can continue,
// to end.
Fiber& Multiprocessor::next() {
  auto index = static_cast<std::size_t>(running_->place.thread);
  for (;;) {
    if (++index == static_cast<std::size_t>(grid_.threads)) {
      index = 0;
      if (progress_ == progress_of_round_ && !failure_) {
        fail("threads of block " + std::to_string(running_->place.block) +
             " wait for threads that have ended or wait elsewhere: they do not all reach the same barrier or "
             "the same exchange between lanes, or nothing ends the wait");
      }
      progress_of_round_ = progress_;
    }
    Fiber& fiber = *fibers_[index];
    if (!fiber.done && (failure_ || fiber.ready())) return fiber;
  }
}

// Switches to the next fiber directly. Most fibers wait at the same place in the code, so the CPU predicts
// the address at which that fiber continues.
void Multiprocessor::yield() {
  Fiber& from = *running_;
  running_ = &next();
  if (running_ != &from) switch_flow(from.flow, running_->flow);
  if (failure_) throw Abandoned{};
}

void Multiprocessor::wait_for(const std::int64_t& counter, std::int64_t value) {
  if (counter >= value) return;
  Fiber& me = fiber();
  me.counter = &counter;
  me.awaited = value;
  yield();
  me.counter = nullptr;
}

void Multiprocessor::finish() {
  Fiber& from = *running_;
  from.done = true;
  ++progress_;
  if (--alive_ > 0) running_ = &next();
  switch_flow(from.flow, alive_ > 0 ? running_->flow : runner_, true);
  std::abort();  // nothing continues a fiber that has ended
}

void Multiprocessor::fail(const std::string& what) {
  if (!failure_) failure_ = std::make_exception_ptr(std::logic_error("emulated GPU: " + what));
}

void Multiprocessor::check_waited() {
  if (!grid_.early || fiber().waited) return;
  const auto free = [](char* text) { std::free(text); };
  const std::unique_ptr<char, decltype(free)> name(
      abi::__cxa_demangle(grid_.early->name(), nullptr, nullptr, nullptr), free);
  const Place& at = fiber().place;
  throw std::logic_error("emulated GPU: " + std::string(name ? name.get() : grid_.early->name()) +
                         " starts early, and thread " + std::to_string(at.thread) + " of block " +
                         std::to_string(at.block) + " ended without wait_for_previous()");
}

void Multiprocessor::run_block(const Grid& grid, std::int64_t block, void (*body)(const void*),
                               const void* arguments) {
  grid_ = grid;
  body_ = body;
  arguments_ = arguments;
  failure_ = nullptr;
  at_barrier_ = 0;
  barriers_ = 0;
  numbered_ = {};
  alive_ = grid.threads;
  for (auto& [name, memory] : shared_) memory.touched = false;
  const auto threads = static_cast<std::size_t>(grid.threads), lanes = static_cast<std::size_t>(grid.warp);
  while (fibers_.size() < threads) fibers_.push_back(std::make_unique<Fiber>());
  while (warps_.size() < threads / lanes) warps_.push_back(std::make_unique<Warp>());
  for (const auto& warp : warps_) warp->exchanges = warp->arrived = 0;
  for (std::size_t i = 0; i < threads; ++i) {
    start(i);
    fibers_[i]->place = {block, grid.blocks, static_cast<int>(i), grid.threads};
    fibers_[i]->warp = warps_[i / lanes].get();
    fibers_[i]->lane = i % lanes;
  }
  progress_of_round_ = progress_;
  running_ = fibers_.front().get();
#if defined(__SANITIZE_ADDRESS__)
  runner_.bottom = nullptr;
#endif
#if defined(__SANITIZE_THREAD__)
  runner_.tsan = __tsan_get_current_fiber();
#endif
  switch_flow(runner_, running_->flow);  // until all fibers have ended
  if (failure_) std::rethrow_exception(failure_);
}

void Multiprocessor::barrier() {
  Fiber& me = fiber();
  const std::int64_t mine = ++me.barriers;
  ++progress_;
  if (++at_barrier_ == grid_.threads) {
    at_barrier_ = 0;
    ++barriers_;
  }
  wait_for(barriers_, mine);
}

void Multiprocessor::barrier(int number, int threads) {
  Numbered& here = numbered_.at(static_cast<std::size_t>(number));
  const std::int64_t mine = here.complete + 1;
  ++progress_;
  if (++here.arrived == threads) {
    here.arrived = 0;
    ++here.complete;
  }
  wait_for(here.complete, mine);
}

void Multiprocessor::wait_until(bool (*ready)(const void*), const void* state) {
  while (!ready(state)) yield();
  ++progress_;
}

const std::byte* Multiprocessor::exchange(const void* data, std::size_t bytes) {
  if (bytes > kExchangeBytes) throw std::logic_error("emulated GPU: too many bytes for an exchange");
  Fiber& me = fiber();
  Warp& warp = *me.warp;
  const std::int64_t mine = ++me.exchanges;
  auto& slots = warp.slots[static_cast<std::size_t>(mine % 2)];
  std::memcpy(slots.data() + me.lane * kExchangeBytes, data, bytes);
  ++progress_;
  if (++warp.arrived == grid_.warp) {
    warp.arrived = 0;
    ++warp.exchanges;
  }
  wait_for(warp.exchanges, mine);
  return slots.data();
}

void* Multiprocessor::shared(const void* name, std::size_t bytes) {
  SharedMemory& memory = shared_[name];
  if (!name) bytes = grid_.shared_bytes;
  if (memory.bytes < bytes) {
    constexpr std::size_t kAlignment = 128;
    memory.memory.reset(std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
    memory.bytes = bytes;
  }
  if (!memory.touched) {
    std::memset(memory.memory.get(), 0xFF, bytes);
    memory.touched = true;
  }
  return memory.memory.get();
}

Multiprocessor& multiprocessor() {
  thread_local Multiprocessor of_this_thread;
  active = &of_this_thread;
  return of_this_thread;
}

}  // namespace

void run(ThreadPool& pool, const Grid& grid, void (*body)(const void*), const void* arguments) {
  if (grid.warp < 1 || grid.warp > 64 || grid.threads < grid.warp || grid.threads % grid.warp != 0) {
    throw std::logic_error("emulated GPU: a block of " + std::to_string(grid.threads) +
                           " threads is not a multiple of the warp size, " + std::to_string(grid.warp));
  }
  pool.parallel_for(grid.blocks, 1, [&](std::int64_t begin, std::int64_t end, int) {
    Multiprocessor& here = multiprocessor();
    for (std::int64_t block = begin; block < end; ++block) here.run_block(grid, block, body, arguments);
  });
}

const Place& place() { return active->fiber().place; }
void wait_for_previous() { active->fiber().waited = true; }
void barrier() { active->barrier(); }
void barrier(int number, int threads) { active->barrier(number, threads); }
void wait_until(bool (*ready)(const void*), const void* state) { active->wait_until(ready, state); }
void made_progress() { active->made_progress(); }
const std::byte* exchange(const void* data, std::size_t bytes) { return active->exchange(data, bytes); }
void* shared(const void* name, std::size_t bytes) { return active->shared(name, bytes); }

}  // namespace primus::gpu::emulator
