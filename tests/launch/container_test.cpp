// Tests of the devices, groups, images and networks that a container gets, on simulated machines.
#include "launch/container/container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "surroundings.h"

namespace primus::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Host : test::Machine {
  Host() {
    for (const char* tool : {"docker", "podman", "apptainer"}) {
      file(std::string("bin/") + tool, "#!/bin/sh\n");
      std::filesystem::permissions(folder.path() / "bin" / tool, std::filesystem::perms::owner_all);
    }
    variables["PATH"] = (folder.path() / "bin").string();
  }
  ContainerRequest request() const {
    ContainerRequest request;
    request.inner = {"direct", "--", "version"};
    request.given = {{"image", "a/b:1"}};
    return request;
  }
  // Returns the command line up to the image, without the arguments that every container gets.
  std::string line(const ContainerRequest& request) const {
    const Step step = plan_container(request, surroundings()).step;
    return shell_line(step.argv).substr(0, shell_line(step.argv).find(" a/b:1 ")) + " ";
  }
  void several_nodes() {
    variables.insert(
        {{"NNODES", "2"}, {"NODE_RANK", "1"}, {"MASTER_ADDR", "host1"}, {"MASTER_PORT", "7000"}});
  }
};

TEST(ContainerPlan, RunsAsTheUser) {
  Host host;
  ContainerRequest request = host.request();
  EXPECT_THAT(host.line(request), HasSubstr(" --user=1000:1000 "));
  request.settings.runtime = "podman";
  EXPECT_THAT(host.line(request), AllOf(HasSubstr(" --userns=keep-id "), Not(HasSubstr("--user="))));
  host.user = 0;  // podman does not support keep-id for root
  EXPECT_THAT(host.line(request), AllOf(HasSubstr(" --user=0:0 "), Not(HasSubstr("keep-id"))));
}

// The image does not have the user in its passwd file. Without --env HOME and --env USER, HOME would be / and
// the user would have no name.
TEST(ContainerPlan, AnUnknownUserHasAHomeAndAName) {
  Host host;
  host.variables["USER"] = "ada";
  host.variables["HOME"] = "/home/ada";
  EXPECT_THAT(host.line(host.request()),
              AllOf(HasSubstr("--env HOME=/tmp "), HasSubstr("--env USER=ada "),
                    HasSubstr((std::filesystem::current_path() / "data/huggingface").string())));
  host.variables["HF_HOME"] = "/shared/cache";
  EXPECT_THAT(host.line(host.request()),
              AllOf(HasSubstr("--env HF_HOME "), Not(HasSubstr("data/huggingface"))));
}

TEST(ContainerPlan, NvidiaGpus) {
  Host host;
  host.nvidia_gpus(4);
  ContainerRequest request = host.request();
  EXPECT_THAT(host.line(request), AllOf(HasSubstr(" --gpus all "), HasSubstr(" --env GPUS_PER_NODE=4 ")));
  request.given.push_back({"gpus", "2"});
  EXPECT_THAT(host.line(request), AllOf(HasSubstr(" --gpus=2 "), Not(HasSubstr("--gpus all")),
                                        HasSubstr(" --env GPUS_PER_NODE=2 ")));
  request.given.back().value = "device=0,3,2";
  EXPECT_THAT(host.line(request), HasSubstr(" --env GPUS_PER_NODE=3 "));
  request.given.back().value = "all";
  EXPECT_THAT(host.line(request), HasSubstr(" --env GPUS_PER_NODE=4 "));
  request.given.back().value = "2";
  EXPECT_EQ(plan_container(request, host.surroundings()).nodes.gpus, 2);
  const ElsewhereNodes nodes{.nodes = 2, .ranks = 4, .node = "<node>"};
  EXPECT_THROW(plan_container_elsewhere(request, nodes, host.surroundings()), Error);
  request.given.push_back({"env", "GPUS_PER_NODE=4"});
  EXPECT_THROW(host.line(request), Error) << "4 ranks on 2 GPUs";
  request = host.request();
  request.settings.runtime = "podman";
  EXPECT_THAT(host.line(request), HasSubstr(" --device nvidia.com/gpu=all "));
  request.settings.runtime = "apptainer";
  EXPECT_THAT(host.line(request), HasSubstr(" --nv "));
  request.settings.accelerator = "none";
  EXPECT_THAT(host.line(request), Not(HasSubstr(" --nv ")));
}

