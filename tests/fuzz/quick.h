// For fuzz targets whose inputs mostly end in an exception. AddressSanitizer cleans up its fake stacks at
// each exception, which takes ten times as long as the test of the input. Without fake stacks,
// AddressSanitizer does not detect uses of dead stack frames, but still detects all other errors. Include
// this once per program; it overrides the runtime's weak symbol.
#pragma once

extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=0"; }
