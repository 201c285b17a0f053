// Control messages of other daemons: the envelope, and every kind of list that a body may hold. What is accepted is
// encoded to bytes that are accepted with the same meaning.
#include "common/base/text.h"
#include "daemon/control/agreement.h"
#include "daemon/control/job_progress.h"
#include "daemon/control/message.h"
#include "daemon/control/registration.h"
#include "daemon/control/rendezvous.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using control::Message;
using nlohmann::json;

void check_lists(const json& array) {
  if (const auto tensors = control::tensors_from_json(array)) {
    const json sent = control::tensors_to_json(*tensors);
    const auto back = control::tensors_from_json(sent);
    TL_ASSERT(back && control::tensors_to_json(*back) == sent);
    const control::RankGroup group{0, *tensors};
    const Status status = control::check_group("job", "group", group, 4);
    if (!status.ok()) expect_explained(status);
    TL_ASSERT(!status.ok() || control::compare_groups("job", "group", group, {1, *back}).ok());
  }
  if (const auto tensors = control::plan_tensors_from_json(array)) {
    const json sent = control::plan_tensors_to_json(*tensors);
    const auto back = control::plan_tensors_from_json(sent);
    TL_ASSERT(back && control::plan_tensors_to_json(*back) == sent);
  }
  if (const auto claims = control::claims_from_json(array)) {
    TL_ASSERT(control::claims_from_json(control::claims_to_json(*claims)).has_value());
    control::Gathering gathering("job");
    const Status status = gathering.arrive("h0", *claims);
    if (!status.ok()) expect_explained(status);
    if (status.ok() && gathering.complete()) TL_ASSERT(gathering.roster().world_size == claims->size());
  }
  for (const std::uint32_t world_size : {1u, 4u}) {
    if (const auto roster = control::roster_from_json(world_size, array)) {
      const auto back = control::roster_from_json(world_size, control::roster_to_json(*roster));
      TL_ASSERT(back && back->hosts.size() == roster->hosts.size());
      TL_ASSERT(roster->index_of(roster->host_of(world_size - 1)) == roster->index_of_rank(world_size - 1));
    }
  }
  if (const auto settings = control::settings_from_json(array))
    TL_ASSERT(control::settings_from_json(control::settings_to_json(*settings)) == settings);
  if (const auto standstill = control::standstill_from_json(array, 4)) {
    const json sent = control::standstill_to_json(*standstill);
    const auto back = control::standstill_from_json(sent, 4);
    TL_ASSERT(back && back->to.value < 4 && control::standstill_to_json(*back) == sent);
  }
  control::JobProgress progress(HostIndex(0), {{BitsPerSecond()}, {BitsPerSecond()}}, {seconds(1), seconds(2)});
  progress.heard(HostIndex(1), array, Time(1));
  const Status status = control::status_from_json(array);
  TL_ASSERT(control::status_from_json(control::status_to_json(status)) == status);
}

void check(std::span<const std::byte> bytes) {
  const Result<Message> message = control::decode(bytes);
  if (!message.ok()) {
    expect_explained(message.status());
    TL_ASSERT(message.status().code() == Code::kCorrupt || message.status().code() == Code::kVersionMismatch);
    return;
  }
  TL_ASSERT(message->type >= control::MessageType::kJoin && message->type <= control::kLastMessageType);
  const std::vector<std::uint8_t> sent = control::encode(*message);
  const Result<Message> back = control::decode(std::as_bytes(std::span(sent)));
  TL_ASSERT(sent.size() > control::kMaxWireMessage || (back.ok() && control::encode(*back) == sent));
  check_lists(message->body);
  control::ItemReader binary(message->body), text(message->body);
  TL_ASSERT(binary.bytes(64).size() == (binary.ok() ? 64u : 0u));
  TL_ASSERT(is_printable(text.text(64)));
  for (const json& item : message->body) {
    if (item.is_array()) check_lists(item);
  }
}

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tensorlane::fuzz::check({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
