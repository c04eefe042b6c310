#include "launch/container/container_step.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/secrets.h"
#include "config/loading/inherit.h"
#include "launch/container/container_checks.h"
#include "launch/container/container_runtime.h"
#include "launch/container/container_values.h"
#include "launch/dependency_folder.h"
#include "launch/node/node.h"
#include "launch/options/assignment.h"
#include "launch/options/tables.h"

namespace primus::launch {
namespace {

// Names of the host's variables that are passed to the container, as in AMD Primus.
constexpr const char* kHandedOn[] = {
    "HF_TOKEN", "HF_HOME", "WANDB_API_KEY", "OMP_NUM_THREADS", "NO_COLOR", "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "GPU_MAX_HW_QUEUES",
    "HSA_NO_SCRATCH_RECLAIM", "HSA_KERNARG_POOL_SIZE", "NVTE_CK_USES_BWD_V3", "USING_AINIC", "ANP_HOME_DIR",
    "MPI_HOME_DIR", "NET_OPTIONAL_RECV_COMPLETION", "ENABLE_NUMA_BINDING",
    // Slurm's node and task, for preflight and node_smoke. SLURM_PROCID is omitted, because NODE_RANK
    // determines the place in a container.
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_LOCALID", "SLURMD_NODENAME",
    "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"};
constexpr const char* kHandedOnPrefixes[] = {"PRIMUS_", "NCCL_", "RCCL_", "GLOO_", "IONIC_", "HIPBLASLT_"};

bool is_there(const Path& path) { return Env::posix().status(path).has_value(); }

// Returns the default image. The program comes from the host. An image therefore needs only a shell, the C
// and C++ libraries of Debian 12 or newer, and the GPU vendor's runtime. The default for AMD GPUs is AMD
// Primus's image, in the newest version whose contents are in AMD Primus's release notes.
const char* usual_image(Vendor vendor) {
  switch (vendor) {
    case Vendor::kAmd:
      return "rocm/primus:v26.8";
    case Vendor::kNvidia:
      return "nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04";
    case Vendor::kNone:
      break;
  }
  return "debian:12";
}

// A folder or file of the host, and its path inside the container.
struct Volume {
  std::string host, inside, options;
};

std::string text_of(const Volume& volume) {
  return volume.host + ":" + volume.inside + (volume.options.empty() ? "" : ":" + volume.options);
}

class Builder {
 public:
  Builder(const ContainerRequest& request, const Surroundings& surroundings, std::string runtime,
          ContainerPlace place)
      : request_(request),
        settings_(request.settings),
        surroundings_(surroundings),
        runtime_(std::move(runtime)),
        apptainer_(is_apptainer(runtime_)),
        options_(merged(container_options(), request.settings.options, request.given)),
        place_(std::move(place.variables)),
        several_nodes_(place.several_nodes),
        here_(place.here),
        gpus_(std::move(place.gpus)) {
    check_container_options(request_, options_);
    refuse_gpus_of_nvidia(gpus_.vendor, request_, options_);
  }

  Step build() {
    step_ = {.name = "container", .where = {}, .argv = {}};
    if (apptainer_) {
      step_.argv = {runtime_, "exec", "--cleanenv", "--no-home"};
    } else {
      step_.argv = {runtime_, "run", "--rm"};
    }
    name();
    privileges();
    devices();
    network_and_memory();
    volumes();
    variables();
    others();
    step_.argv.push_back(image());
    inner();
    for (std::string& note : notes_on_container(request_, options_, several_nodes_, surroundings_))
      step_.notes.push_back(std::move(note));
    return std::move(step_);
  }

 private:
  std::string image() {
    const auto by_variable = surroundings_.setting("DOCKER_IMAGE");
    const GivenOption* const typed = find_given(request_.given, "image");
    const GivenOption* const written_down = find_given(options_, "image");
    std::string image = typed && typed->value ? *typed->value
                        : by_variable         ? *by_variable
                        : written_down        ? written_down->value.value_or("")
                                              : "";
    if (image.empty()) {
      const std::optional<std::string> chosen = chosen_image();
      if (!chosen) return "<image for the node's GPUs>";
      image = *chosen;
    }
    if (!apptainer_ || image.find("://") != std::string::npos || is_there(image)) return image;
    if (image.ends_with(".sif")) throw invalid(fmt::format("there is no image '{}'", image));
    return "docker://" + image;
  }

