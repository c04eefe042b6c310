// Tests of files and folders: the real file system, the simulated one, mappings and direct writes.
#include "base/files/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/fault_env.h"
#include "base/files/creatable.h"
#include "base/small_disk.h"
#include "base/system/large_memory.h"
#include "base/temporary_folder.h"

namespace primus {
namespace {

using test::TemporaryFolder;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Tests that run on the real file system and on the simulated one.
class EnvTest : public ::testing::TestWithParam<bool> {
 protected:
  EnvTest()
      : env_(GetParam() ? Env::posix() : fault_env_), root_(GetParam() ? folder_.path() : Path("/root")) {
    make_folders(root_, env_);
  }
  std::string read(const std::string& name) { return read_file(root_ / name, 1 << 20, env_); }
  int code_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const FileError& error) {
      return error.code();
    }
    return 0;
  }

  FaultEnv fault_env_;
  TemporaryFolder folder_;
  Env& env_;
  Path root_;
};

TEST_P(EnvTest, WritesReadsAndResizes) {
  write_file(root_ / "a", "hello", env_);
  EXPECT_EQ(read("a"), "hello");
  auto file = env_.open(root_ / "a", OpenMode::kUpdate);
  file->write_at(as_bytes("LO!"), 3);
  EXPECT_EQ(file->size(), 6U);
  std::string part(10, '?');
  EXPECT_EQ(file->read_at(std::as_writable_bytes(std::span(part)), 2), 4U);
  EXPECT_EQ(part, "lLO!??????");
  file->truncate(2);
  file->sync();
  file->close();
  EXPECT_EQ(read("a"), "he");
  auto more = env_.open(root_ / "a", OpenMode::kAppend);
  more->append(as_bytes("re"));
  more->close();
  EXPECT_EQ(read("a"), "here");
  auto fresh = env_.open(root_ / "a", OpenMode::kWrite);
  fresh->append(as_bytes("1"));
  fresh->append(as_bytes("2"));
  fresh->close();
  EXPECT_EQ(read("a"), "12");
}

// Direct writes store data of any alignment, and keep the bytes before and after the data.
TEST_P(EnvTest, WritesDirectly) {
  constexpr std::size_t kBlock = File::kDirectBytes, kSize = 8 * kBlock;
  std::string expected(kSize, 'a');
  write_file(root_ / "a", expected, env_);
  auto file = env_.open(root_ / "a", OpenMode::kUpdate);
  const LargeMemory memory = allocate_large(kSize);
  char next = 'b';
  for (const std::size_t offset : {std::size_t{0}, std::size_t{5}, kBlock, kBlock + 100, 3 * kBlock - 1}) {
    for (const std::size_t in_memory : {offset % kBlock, std::size_t{0}, std::size_t{64}}) {
      for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kBlock - 1, kBlock, 2 * kBlock + 7}) {
        const std::span data(memory.get() + in_memory, size);
        std::ranges::fill(data, static_cast<std::byte>(next));
        expected.replace(offset, size, size, next);
        next = next == 'z' ? 'b' : static_cast<char>(next + 1);
        file->write_direct(data, offset);
        std::string now(kSize, '?');
        ASSERT_EQ(file->read_at(std::as_writable_bytes(std::span(now)), 0), kSize);
        ASSERT_EQ(now, expected) << offset << " " << in_memory << " " << size;
      }
    }
  }
  file->sync();
  file->close();
  EXPECT_EQ(read("a"), expected);
}

TEST_P(EnvTest, MapsAFileThatOutlivesItsName) {
  write_file(root_ / "a", "mapped", env_);
  const MappedFile file = env_.map(root_ / "a");
  env_.remove_file(root_ / "a");
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()),
            "mapped");
  write_file(root_ / "empty", "", env_);
  EXPECT_TRUE(env_.map(root_ / "empty").bytes().empty());
}