TEST(ContainerPlan, NotesGpusThatTheContainerDoesNotGet) {
  Host host;
  ContainerRequest request = host.request();
  request.given.push_back({"gpus", "2"});
  const auto notes_with = [&](int gpus) {
    return plan_container_elsewhere(request, {.nodes = 2, .node = "<node>", .gpus = gpus},
                                    host.surroundings())
        .step.notes;
  };
  EXPECT_THAT(notes_with(8), testing::Contains(HasSubstr("the container gets 2 of the 8 GPUs")));
  EXPECT_THAT(notes_with(2), testing::Each(Not(HasSubstr("stay idle"))));
}

TEST(ContainerPlan, RefusesAnotherCommandAndOtherValuesOfVariables) {
  Host host;
  ContainerRequest request = host.request();
  request.given.push_back({"env", "GPUS_PER_NODE=2"});
  const ElsewhereNodes inner =
      plan_container_elsewhere(request, {.nodes = 1, .node = "0"}, host.surroundings()).nodes;
  const DirectCommand command{.words = {"train", "pretrain"}, .has_ranks = true};
  EXPECT_NO_THROW(plan_direct_elsewhere({.environment = {"GPUS_PER_NODE=2"}}, command, inner, "primus"));
  try {
    plan_direct_elsewhere({.environment = {"GPUS_PER_NODE=3"}}, command, inner, "primus");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "--env sets GPUS_PER_NODE for the container and for 'direct', to different values");
  }
  request.given.push_back({"entrypoint", "/bin/sh"});
  for (const bool here : {true, false}) {
    try {
      here ? plan_container(request, host.surroundings())
           : plan_container_elsewhere(request, {.nodes = 1}, host.surroundings());
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--entrypoint=/bin/sh gives the container another command"));
    }
  }
}

TEST(ContainerPlan, RefusesGpusWithoutAnAccelerator) {
  Host host;
  ContainerRequest request = host.request();
  request.settings.runtime = "podman";
  request.settings.accelerator = "none";
  EXPECT_THAT(host.line(request), Not(HasSubstr("gpu")));
  request.given.push_back({"gpus", "2"});
  for (const bool here : {true, false}) {
    try {
      here ? plan_container(request, host.surroundings())
           : plan_container_elsewhere(request, {.nodes = 1}, host.surroundings());
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--accelerator is none, but --gpus=2 gives the container GPUs"));
    }
  }
  request.settings.runtime = "docker";
  request.given.back().value = "0";
  EXPECT_NO_THROW(plan_container(request, host.surroundings()));
}

TEST(ContainerPlan, RefusesOptionsThatContradictEachOther) {
  const auto error = [](const std::vector<GivenOption>& more) -> std::string {
    const Host host;
    ContainerRequest request = host.request();
    request.given.insert(request.given.end(), more.begin(), more.end());
    try {
      plan_container(request, host.surroundings());
    } catch (const Error& caught) {
      EXPECT_EQ(caught.exit_code(), 2);
      return caught.what();
    }
    return "";
  };
  EXPECT_EQ(error({{"volume", "/tmp:/x"}, {"volume", "/usr:/x"}}),
            "--volume /tmp:/x and --volume /usr:/x have the same path in the container");
  EXPECT_EQ(error({{"volume", "/tmp:/x"}, {"volume", "/tmp:/x"}, {"volume", "/tmp:/y"}}), "");
  EXPECT_THAT(error({{"volume", "/tmp:/x:ro,rw"}}), HasSubstr("ro and rw contradict each other"));
  EXPECT_EQ(error({{"volume", "/tmp:/x:ro,z"}}), "");
  EXPECT_EQ(error({{"env", "A=1"}, {"env", "A"}}), "--env sets A twice, to different values");
  EXPECT_EQ(error({{"env", "A=1"}, {"env", "A=2"}}), "--env sets A twice, to different values");
  EXPECT_EQ(error({{"env", "A=1"}, {"env", "A=1"}}), "");
  EXPECT_THAT(error({{"rm", "false"}}), HasSubstr("--rm=false: a container cannot be kept after its end"));
}

