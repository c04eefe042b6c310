// The launcher's settings: .primus.yaml, with Primus's sections main, slurm, container and direct, and k8s.
//
// Several files count, each over the one before: /etc/primus/primus.yaml (the system's), ~/.primus.yaml (the
// user's), ./.primus.yaml (the project's), and those that --config names. Maps are merged key by key; other
// values, lists among them, are replaced. Options on the command line come last. The project's file is read
// only where it belongs to the user or to root and nobody else can write to it, because it can name programs
// to run.
//
// ${NAME} and ${NAME:default} are replaced by variables. Errors have file:line:col; unknown keys are errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "launch/foreign_options.h"
#include "launch/plan.h"

namespace primus::launch {

enum class Numa { kAuto, kOn, kOff };

struct DirectSettings {
  std::optional<bool> single;            // run_mode: single | torchrun
  std::optional<std::string> script;     // empty: the program itself
  std::vector<std::string> environment;  // "NAME=VALUE"
  std::vector<Path> environment_files;   // of lines NAME=VALUE
  std::vector<Path> patches, hooks;      // programs; folders of programs
  std::optional<std::string> log_file;
  Numa numa = Numa::kAuto;
  bool silent = false;
  std::optional<int> nodes, ranks_per_node;
  std::optional<std::string> master_address;
  std::optional<std::uint16_t> master_port;
};

struct SlurmSettings {
  std::vector<GivenOption> options;  // of srun and sbatch
  std::optional<int> ranks_per_node;
};

struct ContainerSettings {
  std::string runtime = "auto";      // docker, podman, apptainer, singularity
  std::string program;               // Primus within the image; empty: this one, mounted
  std::string accelerator = "auto";  // amd, nvidia, none
  bool privileged_set = false;       // Primus's own set of privileges
  std::vector<GivenOption> options;  // of `docker run`; image among them
};

struct KubernetesSettings {
  std::string kind = "jobset";  // or pytorchjob
  std::string name, image, service_account, queue, priority_class, program, gpu_resource, rdma_resource;
  std::string name_space;  // "namespace"
  std::string shared_memory = "16Gi", memory, cpus;
  std::string topology_key = "kubernetes.io/hostname";
  std::optional<int> nodes, ranks_per_node, max_restarts;
  std::vector<std::string> environment;  // "NAME=VALUE"
  std::vector<std::string> secrets;      // "NAME=SECRET/KEY", or the name of a secret with variables
  std::vector<std::string> volumes;      // "/host/path:/path", "pvc/claim:/path"
};

struct LauncherSettings {
  struct Switches {
    bool debug = false, dry_run = false;
    std::string dry_run_at;  // where it stands: "dry_run: true in .primus.yaml:3:12"
  };
  bool debug = false, dry_run = false;  // main:
  std::string dry_run_at;
  Switches slurm_switches, container_switches, direct_switches, k8s_switches;
  DirectSettings direct;
  SlurmSettings slurm;
  ContainerSettings container;
  KubernetesSettings k8s;
  std::vector<std::string> files;  // that were read, in order
  std::vector<std::string> notes;  // files that were not, and why
};

// Reads all of them. `named`: by --config; they must be there.
LauncherSettings load_settings(const std::vector<std::string>& named, const Surroundings& surroundings);

// "true", "1" ... of text; nullopt for what is neither true nor false.
std::optional<bool> truth_of(std::string_view text);

}  // namespace primus::launch