  const GivenOption* given(std::string_view name) const { return find_given(options_, name); }
  void add(std::string word) { step_.argv.push_back(std::move(word)); }
  void add(const char* option, const std::string& value) {
    add(option);
    add(value);
  }

  // Returns the image from the settings, or the default image; nullopt if the default image depends on the
  // node.
  std::optional<std::string> chosen_image() {
    if (!settings_.program.empty()) {
      throw invalid(
          fmt::format("'{}' is a path of Primus in an image, but no image is named", settings_.program),
          "name an image by --image, DOCKER_IMAGE, or container.options.image in .primus.yaml");
    }
    constexpr const char* kChoose =
        "choose another one by --image, DOCKER_IMAGE or container.options.image in .primus.yaml";
    if (!here_ && settings_.accelerator == "auto") {
      step_.notes.push_back(fmt::format(
          "no image is named: nodes with AMD GPUs use {}, with NVIDIA GPUs {}, and others {}; {}",
          image_for(Vendor::kAmd), usual_image(Vendor::kNvidia), usual_image(Vendor::kNone), kChoose));
      note_image_of_framework(std::nullopt);
      return std::nullopt;
    }
    const Vendor vendor = here_                               ? gpus_.vendor
                          : settings_.accelerator == "amd"    ? Vendor::kAmd
                          : settings_.accelerator == "nvidia" ? Vendor::kNvidia
                                                              : Vendor::kNone;
    const std::string why =
        vendor == Vendor::kNone ? "for nodes without GPUs" : fmt::format("for {} GPUs", vendor_name(vendor));
    step_.notes.push_back(
        fmt::format("no image is named: Primus uses {}, {}; {}", image_for(vendor), why, kChoose));
    note_image_of_framework(vendor);
    return image_for(vendor);
  }

  // Returns the default image. A framework that is not in AMD Primus's image has its own.
  std::string image_for(Vendor vendor) const {
    const std::string& own = request_.outline.amd_image;
    return vendor == Vendor::kAmd && !own.empty() ? own : usual_image(vendor);
  }

  // Notes that the default image lacks what the command's framework needs. Only the images for AMD GPUs have
  // Python. `vendor`: nullopt: not known yet.
  void note_image_of_framework(std::optional<Vendor> vendor) {
    const std::string& framework = request_.outline.framework;
    if (framework.empty() || framework == "native" || vendor == Vendor::kAmd) return;
    step_.notes.push_back(fmt::format("{} has no Python, which {} needs: name an image that has both",
                                      usual_image(vendor.value_or(Vendor::kNvidia)), framework));
  }

  void name() {
    if (apptainer_) return;
    // The name contains the launcher's process id. The name therefore differs from the names of containers of
    // earlier launchers and of other steps of the job. The job's number alone would not suffice, because a
    // requeued Slurm job keeps its number.
    const std::string process = here_ ? std::to_string(getpid()) : "<process>";
    const auto job = here_ ? surroundings_.setting("SLURM_JOB_ID") : std::optional<std::string>("<job>");
    const GivenOption* const named = given("name");
    const std::string first = named && named->value ? *named->value : "primus";
    add("--name", job ? fmt::format("{}-{}-{}", first, *job, process) : fmt::format("{}-{}", first, process));
    add("--label", fmt::format("{}={}", kLabel, job.value_or(process)));
    add("--label",
        fmt::format("{}={}", kLauncherLabel, here_ ? fmt::format("{}.{}", process, began()) : process));
  }

  // Returns the start time of this process: field 22 of /proc/self/stat, whose second field may contain
  // blanks.
  static std::string began() {
    const std::string line = read_file("/proc/self/stat");
    std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
    std::string field;
    for (int number = 3; number <= 22; ++number) fields >> field;
    return field;
  }

  void privileges() {
    if (apptainer_) return;
    if (settings_.privileged_set) {
      for (const char* word :
           {"--privileged", "--security-opt=seccomp=unconfined", "--cap-add=SYS_PTRACE",
            "--cap-add=CAP_SYS_ADMIN", "--group-add=video", "--ulimit=nofile=1048576:1048576"}) {
        add(word);
      }
      return;
    }
    if (given("privileged")) return;
    add("--cap-drop=ALL");
    add("--security-opt=no-new-privileges");
    if (given("user") || given("userns")) return;
    if (rootless_podman()) {
      add("--userns=keep-id");
    } else {
      add(fmt::format("--user={}:{}", surroundings_.user, surroundings_.group));
    }
  }

