// The ranks that save and load checkpoints together: how they tell each other what they wrote and read, and
// that something failed. The bytes of tensors do not pass through here.
//
// Errors: Error (kIo) when a rank was lost or does not come in time. Thread-safety: one thread at a time.
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
  // Every rank calls these in the same order. Rank 0 gets what every rank gave, in their order; the others
  // nothing.
  virtual std::vector<std::string> gather(const std::string& own) = 0;
  // Every rank gets what rank 0 gave.
  virtual std::string broadcast(const std::string& own) = 0;
};

// A rank without others.
class SingleRank final : public CheckpointGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> gather(const std::string& own) override { return {own}; }
  std::string broadcast(const std::string& own) override { return own; }
};

// An error that one rank met, and all throw.
class GroupError : public Error {
 public:
  GroupError(ErrorKind kind, const std::string& what, std::string hint, int file_code)
      : Error(kind, what, std::move(hint)), file_code_(file_code) {}
  int file_code() const { return file_code_; }

 private:
  int file_code_ = 0;
};

// The errno value of an error that a file operation met, on whichever rank; 0: it was none.
int file_code_of(const Error& error);

// One step of the group. Every rank does `work`, and rank 0, once all have done it, `conclude` with what
// theirs returned; every rank returns what that returned. Where anyone fails, all throw, and rank 0 calls
// `failed` first, which may throw a better error in its place.
std::string in_step(CheckpointGroup& group, const std::function<std::string()>& work,
                    const std::function<std::string(const std::vector<std::string>&)>& conclude,
                    const std::function<void(const Error&)>& failed = {});

}  // namespace primus
