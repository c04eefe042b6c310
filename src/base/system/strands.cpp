#include "base/system/strands.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace primus {
namespace {

// As much as the main thread usually has, because libraries run in both pieces. Unused pages have no memory.
constexpr std::size_t kStackBytes = std::size_t{8} << 20;

}  // namespace

// The memory of the second piece's stack, below it a page without access, and the saved contexts.
struct Strands::Stack {
  Stack() : page(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    memory = ::mmap(nullptr, page + kStackBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED)
      throw std::system_error(errno, std::generic_category(), "no address space for a second stack");
    ::mprotect(memory, page, PROT_NONE);
#if defined(__SANITIZE_THREAD__)
    fibers[0] = __tsan_get_current_fiber();
    fibers[1] = __tsan_create_fiber(0);
#endif
  }
  ~Stack() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(fibers[1]);
#endif
    ::munmap(memory, page + kStackBytes);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  void* bottom() const { return static_cast<std::byte*>(memory) + page; }

  std::size_t page;
  void* memory = nullptr;
  ucontext_t contexts[2] = {};
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stacks[2] = {};
  const void* bottoms[2] = {};
  std::size_t sizes[2] = {};
#endif
#if defined(__SANITIZE_THREAD__)
  void* fibers[2] = {};
#endif
};

Strands::Strands() = default;
Strands::~Strands() = default;

void Strands::run(FunctionRef<void()> first, FunctionRef<void()> second) {
  PRIMUS_CHECK("Strands::run", !running_);
  if (!stack_) stack_ = std::make_unique<Stack>();
#if defined(__SANITIZE_THREAD__)
  stack_->fibers[0] = __tsan_get_current_fiber();
#endif
  second_ = &second;
  running_ = true;
  second_begun_ = first_done_ = second_done_ = false;
  try {
    first();
  } catch (const Unwind&) {  // error_ is the second piece's
  } catch (...) {
    if (!error_) error_ = std::current_exception();
  }
  first_done_ = true;
  if (!second_done_ && (second_begun_ || !error_)) resume(1);
  running_ = false;
  second_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Strands::yield() {
  if (!running_ || (current_ == 0 ? second_done_ : first_done_)) {
    // The other piece does not run any more. If it failed, this piece must end, too.
    if (running_ && error_) throw Unwind();
    return;
  }
  resume(1 - current_);
  if (error_) throw Unwind();
}

void Strands::run_second() {
  try {
    (*second_)();
  } catch (const Unwind&) {  // error_ is the first piece's
  } catch (...) {
    if (!error_) error_ = std::current_exception();
  }
  second_done_ = true;
  resume(0);
}

void Strands::enter(unsigned low, unsigned high) {
  auto* const strands =
      reinterpret_cast<Strands*>(static_cast<std::uintptr_t>(high) << 32U | static_cast<std::uintptr_t>(low));
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &strands->stack_->bottoms[0], &strands->stack_->sizes[0]);
#endif
  strands->run_second();
}

// Saves the running piece, and continues the other piece. Returns when this piece is resumed.
void Strands::resume(int piece) {
  Stack& stack = *stack_;
  const int left = current_;
  current_ = piece;
  if (piece == 1 && !second_begun_) {
    second_begun_ = true;
    ::getcontext(&stack.contexts[1]);
    stack.contexts[1].uc_stack.ss_sp = stack.bottom();
    stack.contexts[1].uc_stack.ss_size = kStackBytes;
    stack.contexts[1].uc_link = nullptr;
    // makecontext() passes only ints.
    const auto address = reinterpret_cast<std::uintptr_t>(this);
    ::makecontext(&stack.contexts[1], reinterpret_cast<void (*)()>(&Strands::enter), 2,
                  static_cast<unsigned>(address), static_cast<unsigned>(address >> 32U));
#if defined(__SANITIZE_ADDRESS__)
    stack.bottoms[1] = stack.bottom();
    stack.sizes[1] = kStackBytes;
#endif
  }
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(stack.fibers[piece], 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
  const bool ends = left == 1 && second_done_;
  __sanitizer_start_switch_fiber(ends ? nullptr : &stack.fake_stacks[left], stack.bottoms[piece],
                                 stack.sizes[piece]);
#endif
  ::swapcontext(&stack.contexts[left], &stack.contexts[piece]);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(stack.fake_stacks[left], nullptr, nullptr);
#endif
}

}  // namespace primus
