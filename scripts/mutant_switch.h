// Included by scripts/mutation_test.py in each source that it changes: selects between the code and its
// mutants.
//
// All mutants of a sample are compiled into one program. PRIMUS_MUTANT=<number> activates one mutant at
// program start. Without this variable, or with 0, the program is unchanged. PRIMUS_MUTANT_RECORD=<file of
// kMutants bytes>: byte i becomes 1 when a process reaches mutant i. The file is memory-mapped, so it also
// has the mutants that a killed process reached.
//
//   statement     if (!on(7)) statement;
//   condition     if (on(7) != static_cast<bool>(condition))
//   constant      (on(7) ? 4 : 3)
//   operator      a < Op<7>{} < b        compares by < or <=; the precedence stays the same
//   assignment    a += Op<7>{} += b
//   increment     Increment<7>{}->*a     has the precedence of a prefix operator
#pragma once

#pragma GCC system_header  // suppresses warnings about changed types

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace primus::mutation {

inline constexpr int kMutants = 4096;
inline unsigned char own_record[kMutants];
inline unsigned char* record = own_record;

inline int start() {
  if (const char* const path = std::getenv("PRIMUS_MUTANT_RECORD")) {
    const int file = ::open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0) {
      void* const shared = ::mmap(nullptr, kMutants, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (shared != MAP_FAILED) record = static_cast<unsigned char*>(shared);
      ::close(file);
    }
  }
  const char* const number = std::getenv("PRIMUS_MUTANT");
  return number ? std::atoi(number) : 0;
}

// 0 until it is initialized, so that code before main() is unchanged.
inline const int active = start();

inline bool on(int mutant) {
  record[mutant] = 1;
  return mutant == active;
}

template <int N>
struct Op {};

// Holds the left operand. The operator of this class is the operator in the source (WRITTEN) or the mutant's
// operator (MUTANT).
#define PRIMUS_MUTABLE_OPERATOR(NAME, WRITTEN, MUTANT)               \
  template <int N, class A>                                          \
  struct NAME {                                                      \
    const A& left;                                                   \
  };                                                                 \
  template <int N, class A>                                          \
  NAME<N, A> operator WRITTEN(const A& left, Op<N>) {                \
    return {left};                                                   \
  }                                                                  \
  template <int N, class A, class B>                                 \
  auto operator WRITTEN(const NAME<N, A>& left, const B& right) {    \
    return on(N) ? left.left MUTANT right : left.left WRITTEN right; \
  }
PRIMUS_MUTABLE_OPERATOR(Less, <, <=)
PRIMUS_MUTABLE_OPERATOR(LessEqual, <=, <)
PRIMUS_MUTABLE_OPERATOR(Greater, >, >=)
PRIMUS_MUTABLE_OPERATOR(GreaterEqual, >=, >)
PRIMUS_MUTABLE_OPERATOR(Equal, ==, !=)
PRIMUS_MUTABLE_OPERATOR(Unequal, !=, ==)
PRIMUS_MUTABLE_OPERATOR(Plus, +, -)
PRIMUS_MUTABLE_OPERATOR(Minus, -, +)
PRIMUS_MUTABLE_OPERATOR(Times, *, /)
PRIMUS_MUTABLE_OPERATOR(Divided, /, *)
PRIMUS_MUTABLE_OPERATOR(Modulo, %, *)
#undef PRIMUS_MUTABLE_OPERATOR

// Assignment operators are right-associative, so Op<N> combines with the right operand first.
#define PRIMUS_MUTABLE_ASSIGNMENT(NAME, WRITTEN, MUTANT) \
  template <int N, class B>                              \
  struct NAME {                                          \
    const B& amount;                                     \
  };                                                     \
  template <int N, class B>                              \
  NAME<N, B> operator WRITTEN(Op<N>, const B& amount) {  \
    return {amount};                                     \
  }                                                      \
  template <int N, class A, class B>                     \
  A& operator WRITTEN(A& to, const NAME<N, B>& by) {     \
    if (on(N)) {                                         \
      to MUTANT by.amount;                               \
    } else {                                             \
      to WRITTEN by.amount;                              \
    }                                                    \
    return to;                                           \
  }
PRIMUS_MUTABLE_ASSIGNMENT(Add, +=, -=)
PRIMUS_MUTABLE_ASSIGNMENT(Subtract, -=, +=)
#undef PRIMUS_MUTABLE_ASSIGNMENT

template <int N>
struct Increment {};
template <int N, class A>
A& operator->*(Increment<N>, A& a) {
  return on(N) ? --a : ++a;
}
template <int N>
struct Decrement {};
template <int N, class A>
A& operator->*(Decrement<N>, A& a) {
  return on(N) ? ++a : --a;
}

}  // namespace primus::mutation
