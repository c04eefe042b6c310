// Tests of direct writes on a file system that stops accepting them, at once or in the middle of a write.
// This program's own pwrite() simulates the file system.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/files/piece_writer.h"
#include "base/system/large_memory.h"
#include "base/temporary_folder.h"

namespace primus {
namespace {

// Limits this thread's direct writes: after `after` bytes each call fails with `error`, or writes 0 bytes if
// `error` is 0.
struct Refusal {
  std::size_t after = 0;
  int error = 0;
  int refused = 0;  // number of refused calls
};
thread_local Refusal* refusal = nullptr;

}  // namespace
}  // namespace primus

extern "C" ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  using primus::refusal;
  if (refusal && (::fcntl(descriptor, F_GETFL) & O_DIRECT) != 0) {
    if (refusal->after == 0) {
      ++refusal->refused;
      errno = refusal->error;
      return refusal->error == 0 ? 0 : -1;
    }
    size = std::min(size, refusal->after);
    refusal->after -= size;
  }
  return ::syscall(SYS_pwrite64, descriptor, data, size, offset);
}

namespace primus {
namespace {

using test::TemporaryFolder;

constexpr std::size_t kBlock = File::kDirectBytes;

// Returns memory whose bytes differ from block to block.
LargeMemory some_memory(std::size_t size) {
  LargeMemory memory = allocate_large(size);
  for (std::size_t i = 0; i < size; ++i) memory.get()[i] = static_cast<std::byte>(i / kBlock + i);
  return memory;
}

std::string text_of(const LargeMemory& memory, std::size_t size) {
  return {reinterpret_cast<const char*>(memory.get()), size};
}

class DirectWrites : public ::testing::Test {
 protected:
  void SetUp() override {
    const LargeMemory memory = some_memory(kBlock);
    const auto file = Env::posix().open(path_, OpenMode::kWrite);
    if (file->write_direct({memory.get(), kBlock}, 0) == 0)
      GTEST_SKIP() << "the file system of temporary files does not support direct writes";
  }
  void TearDown() override { refusal = nullptr; }

  TemporaryFolder folder_;
  const Path path_ = folder_.path() / "a";
};

TEST_F(DirectWrites, RefusedDirectWritesUseThePageCache) {
  constexpr std::size_t kSize = 8 * kBlock + 100;
  const LargeMemory memory = some_memory(kSize);
  const std::string content = text_of(memory, kSize);
  for (const int error : {EINVAL, EOPNOTSUPP, 0}) {
    for (const std::size_t after : {std::size_t{0}, 2 * kBlock}) {
      SCOPED_TRACE(std::to_string(error) + ", " + std::to_string(after));
      const auto file = Env::posix().open(path_, OpenMode::kWrite);
      Refusal refused{.after = after, .error = error};
      refusal = &refused;
      EXPECT_EQ(file->write_direct({memory.get(), kSize}, 0), after);
      EXPECT_EQ(refused.refused, 1);
      EXPECT_TRUE(read_file(path_) == content);
      // The file does not try direct writes again.
      EXPECT_EQ(file->write_direct({memory.get(), kSize}, 2 * kBlock), 0U);
      EXPECT_EQ(refused.refused, 1);
      EXPECT_TRUE(read_file(path_) == content.substr(0, 2 * kBlock) + content);
      refusal = nullptr;
      file->close();
    }
  }
}

// A failing disk is an error, and not taken for a file system without direct writes.
TEST_F(DirectWrites, OtherErrorsAreErrors) {
  const LargeMemory memory = some_memory(4 * kBlock);
  const auto file = Env::posix().open(path_, OpenMode::kWrite);
  Refusal refused{.after = kBlock, .error = EIO};
  refusal = &refused;
  try {
    file->write_direct({memory.get(), 4 * kBlock}, 0);
    ADD_FAILURE() << "no error";
  } catch (const FileError& error) {
    EXPECT_EQ(error.code(), EIO);
  }
}

TEST_F(DirectWrites, APartialWriteIsCompleted) {
  constexpr std::size_t kPiece = PieceWriter::kPieceBytes, kSize = 3 * kPiece + 777;
  const LargeMemory memory = some_memory(kSize);
  const auto file = Env::posix().open(path_, OpenMode::kWrite);
  Refusal refused{.after = kPiece + 5 * kBlock, .error = EINVAL};
  refusal = &refused;
  PieceWriter pieces;
  pieces.start(*file);
  pieces.write({memory.get(), kSize}, 0);
  pieces.flush();
  EXPECT_EQ(refused.refused, 1);
  EXPECT_EQ(pieces.written().all, kSize);
  EXPECT_EQ(pieces.written().direct, kPiece + 5 * kBlock);
  EXPECT_TRUE(read_file(path_) == text_of(memory, kSize));
}

}  // namespace
}  // namespace primus
