#include "base/system/user_name.h"

#include <pwd.h>
#include <unistd.h>

#include <array>

#include "base/files/file.h"

namespace primus {

std::string user_name() {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 16384> names{};  // glibc suggests 1024; entries from directory services can be longer
  getpwuid_r(getuid(), &entry, names.data(), names.size(), &found);
  return found && is_plain_name(found->pw_name) ? found->pw_name : "user";
}

}  // namespace primus
