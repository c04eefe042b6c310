// Tests of the writer that gathers small writes into large, aligned ones.
#include "base/files/piece_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "base/fault_env.h"
#include "base/temporary_folder.h"

namespace primus {
namespace {

using test::TemporaryFolder;

constexpr std::uint64_t kPiece = PieceWriter::kPieceBytes, kBlock = File::kDirectBytes;

std::vector<std::byte> some_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint32_t state = 1;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

// Forwards writes and records their places.
class NotingFile : public File {
 public:
  struct Write {
    std::uint64_t offset, size, address;
  };
  explicit NotingFile(File& file) : file_(file) {}
  std::uint64_t write_direct(std::span<const std::byte> data, std::uint64_t offset) override {
    direct.push_back({offset, data.size(), reinterpret_cast<std::uintptr_t>(data.data())});
    file_.write_direct(data, offset);
    return data.size() / 2;  // any number; it is reported as written directly
  }
  void write_at(std::span<const std::byte>, std::uint64_t) override { FAIL(); }
  std::size_t read_at(std::span<std::byte> out, std::uint64_t offset) override {
    return file_.read_at(out, offset);
  }
  void append(std::span<const std::byte> data) override { file_.append(data); }
  void truncate(std::uint64_t size) override { file_.truncate(size); }
  void sync() override { file_.sync(); }
  std::uint64_t size() override { return file_.size(); }
  void close() override { file_.close(); }

  std::vector<Write> direct;

 private:
  File& file_;
};

TEST(PieceWriter, MergesPiecesWithEqualAlignmentInMemoryAndFile) {
  const TemporaryFolder folder;
  const Path path = folder.path() / "a";
  const std::uint64_t begin = 1234, size = 2 * kPiece + 777;
  const std::vector<std::byte> bytes = some_bytes(size);
  const auto real = Env::posix().open(path, OpenMode::kWrite);
  NotingFile file(*real);
  PieceWriter writer;
  writer.start(file);
  std::uint64_t at = 0;
  for (std::uint64_t part = 1; at < size; part = part * 7 % 600'011) {  // with varying lengths
    const std::uint64_t count = std::min(part, size - at);
    if (part % 2 == 0) {
      const auto room = writer.room(begin + at);
      ASSERT_FALSE(room.empty());
      const std::uint64_t fits = std::min<std::uint64_t>(count, room.size());
      std::memcpy(room.data(), bytes.data() + at, fits);
      writer.advance(fits);
      at += fits;
    } else {
      writer.write(std::span(bytes).subspan(at, count), begin + at);
      at += count;
    }
  }
  EXPECT_EQ(file.direct.size(), 2U);
  writer.flush();
  writer.flush();
  ASSERT_EQ(file.direct.size(), 3U);
  for (const auto& write : file.direct) EXPECT_EQ(write.offset % kBlock, write.address % kBlock);
  for (const std::size_t i : {1, 2}) EXPECT_EQ(file.direct[i].offset % kBlock, 0U);
  EXPECT_EQ(file.direct[1].size, kPiece);
  EXPECT_EQ(writer.written().all, size);
  std::uint64_t halves = 0;
  for (const auto& write : file.direct) halves += write.size / 2;
  EXPECT_EQ(writer.written().direct, halves);
  const std::string content = read_file(path);
  ASSERT_EQ(content.size(), begin + size);
  EXPECT_EQ(std::memcmp(content.data() + begin, bytes.data(), size), 0);
}

TEST(PieceWriter, NonadjacentPiecesAreWrittenAtTheirPositions) {
  FaultEnv env;
  const auto one = env.open("/one", OpenMode::kWrite), two = env.open("/two", OpenMode::kWrite);
  PieceWriter writer;
  writer.start(*one);
  writer.write(as_bytes("cd"), 2);
  writer.write(as_bytes("ef"), 4);
  writer.write(as_bytes("ij"), 8);
  writer.write(as_bytes("ab"), 0);
  writer.write(as_bytes("gh"), 6);
  writer.flush();
  writer.start(*two);
  writer.write(as_bytes("x"), 8);
  writer.flush();
  EXPECT_EQ(read_file("/one", 100, env), "abcdefghij");
  EXPECT_EQ(read_file("/two", 100, env), std::string(8, '\0') + "x");
}

TEST(PieceWriter, ErrorsOfTheFileReachTheCaller) {
  FaultEnv env;
  const auto file = env.open("/a", OpenMode::kWrite);
  env.set_capacity(kPiece / 2);
  PieceWriter writer;
  writer.start(*file);
  const std::vector<std::byte> bytes = some_bytes(kPiece);
  EXPECT_THROW(writer.write(bytes, 0), FileError);
  writer.start(*file);
  writer.write(as_bytes("x"), kPiece);
  EXPECT_THROW(writer.flush(), FileError);
}

}  // namespace
}  // namespace primus