TEST_P(EnvTest, CreatesListsAndRemovesFolders) {
  make_folders(root_ / "x/y/z", env_);
  make_folders(root_ / "x/y/z", env_);
  write_file(root_ / "x/y/f", "1", env_);
  EXPECT_THAT(env_.list(root_ / "x/y"), ElementsAre("f", "z"));
  EXPECT_EQ(env_.status(root_ / "x/y")->type, FileStatus::Type::kFolder);
  EXPECT_EQ(env_.status(root_ / "x/y/f")->size, 1U);
  EXPECT_FALSE(env_.status(root_ / "nothing/there"));
  env_.rename(root_ / "x/y", root_ / "w");
  EXPECT_THAT(env_.list(root_ / "w"), ElementsAre("f", "z"));
  EXPECT_TRUE(env_.list(root_ / "x").empty());
  remove_tree(root_ / "w", env_);
  remove_tree(root_ / "w", env_);
  EXPECT_THAT(env_.list(root_), ElementsAre("x"));
}

TEST_P(EnvTest, ErrorsCarryTheReason) {
  make_folders(root_ / "d/e", env_);
  write_file(root_ / "f", "1", env_);
  EXPECT_EQ(code_of([&] { env_.open(root_ / "no", OpenMode::kRead); }), ENOENT);
  EXPECT_EQ(code_of([&] { env_.open(root_ / "no/f", OpenMode::kWrite); }), ENOENT);
  EXPECT_EQ(code_of([&] { env_.open(root_ / "d", OpenMode::kRead); }), EISDIR);
  EXPECT_EQ(code_of([&] { env_.map(root_ / "d"); }), EISDIR);
  EXPECT_EQ(code_of([&] { env_.list(root_ / "no"); }), ENOENT);
  EXPECT_EQ(code_of([&] { env_.list(root_ / "f"); }), ENOTDIR);
  EXPECT_EQ(code_of([&] { env_.remove_folder(root_ / "d"); }), ENOTEMPTY);
  EXPECT_EQ(code_of([&] { env_.remove_file(root_ / "d"); }), EISDIR);
  EXPECT_EQ(code_of([&] { env_.make_folder(root_ / "f"); }), EEXIST);
  EXPECT_EQ(code_of([&] { env_.rename(root_ / "f", root_ / "d"); }), EISDIR);
  make_folders(root_ / "g", env_);
  EXPECT_EQ(code_of([&] { env_.rename(root_ / "g", root_ / "d"); }), ENOTEMPTY);
}

TEST_P(EnvTest, ReplacesAFileAtomically) {
  write_file_atomic(root_ / "a", "old", env_);
  write_file_atomic(root_ / "a", "new", env_);
  EXPECT_EQ(read("a"), "new");
  EXPECT_THAT(env_.list(root_), ElementsAre("a"));
}

TEST_P(EnvTest, RefusesAFileOverTheLimit) {
  write_file(root_ / "a", "12345", env_);
  EXPECT_EQ(read_file(root_ / "a", 5, env_), "12345");
  EXPECT_THROW(read_file(root_ / "a", 4, env_), Error);
}

INSTANTIATE_TEST_SUITE_P(Both, EnvTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Posix" : "Fault"; });

TEST(File, MessagesNamePathReasonAndNextStep) {
  try {
    read_file("/nowhere/at/all");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_THAT(error.render(), HasSubstr("cannot open '/nowhere/at/all': No such file or directory"));
    EXPECT_THAT(error.hint(), HasSubstr("does not exist"));
    EXPECT_EQ(error.exit_code(), 2);  // an input error, not a disk error
  }
  EXPECT_TRUE(FileError("x", ENOSPC).out_of_space());
  EXPECT_TRUE(FileError("x", EDQUOT).out_of_space());
  EXPECT_FALSE(FileError("x", EIO).out_of_space());
  // For errors that the user can correct by choosing another place or freeing space, the exit code is 2.
  // Other errors are failures of the system, with exit code 3.
  for (const int code : {ENOSPC, EDQUOT, EFBIG, EACCES, EROFS, ENOTDIR})
    EXPECT_EQ(FileError("x", code).exit_code(), 2);
  for (const int code : {EIO, ESTALE, EMFILE}) EXPECT_EQ(FileError("x", code).exit_code(), 3);
}

TEST(File, APipeIsRefusedWithoutWaiting) {
  const TemporaryFolder folder;
  const Path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(read_file(pipe), FileError);
}

// A clone without Git LFS has small pointer files instead of weights, vocabularies and data. Every function
// that reads files names this cause.
TEST(File, AGitLfsPointerIsNamed) {
  const TemporaryFolder folder;
  const Path file = folder.path() / "model.safetensors";
  const std::string first = "version https://git-lfs.github.com/spec/v1\n";
  write_file(
      file,
      first + "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n");
  for (const auto& read :
       {+[](const Path& path) { read_file(path); }, +[](const Path& path) { Env::posix().map(path); },
        +[](const Path& path) { Env::posix().open(path, OpenMode::kRead); }}) {
    try {
      read(file);
      ADD_FAILURE() << "read";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("model.safetensors' is a Git LFS pointer")));
      EXPECT_THAT(error.hint(), HasSubstr("git lfs pull"));
    }
  }
  // Larger files and incomplete pointers are read as they are.
  write_file(file, first + std::string(2000, 'x'));
  EXPECT_EQ(read_file(file).size(), first.size() + 2000);
  write_file(file, first.substr(0, first.size() - 1));
  EXPECT_EQ(read_file(file).size(), first.size() - 1);
}

