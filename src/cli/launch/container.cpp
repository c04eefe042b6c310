// primus container
#include "launch/container/container.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/files/file.h"
#include "cli/launch/mode.h"
#include "cli/parse.h"
#include "launch/options/assignment.h"
#include "launch/options/tables.h"
#include "launch/process.h"

namespace primus::cli {
namespace {

class Container final : public Mode {
 public:
  void declare(Arguments& args) override {
    args.option("--image", "IMAGE", &image_,
                "image (default: DOCKER_IMAGE, container.options.image, or one for the node's GPUs)");
    args.option(
        "--volume,-v", "HOST[:INSIDE[:ro]]", &volumes_,
        "mount a folder of this node in the container, at the same path or at INSIDE; may be repeated");
    args.option("--env,-e", "NAME[=VALUE]", &environment_,
                "set a variable in the container, or pass on one that is set here; may be repeated");
    args.option("--device", "PATH", &devices_,
                "pass a device of this node to the container; may be repeated");
    args.option("--cap-add", "NAME", &capabilities_, "add a capability to the container; may be repeated");
    for (Named& option : single_) args.option(option.name, option.value, &option.given, option.help);
    args.option("--accelerator", "KIND", &accelerator_, "GPUs that the container gets").choices = {
        "auto", "amd", "nvidia", "none"};
    args.option("--runtime", "NAME", &runtime_, "container runtime (auto: the first that works)").choices = {
        "auto", "docker", "podman", "apptainer", "singularity"};
    args.option("--log_file,--log-file", "PATH", &log_file_,
                "also append all output to this file of the node, as 'direct --log_file' does");
    args.option("--program", "NAME", &program_,
                "path of Primus in the image (default: this program, mounted read-only)");
    args.flag("--privileged-set,--privileged_set", privileged_set_,
              "run the container with --privileged and the host's network, shared memory and devices, as AMD "
              "Primus "
              "does");
    args.flag("--clean", clean_, "first remove containers that earlier Primus jobs left on this node");
    args.rest("options of docker run", more_,
              "every other option of 'docker run' or 'podman run' is passed on");
  }

  std::size_t count_own(const Arguments& arguments, Words words) const override {
    std::size_t at = 0;
    while (at < words.size() && words[at].starts_with('-')) {
      const Argument* const own = arguments.find(words[at]);
      const launch::ForeignOption* const other =
          launch::find_option(launch::container_options(), words[at].substr(0, words[at].find('=')));
      const bool takes_value =
          own ? !own->value.empty() : !other || other->takes == launch::ForeignOption::Takes::kValue;
      at += takes_value && words[at].find('=') == std::string::npos ? 2 : 1;
    }
    return std::min(at, words.size());
  }

  launch::LauncherSettings::Switches switches(const launch::LauncherSettings& settings) const override {
    return settings.container_switches;
  }

  std::optional<std::string> asks_for_dry_run_within(const ModeContext& context, Words words) const override {
    return dry_run_of_direct(context, words);
  }

  launch::Plan plan(const ModeContext& context, Words words) override {
    return with_inside(context, words, launch::plan_container(request(context, words), context.surroundings));
  }

  launch::Plan plan_elsewhere(const ModeContext& context, Words words,
                              const launch::ElsewhereNodes& nodes) override {
    return with_inside(
        context, words,
        launch::plan_container_elsewhere(request(context, words), nodes, context.surroundings));
  }

  int run(const ModeContext& context, Words words, Console& console) override {
    const launch::ContainerPlan plan = launch::plan_container(request(context, words), context.surroundings);
    with_inside(context, words, plan);  // reports errors of the inner command before the container starts
    for (const std::string& note : plan.step.notes) console.note("note: " + note);
    for (const launch::Step& step : plan.before) {
      const int code = launch::run_and_wait(step);
      if (code != 0) {
        throw Error(ErrorKind::kDependency, fmt::format("{} failed with exit code {}", step.name, code),
                    "its output is above");
      }
    }
    launch::become(plan.step);
  }

 private:
  struct Named {
    const char *name, *value, *help;
    std::optional<std::string> given = {};
  };

