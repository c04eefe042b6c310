// A bundle: one compressed archive with all that 'primus postmortem' reads of a run, for another machine.
//
//   bundle.json         format, folder of the run, host and time of the bundle
//   report.txt          the diagnosis
//   run/                the records of the run, in the layout of docs/formats/run-folder.md
//   kernel.log          the kernel's log of the machine that made the bundle, if a rank ran there
//   logs/N-NAME         the files of --log
//
// Values that are secrets by their name or form are replaced (base/text/secrets.h). A long file is cut
// to its end. It has the events of each rank's last process, with its last 200 steps.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

struct BundleContent {
  Path run;
  bool running = false;  // whether the run still trains
  ShownState shown = {};
  std::vector<Path> logs = {};
  std::string kernel_log = {};  // empty: none
  std::string report = {};
};

struct Bundle {
  std::string archive;  // the bytes of the .tar.gz file
  std::int64_t files = 0;
  std::vector<std::string> notes = {};  // what is not in the bundle, and why
};

// Packs the run. Files that cannot be read become notes.
Bundle pack(const BundleContent& content);

// A bundle that was extracted into a folder.
struct OpenedBundle {
  Path run;                     // a copy of the run's folder
  std::string name;             // the run's folder where the bundle was made
  bool running = false;         // whether the run still trained then
  ShownState shown = {};        // its state then
  std::vector<Path> logs = {};  // the files of --log
  std::optional<Path> kernel_log = {};
};

// Extracts an untrusted bundle into `folder`. Throws as extract_tar(), and Error(kInvalid) if the archive is
// no bundle.
OpenedBundle open_bundle(const Path& file, const Path& folder);

}  // namespace primus::postmortem