  // Podman maps the container's users only if a user other than root runs Podman. If root runs Podman, Podman
  // behaves like Docker.
  bool rootless_podman() const { return runtime_ == "podman" && surroundings_.user != 0; }

  void device(const std::string& name) { add("--device", name); }

  // Adds a device and the group that may open it.
  void device_of_group(const std::string& name, const Path& file) {
    device(name);
    struct stat status = {};
    if (settings_.privileged_set || ::stat(file.c_str(), &status) != 0 || status.st_gid == 0) return;
    if (!rootless_podman()) {
      groups_.insert(std::to_string(status.st_gid));
    } else {
      groups_.insert("keep-groups");
    }
  }

  void devices() {
    const Path& root = surroundings_.root;
    if (!here_) {
      step_.notes.emplace_back(settings_.accelerator == "auto" ? "with the node's GPUs"
                                                               : "GPUs: " + settings_.accelerator);
    }
    if (gpus_.vendor == Vendor::kAmd && apptainer_) add("--rocm");
    if (gpus_.vendor == Vendor::kAmd && !apptainer_) {
      device_of_group("/dev/kfd", root / "dev/kfd");
      if (is_there(root / "dev/dri")) device_of_group("/dev/dri", render_node(root));
    }
    if (gpus_.vendor == Vendor::kNvidia && apptainer_) add("--nv");
    if (gpus_.vendor == Vendor::kNvidia && runtime_ == "docker" && !given("gpus")) add("--gpus", "all");
    if (runtime_ == "podman" && given("gpus")) {
      for (const std::string& name : devices_of_gpus(given("gpus")->value.value_or("all"))) device(name);
    } else if (runtime_ == "podman" && gpus_.vendor == Vendor::kNvidia) {
      device("nvidia.com/gpu=all");
    }
    const bool rdma =
        here_ && is_there(root / "dev/infiniband") && (several_nodes_ || settings_.privileged_set);
    if (rdma && !apptainer_) {
      device("/dev/infiniband");
      if (!given("ulimit")) add("--ulimit", "memlock=-1");
    }
    for (const GivenOption& option : options_) {
      if (option.name != "device" || !option.value) continue;
      const std::string host = option.value->substr(0, option.value->find(':'));
      const bool is_file = host.starts_with('/');
      const bool missing = here_ && is_file && !is_there(root / host.substr(1));
      const bool typed =
          std::find(request_.given.begin(), request_.given.end(), option) != request_.given.end();
      if (missing && typed) {
        throw invalid(fmt::format("this node has no device '{}'", host), "remove it, or load its driver");
      }
      const auto end = step_.argv.end();
      if (missing) {
        step_.notes.push_back(fmt::format("without {}, which this node does not have", host));
      } else if (apptainer_) {
        left_out_.insert("--device");
      } else if (std::find(step_.argv.begin(), end, *option.value) == end) {
        device(*option.value);
      }
    }
    for (const std::string& group : groups_) add("--group-add", group);
  }

  // Converts Docker's --gpus to Container Device Interface names, which Podman accepts since 4.1. (Podman
  // before version 5 accepts and ignores --gpus.)
  static std::vector<std::string> devices_of_gpus(const std::string& text) {
    constexpr int kMaxGpus = 1024;
    const auto named = [](std::string_view name) { return fmt::format("nvidia.com/gpu={}", name); };
    std::string_view which = text;
    if (which.size() > 1 && which.front() == '"' && which.back() == '"')
      which = which.substr(1, which.size() - 2);
    if (which == "all") return {named(which)};
    std::vector<std::string> names;
    int count = 0;
    const auto [end, error] = std::from_chars(which.data(), which.data() + which.size(), count);
    if (error == std::errc() && end == which.data() + which.size() && count >= 1 && count <= kMaxGpus) {
      for (int i = 0; i < count; ++i) names.push_back(named(std::to_string(i)));
      return names;
    }
    constexpr std::string_view kList = "device=";  // list of numbers or names: "0", "GPU-3a23c669-..."
    if (which == "0") {
      throw invalid("--gpus 0: podman has no counterpart",
                    "write --accelerator none instead, which gives the container no GPU");
    }
    const bool is_list = which.starts_with(kList) &&
                         std::all_of(which.begin() + kList.size(), which.end(),
                                     [](unsigned char c) { return std::isalnum(c) || c == '-' || c == ','; });
    for (std::size_t at = kList.size(); is_list && at < which.size();) {
      const std::size_t comma = std::min(which.find(',', at), which.size());
      if (comma > at) names.push_back(named(which.substr(at, comma - at)));
      at = comma + 1;
    }
    if (!names.empty()) return names;
    throw invalid(fmt::format("--gpus {}: podman has no counterpart", text),
                  "write all, a number above 0, or device=0,2; or name devices: --device nvidia.com/gpu=0");
  }