  launch::ContainerRequest request(const ModeContext& context, Words words) const {
    refuse_secrets(environment_, "container");
    launch::ContainerRequest request;
    request.settings = context.settings.container;
    if (accelerator_) request.settings.accelerator = *accelerator_;
    if (runtime_) request.settings.runtime = *runtime_;
    if (program_) request.settings.program = *program_;
    if (privileged_set_) request.settings.privileged_set = true;
    request.clean = clean_;
    const auto add = [&](const char* name, const std::string& value) {
      request.given.push_back({name, value});
    };
    if (image_) add("image", *image_);
    for (const Named& option : single_) {
      if (option.given) add(option.name + 2, *option.given);
    }
    for (const std::string& volume : volumes_) add("volume", volume);
    for (const std::string& variable : environment_) add("env", variable);
    for (const std::string& device : devices_) add("device", device);
    for (const std::string& capability : capabilities_) add("cap-add", capability);
    for (const launch::GivenOption& option : request.given) {
      const launch::ForeignOption* const known =
          launch::find_option(launch::container_options(), option.name);
      if (known && option.value && !option.value->empty())
        launch::require_form(known->form, *option.value, "--" + option.name);
    }
    for (launch::GivenOption& option : launch::read_options(
             launch::container_options(), more_, "the container's runtime", launch::Unknown::kRefuse)) {
      request.given.push_back(std::move(option));
    }
    if (context.debug) request.inner.emplace_back("--debug");
    hand_on_settings(context, request);
    const DirectWords inner = inner_of(words, request);
    add_files(inner.options, request);
    add_files(inner.command, request);
    add_files_of_settings(context.settings.direct, request);
    add_outline(context, inner, request);
    request.inner.emplace_back(kDirect.about.name);
    request.inner.insert(request.inner.end(), inner.options.begin(), inner.options.end());
    request.inner.emplace_back("--");
    request.inner.insert(request.inner.end(), inner.command.begin(), inner.command.end());
    return request;
  }

  // Mounts files outside the current folder that the inner launcher and its command read, at the same paths.
  static void add_files(Words words, launch::ContainerRequest& request) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::size_t equals = words[i].find('=');
      for (const std::string_view name : {"--config", "--exp", "--backend_path", "--backend-path", "--patch",
                                          "--hooks", "--script", "--env"}) {
        if (words[i].substr(0, equals) != name) continue;
        const std::string path = equals != std::string::npos ? words[i].substr(equals + 1)
                                 : i + 1 < words.size()      ? words[i + 1]
                                                             : "";
        if (!path.empty() && Env::posix().status(path)) request.files.push_back(path);
      }
    }
  }

  static void add_files_of_settings(const launch::DirectSettings& settings,
                                    launch::ContainerRequest& request) {
    std::vector<Path> files = settings.patches;
    files.insert(files.end(), settings.hooks.begin(), settings.hooks.end());
    files.insert(files.end(), settings.environment_files.begin(), settings.environment_files.end());
    if (settings.script) files.emplace_back(*settings.script);
    for (const Path& file : files) {
      if (!file.empty() && Env::posix().status(file)) request.files.push_back(file.string());
    }
  }

  // Adds what the command inside the container reads and writes. Errors of the command are reported when
  // its launcher is planned.
  void add_outline(const ModeContext& context, const DirectWords& inner,
                   launch::ContainerRequest& request) const {
    const bool is_script = !context.settings.direct.script.value_or("").empty() ||
                           std::ranges::any_of(inner.options, [](const std::string& word) {
                             return word == "--script" || word.starts_with("--script=");
                           });
    if (is_script || inner.command.empty()) return;
    std::map<std::string, std::string> given;
    for (const launch::GivenOption& option : request.given) {
      const std::size_t equals = option.value.value_or("").find('=');
      if (option.name == "env" && option.value && equals != std::string::npos)
        given[option.value->substr(0, equals)] = option.value->substr(equals + 1);
    }
    try {
      const launch::DirectCommand command = check_command(inner.command, false, Experiments::kElsewhere);
      request.files.insert(request.files.end(), command.reads.begin(), command.reads.end());
      if (command.outline) request.outline = command.outline(0, 0, given);
    } catch (const Error&) {
    }
  }

  // The launcher inside the container reads only ./.primus.yaml, not the settings of the user or the machine.
  // If any other file applies, passes all files explicitly, in order.
  static void hand_on_settings(const ModeContext& context, launch::ContainerRequest& request) {
    std::vector<std::string> files;
    for (const std::string& file : context.settings.files)
      files.push_back(std::filesystem::absolute(file).lexically_normal());
    const std::string here = std::filesystem::current_path() / ".primus.yaml";
    if (std::ranges::all_of(files, [&](const std::string& file) { return file == here; })) return;
    for (const std::string& file : files) {
      request.inner.insert(request.inner.end(), {"--config", file});
      request.files.push_back(file);
    }
  }

