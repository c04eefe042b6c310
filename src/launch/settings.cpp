#include "launch/settings.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>

#include "base/text/secrets.h"
#include "base/text/suggest.h"
#include "config/loading/inherit.h"
#include "config/problems.h"
#include "config/readers.h"
#include "config/value.h"
#include "launch/container/container_checks.h"
#include "launch/node/node.h"
#include "launch/options/assignment.h"
#include "launch/options/tables.h"

namespace primus::launch {
namespace {

using config::Member;
using config::Problems;
using config::Value;
using Kind = Value::Kind;

// Words that are truth values in YAML 1.1, which AMD Primus reads.
constexpr std::string_view kTruths[] = {"yes", "no", "on", "off"};

Error expected(const Value& value, std::string_view key, std::string_view what) {
  const bool secret = is_secret_name(key);
  const bool is_truth = std::ranges::find(kTruths, value.text) != std::end(kTruths);
  return config::error_at(value.origin,
                          fmt::format("{} must be {}, not {}", key, what, secret ? kRedacted : value.show()),
                          is_truth ? "write true or false: yes, no, on and off are text" : "", value.width());
}

std::string text_of(const Value& value, std::string_view key) {
  if (value.is_null()) return {};
  if (!value.is_scalar()) throw expected(value, key, "text");
  return value.text;
}

bool bool_of(const Value& value, std::string_view key) {
  if (value.kind == Kind::kBool) return value.boolean;
  const auto truth = value.is_scalar() ? truth_of(value.text) : std::nullopt;
  if (!truth) throw expected(value, key, "true or false");
  return *truth;
}

int number_of(const Value& value, std::string_view key, int low, int high) {
  if (value.kind != Kind::kInt || value.integer < low || value.integer > high) {
    throw expected(value, key, fmt::format("a number from {} to {}", low, high));
  }
  return static_cast<int>(value.integer);
}

std::vector<const Value*> items_of(const Value& value) {
  std::vector<const Value*> items;
  if (value.is_list()) {
    for (const Value& item : value.items) items.push_back(&item);
  } else if (!value.is_null()) {
    items.push_back(&value);
  }
  return items;
}

std::vector<std::string> assignments_of(const Value& value, std::string_view key) {
  std::vector<std::string> list;
  if (value.is_map()) {
    for (const Member& member : value.members) {
      if (!is_variable_name(member.key)) {
        throw config::error_at(member.origin, fmt::format("'{}' is not the name of a variable", member.key));
      }
      list.push_back(member.key + "=" + text_of(member.value, member.key));
    }
    return list;
  }
  for (const Value* item : items_of(value)) {
    const std::string text = text_of(*item, key);
    try {
      parse_assignment(text, key);
    } catch (const Error& error) {
      throw config::error_at(item->origin, error.what(), error.hint());
    }
    list.push_back(text);
  }
  return list;
}

// Returns a path from the settings. Relative paths in a file are relative to the file's folder.
Path path_of(const Value& value, std::string_view key) {
  const Path path = text_of(value, key);
  if (path.empty() || path.is_absolute() || !value.origin.source || !value.origin.source->is_file)
    return path;
  return (Path(value.origin.source->name).parent_path() / path).lexically_normal();
}

std::vector<Path> paths_of(const Value& value, std::string_view key) {
  std::vector<Path> paths;
  for (const Value* item : items_of(value)) paths.push_back(path_of(*item, key));
  return paths;
}

using Handler = std::function<void(const Value& value, std::string_view key)>;
using Handlers = std::map<std::string, Handler, std::less<>>;

void read_section(const Value& section, std::string_view name, const Handlers& handlers, Problems& problems,
                  const std::function<bool(const Member&)>& other = {}) {
  if (section.is_null()) return;
  if (!section.is_map()) {
    problems.add(expected(section, name, "a map of settings"));
    return;
  }
  for (const Member& member : section.members) {
    problems.collect([&] {
      if (const auto handler = handlers.find(member.key); handler != handlers.end()) {
        if (!member.value.is_null()) handler->second(member.value, member.key);
        return;
      }
      if (other && other(member)) return;
      std::vector<std::string_view> known;
      for (const auto& [key, unused] : handlers) known.push_back(key);
      const std::string near = did_you_mean(member.key, known);
      throw config::error_at(member.origin, fmt::format("{} has no setting '{}'", name, member.key),
                             near.empty() ? fmt::format("it has {}", fmt::join(known, ", ")) : near,
                             member.key.size());
    });
  }
}

Handler to(bool& target) {
  return [&](const Value& v, std::string_view key) { target = bool_of(v, key); };
}
Handler to(std::string& target) {
  return [&](const Value& v, std::string_view key) { target = text_of(v, key); };
}
Handler to(std::optional<std::string>& target) {
  return [&](const Value& v, std::string_view key) {
    const std::string text = text_of(v, key);
    if (!text.empty()) target = text;
  };
}
Handler to(std::optional<int>& target, int low, int high) {
  return [&, low, high](const Value& v, std::string_view key) { target = number_of(v, key, low, high); };
}
Handler to(std::string& target, Form form) {
  return [&target, form](const Value& v, std::string_view key) {
    const std::string text = text_of(v, key);
    if (const auto wanted = text.empty() ? std::nullopt : misfit(form, text)) throw expected(v, key, *wanted);
    target = text;
  };
}
Handler to(std::vector<std::string>& target, Form form) {
  return [&target, form](const Value& v, std::string_view key) {
    std::vector<std::string> texts;
    for (const Value* item : items_of(v)) {
      texts.push_back(text_of(*item, key));
      if (const auto wanted = misfit(form, texts.back())) {
        // The message omits the value, because it may be a secret.
        throw config::error_at(item->origin, fmt::format("{} must be {}", key, *wanted));
      }
    }
    target = std::move(texts);
  };
}
Handler to_one_of(std::string& target, std::vector<std::string_view> words) {
  return [&target, words = std::move(words)](const Value& v, std::string_view key) {
    const std::string text = text_of(v, key);
    if (std::find(words.begin(), words.end(), text) == words.end()) {
      throw expected(v, key, fmt::format("one of {}", fmt::join(words, ", ")));
    }
    target = text;
  };
}
Handler to_variables(std::vector<std::string>& target) {
  return [&](const Value& v, std::string_view key) { target = assignments_of(v, key); };
}

// Reads a setting for an option of another program. The value true writes the option as a switch, false omits
// the option, and a list repeats it.
bool read_option(ForeignTable table, std::string_view tool, const Member& member,
                 std::vector<GivenOption>& options) {
  const ForeignOption* const known = find_option(table, member.key);
  if (!known) {
    if (const auto near = mistyped(table, member.key)) {
      throw config::error_at(member.origin, fmt::format("{} has no option '{}'", tool, member.key), *near,
                             member.key.size());
    }
  }
  const std::string name = known ? std::string(known->name) : member.key;
  // Whether the option is a switch in at least one of the tools, as "wait: true" is in sbatch.
  const bool is_truth = member.value.kind == Kind::kBool && takes(table, {name, std::nullopt});
  const bool is_switch = known && (known->takes == ForeignOption::Takes::kNothing || is_truth);
  if (member.value.is_map()) throw expected(member.value, member.key, "text or a list");
  if (member.value.is_list() && !member.value.items.empty() && known &&
      known->times == ForeignOption::Times::kOnce) {
    throw expected(member.value, member.key, "one value");
  }
  for (const Value* item : items_of(member.value)) {
    const std::string text = text_of(*item, member.key);
    std::optional<bool> truth;
    if (!item->quoted || is_switch) truth = truth_of(text);
    if (is_switch && !truth && !text.empty()) throw expected(*item, member.key, "true or false");
    const bool words = item->kind == Kind::kBool || is_switch;
    if (known && known->takes == ForeignOption::Takes::kTruth) {
      if (!truth && !text.empty()) throw expected(*item, member.key, "true or false");
      options.push_back({name, truth.value_or(true) ? "true" : "false"});
      continue;
    }
    if (words && !truth.value_or(true)) continue;
    const bool bare = text.empty() || (words && truth.value_or(false));
    if (!bare && known && !takes(table, {name, text})) {
      throw expected(*item, member.key, misfit(known->form, text).value_or("something else"));
    }
    if (bare && !is_switch && known && known->takes == ForeignOption::Takes::kValue)
      continue;  // for example partition: "", which unsets the option
    options.push_back({name, bare ? std::nullopt : std::optional<std::string>(text)});
  }
  return true;
}

// Refuses "rm: false", which read_option() would omit, because the launcher always removes its containers.
void refuse_kept_container(const Member& member) {
  if (member.key != "rm" || !member.value.is_scalar() || truth_of(member.value.text) != false) return;
  throw config::error_at(member.origin, kKeptContainer, "remove rm; log_file keeps the output",
                         member.key.size());
}

Value* find_mutable(Value& map, std::string_view key) {
  for (Member& member : map.members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

// Renames options to their long names, so that a file's "N: 4" replaces an earlier file's "nodes: 1". Refuses
// a file that has both names.
void use_long_names(Value* section, ForeignTable table) {
  if (!section || !section->is_map()) return;
  for (Member& member : section->members) {
    const ForeignOption* const option = member.key.size() == 1 ? find_option(table, member.key) : nullptr;
    if (!option) continue;
    if (const Value* const other = find_mutable(*section, option->name)) {
      throw config::error_at(member.origin,
                             fmt::format("'{}' and '{}' ({}) are the same option", member.key, option->name,
                                         other->origin.describe()),
                             "remove one of them");
    }
    member.key = option->name;
  }
}

// Returns the functions that read each setting of a file's section `direct`. `d` must outlive the handlers.
Handlers direct_handlers(DirectSettings& d) {
  return {
      {"run_mode",
       [&d](const Value& v, std::string_view key) {
         std::string mode;
         to_one_of(mode, {"single", "torchrun"})(v, key);
         d.single = mode == "single";
       }},
      {"script",
       [&d](const Value& v, std::string_view key) {
         // Ignores the name of AMD Primus's Python program, which AMD Primus's files contain and this program
         // replaces.
         const bool own = text_of(v, key) == "primus/cli/main.py" || text_of(v, key).empty();
         d.script = own ? std::string() : path_of(v, key).string();
       }},
      {"env", to_variables(d.environment)},
      {"env_file", [&d](const Value& v, std::string_view key) { d.environment_files = paths_of(v, key); }},
      {"patch", [&d](const Value& v, std::string_view key) { d.patches = paths_of(v, key); }},
      {"hooks", [&d](const Value& v, std::string_view key) { d.hooks = paths_of(v, key); }},
      {"log_file", to(d.log_file)},
      {"numa",
       [&d](const Value& v, std::string_view key) {
         const auto truth = v.is_scalar() ? truth_of(v.text) : std::nullopt;
         if (!truth && text_of(v, key) != "auto") throw expected(v, key, "auto, true or false");
         d.numa = !truth ? Numa::kAuto : *truth ? Numa::kOn : Numa::kOff;
       }},
      {"silent", to(d.silent)},
      {"rank_order",
       [&d](const Value& v, std::string_view key) {
         std::string order;
         to_one_of(order, {"given", "switch", "pipeline"})(v, key);
         d.rank_order = rank_order_of(order);
       }},
      {"topology",
       [&d](const Value& v, std::string_view key) {
         d.topology = text_of(v, key);
         check_network_source(*d.topology);
       }},
      {"nnodes", to(d.nodes, 1, kMaxNodes)},
      {"gpus_per_node", to(d.ranks_per_node, 1, kMaxRanksPerNode)},
      {"master_addr", to(d.master_address)},
      {"master_port", [&d](const Value& v, std::string_view key) {
         d.master_port = static_cast<std::uint16_t>(number_of(v, key, 1, 65535));
       }}};
}

// Returns the functions that read each setting of a file's section `k8s`. `k` must outlive the handlers.
Handlers kubernetes_handlers(KubernetesSettings& k) {
  return {{"kind", to_one_of(k.kind, {"jobset", "pytorchjob"})},
          {"name", to(k.name, Form::kDnsName)},
          {"namespace", to(k.name_space, Form::kDnsName)},
          {"image", to(k.image, Form::kImage)},
          {"service_account", to(k.service_account, Form::kDnsName)},
          {"queue", to(k.queue, Form::kDnsName)},
          {"priority_class", to(k.priority_class, Form::kDnsName)},
          {"program", to(k.program)},
          {"gpu_resource", to(k.gpu_resource)},
          {"rdma_resource", to(k.rdma_resource, Form::kResourceName)},
          {"shm_size", to(k.shared_memory, Form::kQuantity)},
          {"memory", to(k.memory, Form::kQuantity)},
          {"cpus", to(k.cpus, Form::kQuantity)},
          {"topology_key", to(k.placing.topology_key, Form::kLabelName)},
          {"required_topology", to(k.placing.required, Form::kLabelName)},
          {"preferred_topology", to(k.placing.preferred, Form::kLabelName)},
          {"slice_topology", to(k.placing.slice, Form::kLabelName)},
          {"slice_size", to(k.placing.slice_size, 1, kMaxNodes)},
          {"exclusive_topology", to(k.placing.exclusive, Form::kLabelName)},
          {"gate", to_one_of(k.placing.gate, {"none", "pods", "job"})},
          {"nodes", to(k.nodes, 1, kMaxNodes)},
          {"gpus_per_node", to(k.ranks_per_node, 1, kMaxRanksPerNode)},
          {"max_restarts", to(k.max_restarts, 0, 1000)},
          {"env", to_variables(k.environment)},
          {"secrets", to(k.secrets, Form::kSecretRef)},
          {"volumes", to(k.volumes, Form::kPodVolume)}};
}

LauncherSettings read_settings(const Value& document) {
  LauncherSettings s;
  Problems problems;
  const auto sub = [&](std::string_view name, const Handlers& handlers,
                       const std::function<bool(const Member&)>& other = {}) -> Handler {
    return [&problems, name = std::string(name), handlers, other](const Value& section, std::string_view) {
      read_section(section, name, handlers, problems, other);
    };
  };
  const auto to_dry_run = [](bool& target, std::string& at, std::string_view section) -> Handler {
    return [&target, &at, section](const Value& v, std::string_view key) {
      target = bool_of(v, key);
      at = fmt::format("{} has {}.dry_run: true", v.origin.describe(), section);
    };
  };
  const auto switches = [&](std::string_view section, LauncherSettings::Switches& target, Handlers handlers) {
    handlers.emplace("debug", to(target.debug));
    handlers.emplace("dry_run", to_dry_run(target.dry_run, target.dry_run_at, section));
    return handlers;
  };
  const Handlers direct = switches("direct", s.direct_switches, direct_handlers(s.direct));
  const Handlers slurm = switches("slurm", s.slurm_switches,
                                  {{"gpus_per_node", to(s.slurm.ranks_per_node, 1, kMaxRanksPerNode)}});
  ContainerSettings& c = s.container;
  const Handlers container =
      switches("container", s.container_switches,
               {{"runtime", to_one_of(c.runtime, {"auto", "docker", "podman", "apptainer", "singularity"})},
                {"accelerator", to_one_of(c.accelerator, {"auto", "amd", "nvidia", "none"})},
                {"program", to(c.program)},
                {"privileged_set", to(c.privileged_set)},
                {"options", sub("container.options", {}, [&c](const Member& member) {
                   refuse_kept_container(member);
                   return read_option(container_options(), "the container's runtime", member, c.options);
                 })}});
  const Handlers k8s = switches("k8s", s.k8s_switches, kubernetes_handlers(s.k8s));
  read_section(document, "the file",
               {{"main", sub("main", {{"debug", to(s.debug)},
                                      {"dry_run", to_dry_run(s.dry_run, s.dry_run_at, "main")}})},
                {"direct", sub("direct", direct)},
                {"slurm", sub("slurm", slurm,
                              [&s](const Member& member) {
                                return read_option(slurm_options(), "Slurm", member, s.slurm.options);
                              })},
                {"container", sub("container", container)},
                {"k8s", sub("k8s", k8s)}},
               problems);
  problems.throw_if_any();
  return s;
}

// Returns whether users other than `user` and root are in the group, as listed members or by primary group.
// Returns true for a group without an entry. Exception: the process's own group, if `user` has no entry
// either. This happens in a container that runs as a host user. There, the launcher on the host has already
// checked the file.
bool has_other_members(gid_t group, uid_t user) {
  const struct group* const entry = ::getgrgid(group);
  if (!entry) return ::getpwuid(user) != nullptr || group != ::getegid();
  const auto is_other = [user](uid_t member) { return member != user && member != 0; };
  std::vector<std::string> members;
  for (char** name = entry->gr_mem; *name; ++name) members.emplace_back(*name);
  for (const std::string& name : members) {
    const struct passwd* const member = ::getpwnam(name.c_str());
    if (!member || is_other(member->pw_uid)) return true;
  }
  bool found = false;
  ::setpwent();
  while (const struct passwd* const other = ::getpwent()) {
    if (other->pw_gid == group && is_other(other->pw_uid)) found = true;
  }
  ::endpwent();
  return found;
}

// Returns nullopt if the file may be read; otherwise returns the reason for the refusal.
std::optional<std::string> untrusted(const Path& file) {
  struct stat link = {}, status = {};
  if (::lstat(file.c_str(), &link) != 0 || ::stat(file.c_str(), &status) != 0) return std::nullopt;
  const uid_t me = ::geteuid();
  const auto is_trusted = [me](uid_t owner) { return owner == me || owner == 0; };
  if (!is_trusted(link.st_uid) || !is_trusted(status.st_uid)) return "belongs to another user";
  if ((status.st_mode & S_IWOTH) != 0) return "is writable by all users";
  if ((status.st_mode & S_IWGRP) != 0 && has_other_members(status.st_gid, me))
    return "is writable by other members of its group";
  return std::nullopt;
}

}  // namespace

std::optional<bool> truth_of(std::string_view text) {
  for (const std::string_view word : {"true", "True", "1", "yes", "on"}) {
    if (text == word) return true;
  }
  for (const std::string_view word : {"false", "False", "0", "no", "off"}) {
    if (text == word) return false;
  }
  return std::nullopt;
}

LauncherSettings load_settings(const std::vector<std::string>& named, const Surroundings& surroundings) {
  std::vector<Path> files{surroundings.root / "etc/primus/primus.yaml"};
  std::vector<std::string> notes;
  const auto home = surroundings.setting("HOME");
  if (home) files.push_back(Path(*home) / ".primus.yaml");
  const Path project = std::filesystem::current_path() / ".primus.yaml";
  if (!home || !(Env::posix().status(project) && Env::posix().status(files.back()) &&
                 std::filesystem::equivalent(project, files.back()))) {
    if (const auto reason = untrusted(project)) {
      notes.push_back(fmt::format("{} {} and is ignored; '--config {}' reads it", project.string(), *reason,
                                  project.string()));
    } else {
      files.push_back(project);
    }
  }
  const std::size_t usual = files.size();
  for (const std::string& file : named) {
    if (!Env::posix().status(file)) {
      throw invalid(fmt::format("the file '{}' with launcher settings does not exist", file),
                    "--config before '--' names a file like .primus.yaml; to name an experiment, write "
                    "--config after the command");
    }
    files.emplace_back(file);
  }

  Value merged;
  merged.kind = Kind::kMap;
  std::vector<std::string> read;
  const config::ReadVariable variable = surroundings.variable;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Path& file = files[i];
    if (i < usual && !Env::posix().status(file)) continue;
    Value document = config::read_document(file);
    config::expand_variables(document, variable);
    use_long_names(find_mutable(document, "slurm"), slurm_options());
    if (Value* const container = find_mutable(document, "container"); container && container->is_map()) {
      use_long_names(find_mutable(*container, "options"), container_options());
    }
    config::merge(merged, document);
    read.push_back(file.string());
  }
  LauncherSettings settings = read_settings(merged);
  settings.files = std::move(read);
  settings.notes = std::move(notes);
  return settings;
}

}  // namespace primus::launch
