// Option tables of Slurm's srun and sbatch, and of `docker run` and `podman run`, according to their manuals.
#pragma once

#include "launch/options/foreign_options.h"

namespace primus::launch {

ForeignTable slurm_options();
ForeignTable container_options();

}  // namespace primus::launch