// Docker and podman refuse two volumes with one path inside.
TEST(ContainerPlan, AVolumeOfTheUserReplacesTheUsualVolume) {
  Host host;
  const std::string here = std::filesystem::current_path();
  ContainerRequest request = host.request();
  request.given.push_back({"volume", "/tmp:" + here});
  EXPECT_THAT(host.line(request), AllOf(HasSubstr("--volume /tmp:" + here + " "),
                                        Not(HasSubstr("--volume " + here + ":" + here + " "))));
}

TEST(ContainerPlan, ANameThatIsAlsoAFolderIsRefused) {
  const Host host;
  make_folders(host.folder.path() / "sub");
  const Path before = std::filesystem::current_path();
  std::filesystem::current_path(host.folder.path());
  ContainerRequest request = host.request();
  request.given.push_back({"volume", "sub:/x"});
  EXPECT_THROW(plan_container(request, host.surroundings()), Error);
  request.given.back().value = "./sub:/x";
  EXPECT_THAT(host.line(request), HasSubstr("/sub:/x "));
  request.given.back().value = "cache:/x";
  EXPECT_THAT(host.line(request), HasSubstr("--volume cache:/x "));
  std::filesystem::current_path(before);
}

TEST(ContainerPlan, NotesOptionsWithoutTheExpectedEffect) {
  Host host;
  const auto notes = [&](const std::vector<GivenOption>& more, bool privileged_set = false) {
    ContainerRequest request = host.request();
    request.settings.privileged_set = privileged_set;
    request.given.insert(request.given.end(), more.begin(), more.end());
    return plan_container(request, host.surroundings()).step.notes;
  };
  using testing::ElementsAre;
  EXPECT_THAT(notes({}), ElementsAre());
  EXPECT_THAT(notes({{"ipc", "host"}, {"shm-size", "8g"}}),
              ElementsAre("--shm-size=8g has no effect: --ipc host gives the container the host's shared "
                          "memory"));
  EXPECT_THAT(notes({{"shm-size", "8g"}, {"network", "bridge"}}, true),
              ElementsAre(HasSubstr("--shm-size=8g has no effect: --privileged-set"),
                          HasSubstr("--network=bridge replaces the host's network")));
  EXPECT_THAT(notes({{"env", "NOSUCH"}}), ElementsAre(HasSubstr("--env NOSUCH: NOSUCH is not set here")));
  EXPECT_THAT(notes({{"memory", "4g"}}), ElementsAre(HasSubstr("the shared memory (16g) may become larger")));
  EXPECT_THAT(notes({{"memory", "4g"}, {"shm-size", "2048m"}}), ElementsAre());
  EXPECT_THAT(notes({{"network", "none"}}), ElementsAre());
  host.several_nodes();
  EXPECT_THAT(notes({{"network", "none"}}),
              ElementsAre(HasSubstr("--network none: the ranks of different nodes cannot reach each other")));
}

TEST(ContainerPlan, ComparesItsResourcesWithTheJob) {
  const Host host;
  const ElsewhereNodes job{.nodes = 2, .node = "<node>", .gpus = 8, .cores = 4, .memory = 4.0 * (1LL << 30)};
  const auto notes = [&](const std::vector<GivenOption>& more, const std::string& accelerator = "auto") {
    ContainerRequest request = host.request();
    request.settings.runtime = "docker";
    request.settings.accelerator = accelerator;
    request.given.insert(request.given.end(), more.begin(), more.end());
    return plan_container_elsewhere(request, job, host.surroundings()).step.notes;
  };
  using testing::Contains;
  EXPECT_THAT(notes({{"cpus", "16"}}),
              Contains("--cpus=16 of the container is more than the 4 cores that the job gets on a node"));
  EXPECT_THAT(notes({{"memory", "64g"}}),
              Contains(HasSubstr("more than the memory that the job gets on a node "
                                 "(4 GiB)")));
  EXPECT_THAT(notes({{"cpus", "4"}, {"memory", "4g"}, {"shm-size", "1g"}}),
              testing::Each(Not(HasSubstr("more than"))));
  EXPECT_THAT(notes({}, "none"),
              Contains(HasSubstr("the container gets no GPU (--accelerator none), so the 8 "
                                 "GPUs that the job requests per node stay idle")));
}

