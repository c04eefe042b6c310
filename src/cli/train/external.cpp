#include "cli/train/external.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "backends/external_run.h"
#include "backends/installation.h"
#include "backends/job.h"
#include "base/text/json_text.h"
#include "base/text/secrets.h"
#include "cli/options/experiment.h"
#include "comm/job.h"
#include "comm/rendezvous/socket.h"
#include "config/loading/inherit.h"
#include "launch/node/hardware.h"
#include "launch/process.h"
#include "launch/ranks/local_launch.h"
#include "lm/report/metrics_line.h"
#include "lm/train/settings/training_settings.h"

namespace primus::cli {
namespace {

using backends::ExternalJob;
using backends::Installation;

// Returns the notes and warnings of a job: lines that begin with "note: " or "warning: ".
std::vector<std::string> notes_of(const ExternalJob& job) {
  std::vector<std::string> notes;
  for (const std::string& warning : job.warnings) notes.push_back("warning: " + warning);
  for (const std::string& note : job.notes) notes.push_back("note: " + note);
  for (const auto& [reason, keys] : job.dropped)
    notes.push_back(
        fmt::format("note: {} does not get these keys ({}): {}", job.title, reason, fmt::join(keys, ", ")));
  return notes;
}

config::BackendFields fields_of(const config::Experiment& experiment) {
  const launch::Surroundings here = launch::Surroundings::here();
  return config::BackendFields::load(experiment.framework, config::default_preset_dirs(here.variable));
}

// Returns the job of this size, for sources that are not needed yet.
ExternalJob job_of_size(const config::Experiment& experiment, const config::BackendFields& fields,
                        std::int64_t nodes, std::int64_t ranks_per_node) {
  return backends::render_job(experiment, fields, {}, {.nodes = nodes, .ranks_per_node = ranks_per_node});
}

class External {
 public:
  External(const config::Experiment& experiment, const ExternalOptions& options, Console& console)
      : experiment_(experiment),
        options_(options),
        console_(console),
        surroundings_(launch::Surroundings::here()),
        fields_(config::BackendFields::load(experiment.framework,
                                            config::default_preset_dirs(surroundings_.variable))) {}

  int run() {
    std::optional<std::string> path = options_.backend_path;
    const config::Value* own = experiment_.settings.find("backend_path");
    if (!path && own && own->kind == config::Value::Kind::kString) path = own->text;
    installation_ = backends::find_installation(fields_, path, surroundings_);
    const auto place = comm::JobEnvironment::read();
    backends::JobShape shape{.nodes = options_.ranks.nodes(),
                             .ranks_per_node = options_.ranks.here().value_or(1)};
    if (place) shape = {.nodes = 1, .ranks_per_node = place->world};
    surroundings_.dry_run = options_.dry_run;
    const launch::Accelerators gpus = launch::find_accelerators(surroundings_);
    if (gpus.vendor == launch::Vendor::kAmd) shape.amd_model = gpus.model.empty() ? "AMD" : gpus.model;
    job_ = backends::render_job(experiment_, fields_, installation_.checkout, shape);
    if (options_.dry_run) {
      notes();
      return show();
    }
    if (installation_.checkout.empty()) throw not_installed(fields_, installation_);
    if (place) return process(*place);
    notes();
    return start();
  }

 private:
  void notes() const {
    for (const std::string& note : notes_of(job_)) console_.note(note);
    if (installation_.checkout.empty()) {
      const Error error = not_installed(fields_, installation_);
      console_.note(
          fmt::format("warning: {}: training will need it\n  hint: {}", error.what(), error.hint()));
    }
  }

  std::string files_text() const {
    std::string text;
    for (const backends::JobFile& file : job_.files)
      text += fmt::format("\n# {}\n{}", file.path.string(), file.text);
    return text;
  }

  int show() const {
    const std::vector<std::string> command = backends::full_command(job_, installation_);
    if (options_.json) {
      nlohmann::json json{{"framework", job_.framework},
                          {"command", command},
                          {"environment", environment()},
                          {"files", nlohmann::json::object()},
                          {"not_passed_on", job_.dropped},
                          {"warnings", job_.warnings},
                          {"notes", job_.notes},
                          {"checkout", installation_.checkout.string()},
                          {"output_dir", experiment_.output_dir().string()},
                          {"processes_per_node", processes()},
                          {"nodes", options_.ranks.nodes()}};
      for (const backends::JobFile& file : job_.files) json["files"][file.path.string()] = file.text;
      console_.write(json_text(json) + "\n");
      return 0;
    }
    std::string text =
        fmt::format("{} trains {}; each of {} process{} on this machine runs\n\n  ", job_.title,
                    experiment_.output_dir().string(), processes(), processes() == 1 ? "" : "es");
    const std::size_t before = text.size();
    for (const auto& [name, value] : environment())
      text += fmt::format("{}={} ", name, shown_value(name, value));
    for (const auto& [name, value] : experiment_.env)
      text += fmt::format("{}={} ", name, shown_value(name, value));
    if (text.size() > before) text += "\\\n  ";
    console_.print(text + launch::shell_line(command) + "\n" + files_text());
    return 0;
  }