  static Path render_node(const Path& root) {
    for (const std::string& name : Env::posix().list(root / "dev/dri")) {
      if (name.starts_with("renderD")) return root / "dev/dri" / name;
    }
    return root / "dev/dri";
  }

  void network_and_memory() {
    if (apptainer_) return;
    const bool host = settings_.privileged_set;
    if (!given("network") && (several_nodes_ || host)) add("--network", "host");
    if (!given("ipc") && host) add("--ipc", "host");
    if (!given("ipc") && !given("shm-size") && !host)
      add("--shm-size", "16g");  // shared memory for the
                                 // ranks
  }

  // Mounts a volume. Docker and podman refuse two volumes with one path inside. A repeated volume is mounted
  // once. A volume of the user (`is_given`) replaces a usual volume of Primus; other volumes with one path
  // are an error.
  void volume(const Volume& volume, bool is_given = false) {
    if (!is_given && replaced_.contains(volume.inside)) return;
    const auto [earlier, is_new] = mounted_.emplace(volume.inside, text_of(volume));
    if (!is_new) {
      if (!is_given || earlier->second == text_of(volume)) return;
      throw invalid(fmt::format("--volume {} and --volume {} have the same path in the container",
                                earlier->second, text_of(volume)),
                    "choose another path for one of them");
    }
    add(apptainer_ ? "--bind" : "--volume", text_of(volume));
  }

  void volumes() {
    const std::string here = std::filesystem::current_path().string();
    const auto is_inside = [&](const std::string& path) {
      return path == here || path.starts_with(here + "/");
    };
    if (here == "/") {
      throw invalid("the container mounts the current folder, which must not be '/'",
                    "change to the folder of the experiment, and run the command there");
    }
    std::vector<Volume> given_volumes;
    for (const GivenOption& option : options_)
      if (option.name == "volume" && option.value) given_volumes.push_back(parse_volume(*option.value));
    for (const Volume& given : given_volumes) replaced_.insert(given.inside);
    volume({here, here, {}});
    add(apptainer_ ? "--pwd" : "--workdir", given("workdir") ? given("workdir")->value.value_or(here) : here);
    std::set<std::string> read_only;
    if (settings_.program.empty()) {
      const Path program = surroundings_.program;
      read_only.insert(program.parent_path().string());
      const Path plugins = program.parent_path().parent_path() / "lib/primus";
      if (is_there(plugins)) read_only.insert(plugins.string());
      for (const Path& presets : config::default_preset_dirs(surroundings_.variable)) {
        if (is_there(presets)) read_only.insert(std::filesystem::canonical(presets).string());
      }
    }
    sources();
    for (const std::string& file : request_.files)
      read_only.insert(std::filesystem::absolute(file).lexically_normal().string());
    const std::set<std::string> folders = read_only;
    for (const Path& file : request_.outline.reads) {
      const std::string path = std::filesystem::absolute(file).lexically_normal().string();
      std::error_code unreadable;
      const std::string target = std::filesystem::weakly_canonical(file, unreadable).string();
      const auto contains = [&](const std::string& folder) {
        return path.starts_with(folder + "/") || target.starts_with(folder + "/");
      };
      const bool is_given = std::ranges::any_of(given_volumes, [&](const Volume& given) {
        return given.host == given.inside && contains(given.inside);
      });
      if (!is_given && std::ranges::none_of(folders, contains)) read_only.insert(path);
    }
    for (const std::string& path : read_only) {
      if (!is_inside(path)) volume({path, path, "ro"});
    }
    if (const auto cache = surroundings_.setting("HF_HOME");
        cache && here_ && cache->starts_with('/') && !is_inside(*cache) && is_there(*cache))
      volume({*cache, *cache, {}});
    std::vector<std::string> covered{here};
    std::vector<KeptFolder> kept{{here}};
    for (const Volume& given : given_volumes) {
      covered.push_back(given.inside);
      const auto options = forms::split(given.options, ",");
      kept.push_back({given.inside, std::ranges::find(options, "ro") != options.end()});
      volume(given, true);
    }
    log_file(covered);
    if (given("mount") || given("volumes-from")) return;
    const std::string start = given("workdir") ? given("workdir")->value.value_or(here) : here;
    for (std::string& note :
         notes_on_lost_folders(request_.outline, kept, start, "container",
                               "mount one there with --volume, or choose a workspace in a volume"))
      step_.notes.push_back(std::move(note));
  }

