// Tests of the launchers' settings files, and of options of other tools.
#include "launch/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "launch/options/tables.h"
#include "surroundings.h"

namespace primus::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Files : test::Machine {
  Files() { variables["HOME"] = (folder.path() / "home").string(); }
  LauncherSettings load(const std::string& named = {}) const {
    std::vector<std::string> files;
    if (!named.empty()) files.push_back((folder.path() / named).string());
    return load_settings(files, surroundings());
  }
  std::string error(const std::string& text) const {
    file("bad.yaml", text);
    try {
      load("bad.yaml");
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.render();
    }
    return "no error";
  }
};

std::vector<std::string> written(const std::vector<GivenOption>& options) {
  std::vector<std::string> words;
  for (const GivenOption& option : options) words.push_back(launch::written(option));
  return words;
}

TEST(Settings, LaterFilesReplaceKeyByKey) {
  Files files;
  files.file(
      "etc/primus/primus.yaml",
      "slurm: {nodes: 1, partition: slow, time: '4:00:00', exclusive: true}\ndirect: {gpus_per_node: 8}\n");
  files.file("home/.primus.yaml", "slurm: {N: 2}\ndirect: {env: [A=1, B=2], master_port: 7000}\n");
  files.file(
      "mine.yaml",
      "slurm:\n  p: fast\n  exclusive: false\ndirect: {env: [C=3], numa: true}\nmain: {debug: true}\n");
  const LauncherSettings s = files.load("mine.yaml");
  EXPECT_THAT(written(s.slurm.options), ElementsAre("--nodes=2", "--partition=fast", "--time=4:00:00"));
  EXPECT_EQ(s.direct.ranks_per_node, 8);
  EXPECT_THAT(s.direct.environment, ElementsAre("C=3"));
  EXPECT_EQ(s.direct.master_port, 7000);
  EXPECT_EQ(s.direct.numa, Numa::kOn);
  EXPECT_TRUE(s.debug);
  EXPECT_EQ(s.files.size(), 3U);
}

// Reads a file as AMD Primus ships it for its launcher.
TEST(Settings, AmdPrimussFileIsRead) {
  Files files;
  files.file(
      "primus.yaml",
      "main:\n  debug: false\n  dry_run: false\n"
      "slurm:\n  debug: false\n  dry_run: false\n  nodes: 1\n  gpus_per_node: 8\n  time: \"4:00:00\"\n"
      "container:\n  debug: false\n  dry_run: false\n  options:\n    image: \"rocm/primus:v1\"\n"
      "    ipc: \"host\"\n    privileged: \"true\"\n    security-opt: \"seccomp=unconfined\"\n"
      "    ulimit: \"nofile=1048576:1048576\"\n    device:\n      - \"/dev/kfd\"\n      - \"/dev/dri\"\n"
      "    volume: []\n    env:\n      - \"HF_TOKEN\"\n      - \"USING_AINIC=1\"\n"
      "direct:\n  debug: false\n  gpus_per_node: 8\n  master_port: 1234\n  nnodes: 1\n"
      "  master_addr: \"localhost\"\n  run_mode: \"torchrun\"\n  script: \"primus/cli/main.py\"\n"
      "  numa: \"auto\"\n  log_file: \"\"\n  patch: []\n  env: []\n");
  const LauncherSettings s = files.load("primus.yaml");
  EXPECT_THAT(written(s.container.options),
              ElementsAre("--image=rocm/primus:v1", "--ipc=host", "--privileged",
                          "--security-opt=seccomp=unconfined", "--ulimit=nofile=1048576:1048576",
                          "--device=/dev/kfd", "--device=/dev/dri", "--env=HF_TOKEN", "--env=USING_AINIC=1"));
  EXPECT_EQ(s.direct.script, "");
  EXPECT_EQ(s.direct.single, false);
  EXPECT_FALSE(s.direct.log_file);
  EXPECT_EQ(s.slurm.ranks_per_node, 8);
  EXPECT_THAT(written(s.slurm.options), ElementsAre("--nodes=1", "--time=4:00:00"));
}

TEST(Settings, TheExampleOfTheDocumentIsRead) {
  const std::string page = read_file(PRIMUS_SOURCE_DIR "/docs/launch.md");
  const std::size_t begin = page.find("```yaml\n") + 8;
  Files files;
  files.file("doc.yaml", page.substr(begin, page.find("```", begin) - begin));
  const LauncherSettings s = files.load("doc.yaml");
  EXPECT_EQ(s.k8s.kind, "jobset");
  EXPECT_EQ(s.k8s.nodes, 2);
  EXPECT_EQ(find_given(s.container.options, "shm-size")->value, "64g");
  EXPECT_EQ(written(s.slurm.options).size(), 4U);
}

