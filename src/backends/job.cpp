#include "backends/job.h"

#include <fmt/format.h>

namespace primus::backends {

ExternalJob render_job(const config::Experiment& experiment, const config::BackendFields& fields,
                       const Path& checkout, const JobShape& shape) {
  if (experiment.framework == "megatron") return render_megatron(experiment, fields, checkout, shape);
  if (experiment.framework == "torchtitan") return render_torchtitan(experiment, fields, checkout, shape);
  if (experiment.framework == "maxtext") return render_maxtext(experiment, fields, checkout, shape);
  throw unsupported(fmt::format("framework {} is no other framework", experiment.framework),
                    "choose megatron, torchtitan or maxtext")
      .at(experiment.provenance_of("framework").origin.location());
}

}  // namespace primus::backends
