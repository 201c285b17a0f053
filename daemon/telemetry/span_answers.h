// The spans in memory, for whoever asks: questions of the kind "spans".
#pragma once

#include "daemon/ports/question.h"
#include "daemon/telemetry/span_store.h"

namespace tensorlane::telemetry {

// Answers with packed spans (common/spans/packed.h), or, where `count` is true, with {"spans": N}. What may be in the
// question: `seconds` (the last so many), `job` (its name), `most_bytes` of the answer. A user is told of his own jobs,
// and another host of jobs in which it takes part. `store` outlives it, and answers on its own thread.
ports::Answerer span_answerer(SpanStore& store);

}  // namespace tensorlane::telemetry
