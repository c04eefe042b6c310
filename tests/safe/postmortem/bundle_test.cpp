#include "safe/postmortem/bundle.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/scratch_folder.h"
#include "base/system/subprocess.h"
#include "safe/postmortem/diagnosis.h"
#include "safe/postmortem/run_evidence.h"
#include "safe/postmortem/tar_archive.h"
#include "safe/postmortem/text_evidence.h"

namespace primus::postmortem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

SubprocessResult shell(const std::string& command) {
  return run_subprocess({"/bin/sh", "-c", "PATH=/usr/bin:/bin; " + command}, {});
}

class Bundles : public testing::Test {
 protected:
  Path write(const std::string& name, std::string_view content) {
    const Path path = scratch_.path() / name;
    make_folders(path.parent_path());
    write_file(path, content);
    return path;
  }
  Path folder(const char* name) {
    const Path path = scratch_.path() / name;
    make_folders(path);
    return path;
  }
  // Extracts and returns the error.
  std::string extract(std::string_view archive, const TarLimits& limits = {}) {
    return error_of([&] { extract_tar(write("a.tar.gz", archive), folder("out"), limits); });
  }

  ScratchFolder scratch_{"bundles"};
};

TEST_F(Bundles, FilesSurviveAndTarReadsThem) {
  std::string large;
  for (std::int64_t i = 0; i < 300'000; ++i) large += fmt::format("{} ", i * 7919 % 100'003);
  TarWriter tar;
  EXPECT_TRUE(tar.add("empty", "", 0));
  EXPECT_TRUE(tar.add("a/b/large.log", large, 1.7e9));
  EXPECT_TRUE(tar.add("exact", std::string(512, 'x'), 1.7e9));
  EXPECT_FALSE(tar.add(std::string(101, 'n'), "", 0));
  const Path file = write("a.tar.gz", tar.finish());
  const Path out = folder("out");
  extract_tar(file, out);
  EXPECT_EQ(read_file(out / "empty"), "");
  EXPECT_EQ(read_file(out / "a/b/large.log"), large);
  EXPECT_EQ(read_file(out / "exact"), std::string(512, 'x'));
  const SubprocessResult list = shell("tar -tzf " + file.string());
  EXPECT_EQ(list.out, "empty\na/b/large.log\nexact\n");
}

TEST_F(Bundles, HostileArchivesAreRefused) {
  for (const char* name : {"../up", "/absolute", "a/../../up", "..", "a/"}) {
    TarWriter tar;
    tar.add(name, "x", 0);
    EXPECT_THAT(extract(tar.finish()), HasSubstr("is no name of a file in it")) << name;
  }
  TarWriter twice;
  twice.add("a", "1", 0);
  twice.add("a", "2", 0);
  EXPECT_THAT(extract(twice.finish()), HasSubstr("'a' occurs twice"));
  TarWriter bomb;
  bomb.add("zeros", std::string(10 << 20, '\0'), 0);
  EXPECT_THAT(extract(bomb.finish(), {.all_bytes = 1 << 20}), HasSubstr("more than 1.00 MiB"));
  TarWriter many;
  for (int i = 0; i < 5; ++i) many.add(std::to_string(i), "", 0);
  EXPECT_THAT(extract(many.finish(), {.files = 4}), HasSubstr("more than 4 files"));
  EXPECT_THAT(extract("hello"), HasSubstr("is not compressed by gzip"));
  EXPECT_THAT(extract(""), HasSubstr("it ends early"));
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() / "up"));
}

// Links and devices could lead out of the folder or block the reader.
TEST_F(Bundles, LinksAreRefused) {
  const Path links = folder("links");
  std::filesystem::create_symlink("/etc/passwd", links / "x");
  const Path file = scratch_.path() / "links.tar.gz";
  ASSERT_TRUE(shell("tar -czf " + file.string() + " -C " + links.string() + " x").ok());
  EXPECT_THAT(error_of([&] { extract_tar(file, folder("out")); }), HasSubstr("'x' is not a regular file"));
}