TEST(ContainerPlan, ADeviceNeedsItsGpus) {
  const Host host;
  ContainerRequest request = host.request();
  request.inner = {"direct", "--", "train", "pretrain", "device=cuda"};
  for (const char* accelerator : {"none", "amd"}) {
    request.settings.accelerator = accelerator;
    EXPECT_THROW(plan_container_elsewhere(request, {.nodes = 1}, host.surroundings()), Error) << accelerator;
  }
  request.settings.accelerator = "nvidia";
  EXPECT_NO_THROW(plan_container_elsewhere(request, {.nodes = 1}, host.surroundings()));
}

TEST(ContainerPlan, AmdGpus) {
  Host host;
  host.amd_gpus(8);
  host.file("dev/dri/renderD128");
  ContainerRequest request = host.request();
  EXPECT_THAT(host.line(request), AllOf(HasSubstr(" --device /dev/kfd "), HasSubstr(" --device /dev/dri "),
                                        HasSubstr(" --env GPUS_PER_NODE=8 "), HasSubstr(" --cap-drop=ALL ")));
  // Like AMD Primus's settings, names the devices again, and one device that this node does not have.
  request.settings.options = {{"device", "/dev/kfd"}, {"device", "/dev/dri"}, {"device", "/dev/infiniband"}};
  const Step step = plan_container(request, host.surroundings()).step;
  const std::string line = shell_line(step.argv);
  EXPECT_EQ(line.find("/dev/kfd"), line.rfind("/dev/kfd"));
  EXPECT_THAT(line, Not(HasSubstr("infiniband")));
  EXPECT_THAT(step.notes, ::testing::Contains("without /dev/infiniband, which this node does not have"));
  request = host.request();
  request.settings.runtime = "apptainer";
  EXPECT_THAT(host.line(request), HasSubstr(" --rocm "));
  request.settings.accelerator = "nvidia";
  EXPECT_THROW(host.line(request), Error);
}

// Sources that `primus deps sync` fetched are mounted.
TEST(ContainerPlan, SourcesOfOtherFrameworksAreMounted) {
  Host host;
  ContainerRequest request = host.request();
  EXPECT_THAT(host.line(request), Not(HasSubstr("third_party")));
  host.variables["HOME"] = (host.folder.path() / "home").string();
  host.file("home/.cache/Primus/third_party/Megatron-LM/pretrain_gpt.py");
  host.file("home/.cache/Primus/third_party/Megatron-LM.venv/bin/python3");
  const std::string folder = host.variables["HOME"] + "/.cache/Primus/third_party";
  EXPECT_THAT(host.line(request),
              AllOf(HasSubstr(" --volume " + folder + "/Megatron-LM:" + folder + "/Megatron-LM "),
                    HasSubstr(" --env PRIMUS_THIRDPARTY_DIR=" + folder + " "), Not(HasSubstr(".venv"))));
}

