#include "common/protocol/vector_state.h"

namespace tensorlane::protocol {

void clear_upper_halves() {}

}  // namespace tensorlane::protocol