TEST_F(Bundles, EachTruncationAndEachChangedByteIsAnErrorOrHarmless) {
  TarWriter tar;
  tar.add("a/b", "content", 1);
  tar.add("c", std::string(700, 'y'), 1);
  const std::string archive = tar.finish();
  for (std::size_t size = 0; size < archive.size() - 8; size += 7) {
    std::filesystem::remove_all(scratch_.path() / "out");
    EXPECT_NE(extract(archive.substr(0, size)), "") << size;
  }
  for (std::size_t at = 0; at < archive.size(); at += 3) {
    std::string changed = archive;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    std::filesystem::remove_all(scratch_.path() / "out");
    extract(changed);
  }
  for (const auto& entry : std::filesystem::directory_iterator(scratch_.path()))
    EXPECT_THAT(entry.path().filename().string(), testing::AnyOf("out", "a.tar.gz"));
}

TEST_F(Bundles, ARunIsDiagnosedFromItsBundle) {
  std::string events = R"({"event":"begin","step":0,"rank":0,"time":1000,"facts":{"host":"old"}})"
                       "\n";
  events +=
      R"({"event":"begin","step":0,"rank":0,"time":5000,"facts":{"host":"n1","experiment":"hf_token: abcde\n"}})"
      "\n";
  for (int step = 1; step <= 1000; ++step)
    events += fmt::format(R"({{"event":"step","step":{},"rank":0,"time":{},"facts":{{}}}})"
                          "\n",
                          step, 5000 + step);
  events +=
      R"({"event":"fault","step":1000,"rank":0,"time":6001,"cause":"disk full","facts":{"text":"no space"}})"
      "\n";
  write("run/events/rank-00000.jsonl", events);
  write("run/experiment.yaml", "hf_token: abcde\nlr: 1\n");
  write("run/logs/pre_trainer/rank-0/error.log",
        "[19700101 01:40:01][rank-0/1][ERROR] : No space left on device\n");
  write("run/logs/pre_trainer/rank-0/debug.log", "long");
  write("run/checkpoints/iter_0000001/model.safetensors", "weights");
  write("run/events/rank-00000.jsonl.reserve", "space");
  const Path log = write("slurm-1.out", "nothing\n");
  const Bundle bundle =
      pack({.run = scratch_.path() / "run", .running = true, .logs = {log}, .report = "the disk is full"});
  EXPECT_THAT(bundle.notes, ElementsAre());
  EXPECT_EQ(bundle.files, 6);

  const Path out = folder("out");
  const OpenedBundle opened = open_bundle(write("b.tar.gz", bundle.archive), out);
  EXPECT_TRUE(opened.running);
  EXPECT_EQ(opened.name, (scratch_.path() / "run").string());
  EXPECT_THAT(opened.logs, ElementsAre(out / "logs/1-slurm-1.out"));
  EXPECT_FALSE(std::filesystem::exists(out / "run/checkpoints"));
  EXPECT_FALSE(std::filesystem::exists(out / "run/logs/pre_trainer/rank-0/debug.log"));
  EXPECT_EQ(read_file(out / "run/experiment.yaml"), "hf_token: <redacted>\nlr: 1\n");
  const std::string kept = read_file(out / "run/events/rank-00000.jsonl");
  EXPECT_THAT(kept, Not(HasSubstr("abcde")));
  EXPECT_EQ(std::ranges::count(kept, '\n'), 202) << "a begin, 200 steps and a fault";
  const CaseFile original = read_run(scratch_.path() / "run"), copy = read_run(opened.run);
  EXPECT_EQ(diagnose(copy).cause->name, "disk-full");
  EXPECT_EQ(diagnose(copy).cause, diagnose(original).cause);
  EXPECT_EQ(copy.step, original.step);
  EXPECT_EQ(copy.ranks.at(0).node, "n1");
}

TEST_F(Bundles, OtherArchivesAreRefused) {
  TarWriter tar;
  tar.add("readme", "hello", 0);
  EXPECT_THAT(error_of([&] { open_bundle(write("x.tar.gz", tar.finish()), folder("out")); }),
              HasSubstr("is not a bundle: it has no bundle.json"));
}

}  // namespace
}  // namespace primus::postmortem