TEST(File, AnOutputFollowsLinksAndKeepsDevices) {
  const test::TemporaryFolder folder;
  write_file(folder.path() / "real", "old");
  std::filesystem::create_symlink("real", folder.path() / "link");
  write_output(folder.path() / "link", "new", Existing::kReplace);
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "link"));
  EXPECT_EQ(read_file(folder.path() / "real"), "new");
  write_output(folder.path() / "plain", "new", Existing::kRefuse);
  EXPECT_EQ(read_file(folder.path() / "plain"), "new");
  write_output("/dev/null", "x", Existing::kRefuse);
  EXPECT_FALSE(std::filesystem::is_regular_file("/dev/null"));
}

TEST(File, AnOutputReplacesAFileOnlyOnRequest) {
  const TemporaryFolder folder;
  write_file(folder.path() / "real", "old");
  std::filesystem::create_symlink("real", folder.path() / "link");
  for (const char* name : {"real", "link"}) {
    try {
      write_output(folder.path() / name, "new", Existing::kRefuse);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
      EXPECT_THAT(error.hint(), HasSubstr("--overwrite"));
      EXPECT_EQ(error.exit_code(), 2);
    }
  }
  EXPECT_EQ(read_file(folder.path() / "real"), "old");
  std::filesystem::create_symlink("nothing", folder.path() / "dangling");
  EXPECT_THROW(refuse_existing(folder.path() / "dangling", Existing::kRefuse), Error);
  EXPECT_NO_THROW(refuse_existing(folder.path() / "dangling", Existing::kReplace));
  EXPECT_NO_THROW(refuse_existing(folder.path() / "free", Existing::kRefuse));
}

// A link with the name of the temporary file must not be followed, because it may lead to another user's
// file.
TEST(File, AtomicReplacementDoesNotWriteThroughLinks) {
  const TemporaryFolder folder;
  write_file(folder.path() / "victim", "precious");
  std::filesystem::create_symlink("victim", folder.path() / ".tmp-settings");
  write_file_atomic(folder.path() / "settings", "new");
  EXPECT_EQ(read_file(folder.path() / "victim"), "precious");
  EXPECT_EQ(read_file(folder.path() / "settings"), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(folder.path() / ".tmp-settings"));
  std::filesystem::create_symlink("victim", folder.path() / "link");
  EXPECT_THROW(write_file(folder.path() / "link", "new"), FileError);
  EXPECT_EQ(read_file(folder.path() / "victim"), "precious");
}

TEST(File, AFullDeviceIsReported) {
  const auto file = Env::posix().open("/dev/full", OpenMode::kWrite);
  try {
    file->append(as_bytes("x"));
    FAIL();
  } catch (const FileError& error) {
    EXPECT_TRUE(error.out_of_space());
  }
}

TEST(File, ReadsFilesWithoutASize) { EXPECT_THAT(read_file("/proc/self/status"), HasSubstr("Name:")); }

TEST(File, RemovingATreeDoesNotFollowLinks) {
  const TemporaryFolder folder;
  make_folders(folder.path() / "precious");
  write_file(folder.path() / "precious/file", "x");
  make_folders(folder.path() / "tree");
  ASSERT_EQ(::symlink((folder.path() / "precious").c_str(), (folder.path() / "tree/link").c_str()), 0);
  remove_tree(folder.path() / "tree");
  EXPECT_EQ(read_file(folder.path() / "precious/file"), "x");
  // If the root of the tree is a link, the link is removed, even if its target is missing or is the link
  // itself.
  for (const char* target : {"precious", "nothing", "root"}) {
    std::filesystem::create_symlink(target, folder.path() / "root");
    remove_tree(folder.path() / "root");
    EXPECT_FALSE(std::filesystem::is_symlink(folder.path() / "root")) << target;
  }
  EXPECT_EQ(read_file(folder.path() / "precious/file"), "x");
}

