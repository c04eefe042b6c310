#include "base/system/rank_waits.h"

#include <chrono>

namespace primus {
namespace {

thread_local double waited = 0;
thread_local int depth = 0;  // number of living RankWait objects

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double seconds_waited_for_ranks() { return waited; }

RankWait::RankWait() : began_(depth++ == 0 ? now() : 0) {}

RankWait::~RankWait() {
  if (--depth == 0) waited += now() - began_;
}

}  // namespace primus
