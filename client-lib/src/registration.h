// What tl_register and the array calls share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client-lib/src/channel.h"
#include "client-lib/src/process_set.h"
#include "common/base/status.h"
#include "common/protocol/session.h"

namespace tensorlane::client {

// InvalidArgument when it is empty, longer than kMaxName or not printable (common/base/text.h). `kind`: "a tensor".
Status check_name(const char* kind, const std::string& name);
// What the job calls what the program has given this name for a set. Errors: as check_name(), of both names.
Result<std::string> name_in_job(const ProcessSet& set, const char* kind, const std::string& given);
// InvalidArgument unless 1..kMaxElements.
Status check_count(const std::string& name, std::uint64_t elements);

// The bodies of the kRegister packets of a group of this name in the job, at least one tensor.
std::vector<std::vector<std::byte>> registration_packets(const ProcessSet& set, const std::string& group,
                                                         std::span<const protocol::TensorBody> tensors);
// The ids out of the answer to it. Corrupt unless there are `count`.
Result<std::vector<std::uint32_t>> registered_ids(const Message& answer, std::size_t count);

}  // namespace tensorlane::client
