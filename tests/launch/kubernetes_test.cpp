// Tests that manifests which Kubernetes would refuse are reported before they are written.
#include "launch/kubernetes.h"

#include <gtest/gtest.h>

#include "base/error.h"

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

}  // namespace
}  // namespace primus::launch
