// Tests that manifests which Kubernetes would refuse are reported before they are written.
#include "launch/kubernetes.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "launch/kubernetes_values.h"
#include "surroundings.h"

namespace primus::launch {
namespace {

KubernetesRequest pod_request() {
  KubernetesRequest result{.settings = {}, .command = {"direct", "--", "version"}};
  result.settings.image = "a/b:1";
  return result;
}

// Returns the error message, or "" if there is a manifest.
std::string manifest_error(const KubernetesRequest& request) {
  try {
    plan_kubernetes(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

TEST(KubernetesPlan, APathInThePodHasOneVolume) {
  KubernetesRequest two = pod_request();
  two.settings.volumes = {"/data:/data", "pvc/x:/other:ro"};
  EXPECT_EQ(manifest_error(two), "");
  two.settings.volumes = {"/data:/data", "pvc/x:/data/:ro"};
  EXPECT_EQ(manifest_error(two), "'pvc/x:/data/:ro': another volume of the pod has the path /data");
  two.settings.volumes = {"/data:/dev/shm"};
  EXPECT_EQ(manifest_error(two), "'/data:/dev/shm': another volume of the pod has the path /dev/shm");
}

TEST(KubernetesPlan, AVariableIsSetOnce) {
  KubernetesRequest two = pod_request();
  two.settings.secrets = {"X=a/b", "Y=a/b", "whole"};
  EXPECT_EQ(manifest_error(two), "");
  two.settings.environment = {"X=1"};
  EXPECT_EQ(manifest_error(two), "--secret X sets a variable that is already set");
  two.settings.environment = {};
  two.settings.secrets = {"X=a/b", "X=a/c"};
  EXPECT_EQ(manifest_error(two), "--secret X sets a variable that is already set");
}

TEST(KubernetesPlan, RefusesPodsWithoutProcessorOrMemory) {
  KubernetesRequest two = pod_request();
  two.settings.cpus = "0";
  EXPECT_EQ(manifest_error(two), "--cpus is 0, with which no process can run");
  two.settings.cpus = "500m";
  two.settings.memory = "0Gi";
  EXPECT_EQ(manifest_error(two), "--memory is 0Gi, with which no process can run");
}

TEST(KubernetesPlan, NotesMissingVolumesAndTooMuchSharedMemory) {
  KubernetesRequest request{.settings = {}, .command = {}, .has_ranks = true};
  ASSERT_EQ(notes_on_pods(request).size(), 1U);
  EXPECT_NE(notes_on_pods(request)[0].find("the pods have no volume"), std::string::npos);
  request.has_ranks = false;
  EXPECT_TRUE(notes_on_pods(request).empty());
  request.has_ranks = true;
  request.settings.volumes = {"pvc/x:/data"};
  request.settings.memory = "64Gi";
  request.settings.shared_memory = "64000M";
  EXPECT_TRUE(notes_on_pods(request).empty());
  request.settings.shared_memory = "65Gi";
  ASSERT_EQ(notes_on_pods(request).size(), 1U);
  EXPECT_NE(notes_on_pods(request)[0].find("the shared memory (65Gi)"), std::string::npos);
}

TEST(KubernetesPlan, ADeviceNeedsItsGpus) {
  KubernetesRequest two = pod_request();
  two.command = {"direct", "--", "train", "pretrain", "device=cuda"};
  EXPECT_EQ(manifest_error(two), "device is cuda, but the command gets no GPUs (no --gpu-resource)");
  two.settings.gpu_resource = "none";
  EXPECT_EQ(manifest_error(two), "device is cuda, but the command gets no GPUs (--gpu-resource none)");
  two.settings.gpu_resource = "amd";
  EXPECT_EQ(manifest_error(two), "device is cuda, but the command gets AMD GPUs (--gpu-resource amd)");
  two.settings.gpu_resource = "nvidia.com/gpu";
  EXPECT_EQ(manifest_error(two), "");
  two.command.back() = "device=cpu";
  EXPECT_EQ(manifest_error(two), "");
}

TEST(KubernetesPlan, NotesVariablesOfTheShell) {
  test::Machine machine;
  machine.variables = {{"NNODES", "7"}, {"GPUS_PER_NODE", "4"}};
  KubernetesSettings settings;
  settings.nodes = 2;
  EXPECT_EQ(notes_on_shell(settings, machine.surroundings()),
            (std::vector<std::string>{"NNODES=7 of the environment is not used: the pods get NNODES from -N",
                                      "GPUS_PER_NODE=4 of the environment is not used: the pods get "
                                      "GPUS_PER_NODE from --gpus-per-node"}));
  settings.nodes = 7;
  settings.ranks_per_node = 4;
  EXPECT_TRUE(notes_on_shell(settings, machine.surroundings()).empty());
}

TEST(KubernetesPlan, NotesOutputThatIsLost) {
  KubernetesSettings settings;
  EXPECT_TRUE(notes_on_output(settings, {"--numa"}).empty());
  const std::vector<std::string> notes = notes_on_output(settings, {"--log_file", "/x/y.log", "--silent"});
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[0], "--silent: 'kubectl logs' does not show the output of the command");
  EXPECT_NE(notes[1].find("the log file '/x/y.log' is in no volume"), std::string::npos) << notes[1];
  settings.volumes = {"pvc/logs:/x"};
  EXPECT_TRUE(notes_on_output(settings, {"--log-file=/x/y.log"}).empty());
  EXPECT_EQ(notes_on_output(settings, {"--log-file=/xx/y.log"}).size(), 1U);
}

TEST(KubernetesPlan, ReadsQuantities) {
  EXPECT_EQ(forms::value_of_quantity("2"), 2);
  EXPECT_EQ(forms::value_of_quantity("1.5Gi"), 1.5 * (1 << 30));
  EXPECT_EQ(forms::value_of_quantity("3k"), 3000);
  EXPECT_DOUBLE_EQ(forms::value_of_quantity("500m"), 0.5);
  EXPECT_EQ(forms::value_of_quantity("1e3"), 1000);
}

}  // namespace
}  // namespace primus::launch
