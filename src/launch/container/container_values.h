// Checks option values by docker's and podman's rules. Internal to launch; option_values.h is the public
// interface. Thread-safe.
#pragma once

#include "launch/options/value_words.h"

namespace primus::launch::forms {

bool is_bytes(View text);
// Returns the bytes of a text that is_bytes() accepts. Units are powers of 1024, as in docker.
double value_of_bytes(View text);
bool is_cpus(View text);
bool is_duration(View text);
bool is_range(View text);
bool is_ulimit(View text);
bool is_expose(View text);
bool is_address(View given);
bool is_publish(View text);
bool is_host(View text);
bool is_mac(View text);
bool is_device(View text);
bool is_device_rule(View text);
bool is_of_device(View text, bool (*fits)(View));
bool is_mount(View text);
bool is_volume(View text);
bool is_container_name(View text);
bool is_capability(View text);
bool is_gpus_of_docker(View text);
// Returns whether `text` is NAME[:TAG][@DIGEST] with an optional registry. Accepts a runtime's files and
// transports ("a.sif", "docker://...") without further checks.
bool is_image(View text);
bool is_platform(View text);
bool is_umask(View text);

}  // namespace primus::launch::forms
