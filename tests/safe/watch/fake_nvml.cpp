// A library with NVML's functions for tests. Its values are those of the file in PRIMUS_FAKE_NVML_VALUES:
// lines "name value". A line "xid N" is an event that is reported once.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace {

int reported = 0;

// Returns whether the file has the value of this name; of several, number `place`.
bool value_of(const char* name, unsigned long long& value, int place = 0) {
  const char* const path = std::getenv("PRIMUS_FAKE_NVML_VALUES");
  std::ifstream file(path ? path : "");
  std::string key;
  for (unsigned long long number = 0; file >> key >> number;) {
    if (key != name || place-- > 0) continue;
    value = number;
    return true;
  }
  return false;
}

int number(const char* name, unsigned* value) {
  unsigned long long wide = 0;
  if (!value_of(name, wide)) return 3;  // not supported
  *value = static_cast<unsigned>(wide);
  return 0;
}

int gpus[8] = {};

}  // namespace

extern "C" {

struct Event {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &gpus[index % 8];
  return index < 8 ? 0 : 2;
}
// The GPU at the bus address "0000:1B:00.0" has the number that the value "bus" gives.
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  unsigned long long index = 0;
  if (std::strcmp(bus, "0000:1B:00.0") != 0 || !value_of("bus", index)) return 6;  // not found
  *device = &gpus[index % 8];
  return 0;
}
int nvmlDeviceGetIndex(void* device, unsigned* index) {
  *index = static_cast<unsigned>(static_cast<int*>(device) - gpus);
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* id, void** device) {
  *device = &gpus[0];
  return std::strcmp(id, "GPU-abc") == 0 ? 0 : 2;
}
int nvmlDeviceGetTotalEccErrors(void*, int kind, int, unsigned long long* count) {
  return value_of(kind == 1 ? "uncorrected" : "corrected", *count) ? 0 : 3;
}
int nvmlDeviceGetTemperature(void*, int, unsigned* value) { return number("temperature", value); }
int nvmlDeviceGetClockInfo(void*, int, unsigned* value) { return number("clock", value); }
int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* value) { return number("largest_clock", value); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  return value_of("throttle", *reasons) ? 0 : 3;
}
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* value) { return number("width", value); }
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* value) { return number("largest_width", value); }
int nvmlEventSetCreate(void** set) {
  *set = &gpus[0];
  reported = 0;
  return 0;
}
int nvmlEventSetFree(void*) { return 0; }
int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) { return 0; }
int nvmlEventSetWait_v2(void*, Event* event, unsigned) {
  unsigned long long xid = 0;
  if (!value_of("xid", xid, reported)) return 10;  // no event in time
  ++reported;
  *event = {&gpus[0], 8, xid, 0, 0};
  return 0;
}
}