// Two pages, so that truncation removes a whole page.
std::string two_pages() { return std::string(2 * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), 'x'); }

TEST(MappedFile, TruncatedDataReadsAsZerosAndIsDetected) {
  const TemporaryFolder folder;
  const Path path = folder.path() / "data";
  const std::string content = two_pages();
  write_file(path, content);
  const MappedFile file = Env::posix().map(path);
  file.tolerate_truncation();
  EXPECT_NO_THROW(file.check_unchanged());
  ASSERT_EQ(::truncate(path.c_str(), 10), 0);
  EXPECT_EQ(file.bytes()[0], std::byte{'x'});
  EXPECT_EQ(file.bytes()[content.size() - 1], std::byte{0});  // would be SIGBUS without the handler
  try {
    file.check_unchanged();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    EXPECT_EQ(error.exit_code(), 2);
  }
  // The file counts as changed, although its size is restored.
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(content.size())), 0);
  EXPECT_THROW(file.check_unchanged(), Error);
}

TEST(MappedFile, AChangeInPlaceIsDetected) {
  const TemporaryFolder folder;
  const Path path = folder.path() / "data";
  write_file(path, two_pages());
  std::filesystem::last_write_time(path,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  const MappedFile file = Env::posix().map(path);
  Env::posix().open(path, OpenMode::kUpdate)->write_at(as_bytes("y"), 0);
  EXPECT_THROW(file.check_unchanged(), Error);
  // A mapping keeps its content if the file is removed or replaced by a rename.
  const MappedFile again = Env::posix().map(path);
  write_file_atomic(path, "other");
  Env::posix().remove_file(path);
  EXPECT_NO_THROW(again.check_unchanged());
}

TEST(MappedFileDeathTest, AnUncheckedReadEndsWithTheFilesName) {
  const TemporaryFolder folder;
  const Path path = folder.path() / "weights";
  const std::string content = two_pages();
  write_file(path, content);
  const MappedFile file = Env::posix().map(path);
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  const volatile std::byte* const last = &file.bytes()[content.size() - 1];
  EXPECT_EXIT(static_cast<void>(*last), ::testing::ExitedWithCode(2), "weights' was truncated");
}

// Returns how many pages of the file are in memory.
std::size_t pages_in_memory(const Path& path) {
  const MappedFile file = Env::posix().map(path);
  std::vector<unsigned char> pages((file.bytes().size() + 4095) / 4096);
  EXPECT_EQ(::mincore(const_cast<std::byte*>(file.bytes().data()), file.bytes().size(), pages.data()), 0);
  return static_cast<std::size_t>(std::ranges::count_if(pages, [](unsigned char page) { return page & 1; }));
}

TEST(File, DirectWritesDoNotUseThePageCache) {
  const TemporaryFolder folder;
  const Path path = folder.path() / "a";
  write_file(path, "");
  struct statfs system {};
  ASSERT_EQ(::statfs(path.c_str(), &system), 0);
  // Other file systems may accept O_DIRECT and still use the page cache.
  if (system.f_type != EXT4_SUPER_MAGIC && system.f_type != XFS_SUPER_MAGIC) {
    GTEST_SKIP() << "only ext4 and XFS are known to bypass the page cache";
  }
  constexpr std::size_t kPages = 64, kSize = kPages * File::kDirectBytes;
  const LargeMemory memory = allocate_large(kSize + File::kDirectBytes);
  const auto file = Env::posix().open(path, OpenMode::kUpdate);
  file->truncate(kSize + 10);
  // The write starts at byte 10, so its first and last page go through the page cache.
  EXPECT_EQ(file->write_direct({memory.get() + 10, kSize}, 10), kSize - File::kDirectBytes);
  file->sync();
  EXPECT_LE(pages_in_memory(path), 2U);
  file->write_at({memory.get(), kSize}, 0);
  EXPECT_EQ(pages_in_memory(path), kPages + 1) << "mincore() does not show cached pages here";
}

TEST(File, DirectWritesToAFullDiskAreErrors) {
  const LargeMemory memory = allocate_large(1 << 20);
  const std::span<const std::byte> data(memory.get(), 1 << 20);
  const auto refused = [&](const Path& path) {
    const auto file = Env::posix().open(path, OpenMode::kWrite);
    try {
      file->write_direct(data, 0);
      ADD_FAILURE() << "no error";
    } catch (const FileError& error) {
      EXPECT_TRUE(error.out_of_space());
      EXPECT_NE(error.render().find(path.string()), std::string::npos);
    }
  };
  refused("/dev/full");  // it cannot be opened for direct writes
  if (!test::on_small_disk(256 << 10, [&](const Path& folder) { refused(folder / "a"); })) GTEST_SKIP();
}

TEST(File, PlainNames) {
  for (const char* good : {"a", "model-00001-of-00002.safetensors", "..a", ".tmp", "ä"})
    EXPECT_TRUE(is_plain_name(good));
  for (const char* bad : {"", ".", "..", "a/b", "/a", "../a", "a\\b", "a\nb", "\x7f"})
    EXPECT_FALSE(is_plain_name(bad));
  EXPECT_FALSE(is_plain_name(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_plain_name(std::string(256, 'a')));
}

// A power failure loses bytes that were not synced, and names whose folder was not synced.
TEST(FaultEnv, LosesUnsyncedData) {
  FaultEnv env;
  make_folders("/d", env);
  write_file("/d/a", "synced", env);
  env.sync_folder("/d");
  write_file("/d/b", "a file without a name", env);
  env.open("/d/a", OpenMode::kUpdate)->write_at(as_bytes("CACHED"), 0);
  env.crash_at(env.operations());
  EXPECT_THROW(env.list("/d"), SimulatedCrash);
  EXPECT_THROW(env.list("/d"), SimulatedCrash) << "every operation after the crash fails";
  env.reboot(FaultEnv::Survivors::kSynced);
  EXPECT_THAT(env.list("/d"), ElementsAre("a"));
  EXPECT_EQ(read_file("/d/a", 100, env), "synced");
}

TEST(FaultEnv, AWriteThatFailsIsTorn) {
  FaultEnv env;
  auto file = env.open("/a", OpenMode::kWrite);
  env.fail_at(env.operations(), EIO);
  EXPECT_THROW(file->append(as_bytes("12345678")), FileError);
  EXPECT_EQ(read_file("/a", 100, env), "1234");
  env.set_capacity(6);
  EXPECT_EQ(env.free_space("/"), 2U);
  EXPECT_THROW(file->write_at(as_bytes("abcdef"), 4), FileError);
  EXPECT_EQ(read_file("/a", 100, env), "1234ab");
}

// write_file_atomic leaves the old or the new content after a crash at any operation, for each kind of crash.
TEST(FaultEnv, AtomicReplacementSurvivesACrashAnywhere) {
  for (const auto survivors :
       {FaultEnv::Survivors::kAll, FaultEnv::Survivors::kSynced, FaultEnv::Survivors::kRandom}) {
    bool finished = false;
    for (std::uint64_t operation = 0; !finished; ++operation) {
      FaultEnv env;
      write_file_atomic("/a", "old", env);
      env.crash_at(env.operations() + operation);
      try {
        write_file_atomic("/a", "new", env);
        finished = true;
      } catch (const SimulatedCrash&) {
      }
      env.reboot(survivors, operation);
      const std::string content = read_file("/a", 100, env);
      EXPECT_TRUE(content == "old" || content == "new") << content;
      if (finished) {
        EXPECT_EQ(content, "new");
      }
    }
  }
}

TEST(CreatableFolder, FilesCannotBeCreatedBelowFilesAndInVirtualFolders) {
  const TemporaryFolder folder;
  write_file(folder.path() / "file", "x");
  EXPECT_TRUE(can_create_files_in(folder.path()));
  EXPECT_TRUE(can_create_files_in(folder.path() / "new" / "newer"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "new"));
  EXPECT_FALSE(can_create_files_in(folder.path() / "file"));
  EXPECT_FALSE(can_create_files_in(folder.path() / "file" / "new"));
  EXPECT_FALSE(can_create_files_in("/proc/new"));
}

}  // namespace
}  // namespace primus