// If no image is named, as usual with AMD Primus, the GPUs of the node determine the image.
TEST(ContainerPlan, TheDefaultImageDependsOnTheGpus) {
  const auto image_of = [](Host& host, const ContainerRequest& request) {
    const Step step = plan_container(request, host.surroundings()).step;
    const auto shell = std::find(step.argv.begin(), step.argv.end(), "/bin/sh");
    EXPECT_THAT(step.notes,
                ::testing::Contains(AllOf(HasSubstr("no image is named: Primus uses " + shell[-1]),
                                          HasSubstr("--image, DOCKER_IMAGE"))));
    return shell[-1];
  };
  ContainerRequest request = Host().request();
  request.given.clear();
  Host plain;
  EXPECT_EQ(image_of(plain, request), "debian:12");
  Host amd;
  amd.amd_gpus(8);
  EXPECT_EQ(image_of(amd, request), "rocm/primus:v26.8");
  Host nvidia;
  nvidia.nvidia_gpus(4);
  EXPECT_THAT(image_of(nvidia, request), HasSubstr("nvidia/cuda:13"));
  request.settings.accelerator = "none";
  EXPECT_EQ(image_of(nvidia, request), "debian:12");

  // The GPUs of the nodes are not known before the job starts.
  request.settings.accelerator = "auto";
  const auto elsewhere = [&] {
    const ElsewhereNodes nodes{.nodes = 2, .node = "<node>"};
    return plan_container_elsewhere(request, nodes, plain.surroundings()).step;
  };
  EXPECT_THAT(elsewhere().argv, ::testing::Contains("<image for the node's GPUs>"));
  EXPECT_THAT(elsewhere().notes, ::testing::Contains(HasSubstr("AMD GPUs use rocm/primus:v26.8")));
  request.settings.accelerator = "amd";
  EXPECT_THAT(elsewhere().argv, ::testing::Contains("rocm/primus:v26.8"));
  // The default images do not contain Primus, so the setting program: primus is refused.
  request.settings.program = "primus";
  EXPECT_THROW(elsewhere(), Error);
}

TEST(ContainerPlan, SeveralNodesUseTheHostsNetwork) {
  Host host;
  host.file("dev/infiniband");
  EXPECT_THAT(host.line(host.request()), AllOf(Not(HasSubstr("--network")), Not(HasSubstr("infiniband"))));
  host.several_nodes();
  host.variables["PRIMUS_JOB_TOKEN"] = "very-secret";
  const std::string line = host.line(host.request());
  EXPECT_THAT(
      line, AllOf(HasSubstr(" --network host "), HasSubstr(" --device /dev/infiniband --ulimit memlock=-1 "),
                  HasSubstr(" --env MASTER_ADDR=host1 --env MASTER_PORT=7000 "),
                  HasSubstr(" --env NNODES=2 --env NODE_RANK=1 "), HasSubstr(" --env PRIMUS_JOB_TOKEN "),
                  Not(HasSubstr("very-secret"))));
  ContainerRequest request = host.request();
  request.given.push_back({"env", "NODE_RANK=0"});
  EXPECT_THAT(host.line(request), HasSubstr(" --env NODE_RANK=0 "));
}

// Docker may be installed without a running daemon, or without permission to use it. Then podman is used.
TEST(ContainerPlan, DockerWithoutItsDaemonIsSkipped) {
  Host host;
  EXPECT_THAT(host.line(host.request()), HasSubstr("docker run "));
  host.file("bin/docker", "#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n");
  const Step step = plan_container(host.request(), host.surroundings()).step;
  EXPECT_EQ(step.argv.front(), "podman");
  EXPECT_THAT(step.notes,
              testing::Contains("with podman, because docker fails: Cannot connect to the Docker daemon"));
  // An explicit runtime is kept; docker itself then reports its error.
  ContainerRequest named = host.request();
  named.settings.runtime = "docker";
  EXPECT_THAT(host.line(named), HasSubstr("docker run "));
  for (const char* tool : {"podman", "apptainer"}) std::filesystem::remove(host.folder.path() / "bin" / tool);
  try {
    host.line(host.request());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDependency);
    EXPECT_THAT(error.render(),
                AllOf(HasSubstr("docker is installed but fails: Cannot connect to the Docker daemon"),
                      HasSubstr("install podman")));
  }
}

TEST(ContainerPlan, SlurmsTasksAreNotContainers) {
  Host host;
  host.variables.insert({{"SLURM_JOB_ID", "7"},
                         {"SLURM_PROCID", "1"},
                         {"SLURM_NNODES", "1"},
                         {"SLURM_NTASKS", "2"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_STEP_NODELIST", "localhost"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2"}});
  try {
    host.line(host.request());
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.render(), HasSubstr("--ntasks-per-node=1"));
  }
}

}  // namespace
}  // namespace primus::launch
