// A simulated machine for tests: a folder with its own proc/, sys/, etc/ and dev/, tools as shell scripts, an
// environment, and file systems of any size.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "base/temporary_folder.h"
#include "safe/preflight/machine.h"

namespace primus::preflight::test {

class FakeMachine {
 public:
  FakeMachine() {
    std::filesystem::create_directories(tools());
    set("PATH", tools().string());
  }

  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  const Path& root() const { return root_.path(); }
  Path tools() const { return folder_.path() / "bin"; }

  void write(const std::string& name, const std::string& text) {
    const Path file = root().string() + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(root().string() + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void replace(const std::string& name, const std::string& from, const std::string& to) {
    std::string text = read(name);
    const std::size_t at = text.find(from);
    if (at == std::string::npos) throw std::runtime_error(name + " does not hold " + from);
    write(name, text.replace(at, from.size(), to));
  }
  void remove(const std::string& name) { std::filesystem::remove_all(root().string() + name); }
  void link(const std::string& name, const std::string& target) {
    const Path file = root().string() + name;
    std::filesystem::create_directories(file.parent_path());
    std::filesystem::remove(file);
    std::filesystem::create_symlink(target, file);
  }
  // Adds a tool that runs this script.
  void tool(const std::string& name, const std::string& script) {
    const Path file = tools() / name;
    std::ofstream(file) << "#!/bin/sh\nPATH=/usr/bin:/bin\n" << script << "\n";
    ::chmod(file.c_str(), 0755);
  }
  void set(const std::string& variable, const std::string& value) { environment_[variable] = value; }
  void set_space(const std::string& name, std::optional<Space> space) { spaces_[name] = space; }
  void set_clock(const ClockState& clock) { clock_ = clock; }
  void set_wall_clock(double seconds) { wall_clock_ = seconds; }

  // Returns the machine in its current state. The FakeMachine must outlive it.
  std::shared_ptr<const Machine> machine(
      std::chrono::milliseconds command_timeout = std::chrono::seconds(20)) const {
    class Shown final : public Machine {
     public:
      Shown(const FakeMachine& fake, MachineOptions options) : Machine(std::move(options)), fake_(fake) {}
      std::optional<Space> space(std::string_view name) const override {
        // Uses the innermost folder that has a space.
        std::optional<Space> best;
        std::size_t length = 0;
        for (const auto& [folder, space] : fake_.spaces_) {
          if (!(name == folder || folder == "/" || name.starts_with(folder + "/")) || folder.size() < length)
            continue;
          best = space;
          length = folder.size();
        }
        return best;
      }
      ClockState clock() const override { return fake_.clock_; }
      double wall_clock() const override { return fake_.wall_clock_; }

     private:
      const FakeMachine& fake_;
    };
    return std::make_shared<Shown>(
        *this, MachineOptions{.root = root(),
                              .environment = [environment = environment_](
                                                 const std::string& name) -> std::optional<std::string> {
                                const auto found = environment.find(name);
                                if (found == environment.end()) return std::nullopt;
                                return found->second;
                              },
                              .variables =
                                  [environment = environment_] {
                                    std::vector<std::string> names;
                                    for (const auto& [name, value] : environment) names.push_back(name);
                                    return names;
                                  },
                              .command_timeout = command_timeout});
  }

 private:
  primus::test::TemporaryFolder folder_;  // has the tools
  // This folder has hundreds of small files. It is in memory if possible.
  primus::test::TemporaryFolder root_{::access("/dev/shm", W_OK) == 0 ? Path("/dev/shm") : folder_.path()};
  std::map<std::string, std::string> environment_;
  std::map<std::string, std::optional<Space>> spaces_;
  ClockState clock_{.known = true, .synchronised = true, .source = "chronyc"};
  double wall_clock_ = 1.8e9;
};

// A healthy node of a cluster: two sockets, eight NVIDIA GPUs, eight InfiniBand ports. Rank 0's machine is
// 10.0.0.1.
void make_nvidia_node(FakeMachine& fake);
// A healthy node with eight AMD GPUs and RDMA over Ethernet.
void make_amd_node(FakeMachine& fake);
// A small, healthy machine without a GPU.
void make_cpu_node(FakeMachine& fake);

}  // namespace primus::preflight::test
