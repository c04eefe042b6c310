// A simulated machine for tests: its variables, and its device and system files in a folder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "launch/plan.h"

namespace primus::test {

struct Machine {
  std::map<std::string, std::string> variables;
  TemporaryFolder folder;
  uid_t user = 1000;

  launch::Surroundings surroundings() const {
    launch::Surroundings result;
    result.variable = [this](const std::string& name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
    };
    result.variable_names = [this] {
      std::vector<std::string> names;
      for (const auto& [name, value] : variables) names.push_back(name);
      return names;
    };
    result.root = folder.path();
    result.program = "/opt/primus/bin/primus";
    result.user = result.group = user;
    return result;
  }

  void file(const std::string& name, const std::string& content = {}) const {
    const Path path = folder.path() / name;
    make_folders(path.parent_path());
    write_file(path, content);
  }

  void nvidia_gpus(int count) const {
    for (int i = 0; i < count; ++i) {
      const std::string bus = "0000:0" + std::to_string(i + 1) + ":00.0";
      file("dev/nvidia" + std::to_string(i));
      file("proc/driver/nvidia/gpus/" + bus + "/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n");
      file("sys/bus/pci/devices/" + bus + "/numa_node", std::to_string(i % 2) + "\n");
    }
    file("dev/nvidiactl");
    file("dev/nvidia-uvm");
  }

  // Node 0 of KFD, the AMD kernel driver, is the CPU.
  void amd_gpus(int count, const std::string& product = "AMD Instinct MI300X OAM\n") const {
    file("dev/kfd");
    make_folders(folder.path() / "dev/dri");
    const std::string nodes = "sys/class/kfd/kfd/topology/nodes/";
    file(nodes + "0/properties", "cpu_cores_count 96\nsimd_count 0\nlocation_id 0\ndomain 0\n");
    for (int i = 1; i <= count; ++i) {
      const int location = i << 8;
      file(nodes + std::to_string(i) + "/properties",
           "cpu_cores_count 0\nsimd_count 1216\nlocation_id " + std::to_string(location) + "\ndomain 0\n");
      const std::string device = "sys/bus/pci/devices/0000:0" + std::to_string(i) + ":00.0/";
      file(device + "numa_node", "1\n");
      file(device + "product_name", product);
    }
  }
};

}  // namespace primus::test
