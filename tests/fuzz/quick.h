// For fuzz targets whose inputs mostly end in an exception. AddressSanitizer cleans up its fake stacks at
// each exception. The cleanup takes ten times as long as the test of the input, so this header disables fake
// stacks. AddressSanitizer then misses uses of stack variables after return, but no other error. Include this
// header once per program: it overrides the runtime's weak symbol.
#pragma once

extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=0"; }