  // Mounts the log file's folder if no volume contains it; otherwise the log would be deleted with the
  // container.
  void log_file(const std::vector<std::string>& covered) {
    if (!request_.writes) return;
    const Path folder = std::filesystem::absolute(*request_.writes).lexically_normal().parent_path();
    const bool there = std::any_of(covered.begin(), covered.end(), [&](const std::string& place) {
      return folder == place || folder.string().starts_with(place + "/");
    });
    if (there) return;
    if (here_ && !is_there(folder)) {
      throw invalid(
          fmt::format("--log_file {}: the folder '{}' exists neither on this node nor in a volume",
                      *request_.writes, folder.string()),
          fmt::format("create the folder, or mount one there: --volume FOLDER:{}", folder.string()));
    }
    volume({folder.string(), folder.string(), {}});
  }

  // Mounts the sources of other frameworks for their jobs; their Python comes from the image. The mounts are
  // writable, because Megatron-LM compiles a helper in its source folder.
  void sources() {
    const Path folder = dependency_folder(surroundings_);
    if (!is_there(folder)) return;
    for (const std::string& name : Env::posix().list(folder)) {
      const std::string place = std::filesystem::absolute(folder / name).lexically_normal().string();
      if (!std::filesystem::is_directory(place) || name.ends_with(".venv") || name.ends_with(".partial"))
        continue;
      volume({place, place, {}});
      place_["PRIMUS_THIRDPARTY_DIR"] = Path(place).parent_path().string();
    }
  }

  Volume parse_volume(const std::string& text) const {
    const std::size_t first = text.find(':');
    Volume volume{text.substr(0, first), {}, {}};
    // Makes paths absolute. A name without '/' is not a path but a named volume of the runtime.
    const bool is_path = volume.host.find('/') != std::string::npos || volume.host.starts_with('.');
    if (is_path) volume.host = std::filesystem::absolute(volume.host).lexically_normal().string();
    if (first == std::string::npos) {
      volume.inside = volume.host;
    } else {
      const std::size_t second = text.find(':', first + 1);
      volume.inside = text.substr(first + 1, second == std::string::npos ? second : second - first - 1);
      if (second != std::string::npos) volume.options = text.substr(second + 1);
    }
    if (!volume.inside.starts_with('/')) {
      throw invalid(fmt::format("--volume {}: the path in the container is not absolute", text),
                    "write HOST or HOST:/INSIDE or HOST:/INSIDE:ro");
    }
    if (volume.inside == "/") {
      throw invalid(
          fmt::format("--volume {}: a volume cannot replace the root folder of the container", text),
          "mount folders below it: --volume HOST:/INSIDE");
    }
    if (here_ && is_path && !is_there(volume.host)) {
      throw invalid(fmt::format("--volume {}: '{}' does not exist on this node", text, volume.host),
                    "create the folder, or correct its name");
    }
    return volume;
  }

  void variable(const std::string& name, const std::optional<std::string>& value) {
    if (!named_.insert(name).second) return;
    if (apptainer_) {
      const std::string prefix = runtime_ == "singularity" ? "SINGULARITYENV_" : "APPTAINERENV_";
      const auto here = value ? value : surroundings_.variable(name);
      if (here) step_.environment[prefix + name] = *here;
    } else if (value && shown_value(name, *value) != kRedacted) {
      add("--env", name + "=" + *value);
    } else {
      if (value) step_.environment[name] = *value;
      add("--env", name);
    }
  }

