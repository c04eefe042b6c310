// Tests that manifests which Kubernetes would refuse are reported before they are written.
#include "launch/kubernetes/kubernetes.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "launch/kubernetes/kubernetes_placing.h"
#include "launch/kubernetes/kubernetes_values.h"
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

KubernetesRequest placed_request() {
  KubernetesRequest request = pod_request();
  request.has_ranks = true;
  request.settings.nodes = 8;
  request.command = {"direct", "--numa", "--env", "A=1", "--env=B=2", "--", "train", "pretrain"};
  return request;
}

// Returns how often `part` occurs in the manifest.
int count_in_manifest(const KubernetesRequest& request, const std::string& part) {
  const std::string text = plan_kubernetes(request).manifest;
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(KubernetesPlan, KueuePlacesPodsByTopology) {
  KubernetesRequest request = placed_request();
  KubernetesPlacing& placing = request.settings.placing;
  placing = {.required = "net/block", .preferred = "", .slice = "net/rack", .slice_size = 4, .exclusive = ""};
  EXPECT_EQ(count_in_manifest(request, "kueue.x-k8s.io/podset-required-topology: \"net/block\"\n"), 1);
  EXPECT_EQ(count_in_manifest(request, "kueue.x-k8s.io/podset-slice-required-topology: \"net/rack\"\n"), 1);
  EXPECT_EQ(count_in_manifest(request, "kueue.x-k8s.io/podset-slice-size: \"4\"\n"), 1);
  ASSERT_EQ(notes_on_placing(request.settings).size(), 1U);  // no queue
  request.settings.queue = "gpus";
  EXPECT_TRUE(notes_on_placing(request.settings).empty());
  placing = {.required = "", .preferred = "net/block", .slice = "", .slice_size = {}, .exclusive = ""};
  EXPECT_EQ(count_in_manifest(request, "kueue.x-k8s.io/podset-preferred-topology: \"net/block\"\n"), 1);
  placing = {.required = "", .preferred = "", .slice = "", .slice_size = {}, .exclusive = "net/block"};
  EXPECT_EQ(count_in_manifest(request, "alpha.jobset.sigs.k8s.io/exclusive-topology: \"net/block\"\n"), 1);
}

TEST(KubernetesPlan, RefusesImpossiblePlacing) {
  const auto said = [](const KubernetesPlacing& placing, const std::string& kind = "jobset") {
    KubernetesRequest request = placed_request();
    request.settings.placing = placing;
    request.settings.kind = kind;
    return manifest_error(request);
  };
  KubernetesPlacing p{.required = "a/b", .preferred = "", .slice = "", .slice_size = {}, .exclusive = ""};
  EXPECT_EQ(said(p), "");
  EXPECT_EQ(said(p, "pytorchjob"), "a PyTorchJob has no placing by topology");
  p.preferred = "a/c";
  EXPECT_EQ(said(p), "--required-topology and --preferred-topology exclude each other");
  p.preferred = "";
  p.slice = "a/c";
  EXPECT_EQ(said(p), "--slice-topology needs the number of pods of a slice");
  p.slice_size = 3;
  EXPECT_EQ(said(p), "--slice-size 3 does not divide the 8 nodes");
  p.slice = "";
  EXPECT_EQ(said(p), "--slice-size has no effect without --slice-topology");
  p.slice_size = {};
  p.exclusive = "a/c";
  EXPECT_EQ(said(p), "--exclusive-topology is JobSet's own placing, and excludes that of Kueue");
  p = {.required = "kubernetes.io/hostname", .preferred = "", .slice = "", .slice_size = {}, .exclusive = ""};
  EXPECT_NE(said(p).find("--topology-key spreads them over its values"), std::string::npos) << said(p);
  p = {};
  p.gate = "pods";
  EXPECT_EQ(said(p, "pytorchjob"), "a PyTorchJob has no gate");
  KubernetesRequest without_ranks = placed_request();
  without_ranks.has_ranks = false;
  without_ranks.settings.placing.gate = "job";
  EXPECT_EQ(manifest_error(without_ranks),
            "--gate checks nodes before a command that runs on ranks, such as train pretrain");
}

TEST(KubernetesPlan, AGateChecksTheNodesFirst) {
  KubernetesRequest request = placed_request();
  EXPECT_EQ(gate_command(request.command),
            (std::vector<std::string>{"direct", "--env", "A=1", "--env=B=2", "--", "preflight", "--quick",
                                      "--dump-path", "/tmp/preflight"}));
  request.settings.secrets = {"whole"};
  request.settings.placing.gate = kGateOfPods;
  EXPECT_EQ(count_in_manifest(request, "initContainers:\n"), 1);
  EXPECT_EQ(count_in_manifest(request, "\"--quick\"\n"), 1);
  EXPECT_EQ(count_in_manifest(request, "\"primus-node-0-0.primus\"\n"), 2);
  EXPECT_EQ(count_in_manifest(request, "\"29501\"\n"), 1);
  EXPECT_EQ(count_in_manifest(request, "secretRef:\n"), 2);
  EXPECT_EQ(count_in_manifest(request, "dependsOn"), 0);
  request.settings.placing.gate = kGateOfJob;
  request.settings.queue = "gpus";
  EXPECT_EQ(count_in_manifest(request, "initContainers"), 0);
  EXPECT_EQ(count_in_manifest(request, "\"primus-gate-0-0.primus\"\n"), 1);
  EXPECT_EQ(count_in_manifest(request, "status: \"Complete\"\n"), 1);
  EXPECT_EQ(count_in_manifest(request, "action: \"FailJobSet\"\n"), 1);
  const std::string manifest = plan_kubernetes(request).manifest;
  EXPECT_LT(manifest.find("- name: \"gate\"\n"), manifest.find("- name: \"node\"\n"));
  EXPECT_EQ(notes_on_placing(request.settings).size(), 2U);  // other nodes, and twice the quota
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