  std::map<std::string, std::string> environment() const {
    std::map<std::string, std::string> all = job_.required;
    all.insert(job_.environment.begin(), job_.environment.end());
    // these words are placeholders, which process() replaces
    if (job_.process_per_node && options_.ranks.nodes() > 1) {
      all["JAX_COORDINATOR_IP"] = "<MASTER_ADDR>";
      all["JAX_COORDINATOR_PORT"] = "<MASTER_PORT>";
    }
    return all;
  }
  std::int64_t processes() const { return job_.process_per_node ? 1 : options_.ranks.here().value_or(1); }

  // Runs this process as one of the job's processes.
  int process(const comm::JobEnvironment& place) const {
    apply_environment(experiment_);
    // sets JAX's variables from torchrun's variables
    if (job_.process_per_node && place.world > place.local_world) {
      setenv("JAX_COORDINATOR_IP", place.master_address.c_str(), 1);
      setenv("JAX_COORDINATOR_PORT", std::to_string(place.master_port).c_str(), 1);
      setenv("NNODES", std::to_string(place.world / place.local_world).c_str(), 1);
      setenv("NODE_RANK", std::to_string(place.host).c_str(), 1);
    }
    if (job_.process_per_node && place.local_world > 1 && place.local_rank > 0)
      return 0;  // the node's first process uses all of the node's devices
    backends::ProcessPlace mine{.rank = place.rank, .world = place.world, .local_world = place.local_world};
    if (job_.process_per_node && place.local_world > 1) {
      mine = {
          .rank = place.rank / place.local_world, .world = place.world / place.local_world, .local_world = 1};
    }
    return backends::run_process(job_, installation_, experiment_, mine, options_.quiet);
  }

  int start() const {
    apply_environment(experiment_);
    launch::LocalLaunch launch = options_.ranks.start(static_cast<int>(processes()));
    const RunFolder folder = run_folder_of(experiment_);
    // A single process shows its output, so the launcher also writes the output to a file. Each of several
    // processes writes a file itself (run_process).
    if (processes() == 1) {
      launch.output_file = [folder, module = experiment_.module_name](int rank) {
        return folder.rank_logs(module, rank) / "output.log";
      };
    }
    const comm::Socket nothing(options_.quiet || options_.json ? open("/dev/null", O_WRONLY | O_CLOEXEC)
                                                               : -1);
    if (nothing.valid()) launch.output = launch.error = nothing.fd();
    const launch::LaunchResult result = launch::run_local(launch);
    if (result.failed_rank >= 0) console_.note("error: " + result.failure);
    if (result.exit_code == 0) report(folder);
    return result.exit_code;
  }

  // Reports the progress of the job from the run's files.
  void report(const RunFolder& folder) const {
    double step = 0, loss = 0;
    if (Env::posix().status(folder.metrics_file())) {
      read_metrics_line(last_line(folder.metrics_file()), [&](std::string_view key, double value) {
        if (key == "iteration") step = value;
        if (key == "lm_loss") loss = value;
      });
    }
    if (options_.json) {
      console_.write(json_text(nlohmann::json{{"framework", job_.framework},
                                              {"last_step", static_cast<std::int64_t>(step)},
                                              {"last_loss", loss},
                                              {"output_dir", experiment_.output_dir().string()}}) +
                     "\n");
    } else if (step > 0) {
      console_.print(fmt::format("done after iteration {:.0f}, loss {:.4f}\n", step, drop_nan_sign(loss)));
    } else {
      console_.note(
          fmt::format("warning: {} succeeded, but its log has no step that Primus can read", job_.title));
    }
  }

  const config::Experiment& experiment_;
  const ExternalOptions& options_;
  Console& console_;
  launch::Surroundings surroundings_;
  config::BackendFields fields_;
  Installation installation_;
  ExternalJob job_;
};

}  // namespace

void check_external(const config::Experiment& experiment, std::int64_t nodes, std::int64_t ranks_per_node) {
  job_of_size(experiment, fields_of(experiment), nodes, ranks_per_node);
}

ExternalNotes notes_on_external(const config::Experiment& experiment, std::int64_t nodes,
                                std::int64_t ranks_per_node) {
  const config::BackendFields fields = fields_of(experiment);
  const ExternalJob job = job_of_size(experiment, fields, nodes, ranks_per_node);
  const config::Value* const image = fields.keys().find("amd_image");
  return {.notes = notes_of(job),
          .process_per_node = job.process_per_node ? job.title : "",
          .amd_image = image ? image->text : "",
          .deaf = job.saves_at_warning ? "" : job.title};
}

int run_external(const config::Experiment& experiment, const ExternalOptions& options, Console& console) {
  return External(experiment, options, console).run();
}

}  // namespace primus::cli
