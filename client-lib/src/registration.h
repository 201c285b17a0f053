// What tl_register and the array calls share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client-lib/src/channel.h"
#include "common/base/status.h"
#include "common/protocol/session.h"

namespace tensorlane::client {

// InvalidArgument when it is empty, longer than kMaxName or not printable (common/base/text.h). `kind`: "a tensor".
Status check_name(const char* kind, const std::string& name);
// InvalidArgument unless 1..kMaxElements.
Status check_count(const std::string& name, std::uint64_t elements);

// The bodies of the kRegister packets of a group, at least one tensor.
std::vector<std::vector<std::byte>> registration_packets(const std::string& group,
                                                         std::span<const protocol::TensorBody> tensors);
// The ids out of the answer to it. Corrupt unless there are `count`.
Result<std::vector<std::uint32_t>> registered_ids(const Message& answer, std::size_t count);

}  // namespace tensorlane::client
