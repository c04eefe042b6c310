// Makes folders of runs for tests of the dashboard.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "base/files/file.h"
#include "base/temporary_folder.h"

namespace primus::test {

inline std::string step_line(std::int64_t step, double loss) {
  return fmt::format(
      R"({{"iteration":{},"train_iters":1000000,"consumed_samples":{},"lm_loss":{},"learning_rate":0.001,)"
      R"("grad_norm":1.5,"elapsed_time_per_iteration_ms":100,"tokens_per_second_per_device":1000}})"
      "\n",
      step, 8 * step, loss);
}

inline void append(const Path& file, const std::string& text) {
  make_folders(file.parent_path());
  std::ofstream(file, std::ios::app | std::ios::binary) << text;
}

// A rank's event of a step.
inline std::string step_event(int rank, std::int64_t step, double milliseconds) {
  return fmt::format(
      R"({{"event":"step","step":{0},"rank":{1},"time":{0},"before":0,"facts":{{"iteration":{0},)"
      R"("elapsed_time_per_iteration_ms":{2},"data_wait_share":0.25,"memory_used_bytes":1000}}}})"
      "\n",
      step, rank, milliseconds);
}
inline std::string begin_event(int rank, std::int64_t step) {
  return fmt::format(R"({{"event":"begin","step":{},"rank":{},"time":1,"facts":{{"first_iteration":{}}}}})"
                     "\n",
                     step, rank, step);
}

}  // namespace primus::test