  // Returns the words of the command `direct`, which runs inside the container. Adds options that must be set
  // on the container to `request`.
  DirectWords inner_of(Words words, launch::ContainerRequest& request) const {
    DirectWords inner = direct_words(words);
    if (log_file_) inner.options.insert(inner.options.begin(), {"--log_file", *log_file_});
    std::vector<std::string> options;
    for (std::size_t i = 0; i < inner.options.size(); ++i) {
      const std::string& word = inner.options[i];
      const bool has_value = i + 1 < inner.options.size();
      if ((word == "--log_file" || word == "--log-file") && has_value) request.writes = inner.options[i + 1];
      // `direct` treats a value of --env without '=' as the name of a file. If no such file exists, the value
      // names a variable of this process, which is passed to the container.
      if (word == "--env" && has_value && launch::is_variable_name(inner.options[i + 1]) &&
          !Env::posix().status(inner.options[i + 1])) {
        request.given.push_back({"env", inner.options[++i]});
        continue;
      }
      options.push_back(word);
    }
    inner.options = std::move(options);
    return inner;
  }

  // Plans what `primus direct` runs inside the container.
  launch::Plan with_inside(const ModeContext& context, Words words, launch::ContainerPlan container) const {
    launch::ContainerRequest unused;
    const DirectWords inner = inner_of(words, unused);
    Arguments arguments;
    const DeclaredMode direct = cli::declare(kDirect, arguments);
    parse(arguments, inner.options, "primus direct");
    const launch::LauncherSettings settings = settings_within(context, *direct.common);
    const ModeContext there{
        .surroundings = context.surroundings, .settings = settings, .debug = context.debug, .config = {}};
    if (inner.command.empty() && direct.mode->needs_command(settings)) {
      throw invalid("'container' has no command to run",
                    "put it at the end: primus container --image IMAGE -- train pretrain --config exp.yaml");
    }
    launch::Plan plan = direct.mode->plan_elsewhere(there, inner.command, container.nodes);
    plan.steps.front().where = "in the container";
    plan.steps.insert(plan.steps.begin(), std::move(container.step));
    return plan;
  }

  std::optional<std::string> image_, accelerator_, runtime_, program_, log_file_;
  std::vector<std::string> volumes_, environment_, devices_, capabilities_, more_;
  Named single_[9] = {
      {"--name", "NAME", "name of the container; Primus appends the job's number"},
      {"--user", "UID[:GID]", "user in the container (default: you)"},
      {"--network", "MODE", "network (default: the host's for several nodes, otherwise the runtime's)"},
      {"--ipc", "MODE", "shared memory: host, private ..."},
      {"--shm-size", "SIZE", "size of the shared memory (default: 16g)"},
      {"--cpus", "N", "maximum number of cores"},
      {"--memory", "SIZE", "maximum memory, e.g. 128g"},
      {"--gpus", "N", "NVIDIA GPUs to use: a number, device=0,2 or all (the default)"},
      {"--workdir", "PATH", "working folder (default: the current one)"}};
  bool privileged_set_ = false, clean_ = false;
};

}  // namespace

const ModeEntry kContainer{
    {"container", "Runs a command in a container",
     "Write the command after '--'. 'direct [options] --' before the command passes options to the launcher "
     "in the container. Supported runtimes are docker, podman and apptainer. The container gets the current "
     "folder, this program (read-only), the node's GPUs and the files with launcher settings. It has no "
     "privileges beyond yours; options add more. Primus passes on variables that begin with PRIMUS_, NCCL_, "
     "RCCL_, GLOO_, IONIC_ or HIPBLASLT_, and HF_TOKEN and WANDB_API_KEY; their values do not appear on the "
     "command line.\n\n"
     "The exit code is that of the command, or 42 if the container has no Primus.",
     "primus container --image rocm/primus:v26.8 -- train pretrain --config exp.yaml\n"
     "primus container --image my.sif --runtime apptainer -- benchmark gemm\n"
     "primus container --volume /data --shm-size 64g -- train pretrain --config /data/exp.yaml\n"
     "primus container --dry-run --privileged-set -- direct --numa -- train pretrain --config exp.yaml",
     nullptr},
    []() -> std::unique_ptr<Mode> { return std::make_unique<Container>(); }};

}  // namespace primus::cli
