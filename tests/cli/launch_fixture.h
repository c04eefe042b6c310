// Fixture for tests of the launchers: a working folder, and stand-ins for the tools that launchers start. The
// stand-ins log their arguments, environment and input.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "cli/program.h"
#include "launch/plan.h"

namespace primus::test {

inline const std::string kExperiment =
    PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";
using Words = std::vector<std::string>;
// This batch can be divided by the number of ranks of every job in these tests.
inline const Words kTrain = {"train",     "pretrain",           "--config",
                             kExperiment, "micro_batch_size=1", "global_batch_size=32"};

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A working folder. Its bin/ comes first in PATH, before the system's own tools.
class LaunchFixture : public ::testing::Test {
 protected:
  LaunchFixture() {
    // Variables of this machine that launchers would pass on are unset until the fixture is destroyed.
    updates_ = std::getenv("PRIMUS_UPDATE_GOLDEN") != nullptr;
    for (const std::string& name : launch::Surroundings::here().variable_names()) {
      for (const char* prefix : {"PRIMUS_", "NCCL_", "RCCL_", "GLOO_", "SLURM_", "OMP_", "HF_", "DOCKER_"}) {
        if (name.starts_with(prefix)) unset_[name] = std::getenv(name.c_str());
      }
    }
    for (const auto& [name, value] : unset_) unsetenv(name.c_str());
    make_folders(folder_.path() / "bin");
    make_folders(folder_.path() / "here/data");
    environment_ = {{"HOME", (folder_.path() / "home").string()},
                    {"PATH", (folder_.path() / "bin").string() + ":/usr/bin:/bin"},
                    {"NO_COLOR", "1"},
                    // Hides this machine's GPUs.
                    {"CUDA_VISIBLE_DEVICES", ""},
                    {"HIP_VISIBLE_DEVICES", ""}};
  }

  ~LaunchFixture() override {
    for (const auto& [name, value] : unset_) setenv(name.c_str(), value.c_str(), 1);
  }

  // Makes a program that logs its arguments and environment and then runs `script`. A check whether docker's
  // daemon answers succeeds, and is not logged.
  void tool(const std::string& name, const std::string& script = "exit 0") const {
    const Path file = folder_.path() / "bin" / name;
    const std::string log = (folder_.path() / (name + ".log")).string();
    write_file(file,
               "#!/bin/sh\n[ \"$*\" = 'ps --quiet --last 1' ] && exit 0\n"
               "{ printf '%s\\n' \"$0\" \"$@\"; echo ---; env | sort; echo ---; } >> " +
                   log + "\n" + script + "\n");
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  std::string log(const std::string& name) const {
    const Path file = folder_.path() / (name + ".log");
    return std::filesystem::exists(file) ? read_file(file) : "";
  }
  // Returns the arguments of the first logged call.
  std::string arguments(const std::string& name) const {
    const std::string text = log(name);
    return text.substr(0, text.find("\n---\n"));
  }
  ProgramResult run(const std::vector<std::string>& words) const {
    return run_program(words, {.folder = (folder_.path() / "here").string(), .environment = environment_});
  }
  void settings(const std::string& yaml) const { write_file(folder_.path() / "here/.primus.yaml", yaml); }

  // Replaces what differs between machines by fixed names.
  std::string neutral(std::string text) const {
    const auto replace = [&](const std::string& what, const std::string& with) {
      for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
        text.replace(at, what.size(), with);
    };
    const std::string program = std::filesystem::canonical(PRIMUS_PROGRAM).string();
    replace(program, "PROGRAM");
    replace(Path(program).parent_path().string(), "PROGRAM-FOLDER");
    replace(std::filesystem::canonical(folder_.path()).string(), "FOLDER");
    replace(PRIMUS_SOURCE_DIR, "SOURCE");
    replace("--user=" + std::to_string(getuid()) + ":" + std::to_string(getgid()), "--user=UID:GID");
    replace("--userns=keep-id", "--user=UID:GID");  // podman's option, unless the tests run as root
    // Volumes with GPU plug-ins exist only where those were built.
    text = std::regex_replace(text, std::regex(" (--volume|--bind) [^ ]*/lib/primus:[^ ]*"), "");
    text = std::regex_replace(
        text, std::regex("(--name primus-|io.primus.(job|launcher)=)[0-9]+(\\.[0-9]+)?"), "$1PID");
    return text;
  }
  void expect_golden(const ProgramResult& result, const std::string& name) const {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string path = PRIMUS_SOURCE_DIR "/tests/cli/golden/launch/" + name + ".txt";
    if (updates_) {
      write_file_atomic(path, neutral(result.out));
      return;
    }
    EXPECT_EQ(neutral(result.out), read_file(path)) << path;
  }
  void expect_refused(const std::vector<std::string>& words, const std::string& said, int code = 2) const {
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, code) << result.out << result.err;
    EXPECT_THAT(result.err, ::testing::HasSubstr(said));
    EXPECT_EQ(result.out, "");
  }

  TemporaryFolder folder_;
  std::map<std::string, std::string> environment_, unset_;
  bool updates_ = false;
};

}  // namespace primus::test