  void variables() {
    std::map<std::string, std::optional<std::string>> all;
    const auto is_set = [&](const std::string& name) { return surroundings_.setting(name).has_value(); };
    for (const char* name : kHandedOn) {
      if (is_set(name)) all[name] = std::nullopt;
    }
    for (const std::string& name : surroundings_.variable_names()) {
      const bool handed_on = std::any_of(std::begin(kHandedOnPrefixes), std::end(kHandedOnPrefixes),
                                         [&](const char* prefix) { return name.starts_with(prefix); });
      if (handed_on && is_set(name)) all[name] = std::nullopt;
    }
    for (const std::string& name : variables_to_pass(request_.outline)) {
      if (is_set(name)) all[name] = std::nullopt;
    }
    for (const auto& [name, value] : place_) all[name] = value;
    // Sets a home folder and a user name for the caches of Triton and torch.compile, because the user may not
    // exist in the image. If HF_HOME is not set, Hugging Face's cache is in the current folder, as in AMD
    // Primus.
    if (!apptainer_ && !settings_.privileged_set && !given("privileged") && !given("user")) {
      all["HOME"] = "/tmp";
      all["USER"] = surroundings_.setting("USER").value_or("primus");
      if (!is_set("HF_HOME"))
        all["HF_HOME"] = (std::filesystem::current_path() / "data/huggingface").string();
    }
    for (const GivenOption& option : options_) {
      if (option.name != "env" || !option.value) continue;
      if (option.value->find('=') == std::string::npos) {
        if (!is_variable_name(*option.value)) parse_assignment(*option.value, "--env");
        if (is_set(*option.value)) all[*option.value] = std::nullopt;
        continue;
      }
      Assignment assignment = parse_assignment(*option.value, "--env");
      all[assignment.name] = std::move(assignment.value);
    }
    for (const auto& [name, value] : all) variable(name, value);
  }

  // Returns whether the option exists only in docker and the chosen runtime is podman, or the reverse.
  bool is_of_another(const GivenOption& option) const {
    if (apptainer_ || (!here_ && settings_.runtime == "auto")) return false;
    const ForeignOption* const known = find_option(container_options(), option.name);
    return known && !known->only.empty() && known->only != runtime_;
  }

  void others() {
    for (const GivenOption& option : options_) {
      static constexpr std::string_view kDone[] = {"image", "name",    "device", "volume",
                                                   "env",   "workdir", "label"};
      if (std::find(std::begin(kDone), std::end(kDone), option.name) != std::end(kDone)) continue;
      if (runtime_ == "podman" && option.name == "gpus") continue;  // already added as devices
      const bool others = is_of_another(option);
      if (others && std::find(request_.given.begin(), request_.given.end(), option) != request_.given.end()) {
        const std::string_view its = find_option(container_options(), option.name)->only;
        throw invalid(fmt::format("{} has no option '--{}', which belongs to {}", runtime_, option.name, its),
                      fmt::format("remove it, or choose the other runtime: --runtime {}", its));
      }
      if (others || (apptainer_ && option.name != "cpus" && option.name != "memory")) {
        left_out_.insert("--" + option.name);
      } else {
        add(written(option));
      }
    }
    for (const GivenOption& option : options_) {
      if (option.name == "label" && !apptainer_) add(written(option));
    }
    if (apptainer_ && settings_.privileged_set) left_out_.insert("--privileged-set");
    if (!left_out_.empty()) {
      step_.notes.push_back(fmt::format("{} has no counterpart of these options, and ignores them: {}",
                                        runtime_, fmt::join(left_out_, " ")));
    }
  }

  // Runs the program by a shell, which prints an error if the program is not in the container.
  void inner() {
    const std::string program = settings_.program.empty() ? surroundings_.program : settings_.program;
    step_.argv.insert(step_.argv.end(),
                      {"/bin/sh", "-c",
                       fmt::format("command -v \"$0\" >/dev/null || {{ echo \"error: this container has no "
                                   "Primus: $0\" >&2; exit {}; }}; exec \"$0\" \"$@\"",
                                   kNoPrimusInside),
                       program});
    step_.argv.insert(step_.argv.end(), request_.inner.begin(), request_.inner.end());
  }

  const ContainerRequest& request_;
  const ContainerSettings& settings_;
  const Surroundings& surroundings_;
  const std::string runtime_;
  const bool apptainer_;
  const std::vector<GivenOption> options_;
  std::map<std::string, std::string> place_;
  const bool several_nodes_, here_;
  const Accelerators gpus_;
  Step step_;
  std::set<std::string> groups_, left_out_, named_;
  std::set<std::string> replaced_;              // paths in the container of the user's volumes
  std::map<std::string, std::string> mounted_;  // path in the container -> volume
};

}  // namespace

Step container_step(const ContainerRequest& request, const Surroundings& surroundings,
                    const std::string& runtime, ContainerPlace place) {
  return Builder(request, surroundings, runtime, std::move(place)).build();
}

}  // namespace primus::launch
