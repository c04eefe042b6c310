#include "backends/job.h"

#include "backends/backend.h"

namespace primus::backends {

ExternalJob render_job(const config::Experiment& experiment, const config::BackendFields& fields,
                       const Path& checkout, const JobShape& shape) {
  const std::string place = experiment.provenance_of("framework").origin.location();
  return backend_of(experiment.framework, place).render(experiment, fields, checkout, shape);
}

}  // namespace primus::backends
