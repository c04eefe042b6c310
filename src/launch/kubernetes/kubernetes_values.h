// Checks option values by Kubernetes' rules. Internal to launch; option_values.h is the public interface.
// Thread-safe.
#pragma once

#include "launch/options/value_words.h"

namespace primus::launch::forms {

bool is_quantity(View text);
// Returns the value of a valid quantity: bytes of "16Gi", cores of "500m".
double value_of_quantity(View text);
bool is_dns_name(View text);
bool is_label_name(View text);
bool is_resource_name(View text);
bool is_pod_volume(View text);
bool is_secret_ref(View text);

}  // namespace primus::launch::forms
