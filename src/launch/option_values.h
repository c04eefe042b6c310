// What the values of options look like: times, sizes, ranges and names as Slurm, docker, podman and
// Kubernetes read them. One grammar for options that are typed and for settings. It takes what the tools
// take; what only their servers know (partitions, networks) is any text here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace primus::launch {

enum class Form : std::uint8_t {
  kText,     // anything
  kChoice,   // a word of a list; those that end in ':' or '=' are beginnings
  kChoices,  // several, with commas between them: one at least is known
  kCount,    // 1, 2 ...
  kNumber,   // 0, 1 ...
  kInteger,  // -1, 0, 1 ...
  kFile,     // of this machine, where the tool itself reads it
  // Slurm
  kNodes,            // 4, 2-4, 1k, 2-8:2, 1,2,4
  kSlurmTime,        // 90, 1:30:00, 2-12, 2-12:00:00, INFINITE
  kMegabytes,        // 64000, 64G
  kMoment,           // 16:00, now+1hour, 2026-12-24T12:00
  kGpuCount,         // 8, a100:4,h100:4
  kResources,        // gpu:8, gpu:a100:4,nvme:1
  kWarning,          // USR1@120, R:10
  kBatchWarning,     // B:USR1@120
  kSwitches,         // 1, 1@30:00
  kDistribution,     // block:cyclic, plane=4
  kDependency,       // afterok:12:13, singleton
  kArray,            // 0-15%4, 1,3,5
  kCores,            // 2:4:*, 2-4
  kOpenMode,         // append, truncate, and their beginnings
  kFrequency,        // 1000-2000:performance, low
  kSampling,         // 30, task=30
  kBinding,          // verbose,map_cpu:0,1; the types are a list
  kLetters,          // some of a list of letters
  kNodeList,         // n[01-16], or a file
  kEnvironmentFile,  // a file, or the number of a descriptor
  // docker and podman
  kBytes,         // 64g, 1.5GiB, 1024
  kBytesOrAll,    // -1, too
  kCpus,          // 1.5
  kDuration,      // 1m30s
  kRanges,        // 0-3,8
  kUlimit,        // nofile=1024:2048
  kPublish,       // 127.0.0.1:8080:80/tcp
  kExpose,        // 80-90/udp
  kHost,          // name:10.0.0.1
  kAddress,       // of IP
  kMac,           // 92:d0:c6:0a:29:33
  kDevice,        // /dev/fuse:/dev/fuse:rw, nvidia.com/gpu=all
  kDeviceRule,    // c 1:3 mr
  kDeviceBytes,   // /dev/sda:1mb
  kDeviceNumber,  // /dev/sda:1000
  kMount,         // type=bind,src=/a,dst=/b
  kMountPath,     // /scratch:size=1g
  kAbsolute,      // /a/path
  kVolume,        // /data, /data:/data:ro
  kAssignment,    // name=value
  kName,          // of a container
  kSignal,        // TERM, SIGTERM, 15, RTMIN+3
  kCapability,    // SYS_PTRACE, CAP_SYS_PTRACE, ALL
  kGpusOfDocker,  // all, 2, device=0,1
  kSecurity,      // no-new-privileges, seccomp=unconfined
  kPlatform,      // linux/amd64
  kImage,         // of a registry
  kUmask,         // 0022
  kScore,         // -1000 to 1000
  kPercent,       // -1 to 100
  // Kubernetes
  kQuantity,      // 128Gi, 500m, 1.5
  kDnsName,       // team-a, a.b.c
  kLabelName,     // kubernetes.io/hostname
  kResourceName,  // amd.com/gpu
  kPodVolume,     // pvc/data:/data, /nfs:/nfs:ro
  kSecretRef,     // HF_TOKEN=hugging-face/token, or the Secret alone
};

// A form, and the words of a choice: "always|missing|never".
struct ValueForm {
  Form form = Form::kText;
  std::string_view words = {};
  constexpr ValueForm() = default;
  constexpr ValueForm(Form which, std::string_view list = {})  // NOLINT: a table's entry is a form alone
      : form(which), words(list) {}
};

// Nullopt where `text` fits. Otherwise what it has to be, to stand behind "must be".
std::optional<std::string> misfit(const ValueForm& form, std::string_view text);

// Error(kInvalid) where `text` does not fit; `what`: "--nodes of srun".
void require_form(const ValueForm& form, std::string_view text, std::string_view what);

}  // namespace primus::launch
