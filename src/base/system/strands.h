// Two pieces of work that alternate on one thread. The first runs until it calls yield(); then the second
// runs until it calls yield(), and so on. The order depends only on these calls, so it is the same in every
// run and on every rank.
//
// The engine overlaps the token transfers of one microbatch with the computation of another microbatch this
// way (engine/parallel/schedule_runner.h). Both microbatches run the same model code as without overlap.
//
// The second piece has its own stack (ucontext). yield() must not be called in a catch block, because
// the caught exceptions belong to the thread. Not thread-safe.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>

#include "base/system/thread_pool.h"

namespace primus {

class Strands {
 public:
  Strands();
  ~Strands();
  Strands(const Strands&) = delete;
  Strands& operator=(const Strands&) = delete;

  // Runs both pieces, beginning with `first`, and returns when both have returned. If one throws, the other
  // is unwound at its yield(), by an exception that it must not catch; then the first error is rethrown. Not
  // nested.
  void run(FunctionRef<void()> first, FunctionRef<void()> second);
  // Lets the other piece continue. Returns when that piece yields or has returned. Without effect outside of
  // run(), and if the other piece has returned.
  void yield();
  // Returns 0 in the first piece and outside of run(), and 1 in the second piece.
  int current() const { return current_; }
  bool running() const { return running_; }

 private:
  struct Stack;
  // Thrown by yield() to unwind a piece.
  struct Unwind {};

  static void enter(unsigned low, unsigned high);
  void run_second();
  void resume(int piece);

  std::unique_ptr<Stack> stack_;  // made at the first run()
  const FunctionRef<void()>* second_ = nullptr;
  std::exception_ptr error_;  // the first error of either piece
  int current_ = 0;
  bool running_ = false, second_begun_ = false, first_done_ = false, second_done_ = false;
};

}  // namespace primus
