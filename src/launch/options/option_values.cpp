#include "launch/options/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "launch/container/container_values.h"
#include "launch/kubernetes/kubernetes_values.h"
#include "launch/options/value_words.h"
#include "launch/slurm/slurm_values.h"

namespace primus::launch {
namespace forms {
namespace {

struct Row {
  Form form;
  const char* what;
  bool (*fits)(View);
};

// clang-format off
constexpr Row kRows[] = {
    {Form::kCount, "a number of at least 1", [](View t) { return all_digits(t) && within(t, 1, kMaxInt); }},
    {Form::kNumber, "a number of at least 0", [](View t) { return all_digits(t) && within(t, 0, kMax64); }},
    {Form::kInteger, "a whole number", [](View t) { return whole(t).has_value(); }},
    {Form::kFile, "a file of this machine", is_file},
    {Form::kNodes, "a number of nodes, such as 4, 2-4 or 1k", [](View t) { return all_parts(t, ",", is_node_range); }},
    {Form::kSlurmTime, "a duration: minutes, or a form such as 1:30:00, 2-12, 2-12:00:00 or INFINITE", is_slurm_time},
    {Form::kMegabytes, "a size: megabytes, or a form such as 64G or 512M", is_megabytes},
    {Form::kMoment, "a time of day or date, such as 16:00, now+1hour or 2026-12-24T12:00:00", is_moment},
    {Form::kGpuCount, "a number of GPUs, such as 8, a100:4 or a100:4,h100:2", is_gpu_count},
    {Form::kResources, "resources, such as gpu:8 or gpu:a100:4", is_resources},
    {Form::kWarning, "a signal and the seconds before the end, such as USR1@120", [](View t) { return is_warning(t, "R"); }},
    {Form::kBatchWarning, "a signal and the seconds before the end, such as B:USR1@120", [](View t) { return is_warning(t, "RB"); }},
    {Form::kSwitches, "a number of switches, such as 1 or 1@30:00", [](View t) { return within(t.substr(0, t.find('@')), 1, kMaxInt); }},
    {Form::kDistribution, "a distribution, such as block:cyclic or plane=4", is_distribution},
    {Form::kDependency, "a dependency, such as afterok:123 or singleton", is_dependency},
    {Form::kArray, "numbers of tasks, such as 0-15, 1,3,5 or 0-15%4", is_array},
    {Form::kCores, "sockets, cores and threads, such as 2:8:1 or 2:*", is_cores},
    {Form::kOpenMode, "append or truncate", [](View t) { return !t.empty() && (lower(t[0]) == 'a' || lower(t[0]) == 't'); }},
    {Form::kFrequency, "a frequency, such as 1500000, low-high or performance", is_frequency},
    {Form::kSampling, "seconds between samples, such as 30 or task=30", is_sampling},
    {Form::kNodeList, "a list of nodes, such as n[01-16], or a file with one", is_node_list},
    {Form::kEnvironmentFile, "a file of this machine, or the number of a descriptor", [](View t) { return all_digits(t) || is_file(t); }},
    {Form::kBytes, "a size, such as 64g, 512m or 1073741824", is_bytes},
    {Form::kBytesOrAll, "a size, such as 64g, or -1", [](View t) { return t == "-1" || is_bytes(t); }},
    {Form::kCpus, "a number of cores, such as 8 or 1.5", is_cpus},
    {Form::kDuration, "a time, such as 30s or 1m30s", is_duration},
    {Form::kRanges, "numbers, such as 0-3,8", [](View t) { return all_parts(t, ",", is_range); }},
    {Form::kUlimit, "NAME=SOFT[:HARD], such as nofile=65536:65536 or memlock=-1", is_ulimit},
    {Form::kPublish, "[[ADDRESS:]PORT:]PORT[/tcp], such as 8080:80", is_publish},
    {Form::kExpose, "ports, such as 80 or 80-90/udp", is_expose},
    {Form::kHost, "NAME:ADDRESS, such as store:10.0.0.1", is_host},
    {Form::kAddress, "an IP address", is_address},
    {Form::kMac, "a MAC address", is_mac},
    {Form::kDevice, "/dev/NAME[:/dev/INSIDE][:rwm], or KIND=NAME such as nvidia.com/gpu=0", is_device},
    {Form::kDeviceRule, "a rule for devices, such as 'c 1:3 mr'", is_device_rule},
    {Form::kDeviceBytes, "/dev/NAME:SIZE, such as /dev/sda:1mb", [](View t) { return is_of_device(t, is_bytes); }},
    {Form::kDeviceNumber, "/dev/NAME:NUMBER", [](View t) { return is_of_device(t, all_digits); }},
    {Form::kMount, "fields such as type=bind,src=/data,dst=/data (--volume takes HOST:/INSIDE)", is_mount},
    {Form::kMountPath, "an absolute path, with options after a ':'", [](View t) { return t.starts_with('/'); }},
    {Form::kAbsolute, "an absolute path", [](View t) { return t.starts_with('/'); }},
    {Form::kVolume, "HOST or HOST:/INSIDE or HOST:/INSIDE:ro, where INSIDE is an absolute path", is_volume},
    {Form::kAssignment, "NAME=VALUE", [](View t) { return t.find('=') != View::npos && t[0] != '='; }},
    {Form::kName, "a name of letters, digits, '_', '.' and '-'", is_container_name},
    {Form::kSignal, "a signal, such as TERM or 15", is_signal},
    {Form::kCapability, "a capability, such as SYS_PTRACE", is_capability},
    {Form::kGpusOfDocker, "all, a number, or device=0,2", is_gpus_of_docker},
    {Form::kSecurity, "NAME=VALUE or no-new-privileges", [](View t) { return t == "no-new-privileges" || t.find_first_of("=:") != View::npos; }},
    {Form::kPlatform, "OS/ARCHITECTURE, such as linux/amd64", is_platform},
    {Form::kImage, "an image, such as rocm/primus:v26.8: names are lower-case", is_image},
    {Form::kUmask, "an octal number, such as 0022", is_umask},
    {Form::kScore, "a number from -1000 to 1000", [](View t) { return within(t, -1000, 1000); }},
    {Form::kPercent, "a number from -1 to 100", [](View t) { return within(t, -1, 100); }},
    {Form::kQuantity, "a quantity, such as 128Gi, 500m or 1.5", is_quantity},
    {Form::kDnsName, "a name of lower-case letters, digits, '-' and '.'", is_dns_name},
    {Form::kResourceName, "DOMAIN/NAME, such as amd.com/gpu", is_resource_name},
    {Form::kPodVolume, "/HOST/PATH:/INSIDE or pvc/CLAIM:/INSIDE, optionally with ':ro'", is_pod_volume},
    {Form::kSecretRef, "NAME=SECRET/KEY, or the name of a Secret", is_secret_ref},
    {Form::kLabelName, "the name of a label, such as kubernetes.io/hostname", is_label_name},
};
// clang-format on

std::string listed(View words) {
  std::string text;
  for (const View word : split(words, "|")) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

}  // namespace
}  // namespace forms

std::optional<std::string> misfit(const ValueForm& form, std::string_view text) {
  using namespace forms;  // NOLINT: the function uses most of its names
  const auto choose = [&](bool fits, std::string what) {
    return fits ? std::nullopt : std::optional(std::move(what));
  };
  switch (form.form) {
    case Form::kText:
      return std::nullopt;
    case Form::kChoice:
      return choose(is_listed(text, form.words), "one of " + listed(form.words));
    case Form::kChoices:
      return choose(is_listed_list(text, form.words), "some of " + listed(form.words));
    case Form::kBinding:
      return choose(is_binding(text, form.words), "a binding: one of " + listed(form.words));
    case Form::kLetters:
      return choose(!text.empty() && text.find_first_not_of(form.words) == View::npos,
                    fmt::format("letters among '{}'", form.words));
    default:
      break;
  }
  const auto* const row = std::ranges::find(kRows, form.form, &Row::form);
  return choose(row->fits(text), row->what);
}

void require_form(const ValueForm& form, std::string_view text, std::string_view what) {
  if (const auto wanted = misfit(form, text))
    throw invalid(fmt::format("{} must be {}, not '{}'", what, *wanted, text));
}

}  // namespace primus::launch