TEST(Settings, MistakesAreReportedWithTheirLocation) {
  const Files files;
  EXPECT_THAT(files.error("direct:\n  pacth: [a.sh]\n"),
              HasSubstr("bad.yaml:2:3: error: direct has no setting 'pacth'"));
  EXPECT_THAT(files.error("direct:\n  pacth: [a.sh]\n"), HasSubstr("did you mean 'patch'?"));
  EXPECT_THAT(files.error("slurm: {partitoin: x}\n"), HasSubstr("did you mean '--partition'?"));
  EXPECT_THAT(files.error("container: {options: {volme: [a]}}\n"), HasSubstr("did you mean '--volume'?"));
  EXPECT_THAT(files.error("dircet: {}\n"), HasSubstr("did you mean 'direct'?"));
  EXPECT_THAT(files.error("direct: {gpus_per_node: 0}\n"),
              HasSubstr("bad.yaml:1:25: error: gpus_per_node must be a number from 1"));
  EXPECT_THAT(files.error("direct: {run_mode: twice}\n"), HasSubstr("one of single, torchrun"));
  EXPECT_THAT(files.error("direct: {env: [A]}\n"), HasSubstr("env needs NAME=VALUE"));
  EXPECT_THAT(files.error("direct: {env: {'A B': 1}}\n"), HasSubstr("'A B' is not the name of a variable"));
  EXPECT_THAT(files.error("slurm: {exclusive: {a: b}}\n"), HasSubstr("text or a list"));
  EXPECT_THAT(files.error("container: {options: {privileged: maybe}}\n"), HasSubstr("true or false"));
  EXPECT_THAT(files.error("container: {options: {rm: false}}\n"),
              HasSubstr("bad.yaml:1:23: error: a container cannot be kept after its end"));
  EXPECT_THAT(files.error("main: [1]\n"), HasSubstr("a map of settings"));
  EXPECT_THAT(files.error("direct: {silent: perhaps, numa: sometimes}\n"), HasSubstr("2 problems"));
  EXPECT_THAT(files.error("direct: {env: [\"HF_TOKEN=${NOT_SET}\"]}\n"), HasSubstr("NOT_SET"));
  EXPECT_THAT(files.error("a: &x [1]\na: 2\n"), HasSubstr("bad.yaml:2"));
  try {
    files.load("nowhere.yaml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.render(), HasSubstr("nowhere.yaml"));
  }
}

TEST(Settings, AFileNamesAnOptionOnce) {
  Files files;
  EXPECT_THAT(files.error("slurm: {nodes: 4, N: 3}\n"), HasSubstr("'N' and 'nodes' ("));
  EXPECT_THAT(files.error("slurm: {N: 3, nodes: 4}\n"), HasSubstr("are the same option"));
}

TEST(Settings, PathsAreRelativeToTheirFile) {
  Files files;
  files.file("sub/mine.yaml", "direct: {patch: [a.sh, /abs/b.sh], hooks: [h], env: [\"T=${WHO:me}\"]}\n");
  const LauncherSettings s = files.load("sub/mine.yaml");
  EXPECT_THAT(s.direct.patches, ElementsAre(files.folder.path() / "sub/a.sh", "/abs/b.sh"));
  EXPECT_THAT(s.direct.hooks, ElementsAre(files.folder.path() / "sub/h"));
  EXPECT_THAT(s.direct.environment, ElementsAre("T=me"));
}

TEST(Options, AreReadMergedAndWritten) {
  const std::vector<std::string> words = {"-N4",          "-p",     "gpu",        "--time=1:00",
                                          "--exclusive",  "--gres", "gpu:8",      "--requeue",
                                          "--new-option", "7",      "--other-new"};
  const auto given = read_options(slurm_options(), words, "srun");
  EXPECT_THAT(written(given), ElementsAre("--nodes=4", "--partition=gpu", "--time=1:00", "--exclusive",
                                          "--gres=gpu:8", "--requeue", "--new-option=7", "--other-new"));
  const auto all = merged(slurm_options(), {{"nodes", "1"}, {"account", "me"}}, given);
  EXPECT_THAT(written(all).front(), "--account=me");
  EXPECT_EQ(all.size(), 9U);
  const auto volumes =
      merged(container_options(), {{"volume", "/a"}, {"name", "x"}}, {{"volume", "/b"}, {"name", "y"}});
  EXPECT_THAT(written(volumes), ElementsAre("--volume=/a", "--volume=/b", "--name=y"));
  // Networks on the command line replace the networks of settings files. There may be several networks.
  const auto networks = read_options(
      container_options(), std::vector<std::string>{"--net", "a", "--network=b"}, "docker", Unknown::kRefuse);
  EXPECT_THAT(written(merged(container_options(), {{"network", "host"}}, networks)),
              ElementsAre("--network=a", "--network=b"));
}

TEST(Options, MistakesAreNamed) {
  const auto error = [](const std::vector<std::string>& words) -> std::string {
    try {
      read_options(slurm_options(), words, "srun");
    } catch (const Error& e) {
      return e.render();
    }
    return "no error";
  };
  EXPECT_THAT(error({"--partion", "x"}), HasSubstr("did you mean '--partition'?"));
  EXPECT_THAT(error({"train"}), HasSubstr("'train' is not an option of srun"));
  EXPECT_THAT(error({"-N"}), HasSubstr("-N of srun needs a value"));
  EXPECT_THAT(error({"--requeue=7"}), HasSubstr("does not accept a value"));
}

}  // namespace
}  // namespace primus::launch
