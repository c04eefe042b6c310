// A piece of evidence about the end of a run: one line of a log, or one recorded event. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "safe/postmortem/cause.h"

namespace primus::postmortem {

struct Evidence {
  Source source = Source::kLog;
  std::string file;       // name of the file
  std::int64_t line = 0;  // number of the line, from 1; 0: unknown
  double time = 0;        // seconds since 1970; 0: unknown
  int rank = -1;          // the rank that the evidence is about; -1: unknown
  int writer = -1;        // the rank whose clock dated the evidence; -1: unknown
  std::string node = {};  // the node that the evidence is about; empty: unknown
  std::string text = {};  // the text, without control characters and secrets
  std::int64_t pid = 0;   // the process that a kernel's line names; 0: none
  const Cause* cause = nullptr;
};

// The last process of one rank, by its records.
struct RankRecord {
  int rank = 0;
  std::string node;            // host name; empty: unknown
  double began = 0;            // time of its begin
  double last_time = 0;        // time of its newest event
  std::int64_t last_step = 0;  // newest completed step
  std::string phase = {};      // work outside of steps at the end: "saving a checkpoint"; empty: none
  bool ended = false;          // whether it recorded its end
  double ahead = 0;            // seconds by which its clock was ahead of the reference rank's, and already
                               // subtracted from its times
  std::int64_t pid = 0;        // number of its process, by its flight recorder; 0: unknown
};

// A fault after which the supervisor restarted the run.
struct Restart {
  double time = 0;              // of the fault, in seconds since 1970
  std::int64_t step = 0;        // newest completed step
  int rank = -1;                // the rank with the fault; -1: unknown
  std::string cause = {};       // "lost rank" (docs/formats/events.md)
  std::string text = {};        // the error
  std::int64_t checkpoint = 0;  // step of the checkpoint or snapshot from which the run continued
  std::string state_from = {};  // "memory", "partner", "disk", "start"; empty: the run has not continued
  bool of_rank = false;         // a rank restart: the other processes stayed
};

// The state of the run in the words of 'primus runs'.
struct ShownState {
  std::string state = {};   // "crashed"
  std::string reason = {};  // "disk full"; empty: none
  std::string next = {};    // of a run that waits or is restarted: "starts again in 8 s"; else empty
};

// Everything that was read.
struct CaseFile {
  std::string run;       // folder of the run
  bool running = false;  // whether a process still holds the run's lock
  ShownState shown = {};
  std::string state = {}, reason = {};     // recorded ending: "failed", "disk full"; empty: none is recorded
  std::int64_t step = 0, saved_step = -1;  // newest step, step of the newest complete checkpoint (-1: none)
  std::vector<RankRecord> ranks = {};
  std::vector<Evidence> evidence = {};
  std::vector<Restart> restarts = {};   // by the supervisor, the oldest first
  std::vector<std::string> notes = {};  // what could not be read, and why
  int world = 0;                        // ranks of the job; 0: unknown
  std::vector<std::string> hosts = {};  // nodes of the job in the order in which a scheduler lists them
  std::map<std::string, std::string, std::less<>> pods = {};  // nodes of Kubernetes' pods
};

}  // namespace primus::postmortem
