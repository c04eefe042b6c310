// For targets whose inputs mostly end in an exception: AddressSanitizer tidies up its fake stacks at each of
// them, which takes ten times as long as the input. Without fake stacks only the use of a dead frame goes
// unseen; everything else is still found. Include it once in a program (the runtime's own is a weak symbol).
#pragma once

extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=0"; }
