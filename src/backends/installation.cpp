#include "backends/installation.h"

#include <fmt/format.h>

#include "base/error.h"
#include "launch/dependency_folder.h"

namespace primus::backends {
namespace {

std::string text_of(const config::BackendFields& fields, std::string_view key) {
  const config::Value* value = fields.keys().find(key);
  return value ? value->text : std::string();
}

bool is_checkout(const config::BackendFields& fields, const Path& folder) {
  std::error_code error;
  return std::filesystem::is_regular_file(folder / text_of(fields, "probe"), error);
}

}  // namespace

Installation find_installation(const config::BackendFields& fields,
                               const std::optional<std::string>& backend_path,
                               const launch::Surroundings& surroundings) {
  Installation result;
  const std::string name = text_of(fields, "checkout");
  for (const auto& [chosen, how] : {std::pair(backend_path, "--backend_path"),
                                    std::pair(surroundings.setting("BACKEND_PATH"), "BACKEND_PATH")}) {
    if (!chosen || chosen->empty()) continue;
    if (!is_checkout(fields, *chosen)) {
      throw invalid(fmt::format("{} '{}' is not a checkout of {}: it has no {}", how, *chosen,
                                text_of(fields, "title"), text_of(fields, "probe")),
                    "name the folder that was cloned");
    }
    result.checkout = std::filesystem::absolute(*chosen).lexically_normal();
    break;
  }
  const Path folder = launch::dependency_folder(surroundings);
  if (result.checkout.empty()) {
    for (const Path& candidate : {folder / name, Path("third_party") / name}) {
      if (is_checkout(fields, candidate)) {
        result.checkout = std::filesystem::absolute(candidate).lexically_normal();
        break;
      }
      result.looked_in.push_back(candidate.string());
    }
  }
  std::error_code error;
  if (const auto activate = surroundings.setting("VENV_ACTIVATE")) {
    result.python = (Path(*activate).parent_path() / "python3").string();
  } else if (const Path own = folder / (name + ".venv") / "bin" / "python3";
             std::filesystem::exists(own, error)) {
    result.python = own.string();
  }
  return result;
}

Error not_installed(const config::BackendFields& fields, const Installation& installation) {
  const std::string title = text_of(fields, "title");
  return {
      ErrorKind::kDependency,
      fmt::format("{} is not on this machine: looked in {}", title, fmt::join(installation.looked_in, ", ")),
      fmt::format(
          "'primus deps sync {}' fetches the version that Primus was checked with; --backend_path FOLDER "
          "names a checkout",
          fields.framework())};
}

}  // namespace primus::backends
