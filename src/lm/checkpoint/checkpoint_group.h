// The ranks that save and load checkpoints together. The ranks exchange failures and records of the data that
// was written and read. Tensor data does not pass through this interface.
//
// Errors: Error (kIo) if a rank is lost or times out. Thread-safety: one thread at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace primus {

class CheckpointGroup {
 public:
  virtual ~CheckpointGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // All ranks must call these functions in the same order. On rank 0, gather() returns the argument `own` of
  // every rank, ordered by rank; on other ranks it returns an empty vector.
  virtual std::vector<std::string> gather(const std::string& own) = 0;
  // Returns the argument `own` of rank 0 on every rank.
  virtual std::string broadcast(const std::string& own) = 0;
};

// A CheckpointGroup with a single rank.
class SingleRank final : public CheckpointGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> gather(const std::string& own) override { return {own}; }
  std::string broadcast(const std::string& own) override { return own; }
};

// An error that occurred on one rank and that all ranks throw.
class GroupError : public Error {
 public:
  GroupError(ErrorKind kind, const std::string& what, std::string hint, int file_code)
      : Error(kind, what, std::move(hint)), file_code_(file_code) {}
  int file_code() const { return file_code_; }

 private:
  int file_code_ = 0;
};

// Returns the errno value if `error` is the error of a file operation on any rank, else 0.
int file_code_of(const Error& error);

// Runs one step of the group. Every rank runs `work`. Then rank 0 runs `conclude` with the results of all
// ranks. Every rank returns the result of `conclude`. If a rank fails, all ranks throw its error. Before
// that, rank 0 calls `failed`, which may throw a better error.
std::string in_step(CheckpointGroup& group, const std::function<std::string()>& work,
                    const std::function<std::string(const std::vector<std::string>&)>& conclude,
                    const std::function<void(const Error&)>& failed = {});

}  // namespace primus
